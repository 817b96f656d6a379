"""Probes of a reviewer: a job that holds a snapshot in memory, and names a copy of it after a whole certificate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.replication import snapshots as replicated
from stratalog.engine.replication.snapshots import fetch_latest
from stratalog.engine.upkeep.erasing import snapshot_run
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.snapshots import partition as snapshots
from tests.unit.erase_harness import KEY, SECRET, traces
from tests.unit.test_upkeep_erase_of_snapshots import STATE, Erasable, during


class Paused:
    """A call that waits, in a thread of its own, until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        call = getattr(owner, name)

        def waiting(*args: Any, **named: Any) -> Any:
            if threading.current_thread().name == "main-of-job" or getattr(self, "everywhere", True):
                if not self.reached.is_set():
                    self.reached.set()
                    assert self.go_on.wait(60)
            return call(*args, **named)

        monkeypatch.setattr(owner, name, waiting)


def test_a_snapshot_job_reads_the_latest_snapshot_before_it_opens_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its view is from between steps 3 and 5."""
    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    eraser, job = live.driver(), live.driver()
    paused: list[Paused] = []
    threads: list[threading.Thread] = []
    reports: list[Any] = []

    def begin() -> None:
        live.put([("new", "1")])
        paused.append(Paused(monkeypatch, snapshots, "open_writer"))
        threads.append(
            threading.Thread(target=lambda: reports.append(job.snapshot("t", by_hand=True, check=False)))
        )
        threads[0].start()
        assert paused[0].reached.wait(60)

    during(monkeypatch, snapshot_run, "rewrite_snapshot", begin, after=False)
    certificate = tmp_path / "c.json"
    report = eraser.erase("t", [KEY], check=False, now=True, certificate=certificate)
    print(report.whole, report.failures)
    before = traces(live, KEY, SECRET)
    paused[0].go_on.set()
    threads[0].join()
    after = traces(live, KEY, SECRET)
    print(before, after, reports[0].rows, reports[0].failures)
    verified = live.cluster.verify_erased(certificate) if report.whole else None
    print(verified and verified.rows)
    assert {**STATE, "new": "1"}.items() <= live.state(live.leader()).items()
    if report.whole:
        assert before == []
        assert after == []


@pytest.mark.parametrize("how", ["heal", "replicate", "snapshot", "verify"])
def test_a_repair_that_holds_the_snapshot_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its view is from before the erasure."""
    live = Erasable(tmp_path).start()
    live.take()
    live.cluster.retain().raise_for_failures()
    live.put([("new", "1")])
    broker = live.followers()[0] if how == "replicate" else live.leader()
    live.store(broker).delete([stored.name for _, stored in live.log(broker).listing.checkpoints])
    eraser, job = live.driver(), live.driver()
    paused = Paused(monkeypatch, replicated, "stage_snapshot")
    acts: dict[str, Callable[[], Any]] = {
        "heal": lambda: job.heal(check=False),
        "replicate": lambda: job.replicate(check=False),
        "snapshot": lambda: job.snapshot("t", by_hand=True, check=False),
        "verify": lambda: job.verify(deep=True),
    }
    thread = threading.Thread(target=acts[how])
    thread.start()
    if not paused.reached.wait(20):
        paused.go_on.set()
        thread.join()
        pytest.skip("this job repairs nothing here")
    certificate = tmp_path / "c.json"
    report: ErasureReport = eraser.erase("t", [KEY], check=False, now=True, certificate=certificate)
    print(report.whole, report.failures)
    before = traces(live, KEY, SECRET)
    paused.go_on.set()
    thread.join()
    after = traces(live, KEY, SECRET)
    print(before, after)
    if report.whole:
        assert before == []
        assert after == []


@pytest.mark.parametrize("crash", [False, True])
def test_an_erasure_that_holds_the_snapshot_in_memory_brings_back_the_keys_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    """Run A has read the snapshot of step 4, and has not opened its writer. Run B erases another key wholly."""
    from stratalog.engine.upkeep.erasing import snapshot_tasks

    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    live.put([("other-key", "secret-other")])
    other = live.driver()
    certificate = tmp_path / "b.json"
    reports: list[ErasureReport] = []

    def erase_other() -> None:
        reports.append(other.erase("t", ["other-key"], check=False, now=True, certificate=certificate))
        if crash:
            monkeypatch.setattr(snapshot_tasks, "copy_to_members", stop)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    during(monkeypatch, snapshot_tasks, "_read", erase_other, after=True)
    try:
        report = live.erase(KEY, now=not crash)
        print("A", report.whole, report.failures)
    except KeyboardInterrupt:
        print("A died")
    print("B", reports[0].whole, reports[0].failures)
    after = traces(live, "other-key", "secret-other")
    print(after)
    print(live.cluster.verify_erased(certificate).rows)
    if reports[0].whole:
        assert after == []


def test_a_fetch_that_holds_a_piece_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratalog.snapshots.chunks import PartialSnapshot

    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    broker = live.followers()[0]
    live.store(broker).delete([stored.name for _, stored in live.log(broker).listing.checkpoints])
    before = live.replicas()
    paused = Paused(monkeypatch, PartialSnapshot, "add")
    errors: list[Exception] = []

    def fetch() -> None:
        try:
            fetch_latest(before, before.replica(broker))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert paused.reached.wait(20)
    report = live.driver().erase("t", [KEY], check=False, now=True)
    print(report.whole, report.failures)
    paused.go_on.set()
    thread.join()
    print(errors)
    after = traces(live, KEY, SECRET)
    print(after)
    if report.whole:
        assert after == []
