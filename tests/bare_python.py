"""A Python beside this one that has what somebody declares, in the versions of this one, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def bare_python(folder: Path, requirements: Iterable[str]) -> Path:
    """An environment in ``folder``; its Python. The packages are links to those of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for one in closure(requirements):
        for name in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / name).symlink_to(Path(str(one.locate_file(name))))
    return folder / "bin" / "python"


def closure(requirements: Iterable[str]) -> list[Distribution]:
    """What is installed here of that, and of what that requires. Extras that nobody asks for are none of it.

    Raises: PackageNotFoundError; AssertionError where another version is required.
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
