"""Bootstrap by option and by report: always from the last tiered offset, the avoided bytes, new and replaced
replicas, refused brokers, and the log start afterwards (KIP-1023)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.driver.report import Report
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from stratalog.partitions.paths import EpochName
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering.bootstrap import LastTiered
from stratalog.tiering.remote_segment import RemoteSegment
from tests.unit.cluster_harness import LiveCluster, the_failure
from tests.unit.harness import OnePartition
from tests.unit.test_upkeep_bootstrap import LAST_TIERED

ALWAYS = "follower.fetch.last.tiered.offset.always.enable"


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t`` with one partition on brokers 2 and 3 of four: [0, 6) are tiered and still on the leader, whose
    log is [0, 8)."""
    made = LiveCluster(tmp_path, brokers=4)
    made.cluster.brokers.fence([1, 4]).raise_for_failures()
    made.tiered(copies=2, local_retention_bytes="-1")
    made.cluster.brokers.unfence([1, 4]).raise_for_failures()
    append(made, range(6))
    made.cluster.tier().raise_for_failures()
    append(made, range(6, 8))
    return made


def append(live: LiveCluster, numbers: range) -> None:
    for number in numbers:
        live.append([f"v{number}"], producer="p", sequence=number, at_ms=number).raise_for_failures()


def bytes_of(live: LiveCluster, start: int, end: int = 10**9) -> int:
    """Bytes of the leader's files in ``[start, end)``."""
    chain = live.log(live.leader()).chain
    return sum(link.file.object.size_bytes for link in chain if start <= link.start and link.end <= end)


def follower_of(live: LiveCluster) -> int:
    (follower,) = live.followers()
    return follower


def copied(report: Report) -> tuple[object, ...]:
    (row,) = report.rows
    return row["copied_bytes"], row["avoided_bytes"], row["joined_s"] is not None


def test_by_option_what_the_leader_still_holds_is_not_copied_either(live: LiveCluster) -> None:
    """Beyond KIP-1023's case 1: the report has the copied and the avoided bytes, and the time of joining."""
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    follower = follower_of(live)
    live.wipe(follower)
    report = live.cluster.bootstrap(follower).raise_for_failures()
    assert copied(report) == (bytes_of(live, 6), bytes_of(live, 0, 6), True)
    assert (report.totals["copied_bytes"], report.totals["avoided_bytes"]) == copied(report)[:2]
    log = live.log(follower)
    assert (log.local_start, log.high_watermark, log.log_end) == (6, 8, 8)
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
@pytest.mark.parametrize(("last_tiered", "always"), [("true", "false"), ("false", "true"), ("false", "false")])
def test_else_an_empty_follower_copies_all_that_the_leader_holds(
    live: LiveCluster, last_tiered: str, always: str
) -> None:
    """KIP-1023, case 1; the other option alone does nothing. Both are "dynamically configurable as
    cluster-default": the next run uses the current values."""
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    live.cluster.topics.alter_configs(None, {LAST_TIERED: last_tiered, ALWAYS: always})
    follower = follower_of(live)
    live.wipe(follower)
    assert copied(live.cluster.bootstrap(follower).raise_for_failures()) == (bytes_of(live, 0), 0, True)
    assert live.data(follower) == live.data(live.leader())


@pytest.mark.slow
def test_the_log_start_is_the_leaders_and_the_local_start_the_followers_own(live: LiveCluster) -> None:
    """KIP-1023: "Log-Start-Offset -> Leader's Log-Start-Offset; Log-End-Offset -> Earliest-Pending-Upload-Offset".
    When the follower leads, readers find both."""
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    follower = follower_of(live)
    live.wipe(follower)
    live.cluster.bootstrap(follower).raise_for_failures()
    live.cluster.elect("t", leader=follower).raise_for_failures()
    found = {spec: live.cluster.offsets("t", spec)[0] for spec in OffsetSpec if spec < OffsetSpec.MAX_TIMESTAMP}
    offsets = {spec: answer.offset for spec, answer in found.items() if isinstance(answer, FoundOffset)}
    assert offsets == {
        OffsetSpec.EARLIEST_LOCAL: 6,
        OffsetSpec.LAST_TIERED: 5,
        OffsetSpec.EARLIEST_PENDING_UPLOAD: 6,
    }
    assert live.cluster.offsets("t", OffsetSpec.EARLIEST) == {0: FoundOffset(0, None, 1)}
    append(live, range(8, 10))
    live.cluster.tier().raise_for_failures()
    assert live.read() == {0: [f"v{number}" for number in range(10)]}


