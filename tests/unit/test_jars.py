"""The fetch of the jars, as far as it needs no network."""

from __future__ import annotations

import importlib.resources
import zipfile
from pathlib import Path

import pytest

from stratalog.jobs import jars
from stratalog.partitions.errors import EnvironmentUnusableError


def test_a_fetch_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network drops packets, so Ivy waits."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] || exec sleep 60\necho \'openjdk version "17.0.15"\' >&2\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("STRATALOG_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr(jars, "_FETCH_TIMEOUT_S", 0.01)
    with pytest.raises(
        EnvironmentUnusableError, match=r"cannot fetch the jars of jars\.xml .* not done after 0\.01 s"
    ):
        jars.fetch_jars(tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []
    assert jars.main([]) == 1


def test_a_file_of_conf_is_found_in_a_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``spark-submit --py-files`` puts one before everything else, for the driver too."""
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as packed:
        packed.writestr("stratalog/conf/jars.xml", "text")
    root = zipfile.Path(tmp_path / "packages.zip", "stratalog/conf/")
    monkeypatch.setattr(importlib.resources, "files", lambda package: root)
    assert jars.conf_file("jars.xml").read_text() == "text"


def test_a_set_that_is_missing_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert jars.main(["s4"]) == 1
    known = "azure, consumer-tests, gcs, kafka or mirror-maker"
    assert capsys.readouterr().err == f"unknown set of jars 's4': give {known}\n"


def test_sessions_have_the_sets_that_were_fetched(tmp_path: Path) -> None:
    always = [tmp_path / jar for jar in jars.pinned_jars()]
    assert list(jars.session_jars(tmp_path)) == always
    [azure] = jars.pinned_jars("azure.xml")
    (tmp_path / azure).parent.mkdir()
    (tmp_path / azure).touch()
    assert list(jars.session_jars(tmp_path)) == [*always, tmp_path / azure]


def test_a_spark_for_which_delta_has_no_build_gets_all_other_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    every = jars.pinned_jars()
    monkeypatch.setattr(jars, "WITH_DELTA", ("4.0",))
    rest = jars.pinned_jars()
    assert [jar for jar in every if jar not in rest] == [jar for jar in every if jar.parts[0] == jars.DELTA] != []
