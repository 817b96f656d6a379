"""The snapshot job on topics of users: when, what, on which replicas, and what it lets go (KIP-630)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from engine import Cluster
from engine.operations.topics import create_topic
from engine.replication import snapshots as replication
from engine.report import Report
from partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    RetriableError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from partitions.paths import CheckpointName, ChunkName, LocalStartName, base_name, parse_name
from partitions.records import RECORD_COLUMNS
from partitions.segment import read_batches
from snapshots.reader import Snapshot, read_snapshot
from snapshots.snapshot_id import SnapshotId
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.harness import batch
from tests.unit.tampering import Spot

DAY_MS = 24 * 60 * 60 * 1000
Pairs = Sequence[tuple[str, str | None]]


def keyed(pairs: Pairs, at_ms: int) -> pa.RecordBatch:
    """Records of these keys and values."""
    values = batch([value or "" for _, value in pairs], at_ms * 1000)
    columns = {name: values.column(name) for name in RECORD_COLUMNS}
    columns["key"] = pa.array([key.encode() for key, _ in pairs], pa.binary())
    columns["value"] = pa.array([None if value is None else value.encode() for _, value in pairs], pa.binary())
    return pa.RecordBatch.from_pydict(columns)


class Keyed(LiveCluster):
    """A cluster with topic ``t``, whose snapshots hold the latest record of each key."""

    def begin(self, *, partitions: int = 1, copies: int = 3, **configs: str) -> Keyed:
        self.topic(partitions=partitions, copies=copies, **{"cleanup_policy": "snapshot", **configs})
        return self

    def put(self, pairs: Pairs, *, at_ms: int | None = None, driver: Cluster | None = None) -> None:
        """One append, to partition 0, with the time of the clock where none is given."""
        at_ms = self.clock.now_ms() if at_ms is None else at_ms
        cluster = driver or self.cluster
        cluster.append_batches("t", {0: [keyed(pairs, at_ms)]}).raise_for_failures()

    def take(self, driver: Cluster | None = None) -> Report:
        """A snapshot by hand, of all that is new."""
        return (driver or self.cluster).snapshot("t", by_hand=True).raise_for_failures()

    def take_metadata(self) -> Report:
        """A snapshot of the metadata log by hand."""
        return self.cluster.snapshot("__cluster_metadata", by_hand=True).raise_for_failures()

    def ids(self, broker: int) -> list[str]:
        """The snapshots of a replica."""
        return [str(SnapshotId.of(name)) for name, _ in self.log(broker).listing.checkpoints]

    def snapshot(self, broker: int, index: int = -1) -> Snapshot:
        """One of them, verified."""
        replica = self.replica(broker)
        _, stored = self.log(broker).listing.checkpoints[index]
        return read_snapshot(
            replica.store, replica.folder, stored, owner=replica.topic_id, partition=replica.partition
        )

    def held(self, broker: int) -> dict[str, str | None]:
        """What its latest snapshot holds."""
        return {
            k.decode(): v if v is None else v.decode() for k, v in self.snapshot(broker).rows() if k is not None
        }

    def state(self, broker: int) -> dict[str, str]:
        """What a reader of that replica makes of its snapshot and the log after it."""
        state: dict[str, str | None] = {}
        log, start = self.log(broker), 0
        if log.listing.checkpoints:
            state, start = self.held(broker), self.snapshot(broker).snapshot_id.end_offset
        assert start >= log.local_start
        for part in self.cluster.plan_read("t", start={0: start}, partitions=[0]):
            assert not part.remote
        state.update(self._log_after(broker, start))
        return {key: value for key, value in state.items() if value is not None}

    def _log_after(self, broker: int, start: int) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        log, store = self.log(broker), self.replica(broker).store
        for link in log.chain:
            low, high = max(link.start, start), min(link.end, log.high_watermark)
            if low < high:
                for rows in read_batches(store, link.file, low, high, ["key", "value"]):
                    for row in rows.to_pylist():
                        found[row["key"].decode()] = None if row["value"] is None else row["value"].decode()
        return found


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path).begin()


def checkpoint(live: LiveCluster, broker: int) -> Spot:
    """The file of a replica's latest snapshot."""
    _, stored = live.log(broker).listing.checkpoints[-1]
    return Spot(live.store(broker), stored.name)


# ------------------------------------------------------------------------------------------- what


