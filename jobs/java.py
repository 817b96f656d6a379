"""Find a Java that Spark supports; otherwise report in one line what to install.

``python -m stratalog.jobs.java`` prints the home of the Java that would be used. It needs only the standard
library, so that ``make`` can run it before it installs anything.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratalog.partitions.errors import EnvironmentUnusableError

SUPPORTED_MAJORS = (17, 21)
"""The versions on which Spark 4.2 and its Hadoop are tested. On Java 24 and later, Hadoop finds no ``Subject``."""

USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
"""Globs of Java homes, for machines whose default Java has another version."""

_VERSION_TIMEOUT_S = 20
_VERSION = re.compile(r'^\S+ version "(?:1\.)?(\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation that starts."""

    executable: Path
    major: int
    home: Path | None
    """The JAVA_HOME that Spark needs to use this Java; None if Spark finds it as ``java`` on PATH."""


def java_major(executable: Path) -> int | None:
    """Return the major version (8, 11, 17, ...) that ``java -version`` reports; None if the command does not run,
    or reports no version."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found is not None and answer.returncode == 0 else None


def find_java(environ: Mapping[str, str], places: Iterable[str] = USUAL_PLACES) -> Java:
    """Return the first supported Java among ``JAVA_HOME``, ``java`` on ``PATH`` and ``places`` (globs of homes).

    Raises: EnvironmentUnusableError, with one line that names the versions that were found, and says what to
        install.
    """
    seen: dict[Path, int | None] = {}
    for executable, home in _candidates(environ, places):
        major = java_major(executable)
        if major in SUPPORTED_MAJORS:
            return Java(executable, major, home)
        seen[executable] = major
    raise EnvironmentUnusableError(_what_to_install(seen))


def use_java(environ: MutableMapping[str, str], places: Iterable[str] = USUAL_PLACES) -> Java:
    """Find a Java like ``find_java``, and set ``environ`` so that Spark starts exactly that Java.

    Raises: EnvironmentUnusableError.
    """
    java = find_java(environ, places)
    if java.home is not None:
        environ["JAVA_HOME"] = str(java.home)
    else:
        # Spark prefers JAVA_HOME to PATH, but JAVA_HOME has no supported Java.
        environ.pop("JAVA_HOME", None)
    return java


def _candidates(environ: Mapping[str, str], places: Iterable[str]) -> Iterable[tuple[Path, Path | None]]:
    chosen = environ.get("JAVA_HOME")
    if chosen:
        yield Path(chosen, "bin", "java"), Path(chosen)
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path), None
    for place in places:
        for home in sorted(glob.glob(os.path.expanduser(place))):
            executable = Path(home, "bin", "java")
            if executable.is_file():
                yield executable, Path(home)


def _what_to_install(seen: Mapping[Path, int | None]) -> str:
    wanted = " or ".join(map(str, SUPPORTED_MAJORS))
    if seen:
        found = ", ".join(
            f"{executable} ({f'Java {major}' if major is not None else 'does not run'})"
            for executable, major in seen.items()
        )
    else:
        found = "no Java"
    return (
        f"Spark needs Java {wanted}, found {found}: install one (Debian, Ubuntu: apt-get install "
        "openjdk-17-jre-headless; macOS: brew install openjdk@17) or point JAVA_HOME at it"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the Java that would be used. If there is none, print what to install, and return the exit code 1."""
    del argv
    try:
        java = find_java(os.environ)
    except EnvironmentUnusableError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.major}: {java.home if java.home is not None else java.executable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
