"""cleanup.policy=compact on a whole cluster: the last record of each key stays at its offset."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.engine.metadata.partition_commands import AddRules, WantedRule
from stratalog.engine.reading.look import local_pieces
from stratalog.engine.reading.stream_read import StreamTask, read_task
from stratalog.engine.reading.stream_tasks import part as part_of
from stratalog.engine.records.append import append_batches
from stratalog.engine.replication.damage import check_whole
from stratalog.engine.upkeep.replication import compact as compacting
from stratalog.engine.upkeep.replication.compact import PROTECTED
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    InvalidConfigError,
    InvalidRecordError,
    PolicyViolationError,
    StratalogError,
)
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.records import GAP
from stratalog.partitions.segments.reader import read_batches
from tests.ports import ports_of
from tests.unit.at_calls import dies_at
from tests.unit.cluster_harness import LiveCluster, fence, report_of, rows_of
from tests.unit.harness import batch

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
Row = tuple[str | None, str | None]


class Compacted(LiveCluster):
    """A cluster with the compacted topic ``t``, each of whose appends is a segment."""

    def __init__(self, folder: Path, *, on_disk: bool = False, **configs: str) -> None:
        super().__init__(folder, on_disk=on_disk)
        given = {"cleanup_policy": "compact", "segment_bytes": "1", "file_delete_delay_ms": "0", **configs}
        self.topic(**given)

    def put(self, *rows: Row, topic: str = "t") -> None:
        """Append these keys and values as one append."""
        ports = ports_of(self.cluster)
        keys, values = (
            [None if text is None else text.encode() for text in some] for some in zip(*rows, strict=True)
        )
        made = batch(values).set_column(1, "key", pa.array(keys, pa.binary()))
        stamp = made.schema.field("timestamp")
        made = made.set_column(0, stamp, pa.nulls(made.num_rows, stamp.type))
        report = append_batches(
            *(ports.metadata, ports.storage, ports.clock, ports.memory), topic, {0: [made]}, None
        )
        report.raise_for_failures()

    def held(self, broker: int) -> dict[int, Row]:
        """The records of a replica by offset."""
        found: dict[int, Row] = {}
        for link in self.log(broker).chain:
            for part in read_batches(self.store(broker), link.file, link.start, link.end):
                for row in part.to_pylist():
                    if row["control"] != GAP:
                        key, value = (None if one is None else one.decode() for one in (row["key"], row["value"]))
                        found[row["offset"]] = key, value
        return found

    def everywhere(self) -> dict[int, Row]:
        """The records that all replicas hold alike."""
        one, *others = [self.held(broker) for broker in (1, 2, 3)]
        assert all(other == one for other in others)
        return one


def stop_before_removal(live: Compacted) -> None:
    """A run that ends after it has committed its rules."""
    with dies_at(compacting, "compact_partition"):
        live.cluster.compact()


def commit_rule(live: LiveCluster, bound: int, at_ms: int) -> None:
    """The first rule of the topic ``t``, of a run that then ends."""
    (view,) = live.cluster.image.views("t")
    wanted = WantedRule(
        topic_id=view.topic_id,
        partition=view.partition,
        bound=bound,
        after=0,
        leader_epoch=view.leader_epoch,
        now_ms=at_ms,
        committed_ms=at_ms,
        delete_retention_ms=0,
        partition_epoch=view.partition_epoch,
    )
    ports_of(live.cluster).metadata.submit(AddRules((wanted,)))


ROWS = (("a", "1"), ("b", "1"), ("a", "2"), ("c", None), ("b", "2"), ("a", "3"))


def fill(live: Compacted, rows: Iterable[Row] = ROWS, topic: str = "t") -> None:
    for row in rows:
        live.put(row, topic=topic)


def test_the_last_record_of_each_key_stays_and_the_active_tail(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live)
    report = live.cluster.compact()
    assert rows_of(report, "dirty_ratio", "segments", "removed", "why") == [(1.0, 5, 2, None)]
    assert live.everywhere() == {2: ("a", "2"), 3: ("c", None), 4: ("b", "2"), 5: ("a", "3")}
    live.cluster.retain().raise_for_failures()
    assert all(not live.log(broker).hidden for broker in (1, 2, 3))
    assert live.cluster.verify(deep=True).ok
    assert live.cluster.heal().ok
    again = live.cluster.compact()
    assert rows_of(again, "segments") == [(0,)]


def test_readers_skip_the_gaps(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live, [(key, value or "1") for key, value in ROWS])
    live.cluster.compact().raise_for_failures()
    found, offset = [], 0
    while (fetched := live.cluster.fetch("t", 0, offset)).records.num_rows or offset < fetched.next_offset:
        found += fetched.records.column("offset").to_pylist()
        offset = fetched.next_offset
    assert (found, offset) == ([2, 3, 4, 5], 6)


def test_a_tombstone_stays_for_its_time_after_the_first_compaction_that_covers_it(tmp_path: Path) -> None:
    live = Compacted(tmp_path, delete_retention_ms=str(DAY_MS), min_cleanable_dirty_ratio="0")
    fill(live)
    live.cluster.compact().raise_for_failures()
    fill(live, [("b", "3"), ("d", "1"), ("d", "2"), ("e", "1")])
    live.cluster.compact().raise_for_failures()
    assert live.everywhere()[3] == ("c", None)
    live.clock.sleep((DAY_MS + HOUR_MS) / 1000)
    fill(live, [("b", "4")] * 9)
    live.cluster.compact().raise_for_failures()
    assert 3 not in live.everywhere()
    assert live.cluster.verify(deep=True).ok


def test_the_time_of_a_tombstone_begins_when_the_removal_is_done_not_when_it_is_decided(tmp_path: Path) -> None:
    """Until then, readers see records that the tombstone deletes."""
    live = Compacted(tmp_path, delete_retention_ms=str(DAY_MS), min_cleanable_dirty_ratio="0")
    fill(live, [("k", "1"), ("k", None), ("y", "1")])
    stop_before_removal(live)
    live.clock.sleep((DAY_MS + HOUR_MS) / 1000)
    fill(live, [("z", "1"), ("z", "2")])
    for _ in range(2):
        live.cluster.compact().raise_for_failures()
        assert live.everywhere()[1] == ("k", None)
    live.clock.sleep((DAY_MS + HOUR_MS) / 1000)
    fill(live, [("z", "3"), ("z", "4")])
    live.cluster.compact().raise_for_failures()
    assert 1 not in live.everywhere()


def test_no_rule_follows_one_that_a_member_of_the_isr_has_not_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member's readers still see records that tombstones delete, and ``delete.retention.ms`` begins for them
    only then.
    """
    live = Compacted(tmp_path, min_cleanable_dirty_ratio="0")
    fill(live, [("k", "1"), ("k", None), ("y", "1"), ("y", "2"), ("z", "1")])
    commit_rule(live, bound=2, at_ms=live.clock.now_ms())
    with monkeypatch.context() as patch:
        patch.setattr("stratalog.engine.replication.removal.replicate", lambda replicas, copies: {})
        for _ in range(2):
            live.cluster.compact().raise_for_failures()
    assert 0 not in live.held(live.leader())
    assert 0 in live.held(live.followers()[0])
    assert live.cluster.image.views("t")[0].generation == 1
    for _ in range(2):
        live.cluster.compact().raise_for_failures()
    assert live.cluster.image.views("t")[0].generation == 2
    assert [*live.everywhere()] == [1, 3, 4]


