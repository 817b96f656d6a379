"""What tests of command lines share: the cluster they are for, the call of a job, the report that it printed."""

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
    """Runs the job on a cluster, with what is ``always`` given and with more; its exit status."""

    def run(live: LiveCluster, *argv: str) -> int:
        return main([*always, "--cluster", str(live.file), *argv])

    return run


@contextmanager
def nobody_reads(folder: Path) -> Iterator[None]:
    """Standard output is a pipe that nobody reads any more, as after ``| head``."""

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
    """Those of the report."""
    found: list[dict[str, Any]] = report(capsys)["rows"]
    return found
