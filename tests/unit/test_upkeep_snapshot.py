"""The snapshot job on user topics: its times, content, replicas, and deletions (KIP-630)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog.engine.admin.topics import create_topic
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    InvalidRecordError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.paths import CheckpointName, LocalStartName
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, rows_of, the_failure
from tests.unit.snapshot_harness import Keyed, checkpoint, keyed


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path).begin()


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


@pytest.mark.slow
def test_it_holds_what_is_committed_and_ends_where_a_transaction_is_open(tmp_path: Path) -> None:
    """KIP-98: up to the last stable offset, whether the log is merged or not."""
    live = Keyed(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.begin(segment_merge_min_files="2")
    live.put([("a", "1"), ("b", "1"), ("c", "1")])
    for key, commit in (("a", True), ("b", False)):
        t = live.cluster.transactions.begin("x")
        t.append_batches("t", {0: [keyed([(key, "2")], live.clock.now_ms())]})
        (t.commit if commit else t.abort)()
    left_open = live.cluster.transactions.begin("y")
    left_open.append_batches("t", {0: [keyed([("c", "2")], live.clock.now_ms())]})
    live.put([("d", "1")])
    assert rows_of(live.take(), "snapshot") == [("7-1",)]
    assert live.held(live.leader()) == {"a": "2", "b": "1", "c": "1"}
    left_open.commit()
    live.cluster.merge("t").raise_for_failures()
    assert rows_of(live.take(), "snapshot") == [("10-1",)]
    assert live.held(live.leader()) == {"a": "2", "b": "1", "c": "2", "d": "1"}


@pytest.mark.slow
def test_snapshots_build_on_each_other_and_on_merged_files(live: Keyed) -> None:
    """The previous snapshot and the log after it are read, and no earlier files."""
    rng = random.Random(5)
    twin: dict[str, str] = {}
    for step in range(12):
        pairs = [(rng.choice("abcdef"), rng.choice(["1", "2", None])) for _ in range(rng.randrange(1, 5))]
        live.put(pairs)
        twin = {k: v for k, v in {**twin, **dict(pairs)}.items() if v is not None}
        if step % 3 == 2:
            live.take()
        if step % 4 == 3:
            live.cluster.topics.alter_configs("t", {"segment.merge.min.files": "2"})
            live.cluster.merge("t").raise_for_failures()
            live.cluster.replicate("t").raise_for_failures()
            live.cluster.retain("t").raise_for_failures()
    for broker in (1, 2, 3):
        assert live.state(broker) == twin


@pytest.mark.slow
def test_tombstones_are_dropped_once_they_are_old(live: Keyed) -> None:
    """delete.retention.ms, by the tombstones' own time, when the last contained record is appended."""
    live.cluster.topics.alter_configs("t", {"delete.retention.ms": "1000"})
    live.put([("a", "1"), ("b", "1")])
    live.put([("a", None)])
    live.take()
    assert live.held(live.leader()) == {"b": "1", "a": None}
    live.clock.sleep(1)
    live.put([("c", "1"), ("b", None)])
    live.take()
    assert live.held(live.leader()) == {"c": "1", "b": None}


def test_tombstones_are_kept_for_kafka_s_longest_time(live: Keyed) -> None:
    """In microseconds, 2^63-1 ms is not a 64-bit number."""
    live.cluster.topics.alter_configs("t", {"delete.retention.ms": str(2**63 - 1)})
    live.put([("a", "1"), ("b", None)])
    live.take()
    assert live.held(live.leader()) == {"a": "1", "b": None}


def test_records_without_a_key_are_refused(live: Keyed) -> None:
    """As in Kafka's compacted topics: no later record could replace them."""
    with pytest.raises(InvalidRecordError, match="append to t-0: record 0 of its batch, with no key"):
        live.append(["a"])
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
    ports = ports_of(live.cluster)
    with pytest.raises(InvalidConfigError, match=says):
        create_topic(*ports.for_tasks, "t", key_schema=schema, configs={**configs, "cleanup.policy": "snapshot"})
    create_topic(*ports.for_tasks, "t", key_schema=schema, configs=configs)
    with live.unchanged(), pytest.raises(InvalidConfigError, match=says):
        live.cluster.topics.alter_configs("t", {"cleanup.policy": "snapshot"})