@pytest.mark.parametrize("left", [0, 2], ids=["no register of it", "an early one"])
def test_an_elected_leader_that_knows_a_lower_high_watermark_continues_with_a_rule(
    tmp_path: Path, left: int
) -> None:
    live = Compacted(tmp_path)
    fill(live)
    stop_before_removal(live)
    old = live.leader()
    for broker in live.followers():
        marks = sorted(
            one.name for one in live.store(broker).list("") if one.name.endswith(".hw") and "/t-" in one.name
        )
        live.store(broker).delete(marks[left:])
    fence(live, old)
    report = live.cluster.compact(check=False)
    if report.failures:
        assert "run `stratalog replicate`" in str(report.failures)
        live.cluster.replicate().raise_for_failures()
        report = live.cluster.compact()
    assert rows_of(report, "removed") == [(2,)]


def test_compaction_waits_for_the_dirty_ratio_between_its_two_lags(tmp_path: Path) -> None:
    live = Compacted(
        tmp_path,
        min_cleanable_dirty_ratio="0.6",
        min_compaction_lag_ms=str(HOUR_MS),
        max_compaction_lag_ms=str(DAY_MS),
    )
    fill(live)
    assert rows_of(live.cluster.compact(), "segments") == [(0,)], "younger than min.compaction.lag.ms"
    live.clock.sleep(2 * HOUR_MS / 1000)
    assert rows_of(live.cluster.compact(), "segments") == [(5,)]
    fill(live, [("b", "9")])
    live.clock.sleep(2 * HOUR_MS / 1000)
    (why,) = (live.cluster.compact().rows[0]["why"],)
    assert "dirty: compaction starts at 60%" in str(why)
    live.clock.sleep(DAY_MS / 1000)
    assert rows_of(live.cluster.compact(), "segments") != [(0,)], "older than max.compaction.lag.ms"