def test_a_snapshot_holds_the_latest_record_of_each_key(live: Keyed) -> None:
    """KIP-630, "Snapshot Format": named after its end offset and the epoch of the last contained record."""
    live.put([("a", "1"), ("b", "2"), ("a", "3")])
    live.put([("c", "4"), ("b", None)])
    report = live.take()
    assert rows_of(report, "outcome", "snapshot", "records", "SnapshotLag") == [("made", "5-1", 3, 0)]
    assert live.held(live.leader()) == {"a": "3", "c": "4", "b": None}
    footer_ms = live.snapshot(live.leader()).last_contained_log_timestamp_ms
    assert footer_ms == live.clock.now_ms()


def test_it_ends_at_the_high_watermark_on_a_batch_boundary(live: Keyed) -> None:
    """KIP-630, "Proposed Changes": "up to at most the high-watermark"."""
    live.put([("a", "1"), ("b", "2")])
    live.cluster.append_batches("t", {0: [keyed([("a", "9")], 1)]}, acks="leader")
    assert live.log(live.leader()).log_end == 3
    assert rows_of(live.take(), "snapshot") == [("2-1",)]
    assert live.held(live.leader()) == {"a": "1", "b": "2"}


def test_snapshots_build_on_each_other_and_on_merged_files(live: Keyed) -> None:
    """The previous snapshot and the log after it are read, and nothing before."""
    rng = random.Random(5)
    twin: dict[str, str] = {}
    for step in range(12):
        pairs = [(rng.choice("abcdef"), rng.choice(["1", "2", None])) for _ in range(rng.randrange(1, 5))]
        live.put(pairs)
        twin = {k: v for k, v in {**twin, **dict(pairs)}.items() if v is not None}
        if step % 3 == 2:
            live.take()
        if step % 4 == 3:
            live.cluster.alter_configs("t", {"segment.merge.min.files": "2"})
            live.cluster.merge("t").raise_for_failures()
            live.cluster.replicate("t").raise_for_failures()
            live.cluster.retain("t").raise_for_failures()
    for broker in (1, 2, 3):
        assert live.state(broker) == twin


def test_tombstones_are_dropped_once_they_are_old(live: Keyed) -> None:
    """delete.retention.ms, by the tombstones' own time, when the last contained record is appended."""
    live.cluster.alter_configs("t", {"delete.retention.ms": "1000"})
    live.put([("a", "1"), ("b", "1")])
    live.put([("a", None)])
    live.take()
    assert live.held(live.leader()) == {"b": "1", "a": None}
    live.clock.sleep(1)
    live.put([("c", "1"), ("b", None)])
    live.take()
    assert live.held(live.leader()) == {"c": "1", "b": None}


def test_records_without_a_key_are_refused(live: Keyed) -> None:
    """As in Kafka's compacted topics: nothing could ever take their place."""
    report = live.append(["a"])
    assert the_failure(report).startswith("t-0: INVALID_RECORD: t-0: 1 of 1 records have no key")
    assert live.log(live.leader()).log_end == 0


@pytest.mark.parametrize(
    ("key", "configs", "says"),
    [
        (None, {"remote.storage.enable": "true"}, "choose one of the two"),
        ("ARRAY", {}, "cannot be compared"),
    ],
)
def test_topics_that_cannot_have_snapshots(
    tmp_path: Path, key: str | None, configs: Mapping[str, str], says: str
) -> None:
    """At creation and at every later change of the configs."""
    live = LiveCluster(tmp_path)
    schema = None if key is None else '{"type":"array","elementType":"string","containsNull":true}'
    context = live.cluster._context
    with pytest.raises(InvalidConfigError, match=says):
        create_topic(context, "t", key_schema=schema, configs={**configs, "cleanup.policy": "snapshot"})
    create_topic(context, "t", key_schema=schema, configs=configs)
    with live.unchanged(), pytest.raises(InvalidConfigError, match=says):
        live.cluster.alter_configs("t", {"cleanup.policy": "snapshot"})


# ------------------------------------------------------------------------------------------- when


def test_both_conditions_must_hold(live: Keyed) -> None:
    """KIP-630, "When to Snapshot": enough bytes, and enough of the snapshot's records changed; new ones do not
    count."""
    live.cluster.alter_configs("t", {"metadata.log.max.record.bytes.between.snapshots": "1"})
    live.put([(key, "1") for key in "abcd"])
    assert rows_of(live.cluster.snapshot("t"), "outcome") == [("made",)]
    live.put([(key, "1") for key in "efgh"])
    live.put([("a", "2")])
    (row,) = live.cluster.snapshot("t").rows
    assert (row["outcome"], row["why"]) == (
        "not now",
        "1 of 4 records of snapshot 4-1 have changed, below metadata.snapshot.min.changed_records.ratio = 0.5",
    )
    live.put([("b", None)])
    live.cluster.alter_configs("t", {"metadata.log.max.record.bytes.between.snapshots": "1000000"})
    (row,) = live.cluster.snapshot("t").rows
    assert "below metadata.log.max.record.bytes.between.snapshots" in str(row["why"])
    live.cluster.alter_configs("t", {"metadata.log.max.record.bytes.between.snapshots": "1"})
    assert rows_of(live.cluster.snapshot("t"), "outcome", "snapshot") == [("made", "10-1")]


