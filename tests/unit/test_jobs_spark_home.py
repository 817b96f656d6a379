"""The SPARK_HOME from which Python workers of local sessions import PySpark's compiled modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.jobs.spark_home import compiled_home


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A pip-installed pyspark with the archives of its Python modules, beside py4j."""
    site = tmp_path / "site"
    for package in ("pyspark", "py4j"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").touch()
    home = site / "pyspark"
    (home / "jars").mkdir()
    (home / "python" / "lib").mkdir(parents=True)
    for archive in ("pyspark.zip", "py4j-0.10.9.9-src.zip"):
        (home / "python" / "lib" / archive).touch()
    return home


def test_each_archive_is_a_folder_with_the_installed_package(installed: Path, tmp_path: Path) -> None:
    home = compiled_home(installed, tmp_path / "made")
    assert (home / "jars").samefile(installed / "jars")
    assert (home / "python/lib/pyspark.zip/pyspark").samefile(installed)
    assert (home / "python/lib/py4j-0.10.9.9-src.zip/py4j").samefile(installed.with_name("py4j"))


def test_a_home_is_created_once(installed: Path, tmp_path: Path) -> None:
    made = {compiled_home(installed, tmp_path / "made") for _ in range(2)}
    assert [*(tmp_path / "made").iterdir()] == [*made]


def test_another_installation_gets_another_home(installed: Path, tmp_path: Path) -> None:
    home = compiled_home(installed, tmp_path / "made")
    elsewhere = tmp_path / "elsewhere"
    installed.parent.rename(elsewhere)
    assert compiled_home(elsewhere / "pyspark", tmp_path / "made") != home


@pytest.mark.parametrize("hindrance", ["a file", "no links"])
def test_without_a_folder_or_links_the_installed_home_is_used(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    made = tmp_path / "made"
    if hindrance == "a file":
        made.touch()
    else:
        monkeypatch.setattr(os, "symlink", refuse)
    assert compiled_home(installed, made) == installed


def refuse(*_: object, **__: object) -> None:
    raise OSError("symbolic links are not permitted")
