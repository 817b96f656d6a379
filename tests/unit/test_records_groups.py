"""Consumer groups: commits, lag, bad input, the engine's own topics (KIP-630 mentions __consumer_offsets)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratalog import Cluster, OffsetAndMetadata
from stratalog.engine.driver.report import utc_text
from stratalog.engine.records.groups import commit
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_for
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    InvalidGroupIdError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.paths import METADATA_TOPIC
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, codes, rows_of
from tests.unit.groups_harness import DAY_MS, in_memory, on_disk


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return in_memory(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, where ``g`` has committed, for tests that change nothing."""
    made = in_memory(tmp_path_factory.mktemp("shared"))
    made.cluster.groups.commit("g", {("t", 0): 1})
    return made


def test_every_driver_sees_committed_offsets(live: LiveCluster) -> None:
    """A commit is acknowledged by the whole ISR, and a read is linearizable."""
    live.cluster.groups.commit("g", {("t", 0): 1, ("t", 1): OffsetAndMetadata(1, 4, "half-way")})
    live.cluster.groups.commit("g", {("t", 0): 2})
    live.cluster.groups.commit("h", {("t", 0): 0})
    wanted = {("t", 0): OffsetAndMetadata(2), ("t", 1): OffsetAndMetadata(1, 4, "half-way")}
    for cluster in (live.cluster, live.driver()):
        assert cluster.groups.committed("g") == wanted
        assert cluster.groups.committed("h", "t") == {("t", 0): OffsetAndMetadata(0)}
        assert cluster.groups.committed("nobody") == {}


def test_the_first_commit_creates_the_topic_with_its_own_configs(live: LiveCluster) -> None:
    """KIP-115: partitions and replicas follow the cluster's configs, independent of its defaults for topics."""
    live.cluster.topics.alter_configs(None, {"cleanup.policy": "delete", "unclean.leader.election.enable": "true"})
    live.cluster.groups.commit("g", {("t", 0): 1})
    topic = live.cluster.image.topic(OFFSETS_TOPIC)
    assert (len(topic.partitions), len(topic.partitions[0].replicas)) == (4, 3)
    assert topic.configs["cleanup.policy"] == "snapshot"
    assert topic.configs["unclean.leader.election.enable"] == "false"
    log = live.log(live.leader(OFFSETS_TOPIC, partition_for("g", 4)), OFFSETS_TOPIC, partition_for("g", 4))
    assert log.high_watermark == 1


def test_on_too_few_brokers_the_topic_is_not_created(tmp_path: Path) -> None:
    """KIP-115: never silently fewer replicas; the error names the config."""
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2)
    live.append(["a"])
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "3"})
    with (
        live.unchanged(),
        pytest.raises(InvalidReplicationFactorError, match=r"offsets\.topic\.replication\.factor"),
    ):
        live.cluster.groups.commit("g", {("t", 0): 1})
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "2"})
    live.cluster.groups.commit("g", {("t", 0): 1})
    assert live.cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_lag_is_the_distance_between_the_commit_and_the_high_watermark(live: LiveCluster) -> None:
    """One row per partition of the group's topics; a partition without a commit counts with all its records."""
    live.cluster.groups.commit("g", {("t", 0): 1})
    live.append({1: ["e"]}, acks="leader")
    columns = ("topic", "partition", "committed", "log_end", "high_watermark", "lag")
    assert rows_of(live.cluster.groups.lag("g"), *columns) == [("t", 0, 1, 3, 3, 2), ("t", 1, None, 2, 1, 1)]
    assert live.cluster.groups.lag("g").totals == {"group": "g", "lag": 3}