def test_an_old_snapshot_is_followed_by_the_next_whatever_its_size(live: Keyed) -> None:
    """KIP-876: metadata.log.max.snapshot.interval.ms, an hour; 0 never."""
    live.put([("a", "1")])
    live.clock.sleep(3599)
    assert rows_of(live.cluster.snapshot("t"), "outcome") == [("not now",)]
    live.clock.sleep(1)
    assert rows_of(live.cluster.snapshot("t"), "outcome", "snapshot") == [("made", "1-1")]
    live.clock.sleep(3600)
    assert rows_of(live.cluster.snapshot("t"), "why") == [("nothing was committed since snapshot 1-1",)]
    live.put([("b", "1")])
    live.cluster.alter_configs("t", {"metadata.log.max.snapshot.interval.ms": "0"})
    assert rows_of(live.cluster.snapshot("t"), "outcome") == [("not now",)]
    live.cluster.alter_configs("t", {"metadata.log.max.snapshot.interval.ms": None})
    assert rows_of(live.cluster.snapshot("t"), "outcome", "snapshot") == [("made", "2-1")]


def test_by_hand_it_needs_only_something_new(live: Keyed) -> None:
    live.put([("a", "1")])
    assert rows_of(live.take(), "outcome") == [("made",)]
    with live.unchanged():
        (row,) = live.take().rows
    assert row["why"] == "nothing was committed since snapshot 1-1"


def test_a_dry_run_says_what_would_be_made_and_changes_nothing(live: Keyed) -> None:
    live.put([("a", "1")])
    with live.unchanged():
        report = live.cluster.snapshot("t", by_hand=True, dry_run=True)
    assert rows_of(report, "outcome", "SnapshotLag") == [("would be made up to 1", 1)]


def test_topics_with_another_policy_are_left_alone(live: Keyed) -> None:
    live.topic("other")
    assert {row["topic"] for row in live.cluster.snapshot(by_hand=True).rows} == {"t", "__cluster_metadata"}
    with pytest.raises(InvalidCallError, match=r"set its cleanup\.policy to snapshot first"):
        live.cluster.snapshot("other")
    with pytest.raises(UnknownTopicOrPartitionError):
        live.cluster.snapshot(["t", "nix"])


def test_a_partition_larger_than_memory_needs_spark(live: Keyed) -> None:
    """It is never loaded whole into Python."""
    live.put([("a", "1")])
    report = live.cluster.snapshot("t", by_hand=True, memory_bytes=10)
    assert "run this job on Spark" in the_failure(report)
    assert live.ids(live.leader()) == []


# ------------------------------------------------------------------------------ on which replicas


def test_every_live_replica_gets_the_same_bytes(live: Keyed) -> None:
    """One replica makes it, the others fetch it: by the run that made it."""
    live.put([("a", "1")])
    live.take()
    assert {checkpoint(live, broker).read() for broker in (1, 2, 3)} == {checkpoint(live, live.leader()).read()}


def test_a_follower_that_was_away_gets_it_by_the_next_replicate(tmp_path: Path) -> None:
    """Sync copies snapshots as it copies data; an append does not wait for them."""
    live = Keyed(tmp_path, on_disk=True).begin()
    live.put([("a", "1")])
    away = live.followers()[0]
    live.cluster.fence(away).raise_for_failures()
    live.take()
    assert live.ids(away) == []
    live.cluster.unfence(away)
    live.put([("b", "1")])
    assert live.ids(away) == []
    live.cluster.replicate("t").raise_for_failures()
    assert live.ids(away) == ["1-1"]
    assert live.isr() == {1, 2, 3}


def test_a_follower_below_the_log_start_takes_the_snapshot_first(live: Keyed) -> None:
    """KIP-630, "Changes to Leader Election": fetch the snapshot, start the log at its end, then fetch the log."""
    live.put([("a", "1"), ("b", "1")])
    lost = live.followers()[0]
    live.wipe(lost)
    live.put([("a", "2")])
    live.take()
    live.clock.sleep(100)
    live.put([("c", "1")])
    live.cluster.retain("t")
    live.clock.sleep(100)
    live.cluster.retain("t")
    assert live.site().view.log_start_offset == 3
    live.cluster.bootstrap(lost).raise_for_failures()
    log = live.log(lost)
    assert live.ids(lost) == ["3-1"]
    assert (log.local_start, log.log_end) == (3, 4)
    assert live.isr() == {1, 2, 3}
    assert live.state(lost) == {"a": "2", "b": "1", "c": "1"}


