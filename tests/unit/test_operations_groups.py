"""Consumer groups: commits, lag, bad input, the engine's own topics (KIP-630 mentions __consumer_offsets)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Cluster, OffsetAndMetadata
from engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_for
from partitions.errors import (
    InvalidCallError,
    InvalidGroupIdError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from partitions.paths import METADATA_TOPIC
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.faulty_store import Faults

MINUTE_S = 60


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``: three records in partition 0, one in partition 1."""
    live = LiveCluster(tmp_path)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "4"})
    live.topic(partitions=2)
    live.append({0: ["a", "b", "c"], 1: ["d"]}).raise_for_failures()
    return live


def test_what_was_committed_is_there_for_every_driver(live: LiveCluster) -> None:
    """A commit is acknowledged by the whole ISR, and a read is linearizable."""
    live.cluster.commit("g", {("t", 0): 1, ("t", 1): OffsetAndMetadata(1, 4, "half-way")})
    live.cluster.commit("g", {("t", 0): 2})
    live.cluster.commit("h", {("t", 0): 0})
    wanted = {("t", 0): OffsetAndMetadata(2), ("t", 1): OffsetAndMetadata(1, 4, "half-way")}
    for cluster in (live.cluster, live.driver()):
        assert cluster.committed("g") == wanted
        assert cluster.committed("h", "t") == {("t", 0): OffsetAndMetadata(0)}
        assert cluster.committed("nobody") == {}


def test_the_first_commit_creates_the_topic_with_its_own_configs(live: LiveCluster) -> None:
    """KIP-115: partitions and replicas as the cluster's configs say; whatever its defaults for topics are."""
    live.cluster.alter_configs(None, {"cleanup.policy": "delete", "unclean.leader.election.enable": "true"})
    live.cluster.commit("g", {("t", 0): 1})
    topic = live.cluster.image.topic(OFFSETS_TOPIC)
    assert (len(topic.partitions), len(topic.partitions[0].replicas)) == (4, 3)
    assert topic.configs["cleanup.policy"] == "snapshot"
    assert topic.configs["unclean.leader.election.enable"] == "false"
    log = live.log(live.leader(OFFSETS_TOPIC, partition_for("g", 4)), OFFSETS_TOPIC, partition_for("g", 4))
    assert log.high_watermark == 1


def test_on_too_few_brokers_the_topic_is_not_created(tmp_path: Path) -> None:
    """KIP-115: no silent fewer replicas; the error names the config."""
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2)
    live.append(["a"])
    with (
        live.unchanged(),
        pytest.raises(InvalidReplicationFactorError, match=r"offsets\.topic\.replication\.factor"),
    ):
        live.cluster.commit("g", {("t", 0): 1})
    live.cluster.alter_configs(None, {"offsets.topic.replication.factor": "2"})
    live.cluster.commit("g", {("t", 0): 1})
    assert live.cluster.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_lag_is_what_lies_between_the_commit_and_the_high_watermark(live: LiveCluster) -> None:
    """One row per partition of the group's topics; without a commit, all of it."""
    live.cluster.commit("g", {("t", 0): 1})
    columns = ("topic", "partition", "committed", "log_end", "high_watermark", "lag")
    assert rows_of(live.cluster.lag("g"), *columns) == [("t", 0, 1, 3, 3, 2), ("t", 1, None, 1, 1, 1)]
    assert live.cluster.lag("g").totals == {"group": "g", "lag": 3}
    assert live.cluster.lag("nobody").rows == []


