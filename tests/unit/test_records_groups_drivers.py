"""Consumer groups: stale members, absent leaders, concurrent threads and drivers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from stratalog import OffsetAndMetadata
from stratalog.engine.driver.state_cache import OwnAppend, ReadState
from stratalog.engine.records.groups import commit_records
from stratalog.engine.records.state_log import _append_together
from stratalog.engine.state.consumer_offsets import ConsumerOffsets
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, partition_for
from stratalog.engine.state.keyed import OFFSETS
from stratalog.partitions.errors import (
    CoordinatorNotAvailableError,
    InvalidCallError,
    OutcomeUnknownError,
    StaleMemberEpochError,
)
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.groups_harness import MINUTE_S, in_memory, on_disk
from tests.unit.together import together


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return in_memory(tmp_path)


# ------------------------------------------------------------------------------ stale members


def test_a_stale_member_is_refused(live: LiveCluster) -> None:
    """KIP-848, STALE_MEMBER_EPOCH: nothing changed."""
    live.cluster.groups.commit("g", {("t", 0): 1}, member_epoch=2)
    with (
        live.unchanged(),
        pytest.raises(StaleMemberEpochError, match="epoch 2 has already committed"),
    ):
        live.driver().groups.commit("g", {("t", 0): 3}, member_epoch=1)
    live.cluster.groups.commit("g", {("t", 0): 2}, member_epoch=2)
    live.cluster.groups.commit("g", {("t", 1): 1}, member_epoch=3)
    with pytest.raises(InvalidCallError, match="member epoch -1"):
        live.cluster.groups.commit("g", {("t", 0): 1}, member_epoch=-1)
    assert live.cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(2), ("t", 1): OffsetAndMetadata(1)}


def test_a_member_that_becomes_stale_while_it_commits_is_refused(tmp_path: Path) -> None:
    """Write, then check: the commit of a newer member comes between the look and the append. The stale member's
    record is in the log, and does not count.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.append(["a", "b"]).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 0}, member_epoch=1)
    newer = live.driver()

    faults.once(lambda: newer.groups.commit("g", {("t", 0): 1}, member_epoch=2), "stage", of=OFFSETS_TOPIC)
    with pytest.raises(StaleMemberEpochError):
        live.cluster.groups.commit("g", {("t", 0): 2}, member_epoch=1)
    assert live.log(live.leader(OFFSETS_TOPIC), OFFSETS_TOPIC).log_end == 3
    for cluster in (live.cluster, newer, live.driver()):
        assert cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_a_commit_that_a_newer_member_follows_has_counted(tmp_path: Path) -> None:
    """The place in the log decides: the newer member's commit came after the append, before the
    committer looked.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic(partitions=2)
    live.append({0: ["a", "b"], 1: ["c"]}).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 0}, member_epoch=1)
    newer = live.driver()

    faults.once(
        lambda: newer.groups.commit("g", {("t", 1): 1}, member_epoch=2),
        "create",
        of=OFFSETS_TOPIC,
        ending=".hw",
        after=True,
    )
    live.cluster.groups.commit("g", {("t", 0): 2}, member_epoch=1)
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(2), ("t", 1): OffsetAndMetadata(1)}


def test_a_driver_reads_the_group_again_if_it_has_read_another_history(live: LiveCluster) -> None:
    """The epoch of the last record that a driver has read shows whether its state is still valid (an unclean
    election).
    """
    live.cluster.groups.commit("g", {("t", 0): 1})
    ports, topic = ports_of(live.cluster), live.cluster.image.topic(OFFSETS_TOPIC)
    partition = partition_for("g", 4)
    assert live.cluster.groups.committed("g")
    read = ports.memory.states.get(topic.topic_id, partition)
    assert read is not None
    for other in (
        ReadState(ConsumerOffsets({}, read.state.next_offset), read.epoch + 1),
        ReadState(ConsumerOffsets({}, read.state.next_offset + 1), read.epoch),
    ):
        ports.memory.states.put(topic.topic_id, partition, other)
        assert live.cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_callers_that_append_together_each_get_their_own_offset(live: LiveCluster) -> None:
    """The offset shows a committer whether its commit counted."""
    live.cluster.groups.commit("g", {("t", 0): 1, ("t", 1): 1})
    partition = partition_for("g", 4)
    records = with_ports(commit_records, ports_of(live.cluster))(
        live.cluster.image, "g", {("t", 0): OffsetAndMetadata(2)}
    )
    together = [
        OwnAppend(OFFSETS_TOPIC, number, OFFSETS.to_batch(records * count, 0))
        for number, count in ((partition, 3), ((partition + 1) % 4, 1), (partition, 1), (partition, 1))
    ]
    with_ports(_append_together, ports_of(live.cluster))(together)
    assert [one.base_offset for one in together] == [2, 0, 5, 6]


# --------------------------------------------------------------------------- leaders that are away


@pytest.mark.parametrize("member_epoch", [None, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", ["t", OFFSETS_TOPIC])
def test_a_commit_continues_under_the_next_leader(tmp_path: Path, of: str, member_epoch: int | None) -> None:
    """If the leader of either topic is away, the commit itself fences that leader and has another one elected."""
    live = on_disk(tmp_path)
    live.cluster.groups.commit("g", {("t", 0): 1}, member_epoch=member_epoch)
    away = live.leader(of)
    with live.unreachable(away):
        live.driver().groups.commit("g", {("t", 0): 2}, member_epoch=member_epoch)
        assert live.leader(of) != away
        assert live.cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(2)}


def test_while_there_is_no_leader_a_commit_is_refused_for_now(tmp_path: Path) -> None:
    """COORDINATOR_NOT_AVAILABLE: retriable, and nothing was changed; with a leader it succeeds."""
    live = on_disk(tmp_path)
    for broker in sorted(live.isr(OFFSETS_TOPIC)):
        live.cluster.brokers.fence(broker, force=True).raise_for_failures()
    assert live.replicas(OFFSETS_TOPIC).view.leader is None
    with live.unchanged(), pytest.raises(CoordinatorNotAvailableError, match="nothing was appended, try again"):
        live.cluster.groups.commit("g", {("t", 0): 1})
    live.cluster.brokers.unfence([2, 3, 4])
    live.cluster.groups.commit("g", {("t", 0): 1})
    assert live.cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_an_append_that_may_have_happened_says_so(tmp_path: Path) -> None:
    """OUTCOME_UNKNOWN: committing again does no harm."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.append(["a"]).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 0})

    faults.refuse(OutcomeUnknownError("the answer was lost"), "commit", of=OFFSETS_TOPIC, after=True)
    with pytest.raises(OutcomeUnknownError, match="may be in the log"):
        live.cluster.groups.commit("g", {("t", 0): 1})
    faults.none()
    live.cluster.groups.commit("g", {("t", 0): 1})
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