def test_a_follower_that_parted_ways_below_the_log_start_takes_the_snapshot(tmp_path: Path) -> None:
    """KIP-630, "Overview": "with an offset and last fetched epoch greater than or equal to the LogStartOffset";
    where the logs agree ends below it, no offset is left to truncate to."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    live.put([("a", "1")])
    ahead, (heir,) = live.leader(), live.followers()
    live.cluster.fence(heir).raise_for_failures()
    live.put([(key, "lost") for key in "bcdef"])
    live.cluster.fence(ahead, force=True).raise_for_failures()
    live.cluster.unfence(heir).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.put([("b", "2"), ("c", "2")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    live.put([("d", "3")])
    assert (live.leader(), live.log(heir).local_start) == (heir, 3)
    live.cluster.unfence(ahead).raise_for_failures()
    live.cluster.replicate("t").raise_for_failures()
    assert live.ids(ahead) == live.ids(heir)
    assert (live.log(ahead).local_start, live.log(ahead).log_end) == (3, 4)
    assert live.state(ahead) == {"a": "1", "b": "2", "c": "2", "d": "3"}


def test_the_snapshot_is_in_place_before_the_log_starts_at_its_end(tmp_path: Path) -> None:
    """Whatever stops a follower on the way: the local start never stands without its snapshot."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1"), ("b", "1")])
    lost = live.followers()[0]
    live.wipe(lost)
    live.put([("a", "2")])
    live.take()
    live.cluster.retain("t")
    live.clock.sleep(100)
    live.cluster.retain("t")
    stopped = 0
    for nth in range(1, 100):
        left = nth

        def stop(uri: str, what: str, name: str) -> None:
            nonlocal left
            if uri == f"memory://b{lost}" and what in CHANGES and "/t-" in name:
                left -= 1
                if left == 0:
                    raise StorageError("full")

        faults.before = stop
        report = live.cluster.bootstrap(lost) if nth == 1 else live.cluster.replicate("t")
        faults.none()
        listing = live.replica(lost).list()
        assert listing.local_start in (0, 3)
        assert listing.local_start == 0 or [name.end_offset for name, _ in listing.checkpoints] == [3]
        stopped += not report.ok
        if report.ok and left > 0:
            break
    assert stopped > 3
    live.cluster.replicate("t").raise_for_failures()
    assert live.state(lost) == {"a": "2", "b": "1"}
    assert live.replica(lost).list().chunks == ()


def test_a_damaged_snapshot_is_passed_over_and_not_spread(live: Keyed) -> None:
    """The previous one and the log after it are used, and the report says so."""
    live.put([("a", "1")])
    live.take()
    live.put([("b", "1")])
    live.take()
    leader = live.leader()
    lacking, other = live.followers()
    for broker in (leader, other):
        checkpoint(live, broker).flip(700)
    for name, _ in live.log(lacking).listing.checkpoints:
        live.store(lacking).delete([live.replica(lacking).path(name)])
    report = live.cluster.snapshot("t")
    assert any("passed over a damaged snapshot" in note for note in report.notes)
    assert live.ids(lacking) == ["1-1"]
    live.put([("c", "1")])
    live.take()
    assert live.held(leader) == {"a": "1", "b": "1", "c": "1"}
    assert live.held(lacking) == live.held(leader)