def test_nothing_to_commit_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        assert live.cluster.commit("g", {}).rows == []


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("group", "offsets", "error", "says"),
    [
        ("", {("t", 0): 1}, InvalidGroupIdError, "a text of 1 to 255 characters"),
        ("g" * 256, {("t", 0): 1}, InvalidGroupIdError, "has 256 characters"),
        (None, {("t", 0): 1}, InvalidGroupIdError, "group None"),
        ("\ud800", {("t", 0): 1}, InvalidGroupIdError, "no valid Unicode"),
        ("g", {("t", 0): 4}, OffsetOutOfRangeError, "t-0: offset 4 cannot be committed: the log ends at 3"),
        ("g", {("t", 0): 1, ("t", 1): 2}, OffsetOutOfRangeError, "t-1: offset 2"),
        ("g", {("t", 2): 0}, UnknownTopicOrPartitionError, "no partition 2"),
        ("g", {("u", 0): 0}, UnknownTopicOrPartitionError, "topic 'u' does not exist"),
        ("g", {"t": 0}, UnknownTopicOrPartitionError, "write it as"),
        ("g", {("t", 0): -1}, InvalidCallError, "offset -1 cannot be committed"),
        ("g", {("t", 0): True}, InvalidCallError, "offset True cannot be committed"),
        ("g", {("t", 0): 1.5}, InvalidCallError, "offset 1.5 cannot be committed"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, "x" * 4097)}, OffsetMetadataTooLargeError, "4096 bytes"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, type) else value.__name__,
)
def test_what_is_wrong_with_a_commit_is_said_and_nothing_changed(
    live: LiveCluster, group: Any, offsets: Any, error: type[StratalogError], says: str
) -> None:
    """All or nothing: one bad partition keeps the others from being committed."""
    live.cluster.commit("g", {("t", 0): 1})
    with live.unchanged(), pytest.raises(error, match=says):
        live.cluster.commit(group, offsets)
    assert live.cluster.committed("g") == {("t", 0): OffsetAndMetadata(1)}


@pytest.mark.parametrize("read", ["committed", "lag"])
def test_reading_has_the_same_names(live: LiveCluster, read: str) -> None:
    with pytest.raises(InvalidGroupIdError):
        getattr(live.cluster, read)("")


def test_a_stale_member_is_refused(live: LiveCluster) -> None:
    """KIP-848, STALE_MEMBER_EPOCH: nothing changed."""
    live.cluster.commit("g", {("t", 0): 1}, member_epoch=2)
    with (
        live.unchanged(),
        pytest.raises(StaleMemberEpochError, match="epoch 2 has committed already"),
    ):
        live.driver().commit("g", {("t", 0): 3}, member_epoch=1)
    live.cluster.commit("g", {("t", 0): 2}, member_epoch=2)
    live.cluster.commit("g", {("t", 1): 1}, member_epoch=3)
    with pytest.raises(InvalidCallError, match="member epoch -1"):
        live.cluster.commit("g", {("t", 0): 1}, member_epoch=-1)
    assert live.cluster.committed("g") == {("t", 0): OffsetAndMetadata(2), ("t", 1): OffsetAndMetadata(1)}