# ------------------------------------------------------------------------------ many threads


@pytest.mark.slow
def test_threads_of_one_driver_commit_together_and_lose_nothing(live: LiveCluster) -> None:
    """Eight groups of one partition of ``__consumer_offsets``, with members: every acknowledged commit exists;
    those made during an append are in one file."""
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.fill(["x"] * 20)

    def consume(group: str) -> None:
        for offset in range(1, 11):
            live.cluster.groups.commit(group, {("t", 0): offset}, member_epoch=offset)

    together(*(partial(consume, f"g{number}") for number in range(8)))
    log = live.log(live.leader(OFFSETS_TOPIC), OFFSETS_TOPIC)
    assert log.high_watermark == 80
    assert len(log.chain) < 80
    for number in range(8):
        assert live.driver().groups.committed(f"g{number}") == {("t", 0): OffsetAndMetadata(10)}


@pytest.mark.slow
def test_drivers_that_commit_at_once_lose_nothing(live: LiveCluster) -> None:
    """Each of them is a separate producer, and the log decides the order of the appends."""
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    drivers = [live.driver() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for offset in (0, 1, 2, 3):
            done = [
                pool.submit(driver.groups.commit, f"g{number}", {("t", 0): offset}, member_epoch=1)
                for number, driver in enumerate(drivers)
            ]
            for one in done:
                one.result()
    assert [live.cluster.groups.committed(f"g{n}")["t", 0].offset for n in range(4)] == [3] * 4


@pytest.mark.slow
def test_a_read_is_the_latest_snapshot_and_the_log_after_it(live: LiveCluster) -> None:
    """KIP-630, "Loading Snapshots"; the log before the snapshot is deleted on every replica."""
    for offset in (1, 2, 3):
        live.cluster.groups.commit("g", {("t", 0): offset}, member_epoch=offset)
    live.cluster.snapshot(OFFSETS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.retain(OFFSETS_TOPIC).raise_for_failures()
    live.clock.sleep(10 * MINUTE_S)
    live.cluster.retain(OFFSETS_TOPIC).raise_for_failures()
    partition = partition_for("g", 4)
    log = live.log(live.leader(OFFSETS_TOPIC, partition), OFFSETS_TOPIC, partition)
    assert (log.local_start, log.listing.data) == (3, ())
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(3)}
    live.cluster.groups.commit("g", {("t", 1): 1}, member_epoch=3)
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(3), ("t", 1): OffsetAndMetadata(1)}
    with pytest.raises(StaleMemberEpochError):
        live.driver().groups.commit("g", {("t", 1): 0}, member_epoch=2)


@pytest.mark.slow
def test_a_driver_reads_only_what_is_new(live: LiveCluster) -> None:
    """The state of a partition is cached, and only later files are opened."""
    for _ in range(20):
        live.cluster.groups.commit("g", {("t", 0): 1})
    driver = live.driver()
    driver.groups.committed("g")
    with driver.measured() as measure:
        driver.groups.committed("g")
    assert measure.counts.read_bytes < 5_000
