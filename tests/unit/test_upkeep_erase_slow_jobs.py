"""Jobs that read a snapshot with the keys, and could name a copy of it after an erasure is whole
(``stratalog.snapshots.erasure``, "A slow job").
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.replication import snapshots as replicated
from stratalog.engine.replication.snapshots import fetch_latest
from stratalog.engine.upkeep.erasing import snapshot_run, snapshot_tasks
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.snapshots import partition as snapshots
from stratalog.snapshots.chunks import PartialSnapshot
from tests.unit.at_calls import during, raising
from tests.unit.erase_harness import KEY, SECRET, traces
from tests.unit.erase_snapshots_harness import STATE, Erasable


class SlowJob:
    """A job in a thread of its own, which stops at its first call of ``name`` until ``end`` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, job: Callable[[], Any]) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(job,))
        call = getattr(owner, name)

        def waiting(*args: Any, **named: Any) -> Any:
            if threading.current_thread() is self._thread and not self._reached.is_set():
                self._reached.set()
                assert self._go_on.wait(60)
            return call(*args, **named)

        monkeypatch.setattr(owner, name, waiting)
        self._thread.start()
        assert self._reached.wait(60)

    def _run(self, job: Callable[[], Any]) -> None:
        try:
            self.outcome = job()
        except Exception as error:  # the job may refuse to continue
            self.outcome = error

    def end(self) -> Any:
        """Let the job continue to its end. Returns its report, or its error."""
        self._go_on.set()
        self._thread.join()
        return self.outcome


@pytest.fixture
def live(tmp_path: Path) -> Erasable:
    return Erasable(tmp_path).start(file_delete_delay_ms="60000")


def test_a_follower_that_fetches_an_old_snapshot_gives_no_name_to_it(
    live: Erasable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last piece is in memory while the erasure runs."""
    [broker, _] = live.followers()
    live.store(broker).delete([stored.name for _, stored in live.log(broker).listing.checkpoints])
    before = live.replicas()
    fetch = SlowJob(monkeypatch, PartialSnapshot, "add", lambda: fetch_latest(before, before.replica(broker)))
    assert live.erase(KEY, driver=live.driver(), now=True).whole
    fetch.end()
    live.check_erased()


def test_a_snapshot_job_between_the_number_and_the_commit_of_an_erasure_names_no_copy_of_the_keys(
    live: Erasable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its view is as new as the erasure's number, and it has read the latest snapshot."""
    job = live.driver()
    slow: list[SlowJob] = []

    def begin() -> None:
        live.put([("new", "1")])
        slow.append(SlowJob(monkeypatch, snapshots, "open_writer", lambda: job.snapshot("t", by_hand=True)))

    during(monkeypatch, snapshot_run, "rewrite_snapshot", begin)
    certificate = tmp_path / "certificate.json"
    assert live.erase(KEY, driver=live.driver(), now=True, certificate=certificate).whole
    slow[0].end()
    assert traces(live, KEY, SECRET) == []
    assert {row["state"] for row in live.cluster.verify_erased(certificate).rows} == {"erased"}
    assert live.state(live.leader()) == {**STATE, "new": "1"}


def test_a_leader_whose_snapshot_is_repaired_meanwhile_gets_no_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Erasable(tmp_path).start()
    live.take()
    live.cluster.retain().raise_for_failures()
    leader = live.leader()
    live.store(leader).delete([stored.name for _, stored in live.log(leader).listing.checkpoints])
    job = live.driver()
    repair = SlowJob(monkeypatch, replicated, "stage_snapshot", lambda: job.heal(check=False))
    assert live.erase(KEY, driver=live.driver(), now=True).whole
    repair.end()
    assert traces(live, KEY, SECRET) == []


@pytest.mark.parametrize("dies", [False, True])
def test_an_erasure_brings_back_no_key_that_another_run_erases_meanwhile(
    live: Erasable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dies: bool
) -> None:
    """The first run has read the snapshot, and has written nothing."""
    live.put([("other-key", "secret-other")])
    other, certificate = live.driver(), tmp_path / "certificate.json"
    reports: list[ErasureReport] = []

    def erase_other() -> None:
        reports.append(other.erase("t", ["other-key"], check=False, now=True, certificate=certificate))
        if dies:
            monkeypatch.setattr(snapshot_tasks, "copy_to_members", raising(KeyboardInterrupt()))

    during(monkeypatch, snapshot_tasks, "_read", erase_other, after=True)
    if dies:
        with pytest.raises(KeyboardInterrupt):
            live.erase(KEY)
    else:
        assert live.erase(KEY, now=True).whole
        assert traces(live, KEY, SECRET) == []
    assert reports[0].whole
    assert traces(live, "other-key", "secret-other") == []
    assert {row["state"] for row in live.cluster.verify_erased(certificate).rows} == {"erased"}
