"""Runs the checker, a Go program that ``make servers`` builds."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.linearizability.calls import Call, lines_of

CHECKER = Path(__file__).resolve().parents[2] / ".cache" / "servers" / "linearizable"
_DECIDED = (0, 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checker's verdict."""

    refused: tuple[str, ...]
    """The histories that are not linearizable."""
    summary: str


def judge(histories: Mapping[str, Sequence[Call]]) -> Verdict:
    """The verdict on histories by name. Raises: RuntimeError for a history that cannot be read or decided."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(f"{line}\n" for name, calls in histories.items() for line in lines_of(name, calls))
        file.flush()
        done = subprocess.run([CHECKER, file.name], capture_output=True, text=True, check=False)
    if done.returncode not in _DECIDED:
        raise RuntimeError(f"{done.stdout}{done.stderr}")
    *found, summary = done.stdout.splitlines()
    return Verdict(tuple(_refused(found)), summary)


def _refused(lines: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(line.removeprefix("history ").partition(": ")[0] for line in lines)