@pytest.mark.parametrize(
    ("offset", "lag", "beyond"),
    [(1, 2, None), (3, 0, None), (4, None, 1), (1 << 40, None, (1 << 40) - 3)],
)
def test_a_commit_beyond_the_log_end_has_no_lag(
    offset: int, lag: int | None, beyond: int | None, live: LiveCluster
) -> None:
    """The engine refuses it, but Kafka's clients may commit it."""
    with_ports(commit, ports_of(live.cluster))("far", {("t", 0): offset}, beyond_end=True).raise_for_failures()
    report = live.cluster.groups.lag("far")
    assert rows_of(report, "lag", "beyond_end")[0] == (lag, beyond)
    assert len(report.notes) == (beyond is not None)
    values = {(row["partition"]): row["value"] for row in live.cluster.groups.lag_metrics().rows}
    assert values.get(0) == lag


def test_lag_shows_all_that_was_committed(live: LiveCluster) -> None:
    """The rows have the leader epoch, the metadata, and the time when the group expires, which is the same in
    every row.
    """
    live.cluster.groups.commit("g", {("t", 0): OffsetAndMetadata(2, 0, "half-way")})
    live.clock.sleep(60)
    live.cluster.groups.commit("g", {("t", 1): 1})
    expires = utc_text(live.clock.now_ms() + 7 * DAY_MS)
    found = rows_of(live.cluster.groups.lag("g"), "committed", "leader_epoch", "metadata", "expires")
    assert found == [(2, 0, "half-way", expires), (1, None, "", expires)]


def test_expired_records_of_a_partition_without_a_commit_are_no_lag(live: LiveCluster) -> None:
    """Expired records cannot be read any more; the committed offset counts as in Kafka."""
    live.cluster.topics.alter_configs(
        "t", {"local.retention.bytes": "0", "retention.bytes": "1", "segment.bytes": "1"}
    )
    live.append({0: ["x"], 1: ["x"]}).raise_for_failures()
    live.append({0: ["y"], 1: ["y"]}).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 1})
    before = {row["partition"]: row["lag"] for row in live.cluster.groups.lag("g").rows}
    assert before == {0: 4, 1: 3}
    live.cluster.retain("t").raise_for_failures()
    left = {
        p: live.log(live.leader("t", p), "t", p).high_watermark - live.log(live.leader("t", p), "t", p).local_start
        for p in (0, 1)
    }
    assert left[1] < 3
    assert {row["partition"]: row["lag"] for row in live.cluster.groups.lag("g").rows} == {0: 4, 1: left[1]}


def test_a_partition_that_cannot_be_inspected_is_a_failure_of_its_own(tmp_path: Path) -> None:
    """The other partitions are reported; for this one the report has the committed offset."""
    live = on_disk(tmp_path)
    live.cluster.groups.commit("g", {("t", 0): 1, ("t", 1): 1})
    offsets_leader = live.leader(OFFSETS_TOPIC)
    away = next(p for p in (0, 1) if live.leader("t", p) != offsets_leader)
    with live.unreachable(live.leader("t", away)):
        report = live.cluster.groups.lag("g")
    assert codes(report) == {"BROKER_NOT_AVAILABLE": 1}
    rows = {row["partition"]: (row["committed"], row["lag"]) for row in report.rows}
    assert rows == {away: (1, None), 1 - away: (1, 1)}


def test_the_lag_of_an_unknown_group_is_an_error(live: LiveCluster) -> None:
    for call in (
        live.cluster.groups.lag,
        lambda name: live.cluster.groups.commit("g", {("t", 0): 1}) and live.cluster.groups.lag(name),
    ):
        with pytest.raises(GroupIdNotFoundError, match="group 'nobody' does not exist"):
            call("nobody")