def test_a_member_that_becomes_stale_while_it_commits_is_refused(tmp_path: Path) -> None:
    """Write, then check: a newer member's commit comes between the look and the append. The stale one's record is
    in the log, and counts for nothing."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.append(["a", "b"]).raise_for_failures()
    live.cluster.commit("g", {("t", 0): 0}, member_epoch=1)
    newer = live.driver()

    def overtake(uri: str, what: str, name: str) -> None:
        if what == "stage" and OFFSETS_TOPIC in name:
            faults.none()
            newer.commit("g", {("t", 0): 1}, member_epoch=2)

    faults.before = overtake
    with pytest.raises(StaleMemberEpochError):
        live.cluster.commit("g", {("t", 0): 2}, member_epoch=1)
    assert live.log(live.leader(OFFSETS_TOPIC), OFFSETS_TOPIC).log_end == 3
    for cluster in (live.cluster, newer, live.driver()):
        assert cluster.committed("g") == {("t", 0): OffsetAndMetadata(1)}


# ------------------------------------------------------------------------- topics that go, and time


def test_offsets_do_not_pass_to_a_new_topic_of_the_same_name(live: LiveCluster) -> None:
    """They are kept by topic id."""
    live.cluster.commit("g", {("t", 0): 3})
    live.cluster.delete_topic("t")
    assert live.cluster.committed("g") == {}
    live.topic(partitions=2)
    assert live.cluster.committed("g") == {}
    assert live.cluster.lag("g").rows == []


def test_expired_offsets_are_forgotten_by_the_snapshot_job(live: LiveCluster) -> None:
    """offsets.retention.minutes, and those of deleted topics."""
    live.cluster.alter_configs(None, {"offsets.retention.minutes": "10"})
    live.topic("u")
    live.append(["x"], "u")
    live.cluster.commit("g", {("t", 0): 1, ("u", 0): 1})
    live.clock.sleep(9 * MINUTE_S)
    live.cluster.commit("g", {("t", 1): 1})
    live.cluster.delete_topic("u")
    live.clock.sleep(MINUTE_S)
    report = live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    assert sum(int(row["expired"] or 0) for row in report.rows) == 2
    assert live.driver().committed("g") == {("t", 1): OffsetAndMetadata(1)}
    again = live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    assert sum(int(row["expired"] or 0) for row in again.rows) == 0


def test_a_read_is_the_latest_snapshot_and_the_log_after_it(live: LiveCluster) -> None:
    """KIP-630, "Loading Snapshots"; the log before the snapshot is gone from every replica."""
    for offset in (1, 2, 3):
        live.cluster.commit("g", {("t", 0): offset}, member_epoch=offset)
    live.cluster.snapshot(OFFSETS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.retain(OFFSETS_TOPIC).raise_for_failures()
    live.clock.sleep(10 * MINUTE_S)
    live.cluster.retain(OFFSETS_TOPIC).raise_for_failures()
    partition = partition_for("g", 4)
    log = live.log(live.leader(OFFSETS_TOPIC, partition), OFFSETS_TOPIC, partition)
    assert (log.local_start, log.listing.data) == (3, ())
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(3)}
    live.cluster.commit("g", {("t", 1): 1}, member_epoch=3)
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(3), ("t", 1): OffsetAndMetadata(1)}
    with pytest.raises(StaleMemberEpochError):
        live.driver().commit("g", {("t", 1): 0}, member_epoch=2)


def test_a_driver_reads_only_what_is_new(live: LiveCluster) -> None:
    """The state of a partition is kept, and only files after it are opened."""
    for _ in range(20):
        live.cluster.commit("g", {("t", 0): 1})
    driver = live.driver()
    driver.committed("g")
    with driver.measured() as measure:
        driver.committed("g")
    assert measure.counts.read_bytes < 5_000


# ------------------------------------------------------------------------------- internal topics


def _calls(cluster: Cluster, topic: str) -> list[Any]:
    return [
        lambda: cluster.append_batches(topic, {}),
        lambda: cluster.alter_configs(topic, {"cleanup.policy": "delete"}),
        lambda: cluster.delete_topic(topic),
        lambda: cluster.delete_topic(topic, dry_run=True),
        lambda: cluster.create_topic(topic),
    ]


@pytest.mark.parametrize("call", range(5), ids=["append", "alter", "delete", "plan to delete", "create"])
def test_users_cannot_touch_the_engines_own_topics(live: LiveCluster, call: int) -> None:
    """By accident, that is: whoever wants to break them has the files."""
    live.cluster.commit("g", {("t", 0): 1})
    with live.unchanged(), pytest.raises(InvalidTopicError, match=f"'{OFFSETS_TOPIC}' is internal"):
        _calls(live.cluster, OFFSETS_TOPIC)[call]()


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC, METADATA_TOPIC])
def test_nobody_creates_a_topic_of_their_names(live: LiveCluster, topic: str) -> None:
    with live.unchanged(), pytest.raises(InvalidCallError):
        live.cluster.create_topic(topic)