def test_an_old_tail_of_small_files_is_compacted_up_to_its_last_file(tmp_path: Path) -> None:
    """Kafka rolls its active segment after ``segment.ms``; the files here together correspond to the active
    segment.
    """
    live = Compacted(tmp_path, segment_bytes=str(2**30), segment_ms=str(HOUR_MS))
    fill(live)
    assert rows_of(live.cluster.compact(), "segments") == [(0,)]
    live.clock.sleep(2 * HOUR_MS / 1000)
    live.cluster.compact().raise_for_failures()
    assert [*live.everywhere()] == [2, 3, 4, 5]
    assert live.cluster.verify(deep=True).ok


def test_a_protected_topic_keeps_its_records_and_stops_no_other(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live)
    live.topic("u", cleanup_policy="compact", segment_bytes="1")
    fill(live, topic="u")
    live.cluster.topics.protect("t", days=1)
    report = live.cluster.compact()
    assert rows_of(report, "topic", "removed", "why") == [("t", 0, PROTECTED), ("u", 2, None)]
    assert len(live.everywhere()) == len(ROWS)
    live.clock.sleep(2 * DAY_MS / 1000)
    assert rows_of(live.cluster.compact("t"), "removed", "why") == [(2, None)]


def test_a_rule_from_before_the_protection_is_not_carried_out_while_it_lasts(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live)
    stop_before_removal(live)
    live.cluster.topics.protect("t", days=1)
    assert rows_of(live.cluster.compact(), "removed", "why") == [(0, PROTECTED)]
    assert len(live.everywhere()) == len(ROWS)
    live.clock.sleep(2 * DAY_MS / 1000)
    assert rows_of(live.cluster.compact(), "removed", "why") == [(2, None)]


def test_a_dry_run_says_what_is_due(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live)
    with live.unchanged():
        assert rows_of(live.cluster.compact(dry_run=True), "dirty_ratio") == [(1.0,)]


def test_maintain_compacts_and_a_follower_that_was_away_is_brought_up(tmp_path: Path) -> None:
    live = Compacted(tmp_path, on_disk=True)
    fill(live)
    away = live.followers()[0]
    with live.unreachable(away):
        live.put(("z", "1"))
        live.cluster.maintain(only=["replicate", "compact"], check=False)
        live.cluster.maintain(only=["compact"], check=False)
    live.clock.sleep(60)
    live.cluster.maintain(check=False)
    live.cluster.compact(check=False)
    live.cluster.maintain(check=False)
    assert live.isr() == {1, 2, 3}
    live.cluster.replicate().raise_for_failures()
    assert live.everywhere() == {3: ("c", None), 4: ("b", "2"), 5: ("a", "3"), 6: ("z", "1")}
    assert live.cluster.verify(deep=True).ok


def test_heal_says_when_its_only_source_has_records_that_a_compaction_removed(tmp_path: Path) -> None:
    live = Compacted(tmp_path, on_disk=True)
    fill(live)
    away = live.followers()[0]
    with live.unreachable(away):
        live.cluster.replicate(check=False)
        live.cluster.compact().raise_for_failures()
        in_sync = sorted(live.isr() - {away})
    for broker in in_sync:
        replica = live.replica(broker)
        (first,) = (link.file.name for link in replica.log().chain if link.start == 0)
        (second,) = (link.file.name for link in live.log(away).chain if link.start == 0)
        replica.store.delete([replica.path(first), replica.path(second)])  # as after file.delete.delay.ms
    report = live.cluster.heal("t", check=False)
    assert any(f"broker {away}. This copy predates the last compaction" in note for note in report.notes)
    live.cluster.replicate().raise_for_failures()
    live.cluster.compact().raise_for_failures()
    assert live.everywhere() == {2: ("a", "2"), 3: ("c", None), 4: ("b", "2"), 5: ("a", "3")}
    assert live.cluster.verify(deep=True).ok


def test_records_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecordError, match="no key"):
        Compacted(tmp_path).put((None, "1"))


def test_a_note_counts_the_records_without_a_key_that_a_topic_has_from_before(tmp_path: Path) -> None:
    live = Compacted(tmp_path, cleanup_policy="delete")
    fill(live, [(None, "1"), ("a", "1"), (None, None), ("b", "1"), (None, "tail")])
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "compact"})
    report = live.cluster.compact()
    assert "t-0: removed records without a key, written before compaction was enabled: 2" in str(report.notes)
    assert live.everywhere() == {1: ("a", "1"), 3: ("b", "1"), 4: (None, "tail")}
    fill(live, [("c", "1"), ("c", "2")] * 3)
    assert "compaction was enabled: 1" in str(live.cluster.compact().notes)
    fill(live, [("c", "1"), ("c", "2")] * 9)
    assert not live.cluster.compact().notes


