"""The public API is unchanged (``tests/golden``), and so are the pages that describe it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import API, DOCS, difference
from tests.golden.harness import ROOT


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    """Each text from the current code, in a separate process without other imports or patches."""
    command = [sys.executable, "-m", "tests.golden", "--print-texts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("path", [API, DOCS / "api.md", DOCS / "configuration.md"], ids=lambda path: path.name)
@pytest.mark.slow
def test_names_signatures_errors_options_and_keys_are_what_they_were(now: dict[str, str], path: Path) -> None:
    """``api.txt``, and the pages of the API and of the configuration."""
    if wrong := difference(path.read_text(encoding="utf-8"), now[str(path)], "python -m tests.golden"):
        pytest.fail(wrong, pytrace=False)
