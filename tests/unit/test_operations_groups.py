"""Consumer groups: commits, lag, bad input, the engine's own topics (KIP-630 mentions __consumer_offsets)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Cluster, OffsetAndMetadata
from engine.operations.groups import commit_records, utc_text
from engine.operations.state_log import _append_together
from engine.state.consumer_offsets import ConsumerOffsets
from engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_for
from engine.state.keyed import OFFSETS
from engine.state_cache import OwnAppend, ReadState
from partitions.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InvalidCallError,
    InvalidGroupIdError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    StaleMemberEpochError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from partitions.paths import METADATA_TOPIC
from partitions.producers import ProducerAppend
from tests.unit.cluster_harness import LiveCluster, codes, rows_of
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch

MINUTE_S = 60
DAY_MS = 24 * 60 * 60 * 1000


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
    live.append({1: ["e"]}, acks="leader")
    columns = ("topic", "partition", "committed", "log_end", "high_watermark", "lag")
    assert rows_of(live.cluster.lag("g"), *columns) == [("t", 0, 1, 3, 3, 2), ("t", 1, None, 2, 1, 1)]
    assert live.cluster.lag("g").totals == {"group": "g", "lag": 3}


def test_lag_tells_all_that_was_committed(live: LiveCluster) -> None:
    """Leader epoch and metadata; and when the group is forgotten, which is the same in every row."""
    live.cluster.commit("g", {("t", 0): OffsetAndMetadata(2, 0, "half-way")})
    live.clock.sleep(60)
    live.cluster.commit("g", {("t", 1): 1})
    expires = utc_text(live.clock.now_ms() + 7 * DAY_MS)
    found = rows_of(live.cluster.lag("g"), "committed", "leader_epoch", "metadata", "expires")
    assert found == [(2, 0, "half-way", expires), (1, None, "", expires)]


def test_what_is_gone_from_an_uncommitted_partition_is_no_lag(live: LiveCluster) -> None:
    """It cannot be read any more; what was committed counts as Kafka counts it."""
    live.cluster.alter_configs("t", {"local.retention.bytes": "0", "retention.bytes": "0", "segment.bytes": "1"})
    live.append({0: ["x"], 1: ["x"]}).raise_for_failures()
    live.append({0: ["y"], 1: ["y"]}).raise_for_failures()
    live.cluster.commit("g", {("t", 0): 1})
    before = {row["partition"]: row["lag"] for row in live.cluster.lag("g").rows}
    assert before == {0: 4, 1: 3}
    live.cluster.retain("t").raise_for_failures()
    left = {
        p: live.log(live.leader("t", p), "t", p).high_watermark - live.log(live.leader("t", p), "t", p).local_start
        for p in (0, 1)
    }
    assert left[1] < 3
    assert {row["partition"]: row["lag"] for row in live.cluster.lag("g").rows} == {0: 4, 1: left[1]}


def test_a_partition_that_cannot_be_looked_at_is_a_failure_of_its_own(tmp_path: Path) -> None:
    """The others are told, and of this one what was committed."""
    live = on_disk(tmp_path)
    live.cluster.commit("g", {("t", 0): 1, ("t", 1): 1})
    offsets_leader = live.leader(OFFSETS_TOPIC)
    away = next(p for p in (0, 1) if live.leader("t", p) != offsets_leader)
    with live.unreachable(live.leader("t", away)):
        report = live.cluster.lag("g")
    assert codes(report) == {"BROKER_NOT_AVAILABLE": 1}
    rows = {row["partition"]: (row["committed"], row["lag"]) for row in report.rows}
    assert rows == {away: (1, None), 1 - away: (1, 1)}


def test_lag_of_nobody_is_a_mistake(live: LiveCluster) -> None:
    for call in (
        live.cluster.lag,
        lambda name: live.cluster.commit("g", {("t", 0): 1}) and live.cluster.lag(name),
    ):
        with pytest.raises(GroupIdNotFoundError, match="group 'nobody' does not exist"):
            call("nobody")


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
        ("g", {("t", True): 0}, UnknownTopicOrPartitionError, "write it as"),
        ("g", {("t", -1): 0}, UnknownTopicOrPartitionError, "no partition -1"),
        ("g", [("t", 0)], InvalidCallError, "says no offsets"),
        ("g", {("t", 0): -1}, InvalidCallError, "offset -1 cannot be committed"),
        ("g", {("t", 0): True}, InvalidCallError, "offset True cannot be committed"),
        ("g", {("t", 0): 1.5}, InvalidCallError, "offset 1.5 cannot be committed"),
        ("g", {("t", 0): 1 << 63}, InvalidCallError, "cannot be committed"),
        ("g", {("t", 0): OffsetAndMetadata(1, "x")}, InvalidCallError, "leader epoch 'x' cannot be committed"),
        ("g", {("t", 0): OffsetAndMetadata(1, -1)}, InvalidCallError, "leader epoch -1 cannot be committed"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, "x" * 4097)}, OffsetMetadataTooLargeError, "4096 bytes"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, "\ud800")}, InvalidCallError, "no valid Unicode"),
        ("g", {("t", 0): OffsetAndMetadata(1, None, None)}, InvalidCallError, "it is a text"),
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
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_numbers_may_come_from_arrow_or_pandas(live: LiveCluster) -> None:
    """They are plain numbers in the log: what Python's own JSON cannot read, nobody could."""
    live.cluster.commit("g", {("t", np.int32(0)): np.int64(2)}, member_epoch=np.int16(3))
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(2)}


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


