"""A drill: the cluster restored next to the original, and compared."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.engine.metadata.description import describe
from stratalog.engine.upkeep.restoring.drill import DrillRow, compare
from stratalog.engine.upkeep.restoring.plan import RestoredPartition
from stratalog.partitions.errors import CorruptionError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.restore_harness import partly_tiered, restored
from tests.unit.snapshot_harness import Keyed
from tests.unit.transact_harness import Ledger, rows

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return partly_tiered(tmp_path)


def test_a_drill_shows_what_would_be_lost_and_changes_nothing(live: LiveCluster) -> None:
    live.clock.advance_ms(5000)
    with live.unchanged():
        report = live.cluster.drill(deep=True)
    wanted = ("partition", "log_end", "high_watermark", "lost_records", "lost_ms", "compared_records")
    assert rows_of(report, *wanted) == [(0, 6, 8, 2, 5000, 8), (1, 0, 0, 0, 0, 0)]
    assert [report.totals[name] for name in ("records", "lost_records", "lost_ms")] == [6, 2, 5000]
    live.cluster.tier().raise_for_failures()
    after = live.cluster.drill().raise_for_failures().totals
    assert (after["lost_records"], after["lost_ms"]) == (0, 0)


def test_a_topic_with_snapshots_is_restored_whole_and_empty(tmp_path: Path) -> None:
    """The log of the topic had a start above 0, and its snapshot is lost: a log that begins there without a
    snapshot would be corrupt (KIP-630, "Validation of Snapshot and Log").
    """
    live = Keyed(tmp_path).begin(file_delete_delay_ms="0", metadata_start_offset_lag_time_max_ms="0")
    live.put([("a", "1"), ("b", "1")])
    live.put([("a", "2")])
    live.take()
    live.cluster.snapshot("t").raise_for_failures()
    live.put([("c", "3")])
    live.tiered("u", copies=1)  # otherwise the remote tier has no description of the cluster
    live.fill("a", "u")
    live.cluster.tier().raise_for_failures()
    log_start = live.replicas().view.log_start_offset
    assert log_start == 3
    report = live.cluster.drill(deep=True).raise_for_failures()
    assert rows_of(report, "log_end", "lost_records", "deleted_records_back") == [(0, 4, 0), (1, 0, 0)]
    copy = restored(live)
    for operation in (copy.cluster.verify, copy.cluster.heal):
        operation().raise_for_failures()
    copy.cluster.verify(deep=True).raise_for_failures()
    assert copy.log(copy.leader()).local_start == 0


@pytest.mark.parametrize("aborted", [False, True])
def test_the_end_of_a_transaction_is_no_difference(tmp_path: Path, aborted: bool) -> None:
    """The last offset of the remote log has a marker, and consumers see no records of an aborted transaction."""
    live = Ledger(tmp_path).begin()
    live.tiered("v", local_retention_bytes="-1")
    with suppress(InterruptedError), live.cluster.transactions.begin("x") as transaction:
        transaction.append_batches("v", {0: rows("a", "b")})
        if aborted:
            raise InterruptedError
    live.cluster.tier().raise_for_failures()
    report = live.cluster.drill(deep=True)
    assert rows_of(report, "topic", "log_end", "compared_records")[-1] == ("v", 3, 5)


def test_a_partition_of_which_all_was_deleted_is_no_difference(live: LiveCluster) -> None:
    """After DeleteRecords no remote segment is left that has the epochs and producers."""
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: -1}).raise_for_failures()
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    report = live.cluster.drill(deep=True).raise_for_failures()
    assert rows_of(report, "partition", "log_start", "log_end") == [(0, 8, 8), (1, 0, 0)]


def alike(folder: Path, count: int) -> list[LiveCluster]:
    """Clusters with the same time, each with its own topic ``t``."""
    made: list[LiveCluster] = []
    for number in range(count):
        (folder / str(number)).mkdir()
        made.append(LiveCluster(folder / str(number)))
        made[-1].clock.advance_ms(made[0].clock.now_ms() - made[-1].clock.now_ms())
        made[-1].tiered()
    return made


def compared(live: LiveCluster, copy: LiveCluster, *, deep: bool = False) -> DrillRow:
    topic = next(iter(describe(copy.cluster.image).topics))
    end = copy.log(copy.leader()).high_watermark
    one = RestoredPartition(topic, 0, 0, end, 1, ())
    return compare(ports_of(live.cluster), ports_of(copy.cluster), one, deep)


@pytest.mark.parametrize(
    ("values", "deep", "difference"),
    [
        (["a", "b", "c"], True, None),
        (["x", "b", "c"], False, r"the records \[0, 1\) differ"),
        (["a", "b", "x"], False, r"the records \[2, 3\) differ"),
        (["a", "x", "c"], True, r"the records \[0, 3\) differ"),
        (["a", "b", "c", "d"], False, "but the leader's log ends at offset"),
    ],
)
def test_a_difference_is_a_failure(tmp_path: Path, values: list[str], deep: bool, difference: str | None) -> None:
    one, two = alike(tmp_path, 2)
    one.append(["a", "b", "c"]).raise_for_failures()  # the ids are equal, and there is no digest
    two.append(values).raise_for_failures()
    if difference is None:
        assert compared(one, two, deep=deep).compared_records == 5
    else:
        with pytest.raises(CorruptionError, match=difference):
            compared(one, two, deep=deep)


def test_other_producers_or_epochs_are_a_failure(tmp_path: Path) -> None:
    one, two, three = alike(tmp_path, 3)
    for each, producer in ((one, "p"), (two, "q"), (three, "p")):
        each.append(["a"], producer=producer).raise_for_failures()
    with pytest.raises(CorruptionError, match="the producer states at offset 1 differ"):
        compared(one, two)
    for each in (one, three):
        each.append(["b"], producer="p", sequence=1).raise_for_failures()
        if each is three:
            each.cluster.elect(leader=each.followers()[0]).raise_for_failures()
        each.append(["c"], producer="p", sequence=2).raise_for_failures()
    with pytest.raises(CorruptionError, match="the leader epochs below offset 3"):
        compared(one, three)


def test_a_drill_names_a_remote_object_that_is_gone(live: LiveCluster) -> None:
    next(live.remote.rglob("0/*.parquet")).unlink()
    report = live.cluster.drill()
    assert [failure.code for failure in report.failures] == ["REMOTE_OBJECT_MISSING"]
    assert (report.totals["lost_records"], report.totals["lost_ms"]) == (None, None)


def test_a_drill_shows_what_is_newer_than_the_description(live: LiveCluster) -> None:
    live.topic("new")
    live.cluster.topics.alter_configs("t", {"segment.bytes": "7"})
    live.cluster.topics.alter_configs(None, {"num.partitions": "4"})
    notes = live.cluster.drill().notes
    assert any("topic new is newer than the restore point" in note for note in notes)
    assert any("topic t has changed" in note for note in notes)
    assert any("configs of the cluster have changed" in note for note in notes)