# ------------------------------------------------------------------------------------------- when


@pytest.mark.slow
def test_both_conditions_must_hold(live: Keyed) -> None:
    """KIP-630, "When to Snapshot": enough bytes, and enough of the snapshot's records changed; new ones do not
    count."""
    live.cluster.topics.alter_configs("t", {"metadata.log.max.record.bytes.between.snapshots": "1"})
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
    live.cluster.topics.alter_configs("t", {"metadata.log.max.record.bytes.between.snapshots": "1000000"})
    (row,) = live.cluster.snapshot("t").rows
    assert "below metadata.log.max.record.bytes.between.snapshots" in str(row["why"])
    live.cluster.topics.alter_configs("t", {"metadata.log.max.record.bytes.between.snapshots": "1"})
    assert rows_of(live.cluster.snapshot("t"), "outcome", "snapshot") == [("made", "10-1")]


@pytest.mark.slow
def test_an_old_snapshot_is_followed_by_the_next_whatever_its_size(live: Keyed) -> None:
    """KIP-876: metadata.log.max.snapshot.interval.ms, an hour; 0 never."""
    live.put([("a", "1")])
    live.clock.sleep(3599)
    assert rows_of(live.cluster.snapshot("t"), "outcome") == [("not now",)]
    live.clock.sleep(1)
    assert rows_of(live.cluster.snapshot("t"), "outcome", "snapshot") == [("made", "1-1")]
    live.clock.sleep(3600)
    assert rows_of(live.cluster.snapshot("t"), "why") == [("nothing has been committed since snapshot 1-1",)]
    live.put([("b", "1")])
    live.cluster.topics.alter_configs("t", {"metadata.log.max.snapshot.interval.ms": "0"})
    assert rows_of(live.cluster.snapshot("t"), "outcome") == [("not now",)]
    live.cluster.topics.alter_configs("t", {"metadata.log.max.snapshot.interval.ms": None})
    assert rows_of(live.cluster.snapshot("t"), "outcome", "snapshot") == [("made", "2-1")]


def test_by_hand_it_needs_only_something_new(live: Keyed) -> None:
    live.put([("a", "1")])
    assert rows_of(live.take(), "outcome") == [("made",)]
    with live.unchanged():
        (row,) = live.take().rows
    assert row["why"] == "nothing has been committed since snapshot 1-1"


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
    """Python never loads it whole."""
    live.put([("a", "1")])
    report = live.cluster.snapshot("t", by_hand=True, memory_bytes=10, check=False)
    assert "run this job on Spark" in the_failure(report)
    assert live.ids(live.leader()) == []


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
    live.cluster.groups.commit("g", {("t", 0): 1})
    live.cluster.snapshot("__consumer_offsets", by_hand=True).raise_for_failures()
    reader = live.driver()
    reader.groups.committed("g")
    loads = [row for row in reader.metrics().rows if row["metric"] == "LoadSnapshotLatencyMs"]
    assert [(row["topic"], row["count"]) for row in loads] == [("__consumer_offsets", 1)]


@pytest.mark.slow
def test_names_of_snapshots_are_no_strangers_to_the_other_jobs(live: Keyed) -> None:
    """verify, retain and describe know them."""
    live.put([("a", "1")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    names = [name for name, _ in live.log(1).listing.checkpoints]
    assert names == [CheckpointName(1, 1)]
    assert [name for name, _ in live.log(1).listing.local_starts] == [LocalStartName(1)]
    assert live.cluster.verify("t", deep=True).ok
    assert live.cluster.discarded("t").ok
