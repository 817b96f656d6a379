"""``python -m tests.core_alone [PYTEST ARGUMENTS]``: the core's unit tests in a checkout without the bridges.

Tests that name a bridge, and their harnesses, are left out and printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("conf", "docs", "engine", "jobs", "partitions", "snapshots", "stratalog", "tests", "tiering")
LOOSE = ("CHANGELOG.md", "Makefile", "README.md", "SECURITY.md", "pyproject.toml", "requirements.lock", "setup.py")
_BRIDGE = (
    r"stratalog\.bridges\b|tests\.bridges\b|\bJOBS\b|\.(?:mirror|export|serve|report|policy)\("
    r"|^from (?:bench|demo|tests\.golden)\b"
)
_KEEP_OUT = shutil.ignore_patterns("__pycache__", "bridges")


def without_bridges(folder: Path) -> list[str]:
    """Copy the checkout into ``folder`` without its bridges. Returns the modules of tests that were left out."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=_KEEP_OUT)
    for name in LOOSE:
        shutil.copy2(ROOT / name, folder / name)
    tests, gone = {path.stem: path for path in (folder / "tests" / "unit").glob("*.py")}, set[str]()
    while True:  # until no remaining test imports a removed one
        bridged = re.compile("|".join((_BRIDGE, *(rf"tests\.unit\.{one}\b" for one in gone))), re.MULTILINE)
        if not (left_out := {name for name in tests.keys() - gone if bridged.search(tests[name].read_text())}):
            break
        gone |= left_out
    for name in gone:
        tests[name].unlink()
    return sorted(gone)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the status of pytest."""
    with tempfile.TemporaryDirectory() as scratch:
        print("left out:", *without_bridges(Path(scratch)))
        environment = {**os.environ, "PYTHONPATH": scratch}
        given = [
            "-m",
            "not spark and not s3 and not kafka and not slow",
            *(sys.argv[1:] if argv is None else argv),
        ]
        command = [sys.executable, "-m", "pytest", "-n", "2", "tests/unit", *given]
        return subprocess.run(command, cwd=scratch, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
