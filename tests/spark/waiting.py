"""Waits for a state, never for a time: bounded, with frequent looks."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

LONGEST_S = 120.0
_LOOK_EVERY_S = 0.01


def wait_for(what: str, look: Callable[[], T | None], processes: Sequence[subprocess.Popen[bytes]] = ()) -> T:
    """The first answer of ``look`` that is true.

    Raises: AssertionError if none comes, or if a required process has ended.
    """
    deadline = time.monotonic() + LONGEST_S
    while True:
        answer = look()
        if answer:
            return answer
        for process in processes:
            assert process.poll() is None, f"{what}: {process.args!r} has ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{what}: nothing for {LONGEST_S:.0f} s"
        time.sleep(_LOOK_EVERY_S)
