"""An erasure is complete only when every root was searched, and no staged file may have old bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing.tasks import Erased, EraseWork
from stratalog.partitions.store import StagedWriter
from tests.clocks import WrongClock
from tests.unit.cluster_harness import report_of
from tests.unit.erase_harness import KEY, ROWS, SECRET, Erasable, traces
from tests.unit.test_upkeep_compact import Compacted

HOUR_S = 3600


def keeps_offsets(live: Erasable) -> bool:
    return any(one.offsets for one in live.cluster.image.views("t")[0].erasures)


def stage_meanwhile(live: Erasable, monkeypatch: pytest.MonkeyPatch, age_s: float = 0) -> list[StagedWriter]:
    """During the next run, another driver begins to rewrite a file that has a record of the key."""
    writers: list[StagedWriter] = []
    carry_out = erasing.erase_partition

    def stage(work: EraseWork) -> Erased:
        replica = work.replicas.leader
        old = replica.log().chain[0].file.object
        writer = replica.store.stage_writer(old.name)
        writer.file.write(replica.store.read(old.name))
        writer.file.flush()
        for path in (live.root(replica.broker_id) / ".staging").iterdir():
            written = live.clock.now_ms() / 1000 - age_s
            os.utime(path, (written, written))
        writers.append(writer)
        return carry_out(work)

    monkeypatch.setattr(erasing, "erase_partition", stage)
    return writers


@pytest.mark.parametrize("age_s", [-60, 0, 60, 2 * 24 * HOUR_S])
@pytest.mark.parametrize("driver_ahead_s", [0, 3 * HOUR_S])
def test_a_file_that_is_staged_meanwhile_leaves_the_erasure_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, driver_ahead_s: int
) -> None:
    live = Erasable(tmp_path, on_disk=True)
    writers = stage_meanwhile(live, monkeypatch, age_s)
    driver = live.driver(clock=WrongClock(live.clock, 1000 * driver_ahead_s))
    report = driver.erase("t", [KEY], now=True, certificate=tmp_path / "c", check=False)
    assert not report.whole
    assert "unfinished files" in str(report.failures)
    assert keeps_offsets(live)
    verified = report_of(lambda: live.cluster.verify_erased(tmp_path / "c"))
    assert [(one.code, "unfinished" in one.message) for one in verified.failures] == [("UNKNOWN", True)]
    writers[0].abort()
    monkeypatch.undo()
    assert live.erase(KEY, now=True).whole
    assert report_of(lambda: live.cluster.verify_erased(tmp_path / "c")).ok


@pytest.mark.parametrize(
    ("ends", "whole"), [(lambda writer: writer.abort(), True), (lambda writer: writer.commit(), False)]
)
def test_a_writer_that_ends_soon_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[StagedWriter], object], whole: bool
) -> None:
    live = Erasable(tmp_path, on_disk=True)
    writers = stage_meanwhile(live, monkeypatch)
    monkeypatch.setattr(live.clock, "sleep", lambda _: [ends(writers.pop()) for _ in writers[:1]])
    report = live.erase(KEY, now=True)
    assert report.whole == whole
    monkeypatch.undo()
    if not whole:
        assert "a writer gave it its name during this run" in str(report.failures)
        assert keeps_offsets(live)
        assert traces(live, SECRET)
        assert live.erase(KEY, now=True).whole
    assert not traces(live, KEY, SECRET)


class Moved(Erasable):
    """A cluster whose topic ``t`` had a replica on broker 2 before, which still has its files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, on_disk=True, fill=False)
        self.cluster.topics.delete("t")
        self.topic(copies=2, segment_bytes="1", file_delete_delay_ms="0")
        Compacted.put(self, *ROWS)
        self.cluster.reassign({("t", 0): [1, 3]}).raise_for_failures()


def without_broker_2(live: Moved) -> None:
    """The cluster file no longer names broker 2."""
    text = live.file.read_text()
    start, end = (text.index(f"[[brokers]]\nid = {broker}") for broker in (2, 3))
    live.file.write_text(text[:start] + text[end:])


def decommissioned(live: Moved) -> None:
    live.cluster.brokers.decommission([2]).raise_for_failures()


def decommissioned_and_away(live: Moved) -> None:
    decommissioned(live)
    shutil.move(live.root(2), live.folder / "away")
    live.root(2).mkdir()


def away(live: Moved) -> None:
    shutil.move(live.root(2), live.folder / "away")


@pytest.mark.parametrize(
    ("change", "why", "state"),
    [
        (without_broker_2, "the cluster file does not name it", "UNKNOWN"),
        (decommissioned, "no longer registered: delete the file by hand", "NOT_ERASED"),
        (decommissioned_and_away, "or remove the broker from the cluster file", "UNKNOWN"),
        (away, "it cannot be searched", "UNKNOWN"),
        (lambda live: None, "run `stratalog vacuum`", "NOT_ERASED"),
    ],
)
def test_every_root_is_searched_or_named(
    tmp_path: Path, change: Callable[[Moved], None], why: str, state: str
) -> None:
    live = Moved(tmp_path)
    change(live)
    driver = live.driver()
    report = driver.erase("t", [KEY], now=True, certificate=tmp_path / "c", check=False)
    assert not report.whole
    assert why in str([one.message for one in report.failures if "broker 2" in one.message])
    assert keeps_offsets(live)
    verified = report_of(lambda: driver.verify_erased(tmp_path / "c"))
    assert {one.code for one in verified.failures if "broker 2" in one.item} == {state}