def test_a_leader_whose_snapshot_is_damaged_gets_a_whole_copy_of_a_follower(live: Keyed) -> None:
    """What the snapshot stands for is nowhere in the log any more: without it, the next one would lose it."""
    live.put([("a", "1"), ("b", "1")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    live.clock.sleep(100)
    live.cluster.retain("t").raise_for_failures()
    whole = checkpoint(live, live.leader()).read()
    checkpoint(live, live.leader()).flip(700)
    live.put([("c", "1")])
    report = live.cluster.snapshot("t").raise_for_failures()
    assert rows_of(report, "outcome") == [("not now",)]
    assert checkpoint(live, live.leader()).read() == whole
    checkpoint(live, live.leader()).remove()
    live.take()
    assert live.held(live.leader()) == {"a": "1", "b": "1", "c": "1"}


def test_without_any_snapshot_of_what_left_the_log_none_is_made(live: Keyed) -> None:
    """Nothing that only old snapshots held is ever left out in silence."""
    live.put([("a", "1")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    live.put([("b", "1")])
    for broker in (1, 2, 3):
        checkpoint(live, broker).flip(700)
    assert codes(live.cluster.snapshot("t", by_hand=True)) == {"LOG_GAP": 1}
    for broker in (1, 2, 3):
        checkpoint(live, broker).remove()
    assert codes(live.cluster.snapshot("t")) == {"LOG_GAP": 1}


def test_a_topic_may_get_the_policy_when_its_log_start_has_grown(tmp_path: Path) -> None:
    """What retention had dropped by then nobody misses; a person says so, by the first snapshot by hand."""
    live = Keyed(tmp_path).begin(cleanup_policy="delete", retention_bytes="1")
    live.put([("a", "1")])
    live.put([("b", "1")])
    live.cluster.retain("t").raise_for_failures()
    live.cluster.alter_configs("t", {"cleanup.policy": "snapshot"})
    assert "take the first snapshot by hand" in the_failure(live.cluster.snapshot("t"))
    live.take()
    assert live.held(live.leader()) == {"b": "1"}


# ------------------------------------------------------------------------------ what it lets go


def test_the_log_start_grows_when_all_live_replicas_have_it(live: Keyed) -> None:
    """KIP-630, "When to Increase the LogStartOffset"; local starts follow by retain."""
    live.put([("a", "1")])
    assert rows_of(live.take(), "log_start") == [(1,)]
    assert live.site().view.log_start_offset == 1
    assert {live.log(broker).local_start for broker in (1, 2, 3)} == {0}
    live.cluster.retain("t").raise_for_failures()
    assert {live.log(broker).local_start for broker in (1, 2, 3)} == {1}


def test_retention_does_not_move_the_log_start(live: Keyed) -> None:
    """Only a snapshot stands for what leaves the log."""
    live.cluster.alter_configs("t", {"retention.ms": "1", "retention.bytes": "1"})
    live.put([("a", "1")], at_ms=1)
    live.put([("b", "1")], at_ms=1)
    live.clock.sleep(1000)
    assert rows_of(live.cluster.retain("t"), "log_start") == [(0,)]


def test_a_slow_replica_is_waited_for_and_a_fenced_one_is_not(tmp_path: Path) -> None:
    """KIP-630: "All of the live replicas ... have replicated LogStartOffset"."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    slow = live.followers()[0]

    def refuse(uri: str, what: str, name: str) -> None:
        if uri == f"memory://b{slow}" and ".checkpoint" in name and what in CHANGES:
            raise StorageError("the disk is full")

    faults.before = refuse
    report = live.cluster.snapshot("t", by_hand=True)
    assert codes(report) == {"KAFKA_STORAGE_ERROR": 1}
    assert live.site().view.log_start_offset == 0
    live.cluster.fence(slow).raise_for_failures()
    live.cluster.snapshot("t").raise_for_failures()
    assert live.site().view.log_start_offset == 1


def test_no_replica_is_waited_for_for_ever(tmp_path: Path) -> None:
    """KIP-630: "or LogStartOffset is metadata.start.offset.lag.time.max.ms milliseconds old"."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin(metadata_start_offset_lag_time_max_ms="5000")
    live.put([("a", "1")])
    slow = live.followers()[0]

    def refuse(uri: str, what: str, name: str) -> None:
        if uri == f"memory://b{slow}" and ".checkpoint" in name and what in CHANGES:
            raise StorageError("the disk is full")

    faults.before = refuse
    live.cluster.snapshot("t", by_hand=True)
    live.clock.sleep(4)
    live.cluster.snapshot("t")
    assert live.site().view.log_start_offset == 0
    live.clock.sleep(1)
    live.cluster.snapshot("t")
    assert live.site().view.log_start_offset == 1
    live.cluster.retain("t")
    assert live.log(live.leader()).local_start == 1
    assert (
        live.log(slow).local_start == 0
    )  # KIP-630: the minimum of the leader's start and the largest local snapshot


def test_snapshots_below_the_log_start_go_after_the_delay_and_the_latest_never(live: Keyed) -> None:
    """KIP-630, "When to Delete Snapshots"; file.delete.delay.ms for the sake of running readers."""
    live.put([("a", "1")])
    live.take()
    live.put([("a", "2")])
    live.take()
    assert live.ids(1) == ["1-1", "2-1"]
    live.clock.sleep(61)
    report = live.cluster.snapshot("t").raise_for_failures()
    assert rows_of(report, "deleted") == [(3,)]
    assert {tuple(live.ids(broker)) for broker in (1, 2, 3)} == {("2-1",)}
    live.clock.sleep(DAY_MS / 1000)
    live.cluster.snapshot("t").raise_for_failures()
    assert {tuple(live.ids(broker)) for broker in (1, 2, 3)} == {("2-1",)}


def test_nothing_is_deleted_before_its_successor_is_verified(live: Keyed) -> None:
    """A replica whose later snapshot is damaged keeps the earlier one."""
    live.put([("a", "1")])
    live.take()
    live.put([("a", "2")])
    live.take()
    victim = live.followers()[0]
    checkpoint(live, victim).flip(700)
    live.clock.sleep(61)
    live.cluster.snapshot("t")
    assert live.ids(victim) == ["1-1", "2-1"]
    assert live.ids(live.leader()) == ["2-1"]
    assert live.held(victim) == {"a": "2"}  # mended; the next run but one deletes
    live.clock.sleep(61)
    live.cluster.snapshot("t").raise_for_failures()
    assert live.ids(victim) == ["2-1"]


# ------------------------------------------------------------------------------- other leaders


def test_a_new_leader_goes_on_from_the_snapshots_of_the_old_one(live: Keyed) -> None:
    """The epoch in the name is that of the last contained record, not that of the moment."""
    live.put([("a", "1")])
    live.take()
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    assert rows_of(live.take(), "outcome", "snapshot") == [("not now", "1-1")]
    live.put([("b", "1")])
    assert rows_of(live.take(), "outcome", "snapshot") == [("made", "2-2")]
    assert {frozenset(live.state(broker).items()) for broker in (1, 2, 3)} == {
        frozenset({"a": "1", "b": "1"}.items())
    }


def elected_before(
    faults: Faults, driver: Cluster, when: Callable[[str, str, str], bool], heirs: Sequence[int]
) -> None:
    """Each time that ``when(root, call, name)`` says so, elect the next of these brokers first."""
    left = list(heirs)

    def strike(uri: str, what: str, name: str) -> None:
        if when(uri, what, name) and left:
            heir = left.pop(0)
            faults.none()
            driver.elect("t", leader=heir).raise_for_failures()
            driver.append_batches("t", {0: [keyed([(f"of {heir}", "1")], 1)]}).raise_for_failures()
            faults.before = strike

    faults.before = strike


def makes_snapshot(uri: str, what: str, name: str) -> bool:
    return what == "stage" and name.endswith(".checkpoint")


def test_a_run_whose_leader_is_replaced_meanwhile_goes_on_under_the_new_one(tmp_path: Path) -> None:
    """Write, then check: before a snapshot gets its name, the leader is looked at once more. FENCED_LEADER_EPOCH:
    what was written so far is given up, and the partition looked at anew, in the same run."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    heir = live.followers()[0]
    elected_before(faults, live.driver(), makes_snapshot, [heir])
    report = live.cluster.snapshot("t", by_hand=True)
    assert rows_of(report, "outcome", "snapshot") == [("made", "2-2")]
    assert [live.ids(broker) for broker in (1, 2, 3)] == [["2-2"]] * 3
    assert live.leader() == heir


def test_a_run_whose_leader_is_replaced_again_and_again_ends(tmp_path: Path) -> None:
    """Three views, and no more: FENCED_LEADER_EPOCH is its failure, and nothing was made."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    one, two = live.followers()
    elected_before(faults, live.driver(), makes_snapshot, [one, two, one, two])
    assert codes(live.cluster.snapshot("t", by_hand=True)) == {"FENCED_LEADER_EPOCH": 1}
    faults.none()
    assert [live.ids(broker) for broker in (1, 2, 3)] == [[], [], []]
    assert live.leader() == one, "it was replaced three times"
    assert rows_of(live.take(), "outcome") == [("made",)]


def test_a_follower_whose_leader_is_replaced_between_two_chunks_goes_on_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-630, "Fetching Snapshots": CurrentLeaderEpoch of every request; FENCED_LEADER_EPOCH. What was fetched
    stays, for the new leader has the same bytes."""
    monkeypatch.setattr(replication, "RESPONSE_MAX_BYTES", 600)
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    heir, last = live.followers()
    positions: list[int] = []

    def second_chunk(uri: str, what: str, name: str) -> bool:
        part = parse_name(base_name(name))
        if uri != f"memory://b{last}" or what != "create" or not isinstance(part, ChunkName):
            return False
        positions.append(part.position)
        return len(positions) == 2

    elected_before(faults, live.driver(), second_chunk, [heir])
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    assert live.leader() == heir
    assert [live.ids(broker) for broker in (1, 2, 3)] == [["1-1"]] * 3
    assert positions == list(range(0, len(checkpoint(live, heir).read()), 600)), "none was fetched twice"
    assert live.site().view.log_start_offset == 1
    assert live.log(last).listing.chunks == ()


def test_a_log_start_that_was_found_under_another_leader_is_looked_for_again(tmp_path: Path) -> None:
    """AdvanceLogStart carries the leader epoch: after an unclean election the old one's may lie beyond the log,
    and what is appended there would be below the log start."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin(copies=2, unclean_leader_election_enable="true")
    live.put([("a", "1")])
    leader, (behind,) = live.leader(), live.followers()
    live.cluster.fence(behind).raise_for_failures()
    live.put([("a", "2"), ("b", "2")])
    other = live.driver()
    named = False

    def replace_leader(uri: str, what: str, name: str) -> None:
        nonlocal named
        named |= what == "commit" and name.endswith(".checkpoint")
        if named and what == "create" and "__cluster_metadata" in name:
            faults.none()
            other.unfence(behind).raise_for_failures()
            other.fence(leader, force=True).raise_for_failures()
            other.elect("t", unclean=True).raise_for_failures()

    faults.before = replace_leader
    report = live.cluster.snapshot("t", by_hand=True)
    assert live.leader() == behind
    assert live.log(behind).log_end == 1
    assert live.site().view.log_start_offset == 0
    assert report.ok


def test_after_an_unclean_election_the_snapshot_of_the_old_leader_is_what_is_left(tmp_path: Path) -> None:
    """The log below the log start is nowhere any more; the old leader's snapshot is still there when it is back,
    and of the history that goes on: the next one builds on it."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    live.put([("a", "1")])
    leader, (behind,) = live.leader(), live.followers()
    live.cluster.fence(behind).raise_for_failures()
    live.put([("a", "2"), ("b", "2")])
    live.take()
    live.cluster.fence(leader, force=True).raise_for_failures()
    live.cluster.unfence(behind).raise_for_failures()
    live.cluster.elect("t", unclean=True)
    live.put([("c", "3")])
    assert "LOG_GAP" in codes(live.cluster.snapshot("t"))
    live.cluster.unfence(leader).raise_for_failures()
    live.cluster.replicate("t").raise_for_failures()
    live.take()
    assert live.leader() == behind
    assert live.held(behind) == live.held(leader) == {"a": "2", "b": "2", "c": "3"}


def test_a_replica_leads_from_the_end_of_its_snapshot_where_its_log_ends_before(tmp_path: Path) -> None:
    """KIP-630, "Changes to Leader Election": the replica "needs to use the snapshot ... and not the replicated
    log"; "Validation of Snapshot and Log": it "must set the LogStartOffset and LEO to O1"."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    live.put([("a", "1")])
    leader, (behind,) = live.leader(), live.followers()
    live.cluster.fence(behind).raise_for_failures()
    live.put([("a", "2"), ("b", "2")])
    live.cluster.unfence(behind).raise_for_failures()
    live.take()  # the follower gets the snapshot, and its log goes on to end at 1
    assert (live.ids(behind), live.log(behind).log_end) == (["3-1"], 1)
    live.cluster.fence(leader, force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    assert live.leader() == behind
    live.put([("c", "3")])
    log = live.log(behind)
    assert (log.local_start, log.log_end) == (3, 4)
    assert live.state(behind) == {"a": "2", "b": "2", "c": "3"}
    live.cluster.unfence(leader).raise_for_failures()
    live.cluster.replicate("t").raise_for_failures()
    assert live.state(leader) == live.state(behind)
    live.cluster.verify("t", deep=True).raise_for_failures()


def test_a_damaged_snapshot_makes_nobody_lead_from_its_end(tmp_path: Path) -> None:
    """Every byte is verified before anything rests on it."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    live.put([("a", "1")])
    leader, (behind,) = live.leader(), live.followers()
    live.cluster.fence(behind).raise_for_failures()
    live.put([("a", "2")])
    live.cluster.unfence(behind).raise_for_failures()
    live.take()
    checkpoint(live, behind).flip(700)
    live.cluster.fence(leader, force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True)
    assert live.leader() == behind
    assert live.log(behind).local_start < 2


def test_snapshots_of_a_history_that_was_given_up_count_for_nothing(live: Keyed) -> None:
    """The epoch in the name tells; they go when the log start has passed them."""
    live.put([("a", "1"), ("b", "1")])
    leader = live.replica(live.leader())
    leader.store.create(leader.path(CheckpointName(1, 9)), b"of epoch 9, which this history never had at offset 0")
    assert live.cluster.snapshots("t").rows == []
    live.take()
    live.put([("c", "1")])
    live.take()
    assert live.ids(live.leader()) == ["1-9", "2-1", "3-1"]
    live.clock.sleep(61)
    live.cluster.snapshot("t").raise_for_failures()
    assert live.ids(live.leader()) == ["3-1"]


# ----------------------------------------------------------------------------------- two at once


@pytest.mark.parametrize("seed", range(12))
def test_two_runs_at_once_do_no_harm(tmp_path: Path, seed: int) -> None:
    """At a random change of one run another one runs from beginning to end, and appends besides."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin(file_delete_delay_ms="0")
    rng = random.Random(seed)
    twin: dict[str, str] = {}

    def put() -> None:
        pairs = [(rng.choice("abcd"), str(rng.randrange(100))) for _ in range(3)]
        live.put(pairs)
        twin.update(pairs)

    other = live.driver()
    for _ in range(4):
        put()
        left = rng.randrange(1, 12)

        def interrupt(uri: str, what: str, name: str) -> None:
            nonlocal left
            left -= what in CHANGES and "/t-" in name
            if left == 0:
                faults.none()
                put()
                live.take(other)
                other.retain("t").raise_for_failures()

        faults.before = interrupt
        live.cluster.snapshot("t", by_hand=True).raise_for_failures()
        faults.none()
        live.cluster.retain("t").raise_for_failures()
        live.clock.sleep(1)
    live.take()
    assert {frozenset(live.state(broker).items()) for broker in (1, 2, 3)} == {frozenset(twin.items())}
    assert live.cluster.verify("t", deep=True).ok


def test_a_run_that_stops_anywhere_is_gone_on_from(tmp_path: Path) -> None:
    """I7: the n-th change of a run fails, and all that come after it; the next run does the rest."""
    for nth in range(1, 40):
        faults = Faults()
        folder = tmp_path / str(nth)
        folder.mkdir()
        live = Keyed(folder, through=faults.wrap).begin(file_delete_delay_ms="0")
        live.put([("a", "1")])
        live.take()
        live.put([("a", "2"), ("b", "1")])
        left = nth

        def stop(uri: str, what: str, name: str) -> None:
            nonlocal left
            left -= what in CHANGES
            if left <= 0 and what in CHANGES:
                raise StorageError("the driver is dead")

        faults.before = stop
        with suppress(RetriableError):  # the metadata's only voter is on that storage, too
            live.cluster.snapshot("t", by_hand=True)
        faults.none()
        other = live.driver()
        other.snapshot("t", by_hand=True).raise_for_failures()
        other.retain("t").raise_for_failures()
        assert [live.state(broker) for broker in (1, 2, 3)] == [{"a": "2", "b": "1"}] * 3
        assert {tuple(live.ids(broker)) for broker in (1, 2, 3)} == {("3-1",)}
        if left > 0:
            return
    raise AssertionError("a run of so many changes was not thought of")


# --------------------------------------------------------------------------------------- metrics


def test_the_metrics_have_the_names_of_the_kip(live: Keyed) -> None:
    """KIP-630, "Metrics"."""
    live.put([("a", "1")])
    (made,) = live.take().rows
    live.put([("b", "1")])
    rows = {str(row["metric"]): row for row in live.cluster.metrics().raise_for_failures().rows}
    assert rows["SnapshotLag"]["value"] == 1
    assert rows["SnapshotSizeBytes"]["value"] == made["SnapshotSizeBytes"] == len(checkpoint(live, 1).read())
    assert rows["GenSnapshotLatencyMs"]["count"] == 1
    assert [row["lag"] for row in live.cluster.snapshots("t").raise_for_failures().rows] == [1, 1, 1]


def test_loading_is_measured_by_the_driver_that_loads(live: Keyed) -> None:
    """LoadSnapshotLatencyMs."""
    live.put([("a", "1")])
    live.cluster.commit("g", {("t", 0): 1})
    live.cluster.snapshot("__consumer_offsets", by_hand=True).raise_for_failures()
    reader = live.driver()
    reader.committed("g")
    loads = [row for row in reader.metrics().rows if row["metric"] == "LoadSnapshotLatencyMs"]
    assert [(row["topic"], row["count"]) for row in loads] == [("__consumer_offsets", 1)]


def test_names_of_snapshots_are_no_strangers_to_the_other_jobs(live: Keyed) -> None:
    """verify, retain and describe know them."""
    live.put([("a", "1")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    names = [name for name, _ in live.log(1).listing.checkpoints]
    assert names == [CheckpointName(1, 1)]
    assert [name for name, _ in live.log(1).listing.local_starts] == [LocalStartName(1)]
    assert live.cluster.verify("t", deep=True).ok
    assert live.cluster.history("t").ok