@pytest.mark.slow
def test_a_bootstrap_that_stopped_after_its_register_continues_from_there(live: LiveCluster) -> None:
    """Protocol, section 3, step 3: the register exists before the first copy. More was tiered meanwhile: the
    follower, still empty, begins there."""
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    follower = follower_of(live)
    live.wipe(follower)
    live.cluster.bootstrap(follower).raise_for_failures()
    replica = live.replica(follower)
    for name in live.data(follower):
        replica.store.delete([replica.path(name)])
    live.cluster.brokers.fence(follower).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.brokers.unfence(follower).raise_for_failures()
    replica.store.delete([s.name for s in replica.store.list(replica.folder) if s.name.endswith(".hw")])
    live.cluster.replicate().raise_for_failures()
    assert (live.log(follower).local_start, live.isr()) == (8, {follower, live.leader()})


@pytest.mark.slow
def test_a_member_of_the_isr_that_lost_its_records_does_not_bootstrap_silently(live: LiveCluster) -> None:
    """Protocol, section 1: damaged is not silently shorter. The follower leaves the ISR first, and then counts as
    new.
    """
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "0"})
    append(live, range(8, 9))
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    member, store = follower_of(live), live.store(follower_of(live))
    folder = live.replica(member).folder
    store.delete([s.name for s in store.list(folder) if not s.name.endswith(str(EpochName(1)))])
    report = live.cluster.replicate()
    assert any(f"broker {member} left the ISR" in note for note in report.notes)
    assert live.isr() == {member, live.leader()}
    assert live.read() == {0: [f"v{number}" for number in range(9)]}


def test_a_remote_of_another_history_is_named_and_nothing_is_copied() -> None:
    """After an unclean election the remote tier may hold records that the leader never had: [3, 4) of epoch 1,
    unacknowledged, at offsets where the leader has its own records of epoch 2."""
    one, remote = OnePartition(), MemoryStore("remote")
    one.change(isr=(1, 2))
    one.append("abc")
    one.append("d", acks_all=False)
    lost = one.replicas.leader.log().chain[-1]
    segment = RemoteSegment(0, lost.name, lost.end, lost.file.object.size_bytes)
    remote.create(f"t/{segment.path}", one.stores[1].read(lost.file.object.name))
    tail = RemoteTail(remote, "t", segment)
    one.elect(2, isr=[2])
    one.append("xy", acks_all=False)
    with pytest.raises(CorruptionError, match="the histories differ"):
        one.sync(3, tail, last_tiered=LastTiered.ALWAYS)
    assert one.sync(3, tail).log_end == 5


def test_a_new_broker_gets_replicas_of_the_topics_that_are_named(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    live.wipe(4)
    with live.unchanged():
        assert live.cluster.bootstrap(4, "t", add=True, dry_run=True).dry_run
    report = live.cluster.bootstrap(4, "t", add=True).raise_for_failures()
    assert live.isr() == {2, 3, 4}
    assert copied(report) == (bytes_of(live, 6), bytes_of(live, 0, 6), True)


def test_a_broker_replaces_another(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    gone = follower_of(live)
    live.cluster.bootstrap(4, instead_of=gone).raise_for_failures()
    assert live.isr() == set(live.replicas().view.replicas) == {4, live.leader()}
    assert live.log(4).local_start == 6
    live.cluster.verify().raise_for_failures()


def test_a_wrong_call_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        with pytest.raises(InvalidCallError, match="name the topics whose replicas"):
            live.cluster.bootstrap(4, add=True)
        with pytest.raises(InvalidCallError, match="one broker to replace another"):
            live.cluster.bootstrap([3, 4], instead_of=2)
        with pytest.raises(UnknownTopicOrPartitionError):
            live.cluster.bootstrap(4, "nobody", add=True)
        with pytest.raises(UnknownBrokerError, match="broker 9"):
            live.cluster.bootstrap(9)


def test_a_partition_that_is_refused_is_named(live: LiveCluster) -> None:
    """Broker 4 is fenced by hand. A bootstrap by name unfences it, but does not unfence the only broker that it
    replaces.
    """
    live.cluster.brokers.fence([2, 3], force=True).raise_for_failures()
    assert "t-0" in the_failure(live.cluster.bootstrap(4, instead_of=2, check=False)).split(":")[0]