def test_with_delete_retention_applies_and_without_it_does_not(tmp_path: Path) -> None:
    live = Compacted(tmp_path, retention_bytes="1")
    fill(live)
    live.cluster.retain().raise_for_failures()
    assert live.log(1).local_start == 0
    with pytest.raises(PolicyViolationError, match="policy is compact"):
        live.cluster.topics.delete_records("t", {0: 2})
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "compact,delete"})
    live.cluster.retain().raise_for_failures()
    assert live.log(live.leader()).local_start > 0


@pytest.mark.parametrize(
    ("configs", "named"),
    [
        ({"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable = false"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "set a lower min"),
    ],
)
def test_configs_that_exclude_compaction_are_refused(tmp_path: Path, configs: dict[str, str], named: str) -> None:
    live = Compacted(tmp_path)
    with pytest.raises(InvalidConfigError, match=named):
        live.cluster.topics.alter_configs("t", configs)


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "snapshot"},
        {"cleanup.policy": "delete", "unclean.leader.election.enable": "true"},
    ],
)
def test_configs_that_a_compacted_log_cannot_take_are_refused(tmp_path: Path, configs: dict[str, str]) -> None:
    live = Compacted(tmp_path)
    fill(live)
    live.cluster.compact().raise_for_failures()
    with pytest.raises(InvalidConfigError, match="is no longer possible"):
        live.cluster.topics.alter_configs("t", configs)
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "delete"})


def test_another_policy_is_an_error_only_if_the_topic_is_named(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    assert live.cluster.compact().rows == []
    with pytest.raises(StratalogError, match="to compact first"):
        live.cluster.compact("t")


def test_a_file_of_a_generation_that_no_rule_has_made_is_foreign(tmp_path: Path) -> None:
    """The file neither replaces good files nor stops anything; verify names it."""
    live = Compacted(tmp_path)
    fill(live)
    live.cluster.compact().raise_for_failures()
    leader = live.leader()
    replica = live.replica(leader)
    first = live.log(leader).chain[0]
    data = live.store(leader).read(first.file.object.name)
    planted = f"{first.start:020d}-{first.end:020d}.0000000001.0000000009.parquet"
    live.store(leader).create(replica.path(planted), data)
    before = live.everywhere()
    fill(live, [("a", "4"), ("a", "5")] * 4)
    live.cluster.compact().raise_for_failures()
    assert live.everywhere().keys() < before.keys() | set(range(6, 14))
    assert planted in str(report_of(live.cluster.verify).failures)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_driver_that_missed_a_rule_is_fenced_and_calls_no_log_damaged(tmp_path: Path, role: str) -> None:
    """The files that the driver's view knows were deleted, and their replacements are foreign to it."""
    live = Compacted(tmp_path)
    fill(live)
    broker = live.leader() if role == "leader" else live.followers()[0]
    before = live.replica(broker)
    live.cluster.compact().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    with pytest.raises(
        FencedLeaderEpochError, match=r"0000000001\.parquet.*removal rule that this view lacks.*read the metadata"
    ):
        check_whole(before, before.log())
    now = live.replica(broker)
    check_whole(now, now.log())


def test_a_task_that_was_planned_before_a_rule_reads_the_files_that_the_rule_has_made(tmp_path: Path) -> None:
    """A task on an executor cannot read the metadata again. The append comes before the first rule, or between two
    rules.
    """
    live = Compacted(tmp_path, min_cleanable_dirty_ratio="0")
    fill(live)
    for _ in range(2):
        replicas = ports_of(live.cluster).storage.replicas(live.cluster.image.views("t")[0])
        parts = tuple(part_of(0, one) for one in local_pieces(replicas.leader, replicas.leader.log()))
        task = StreamTask("t", parts, {0: replicas}, None, Isolation.READ_COMMITTED)
        end = parts[-1].piece.end
        before = offsets_of(task)
        fill(live, [("a", "4"), ("b", "4"), ("c", "4"), ("z", "1")] * 3)
        live.cluster.compact().raise_for_failures()
        live.cluster.retain().raise_for_failures()
        assert offsets_of(task) == [at for at in live.everywhere() if at < end]
        assert set(offsets_of(task)) < set(before)


def offsets_of(task: StreamTask) -> list[int]:
    return [at for records in read_task(task, ["offset"]) for at in records.column("offset").to_pylist()]
