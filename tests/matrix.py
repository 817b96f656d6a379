"""``make matrix``: the Spark tests on the versions of a platform: its Python, Spark, pandas and Arrow.

    python -m tests.matrix                all platforms, all tests that need Spark
    python -m tests.matrix 4.0            one of them
    python -m tests.matrix 4.0 --quick    a log's whole life, appends, reads and streams alone

An environment is created below ``.cache/matrix``, and kept: first the packages of the platform, then this project
with its requirements, which must change none of those packages. A platform without a matching Python on this
machine is skipped, and named at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "matrix"
QUICK = (
    "tests/spark/test_end_to_end.py",
    "tests/spark/test_append.py",
    "tests/spark/test_format.py",
    "tests/spark/test_read.py",
    "tests/spark/test_stream.py",
)
EXTRAS = "spark,connect,kafka,serve,kafka-tier,demo,dev"
NONE_COLLECTED = 5
"""Pytest's exit status."""


@dataclass(frozen=True, slots=True)
class Platform:
    """The versions of a platform."""

    name: str
    python: str
    packages: tuple[str, ...]


PLATFORMS = (
    Platform("4.0", "3.11", ("pyspark==4.0.1", "pandas==2.2.3", "pyarrow==19.0.1", "numpy==2.0.2")),
    Platform("4.1", "3.12", ("pyspark==4.1.4", "pandas==2.3.3", "pyarrow==21.0.0", "numpy==2.2.6")),
    Platform("4.2", "3.13", ("pyspark==4.2.1", "pandas==2.3.3", "pyarrow==26.0.1", "numpy==2.4.6")),
    Platform("4.3", "3.13", ("pyspark==4.3.0", "pandas==2.3.3", "pyarrow==26.0.1", "numpy==2.4.6")),
)
"""The platforms. The first has the oldest versions that ``pyproject.toml`` allows, the last the newest."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests on each platform. Returns exit status 1 if some failed, or if a named platform was skipped."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("platform", nargs="*", help=f"of {', '.join(each.name for each in PLATFORMS)}")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    arguments = parser.parse_args(argv)
    chosen = [each for each in PLATFORMS if not arguments.platform or each.name in arguments.platform]
    if not chosen:
        parser.error(f"no such platform: {', '.join(arguments.platform)}")
    ended = {}
    for platform in chosen:
        python = find_python(platform.python)
        ended[platform.name] = (
            f"left out: no Python {platform.python} here"
            if python is None
            else run(platform, python, QUICK if arguments.quick else ("tests/spark",))
        )
    for name, how in ended.items():
        print(f"Spark {name}: {how}")
    passed = [name for name, how in ended.items() if how == "passed"]
    return int("failed" in ended.values() or (bool(arguments.platform) and len(passed) < len(ended)))


def find_python(version: str) -> str | None:
    """An interpreter of a version, on the path or among those of pyenv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        if candidate is not None and subprocess.run([candidate, "-c", ""], check=False).returncode == 0:
            return candidate
    return None


def run(platform: Platform, python: str, tests: Sequence[str]) -> str:
    """The result of the tests: ``passed`` or ``failed``. Raises: CalledProcessError without an environment."""
    bin_folder = environment(platform, python)
    environ = {**os.environ, "STRATALOG_JARS": str(bin_folder.parent / "jars")}
    environ["PYTHONPYCACHEPREFIX"] = str(bin_folder.parent / "pycache")
    subprocess.run([bin_folder / "python", "-m", "stratalog.jobs.jars"], cwd=ROOT, env=environ, check=True)
    pytest = [str(bin_folder / "python"), "-m", "pytest", "-n", os.environ.get("JVMS", "2"), "--dist", "loadfile"]
    pytest += ["-W", "default::pytest.PytestUnraisableExceptionWarning"]  # Spark 4.0 leaves sockets open
    ended = subprocess.run([*pytest, "-m", "spark", *tests], cwd=ROOT, env=environ, check=False)
    return "passed" if ended.returncode in (0, NONE_COLLECTED) else "failed"


def environment(platform: Platform, python: str) -> Path:
    """The folder of the programs of a platform's environment, which is created if it is missing.

    Raises: CalledProcessError; SystemExit when the project has moved a package of the platform.
    """
    folder = FOLDER / platform.name
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    made = folder / "made"
    wanted = "\n".join([python, EXTRAS, *platform.packages, (ROOT / "pyproject.toml").read_text()])
    if not made.is_file() or made.read_text() != wanted:
        print(f"Spark {platform.name}: an environment with Python {platform.python}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        subprocess.run([*pip, "install", *platform.packages], check=True)
        # Otherwise spark-submit runs old code.
        subprocess.run([*pip, "install", "-e", f"{ROOT}[{EXTRAS}]"], check=True)
        made.write_text(wanted)
    listed = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout.split("\n")
    moved = [package for package in platform.packages if package not in listed]
    if moved:
        sys.exit(f"Spark {platform.name}: installing the project has moved {', '.join(moved)}")
    return folder / "bin"


if __name__ == "__main__":
    sys.exit(main())
