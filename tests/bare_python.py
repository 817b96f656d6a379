"""Installations: a wheel in a Python that has only the packages that the wheel declares, in the versions of this
one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def wheel_of_checkout(folder: Path) -> Path:
    """The wheel of this checkout, built from a copy in ``folder``, so that nothing is written into the
    checkout."""
    return wheel_of(copy_of_checkout(folder / "source"), folder)


def copy_of_checkout(folder: Path, *, links: bool = True) -> Path:
    """Copy the sources of this checkout to ``folder``. Without links, each link is a text file with its target, as
    git writes it with ``core.symlinks=false``, and as programs do that unpack an archive without links.
    """
    skipped = shutil.ignore_patterns(".*", "tests", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=skipped)
    for link in _links(folder) if not links else ():
        target = str(link.readlink())
        link.unlink()
        link.write_text(target)
    return folder


def product_files() -> set[str]:
    """The files of this checkout that an installation contains, by their names in a wheel."""
    files = [path for link in _links(ROOT) for path in link.resolve().rglob("*") if path.is_file()]
    parts = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc"}
    return {f"stratalog/{name}" for name in ("__init__.py", "errors.py", "py.typed", *parts)}


def _links(checkout: Path) -> list[Path]:
    return [path for path in (checkout / "stratalog").iterdir() if path.is_symlink()]


def wheel_of(source: Path, folder: Path) -> Path:
    """The wheel of a source tree, built from its sdist, as pip does if there is no wheel. Both stay in ``folder``;
    the tree is written to.
    """
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=source, check=True, capture_output=True)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(next(folder.glob("*.tar.gz"))))
    return next(folder.glob("*.whl"))


def installed(wheel: Path, folder: Path, extras: Sequence[str] = ()) -> Path:
    """An environment in ``folder`` with the wheel, its requirements and these extras. Returns its Python."""
    python = bare_python(folder, requirements_of(wheel, extras))
    before = _names(python)
    _pip("--python", str(python), "install", "--no-compile", str(wheel))
    assert {name.partition("-")[0] for name in _names(python) - before} == {"stratalog"}, "no other name is taken"
    return python


def requirements_of(wheel: Path, extras: Sequence[str] = ()) -> list[str]:
    """The requirements of a wheel, including those of these extras."""
    with zipfile.ZipFile(wheel) as packed:
        metadata = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        declared = message_from_bytes(packed.read(metadata)).get_all("Requires-Dist", [])
    wanted = ["", *extras]
    found = [Requirement(one) for one in declared]
    return [
        f"{one.name}[{','.join(one.extras)}]{one.specifier}"
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in wanted)
    ]


def run(*command: str | Path, folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, which comes first in Python's search path.

    Raises: AssertionError with the command's output if its exit status differs.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STRATALOG_"))}
    environ["PYTHONPATH"] = str(folder)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr + done.stdout
    return done


def bare_python(folder: Path, requirements: Iterable[str]) -> Path:
    """An environment in ``folder``, whose packages are links to those of this one. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for one in closure(requirements):
        for name in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / name).symlink_to(Path(str(one.locate_file(name))))
    return folder / "bin" / "python"


def closure(requirements: Iterable[str]) -> list[Distribution]:
    """The installed distributions that these requirements need, directly or not. Extras are included only if they
    are requested.

    Raises: PackageNotFoundError; AssertionError if another version is required.
    """
    wanted, found = [Requirement(one) for one in requirements], dict[str, Distribution]()
    while wanted:
        requirement = wanted.pop()
        extras = requirement.extras or {""}
        one = distribution(requirement.name)
        assert requirement.specifier.contains(one.version, prereleases=True), (
            f"{requirement}: here is {one.version}"
        )
        if one.name not in found or requirement.extras:
            found[one.name] = one
            needed = [Requirement(each) for each in one.requires or ()]
            wanted += [
                each
                for each in needed
                if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
            ]
    return list(found.values())


def _pip(*argv: str) -> None:
    """Run pip without dependencies and without a network."""
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", *argv, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def _names(python: Path) -> set[str]:
    """The top-level names of the packages of an environment."""
    return {path.name for path in next(python.parents[1].glob("lib/python*/site-packages")).iterdir()}
