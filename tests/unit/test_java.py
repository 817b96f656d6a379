"""The Java of a session, and the errors without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.jobs.java import find_java, java_major, use_java
from stratalog.partitions.errors import EnvironmentUnusableError


def fake_java(home: Path, says: str, exit_code: int = 0) -> Path:
    """A home whose ``bin/java -version`` prints ``says`` on standard error, like real ones."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\nexit {exit_code}\n")
    executable.chmod(0o755)
    return home


def openjdk(version: str) -> str:
    """The version text of OpenJDK, after a notice about the environment, as with JAVA_TOOL_OPTIONS."""
    return f'Picked up JAVA_TOOL_OPTIONS: -Da=b\nopenjdk version "{version}" 2025-04-15\nOpenJDK Runtime'


@pytest.mark.parametrize(
    ("says", "major"),
    [
        (openjdk("1.8.0_412"), 8),
        (openjdk("11.0.22"), 11),
        (openjdk("17.0.15"), 17),
        (openjdk("21"), 21),
        (openjdk("25.0.1"), 25),
        (openjdk("26-ea"), 26),
        ('java version "17.0.9" 2023-10-17 LTS', 17),
        ("no java here", None),
        ("", None),
    ],
)
def test_the_version_is_read(tmp_path: Path, says: str, major: int | None) -> None:
    assert java_major(fake_java(tmp_path, says) / "bin" / "java") == major


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_major(tmp_path / "bin" / "java") is None
    assert java_major(fake_java(tmp_path / "stub", openjdk("17.0.1"), exit_code=1) / "bin" / "java") is None


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "chosen", openjdk(version))
    other = fake_java(tmp_path / "other", openjdk("17.0.1"))
    java = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin:/bin"}, [])
    assert (java.executable, java.home) == (home / "bin" / "java", home)


def test_a_wrong_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    wrong = fake_java(tmp_path / "wrong", openjdk("25"))
    right = fake_java(tmp_path / "right", openjdk("21.0.2"))
    environ = {"JAVA_HOME": str(wrong), "PATH": f"{right}/bin:/bin:/usr/bin"}
    assert use_java(environ, []).major == 21
    assert "JAVA_HOME" not in environ  # otherwise Spark would start the wrong one


def test_a_wrong_default_gives_way_to_a_usual_place(tmp_path: Path) -> None:
    wrong = fake_java(tmp_path / "wrong", openjdk("11.0.22"))
    fake_java(tmp_path / "jvm" / "a-25", openjdk("25"))
    right = fake_java(tmp_path / "jvm" / "b-17", openjdk("17.0.15"))
    environ = {"PATH": f"{wrong}/bin:/bin:/usr/bin"}
    assert use_java(environ, [f"{tmp_path}/jvm/*"]).major == 17
    assert environ["JAVA_HOME"] == str(right)


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusableError, match=r"needs Java 17 or 21.*found no Java:.*apt-get") as raised:
        find_java({"PATH": str(tmp_path)}, [])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("version", ["11.0.22", "25"])
def test_with_only_a_wrong_java_the_line_names_it(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "jdk", openjdk(version))
    with pytest.raises(EnvironmentUnusableError) as raised:
        find_java({"JAVA_HOME": str(home), "PATH": ""}, [])
    assert f"{home}/bin/java (Java {version.partition('.')[0]})" in str(raised.value)
    assert "\n" not in str(raised.value)