def test_a_commit_that_a_newer_member_follows_has_counted(tmp_path: Path) -> None:
    """It is judged where it stands: the newer one's commit came after the append, before the committer looked."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic(partitions=2)
    live.append({0: ["a", "b"], 1: ["c"]}).raise_for_failures()
    live.cluster.commit("g", {("t", 0): 0}, member_epoch=1)
    newer = live.driver()

    def follow(uri: str, what: str, name: str) -> None:
        if what == "create" and OFFSETS_TOPIC in name and name.endswith(".hw"):
            faults.none()
            newer.commit("g", {("t", 1): 1}, member_epoch=2)

    faults.after = follow
    live.cluster.commit("g", {("t", 0): 2}, member_epoch=1)
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(2), ("t", 1): OffsetAndMetadata(1)}


def test_what_was_read_of_another_history_is_read_again(live: LiveCluster) -> None:
    """The epoch of the last record that a driver has read tells whether it still stands (an unclean election)."""
    live.cluster.commit("g", {("t", 0): 1})
    context, topic = live.cluster._context, live.cluster.image.topic(OFFSETS_TOPIC)
    partition = partition_for("g", 4)
    assert live.cluster.committed("g")
    read = context.states.get(topic.topic_id, partition)
    assert read is not None
    for other in (
        ReadState(ConsumerOffsets({}, read.state.next_offset), read.epoch + 1),
        ReadState(ConsumerOffsets({}, read.state.next_offset + 1), read.epoch),
    ):
        context.states.put(topic.topic_id, partition, other)
        assert live.cluster.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_those_who_append_together_are_each_told_their_own_offset(live: LiveCluster) -> None:
    """By it a committer finds out whether its commit counted."""
    live.cluster.commit("g", {("t", 0): 1, ("t", 1): 1})
    partition = partition_for("g", 4)
    records = commit_records(live.cluster._context, live.cluster.image, "g", {("t", 0): OffsetAndMetadata(2)})
    together = [
        OwnAppend(OFFSETS_TOPIC, number, OFFSETS.to_batch(records * count, 0))
        for number, count in ((partition, 3), ((partition + 1) % 4, 1), (partition, 1), (partition, 1))
    ]
    _append_together(live.cluster._context, ProducerAppend("me", 0, 0), together)
    assert [one.base_offset for one in together] == [2, 0, 5, 6]


# ------------------------------------------------------------------------- topics that go, and time


def test_offsets_do_not_pass_to_a_new_topic_of_the_same_name(live: LiveCluster) -> None:
    """They are kept by topic id."""
    live.cluster.commit("g", {("t", 0): 3})
    live.cluster.delete_topic("t")
    assert live.cluster.committed("g") == {}
    live.topic(partitions=2)
    assert live.cluster.committed("g") == {}
    assert live.cluster.lag("g").rows == []


def forgotten(live: LiveCluster) -> int:
    """How many records a run of the snapshot job appends to forget groups and offsets."""
    report = live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    return sum(int(str(row["expired"])) for row in report.rows)


def test_dead_groups_are_forgotten_by_the_snapshot_job(live: LiveCluster) -> None:
    """offsets.retention.minutes after the latest commit; a live group keeps all of its offsets (KIP-211)."""
    live.cluster.alter_configs(None, {"offsets.retention.minutes": "10"})
    live.cluster.commit("dead", {("t", 0): 1, ("t", 1): 1}, member_epoch=4)
    live.cluster.commit("lives", {("t", 0): 1})
    live.clock.sleep(5 * MINUTE_S)
    live.cluster.commit("lives", {("t", 1): 1})
    live.clock.sleep(5 * MINUTE_S - 0.001)
    assert forgotten(live) == 0
    live.clock.sleep(0.001)
    assert forgotten(live) == 3  # two offsets, and the group
    for cluster in (live.cluster, live.driver()):
        assert cluster.committed("dead") == {}
        assert cluster.committed("lives") == {("t", 0): OffsetAndMetadata(1), ("t", 1): OffsetAndMetadata(1)}
    assert forgotten(live) == 0
    live.cluster.commit("dead", {("t", 0): 2}, member_epoch=1)  # it begins anew


def test_offsets_of_deleted_topics_are_forgotten_at_once(live: LiveCluster) -> None:
    live.topic("u")
    live.append(["x"], "u")
    live.cluster.commit("g", {("t", 0): 1, ("u", 0): 1})
    live.cluster.delete_topic("u")
    assert forgotten(live) == 1
    assert forgotten(live) == 0
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_a_group_that_commits_again_right_at_its_expiry_keeps_what_it_has(tmp_path: Path) -> None:
    """Between the look at what has expired and the append: nothing of a live group is lost, not even offsets of
    partitions that it did not commit now."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1", "offsets.retention.minutes": "10"})
    live.topic(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    live.cluster.commit("g", {("t", 0): 1, ("t", 1): 1})
    live.clock.sleep(10 * MINUTE_S)
    consumer = live.driver()

    def overtake(uri: str, what: str, name: str) -> None:
        if what == "stage" and OFFSETS_TOPIC in name:
            faults.none()
            consumer.commit("g", {("t", 0): 0})

    faults.before = overtake
    assert forgotten(live) == 3
    for cluster in (live.cluster, live.driver()):
        assert cluster.committed("g") == {("t", 0): OffsetAndMetadata(0), ("t", 1): OffsetAndMetadata(1)}


def test_a_topic_that_is_created_while_offsets_expire_keeps_its_commits(tmp_path: Path) -> None:
    """Groups are read before topics: what was committed for a topic that is younger than either look is not taken
    for that of a deleted one."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.append(["a"]).raise_for_failures()
    live.cluster.commit("g", {("t", 0): 1})
    other, partitions_listed = live.driver(), 0

    def create(uri: str, what: str, name: str) -> None:
        nonlocal partitions_listed
        if what == "list" and OFFSETS_TOPIC in name:
            faults.none()
            partitions_listed += 1
            other.create_topic("new", replication_factor=3)
            other.append_batches("new", {0: [batch(["x"])]}).raise_for_failures()
            other.commit("g", {("new", 0): 1})

    faults.before = create
    live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    assert partitions_listed == 1
    assert live.driver().committed("g", "new") == {("new", 0): OffsetAndMetadata(1)}


# --------------------------------------------------------------------------- leaders that are away


def on_disk(tmp_path: Path) -> LiveCluster:
    """Topic ``t`` as in ``live``; broker 1, which votes alone, leads nothing of ``__consumer_offsets``."""
    live = LiveCluster(tmp_path, brokers=4, on_disk=True)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic(partitions=2)
    live.append({0: ["a", "b"], 1: ["c", "d"]}).raise_for_failures()
    live.cluster.commit("warm-up", {("t", 0): 0})
    for topic, partition in ((OFFSETS_TOPIC, 0), ("t", 0), ("t", 1)):
        if live.leader(topic, partition) == 1:
            leader = min(live.isr(topic, partition) - {1})
            live.cluster.elect(topic, [partition], leader=leader).raise_for_failures()
    return live


@pytest.mark.parametrize("member_epoch", [None, 3])
@pytest.mark.parametrize("of", ["t", OFFSETS_TOPIC])
def test_a_commit_goes_on_under_the_next_leader(tmp_path: Path, of: str, member_epoch: int | None) -> None:
    """Where the leader of either topic is away, the commit itself has it fenced, and another elected."""
    live = on_disk(tmp_path)
    live.cluster.commit("g", {("t", 0): 1}, member_epoch=member_epoch)
    away = live.leader(of)
    with live.unreachable(away):
        live.driver().commit("g", {("t", 0): 2}, member_epoch=member_epoch)
        assert live.leader(of) != away
        assert live.cluster.committed("g") == {("t", 0): OffsetAndMetadata(2)}


def test_while_there_is_no_leader_a_commit_is_refused_for_now(tmp_path: Path) -> None:
    """COORDINATOR_NOT_AVAILABLE: retriable, and nothing was changed; when a leader is there it goes through."""
    live = on_disk(tmp_path)
    for broker in sorted(live.isr(OFFSETS_TOPIC)):
        live.cluster.fence(broker, force=True).raise_for_failures()
    assert live.site(OFFSETS_TOPIC).view.leader is None
    with live.unchanged(), pytest.raises(CoordinatorNotAvailableError, match="nothing was appended, try again"):
        live.cluster.commit("g", {("t", 0): 1})
    live.cluster.unfence([2, 3, 4])
    live.cluster.commit("g", {("t", 0): 1})
    assert live.cluster.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_an_append_that_may_have_happened_says_so(tmp_path: Path) -> None:
    """OUTCOME_UNKNOWN: to commit again does no harm."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.append(["a"]).raise_for_failures()
    live.cluster.commit("g", {("t", 0): 0})

    def fail(uri: str, what: str, name: str) -> None:
        if what == "commit" and OFFSETS_TOPIC in name:
            raise OutcomeUnknownError("the answer was lost")

    faults.after = fail
    with pytest.raises(OutcomeUnknownError, match="may be in the log all the same"):
        live.cluster.commit("g", {("t", 0): 1})
    faults.none()
    live.cluster.commit("g", {("t", 0): 1})
    assert live.driver().committed("g") == {("t", 0): OffsetAndMetadata(1)}


# ------------------------------------------------------------------------------ many threads


def test_threads_of_one_driver_commit_together_and_lose_nothing(live: LiveCluster) -> None:
    """Eight groups of one partition of ``__consumer_offsets``, members of theirs, and every commit acknowledged is
    there; those that came while an append was under way went into one file."""
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.fill(["x"] * 20)
    ready, failed = threading.Barrier(8), []

    def consume(number: int) -> None:
        try:
            ready.wait()
            for offset in range(1, 11):
                live.cluster.commit(f"g{number}", {("t", 0): offset}, member_epoch=offset)
        except BaseException as error:  # told by the test
            failed.append(error)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    log = live.log(live.leader(OFFSETS_TOPIC), OFFSETS_TOPIC)
    assert log.high_watermark == 80
    assert len(log.chain) < 80
    for number in range(8):
        assert live.driver().committed(f"g{number}") == {("t", 0): OffsetAndMetadata(10)}


def test_drivers_that_commit_at_once_lose_nothing(live: LiveCluster) -> None:
    """Each is a producer of its own, and the log decides whose append comes first."""
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    drivers = [live.driver() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for offset in (0, 1, 2, 3):
            done = [
                pool.submit(driver.commit, f"g{number}", {("t", 0): offset}, member_epoch=1)
                for number, driver in enumerate(drivers)
            ]
            for one in done:
                one.result()
    assert [live.cluster.committed(f"g{n}")["t", 0].offset for n in range(4)] == [3] * 4


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
