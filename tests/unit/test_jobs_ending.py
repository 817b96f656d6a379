"""The end of jobs: SIGTERM and SIGINT, with a real process; and operations that need a confirmation."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Protocol

import pytest

from stratalog.jobs.topics import main as topics
from tests.unit.cluster_harness import LiveCluster

AFTER = "ending after the work in progress; a second signal ends immediately\n"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 tier: done, next_ms 60,000")
SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it does not wait for without it
from stratalog import Cluster, Report
from stratalog.jobs.main import main
def tier(self, *args, **options):
    print("begun", flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        time.sleep(0.01)
    return Report("tier", (), totals={"next_ms": 60_000})
Cluster.tier = tier
sys.exit(main(["tier", "--cluster", sys.argv[2], *sys.argv[3:]]))
"""


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``."""
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic("t")
    return made


class Start(Protocol):
    """Starts a process whose run of ``tier`` takes ``seconds``, and waits until that run has begun."""

    def __call__(self, seconds: float, *argv: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def started(live: LiveCluster) -> Iterator[Start]:
    """Ends the started processes, even if the test fails."""
    with ExitStack() as open_processes:

        def start(seconds: float, *argv: str) -> subprocess.Popen[str]:
            called = [sys.executable, "-c", SLOW, str(seconds), str(live.file), *argv]
            made = subprocess.Popen(called, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            open_processes.enter_context(made)
            open_processes.callback(made.kill)
            assert output_of(made.stdout) == "begun\n"
            return made

        yield start


def output_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_a_job_that_repeats_itself_ends_after_the_current_run(started: Start, how: signal.Signals) -> None:
    process = started(0.5, "--every", "60s")
    process.send_signal(how)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert LINE.match(out.splitlines()[0])
    assert out.splitlines()[-1].startswith("tier: done, runs 1")
    assert err == AFTER


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_a_signal_ends_it_during_its_pause(started: Start, how: signal.Signals) -> None:
    process = started(0, "--every", "60s")
    assert LINE.match(output_of(process.stdout))
    process.send_signal(how)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err in ("", AFTER)  # the signal may come just before the pause
    assert out.splitlines()[-1].startswith("tier: done, runs 1")


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("every", [(), ("--every", "60s")], ids=["once", "every"])
@pytest.mark.slow
def test_it_ends_at_once_on_the_second_signal_or_after_one_run(
    started: Start, how: signal.Signals, status: int, every: tuple[str, ...]
) -> None:
    process = started(60, *every)
    process.send_signal(how)
    if every:
        assert output_of(process.stderr).startswith("ending after the work in progress")
        process.send_signal(how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert err == "interrupted: finished work is kept; run the job again to continue\n"


# -------------------------------------------------------------------------------- only after a yes


def test_without_a_terminal_an_irreversible_job_needs_yes(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    delete = ["delete", "t", "--cluster", str(live.file)]
    with live.unchanged():
        assert topics(delete) == 2
        assert "delete topic 't' and its records, in both tiers: this cannot be undone" in capsys.readouterr().err
        assert topics([*delete, "--dry-run"]) == 0
    assert topics([*delete, "--yes"]) == 0
    assert "t" not in live.cluster.image.topic_ids


@pytest.mark.parametrize(("answer", "status"), [("no", 2), ("", 2), ("yes", 0)])
@pytest.mark.slow
def test_on_a_terminal_it_is_asked(live: LiveCluster, answer: str, status: int) -> None:
    ours, theirs = pty.openpty()
    called = [sys.executable, "-m", "stratalog.jobs.topics", "delete", "t", "--cluster", str(live.file)]
    process = subprocess.Popen(called, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True)
    os.close(theirs)
    shown = b""
    while b"Type yes to continue: " not in shown:
        shown += os.read(ours, 1000)
    os.write(ours, f"{answer}\n".encode())
    process.communicate(timeout=30)
    os.close(ours)
    assert process.returncode == status
    assert ("t" in live.driver().image.topic_ids) == (status != 0)
