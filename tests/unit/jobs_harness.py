"""Shared parts of the tests of command lines: a cluster, the call of a job, the printed report."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_harness import LiveCluster


def calls(main: Callable[[Sequence[str]], int], *always: str) -> Callable[..., int]:
    """Runs the job on a cluster, with the arguments ``always`` and more; returns its exit status."""

    def run(live: LiveCluster, *argv: str) -> int:
        return main([*always, "--cluster", str(live.file), *argv])

    return run


@contextmanager
def nobody_reads(folder: Path) -> Iterator[None]:
    """Let standard output be a pipe without a reader, as after ``| head``."""

    class Closed(io.StringIO):
        def fileno(self) -> int:
            return file.fileno()

        def write(self, text: str) -> int:
            raise BrokenPipeError

    with (folder / "pipe").open("w") as file, redirect_stdout(Closed()):
        yield


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The object on the last line of standard output."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The rows of the report."""
    found: list[dict[str, Any]] = report(capsys)["rows"]
    return found
