"""A foreign segment in all readers: one topic fails, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GIGABYTE = 1024**3
READERS = ("fetch bad", "tail")


def outcome(folder: Path, maker: str) -> dict[str, Any]:
    """The output of ``hostile_run`` in a separate process."""
    command = [sys.executable, "-m", "tests.unit.hostile_run", str(folder), maker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "maker",
    [
        "dictionary_bomb",
        "wrong_level_histogram",
        "header_bomb",
        "unpacking_bomb",
        "levels_bomb",
        "without_offsets",
    ],
)
def test_a_hostile_segment_stops_nothing_but_its_own_topic_and_takes_less_than_a_gigabyte(
    tmp_path: Path, maker: str
) -> None:
    found = outcome(tmp_path, maker)
    seen = found["messages"]
    assert found["peak_bytes"] < GIGABYTE
    assert found["good"] == 6_000, "the other topic is read from end to end"
    for what in READERS:
        assert seen[what] == "CorruptSegmentError"
    assert seen["fetch before"] == seen["fetch behind"] == [], "what lies around it is read"
    assert seen["verify deep"] == ["bad", "worse"]
    assert seen["merge"] == ["bad"], "it is not merged, and says so"
    assert seen["append"] == seen["replicate"] == []