def test_nothing_to_commit_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        assert live.cluster.groups.commit("g", {}).rows == []


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("group", "offsets", "error", "says"),
    [
        ("", {("t", 0): 1}, InvalidGroupIdError, "a name of 1 to 255 characters"),
        ("g" * 256, {("t", 0): 1}, InvalidGroupIdError, "has 256 characters"),
        (None, {("t", 0): 1}, InvalidGroupIdError, "group None"),
        ("\ud800", {("t", 0): 1}, InvalidGroupIdError, "not valid Unicode"),
        ("g", {("t", 0): 4}, OffsetOutOfRangeError, "t-0: offset 4 cannot be committed: the log ends at 3"),
        ("g", {("t", 0): 1, ("t", 1): 2}, OffsetOutOfRangeError, "t-1: offset 2"),
        ("g", {("t", 2): 0}, UnknownTopicOrPartitionError, "no partition 2"),
        ("g", {("u", 0): 0}, UnknownTopicOrPartitionError, "topic 'u' does not exist"),
        ("g", {"t": 0}, UnknownTopicOrPartitionError, "write it as"),
        ("g", {("t", True): 0}, UnknownTopicOrPartitionError, "write it as"),
        ("g", {("t", -1): 0}, UnknownTopicOrPartitionError, "no partition -1"),
        ("g", [("t", 0)], InvalidCallError, "are not offsets"),
        ("g", {("t", 0): -1}, InvalidCallError, "offset -1: give a whole number from 0"),
        ("g", {("t", 0): True}, InvalidCallError, "offset True: give a whole number"),
        ("g", {("t", 0): 1.5}, InvalidCallError, "offset 1.5: give a whole number"),
        ("g", {("t", 0): 1 << 63}, InvalidCallError, "give a whole number"),
        ("g", {("t", 0): OffsetAndMetadata(1, "x")}, InvalidCallError, "leader epoch 'x': give a whole number"),
        ("g", {("t", 0): OffsetAndMetadata(1, -1)}, InvalidCallError, "leader epoch -1: give a whole number"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, "x" * 4097)}, OffsetMetadataTooLargeError, "4096 bytes"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, "\ud800")}, InvalidCallError, "not valid Unicode"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, None)}, InvalidCallError, "give a string"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, type) else value.__name__,
)
def test_an_error_in_a_commit_is_reported_and_nothing_is_changed(
    shared: LiveCluster, group: Any, offsets: Any, error: type[StratalogError], says: str
) -> None:
    """All or nothing: one bad partition prevents the commits of the others."""
    with shared.unchanged(), pytest.raises(error, match=says):
        shared.cluster.groups.commit(group, offsets)
    assert shared.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_numbers_may_come_from_arrow_or_pandas(live: LiveCluster) -> None:
    """Offsets are stored as plain numbers: a value that Python's own JSON cannot read would break every reader."""
    live.cluster.groups.commit("g", {("t", np.int32(0)): np.int64(2)}, member_epoch=np.int16(3))
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(2)}


@pytest.mark.parametrize("read", ["committed", "lag"])
def test_reading_has_the_same_names(live: LiveCluster, read: str) -> None:
    with pytest.raises(InvalidGroupIdError):
        getattr(live.cluster.groups, read)("")


# ------------------------------------------------------------------------------- internal topics


def _calls(cluster: Cluster, topic: str) -> list[Any]:
    return [
        lambda: cluster.append_batches(topic, {}),
        lambda: cluster.topics.alter_configs(topic, {"cleanup.policy": "delete"}),
        lambda: cluster.topics.delete(topic),
        lambda: cluster.topics.delete(topic, dry_run=True),
        lambda: cluster.topics.create(topic),
    ]


@pytest.mark.parametrize("call", range(5), ids=["append", "alter", "delete", "plan to delete", "create"])
def test_users_cannot_touch_the_engines_own_topics(live: LiveCluster, call: int) -> None:
    """This prevents accidents only: a writer of the files can always break them."""
    live.cluster.groups.commit("g", {("t", 0): 1})
    with live.unchanged(), pytest.raises(InvalidTopicError, match=f"'{OFFSETS_TOPIC}' is internal"):
        _calls(live.cluster, OFFSETS_TOPIC)[call]()


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC, METADATA_TOPIC])
def test_nobody_creates_a_topic_of_their_names(live: LiveCluster, topic: str) -> None:
    with live.unchanged(), pytest.raises(InvalidCallError):
        live.cluster.topics.create(topic)
