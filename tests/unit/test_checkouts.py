"""A checkout builds with its symbolic links and without them; without, commands that need them say so."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bare_python import ROOT, bare_python, copy_of_checkout, product_files, wheel_of

CONSUMER = """
from stratalog import Cluster
from stratalog.engine.config.settings import reference_toml

reveal_type(Cluster.open("cluster.toml").topics.create("t"))
wrong: int = reference_toml()
"""


def built(kind: str, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A build as pip starts it: ``build_wheel``, ``build_editable``."""
    code = f"import sys; from setuptools import build_meta; build_meta.{kind}(sys.argv[1])"
    return subprocess.run(
        [sys.executable, "-c", code, folder], cwd=source, capture_output=True, text=True, check=False
    )


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if ".dist-info/" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False])
def test_a_wheel_and_one_from_the_sdist_have_every_file(tmp_path: Path, links: bool) -> None:
    source = copy_of_checkout(tmp_path / "source", links=links)
    assert files_of(wheel_of(source, tmp_path / "from-sdist")) == product_files()
    done = built("build_wheel", source, tmp_path / "direct")
    assert done.returncode == 0, done.stderr
    assert files_of(next((tmp_path / "direct").glob("*.whl"))) == product_files()


@pytest.mark.nightly
def test_a_type_checker_sees_the_types_of_an_editable_install(tmp_path: Path) -> None:
    """The install is a path and no import hook, because type checkers and editors would not follow a hook."""
    source = copy_of_checkout(tmp_path / "source")
    done = built("build_editable", source, tmp_path)
    assert done.returncode == 0, done.stderr
    wheel = next(tmp_path.glob("*.whl"))
    [path] = files_of(wheel)
    python = bare_python(tmp_path / "venv", [])
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read(path).decode().strip() == str(source)
        packed.extract(path, next(python.parents[1].glob("lib/python*/site-packages")))

    (tmp_path / "consumer.py").write_text(CONSUMER)
    options = ["--python-executable", python, "--cache-dir", os.devnull, "--config-file", os.devnull]
    command = [sys.executable, "-m", "mypy", *options, "--no-incremental", "consumer.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 1, checked.stderr
    assert checked.stdout.splitlines()[:-1] == [
        'consumer.py:5: note: Revealed type is "stratalog.engine.driver.report.Report"',
        "consumer.py:6: error: Incompatible types in assignment "
        '(expression has type "str", variable has type "int")  [assignment]',
    ]


@pytest.mark.slow
def test_an_editable_install_without_links_says_what_to_do(tmp_path: Path) -> None:
    done = built("build_editable", copy_of_checkout(tmp_path / "source", links=False), tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "an editable install needs symbolic links, and stratalog/engine is not one here: "
        "run `pip install .`, or clone again with `git clone -c core.symlinks=true`\n"
    )
    assert list(tmp_path.glob("*.whl")) == []


@pytest.mark.parametrize("left", ["a text file", "nothing"])
def test_an_import_without_links_says_what_to_do(tmp_path: Path, left: str) -> None:
    """An unpacked sdist has nothing in place of the links."""
    (tmp_path / "stratalog").mkdir()
    (tmp_path / "stratalog" / "__init__.py").write_bytes((ROOT / "stratalog" / "__init__.py").read_bytes())
    if left == "a text file":
        (tmp_path / "stratalog" / "engine").write_text("../engine")
    command = [sys.executable, "-c", "import stratalog"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: stratalog cannot be imported from {tmp_path}, because its symbolic links are missing: "
        f"run `pip install {tmp_path}` and start Python in another folder, "
        "or clone again with `git clone -c core.symlinks=true`"
    )
