"""The public API is what it was (``tests/golden``)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.golden import API, difference
from tests.golden.harness import ROOT


def test_names_signatures_errors_options_and_keys_are_what_they_were() -> None:
    """In a process of its own, in which nothing else was imported or patched."""
    command = [sys.executable, "-m", "tests.golden", "--print-api"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    if wrong := difference(API.read_text(encoding="utf-8"), done.stdout, "python -m tests.golden"):
        pytest.fail(wrong, pytrace=False)
