"""Fetches from the nearest replica (KIP-392), and consumers that continue after an unclean election (KIP-320)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.reading.fetch import Fetched, fetch_many
from stratalog.engine.replicas.offsets_for_epoch import EpochEndOffset
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    InvalidCallError,
    LogTruncationError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.offsets import UnknownOffset
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import StoreCounts
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.nearest_harness import RACKS, out_of_sync, racked, unaware


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    return racked(tmp_path, faults)


def values(fetched: Fetched) -> str:
    """The values, whose offsets must be right."""
    offsets = fetched.records.column("offset").to_pylist()
    assert offsets == list(range(fetched.next_offset - len(offsets), fetched.next_offset))
    return "".join(value.decode() for value in fetched.records.column("value").to_pylist())


def moved(cluster: Cluster, before: dict[int, StoreCounts]) -> dict[int, int]:
    """The bytes read from each broker since the last call, if any."""
    read = {b: (store.counts.snapshot() - before[b]).read_bytes for b, store in cluster.stores.items()}
    return {broker: size for broker, size in read.items() if size}


def counts(cluster: Cluster) -> dict[int, StoreCounts]:
    return {broker: store.counts.snapshot() for broker, store in cluster.stores.items()}


# -------------------------------------------------------------------------------- who served


@pytest.mark.parametrize(("rack", "broker"), RACKS.items())
def test_a_fetch_says_who_served_it(live: LiveCluster, rack: str, broker: int) -> None:
    fetched = live.cluster.fetch("t", 0, 0, client_rack=rack)
    assert (values(fetched), fetched.broker, fetched.remote) == ("abcdef", broker, False)
    assert (fetched.crossed_racks, fetched.cross_rack_bytes) == (False, 0)
    assert fetched.read_bytes > 0
    again = live.cluster.fetch("t", 0, 0, client_rack=rack)
    assert (again.broker, again.read_bytes) == (broker, 0), "remembered"


def test_a_fetch_from_another_rack_says_how_many_bytes_crossed(live: LiveCluster) -> None:
    fetched = live.cluster.fetch("t", 0, 0, client_rack="d")
    assert (fetched.broker, fetched.crossed_racks) == (1, True)
    assert fetched.cross_rack_bytes == fetched.read_bytes > 0


def test_a_reader_without_a_rack_crosses_none(live: LiveCluster) -> None:
    fetched = live.cluster.fetch("t", 0, 0)
    assert (fetched.broker, fetched.crossed_racks, fetched.cross_rack_bytes) == (1, False, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rack", ["a", "b"])
def test_a_follower_read_in_the_readers_rack_moves_no_byte_across_racks(
    live: LiveCluster, faults: Faults, rack: str
) -> None:
    """The stores count all bytes: records, footers, everything else. Other racks send only names, the register of
    each leader epoch (once, at its start), and, from broker 1, the metadata.
    """
    live.cluster.elect("t", leader=3).raise_for_failures()
    live.append([f"long {number:050}" for number in range(500)]).raise_for_failures()
    cluster, offset = live.driver(), 0
    cluster.fetch("t", 0, 0, client_rack=rack, max_bytes=1)  # this fetch reads the leader epoch
    read: set[str] = set()
    for end in (506, 507):  # the existing records, then those appended during the read
        before = counts(cluster)
        faults.before = lambda uri, what, name: (
            read.add(uri) if what in ("open", "read") and "/t-" in name else None
        )
        while (fetched := cluster.fetch("t", 0, offset, client_rack=rack, max_bytes=5000)).records.num_rows:
            assert fetched.broker == RACKS[rack]
            offset = fetched.next_offset
        assert offset == end
        assert moved(cluster, before).keys() == {1, RACKS[rack]}
        assert read == {f"memory://b{RACKS[rack]}"}
        faults.none()
        live.append(["more"], driver=live.driver()).raise_for_failures()


def test_records_that_a_follower_does_not_know_to_be_committed_come_from_the_leader(live: LiveCluster) -> None:
    """KIP-392, "Out of range handling", case 1; the previous fetch ends at the follower's high watermark."""
    unaware(live, 2)
    first = live.cluster.fetch("t", 0, 0, client_rack="b")
    assert (values(first), first.broker, first.high_watermark) == ("abcdef", 2, 7)
    second = live.cluster.fetch("t", 0, first.next_offset, client_rack="b")
    assert (values(second), second.broker, second.crossed_racks) == ("g", 1, True)


def test_records_that_a_follower_lacks_come_from_the_leader(live: LiveCluster) -> None:
    """KIP-392, "Out of range handling", case 2: "it is not available locally, but is known to be committed"."""
    out_of_sync(live, 2)
    assert live.cluster.fetch("t", 0, 5, client_rack="b").broker == 2
    fetched = live.cluster.fetch("t", 0, 6, client_rack="b")
    assert (values(fetched), fetched.broker) == ("g", 1)


def test_if_the_follower_fails_in_the_middle_of_a_fetch_the_leader_serves_it(
    live: LiveCluster, faults: Faults
) -> None:
    def failing(uri: str, what: str, name: str) -> None:
        if (
            uri == "memory://b2" and what == "open" and f"/{0:020}." in name
        ):  # the follower can be listed, but not read
            raise StorageError("503 slow down")

    faults.before = failing
    began = live.clock.monotonic_s()
    fetched = live.driver().fetch("t", 0, 0, client_rack="b")
    assert (values(fetched), fetched.broker, fetched.crossed_racks) == ("abcdef", 1, True)
    assert live.clock.monotonic_s() == began, "nobody waits for it"


def test_the_next_reader_goes_to_the_follower_again(live: LiveCluster, faults: Faults) -> None:
    test_if_the_follower_fails_in_the_middle_of_a_fetch_the_leader_serves_it(live, faults)
    faults.none()
    assert live.cluster.fetch("t", 0, 0, client_rack="b").broker == 2


@pytest.mark.slow
def test_a_log_start_that_moved_counts_for_every_replica(live: LiveCluster) -> None:
    """KIP-392, "Out of range handling": log starts "are not consistently maintained", but no reader gets deleted
    records, because the leader is asked first.
    """
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    assert live.log(2).local_start == 0, "the follower has all of it"
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offset 2 is not in \[3, 6\]"):
        live.cluster.fetch("t", 0, 2, client_rack="b")
    assert live.cluster.fetch("t", 0, 3, client_rack="b").broker == 2


def test_a_leader_that_has_lost_committed_records_is_an_error_for_every_reader(live: LiveCluster) -> None:
    replica = live.replica(1)
    replica.store.delete([replica.log().chain[-1].file.object.name])
    for rack in RACKS:
        with pytest.raises(CorruptionError, match="its storage has lost committed records"):
            live.cluster.fetch("t", 0, 0, client_rack=rack)


def test_a_stale_view_of_the_leader_is_inspected_again(live: LiveCluster) -> None:
    """The former leader has joined the next leader's epoch, as its listing shows."""
    known = live.cluster.image
    live.driver().elect("t", leader=3).raise_for_failures()
    live.append(["g"], driver=live.driver()).raise_for_failures()
    (outcome,) = with_ports(fetch_many, ports_of(live.cluster))({("t", 0): 6}, known=known)
    assert isinstance(outcome, Done)
    assert (values(outcome.value), outcome.value.broker) == ("g", 3)


# --------------------------------------------------------------------------- a leader just elected


def test_records_that_a_new_leader_does_not_know_to_be_committed_are_not_available_yet(live: LiveCluster) -> None:
    """KIP-392, "Out of range handling", case 1: OFFSET_NOT_AVAILABLE, not out of range: a reader under the
    previous leader retries. No follower serves records that the leader does not know."""
    unaware(live, 1)
    began = live.clock.monotonic_s()
    for rack in RACKS:
        with pytest.raises(OffsetNotAvailableError, match=r"t-0: offset 7 is not known to be committed: .* is 6"):
            live.cluster.fetch("t", 0, 7, client_rack=rack)
        assert live.cluster.fetch("t", 0, 6, client_rack=rack).records.num_rows == 0
    assert live.clock.monotonic_s() == began, "waiting does not make it known"
    live.cluster.replicate().raise_for_failures()
    assert live.cluster.fetch("t", 0, 7).high_watermark == 7


# ------------------------------------------------------------------------- OffsetsForLeaderEpoch


@pytest.fixture
def epochs(live: LiveCluster) -> dict[int, int]:
    """Leader epochs by the offset where they end: [0, 6), [6, 7) on broker 2, and [7, 8) on broker 3."""
    first = live.replicas().epoch
    live.cluster.elect("t", leader=2).raise_for_failures()
    live.append(["g"]).raise_for_failures()
    second = live.replicas().epoch
    live.cluster.elect("t", leader=3).raise_for_failures()
    live.append(["h"]).raise_for_failures()
    return {6: first, 7: second, 8: live.replicas().epoch}


def test_an_epoch_ends_where_the_next_one_begins(live: LiveCluster, epochs: dict[int, int]) -> None:
    for end, epoch in epochs.items():
        assert live.cluster.offset_for_leader_epoch("t", 0, epoch) == EpochEndOffset(epoch, end)


def test_an_epoch_that_wrote_nothing_ends_with_the_one_before(live: LiveCluster, epochs: dict[int, int]) -> None:
    """KIP-320: the answer is that of the greatest epoch at or below the requested one."""
    live.cluster.elect("t", leader=2).raise_for_failures()
    silent = live.replicas().epoch
    live.cluster.elect("t", leader=1).raise_for_failures()
    live.append(["i"]).raise_for_failures()
    assert live.cluster.offset_for_leader_epoch("t", 0, silent) == EpochEndOffset(epochs[8], 8)
    assert live.cluster.offset_for_leader_epoch("t", 0, silent + 1) == EpochEndOffset(silent + 1, 9)


def test_the_end_of_an_epoch_outside_the_log_is_unknown(live: LiveCluster, epochs: dict[int, int]) -> None:
    """Below the first epoch the end is the start of that epoch; above the latest epoch it is unknown, as
    in Kafka.
    """
    assert live.cluster.offset_for_leader_epoch("t", 0, 0) == EpochEndOffset(0, 0)
    assert isinstance(live.cluster.offset_for_leader_epoch("t", 0, epochs[8] + 1), UnknownOffset)


def test_consumers_learn_of_no_offset_above_the_high_watermark(live: LiveCluster) -> None:
    """KIP-392, "Protocol Changes": "For consumers, the log end offset should be the high watermark"."""
    live.append(["unseen"], acks="leader").raise_for_failures()
    epoch = live.replicas().epoch
    assert live.log(1).log_end == 7
    assert live.cluster.offset_for_leader_epoch("t", 0, epoch) == EpochEndOffset(epoch, 6)


def test_a_new_leader_does_not_know_the_end_of_the_latest_epoch(live: LiveCluster) -> None:
    """KIP-392, "Protocol Changes": "If an OffsetsForLeaderEpoch request is received with the latest epoch during
    this window, the leader will respond with the OFFSET_NOT_AVAILABLE error code"."""
    before = live.replicas().epoch
    unaware(live, 2)
    live.cluster.elect("t", leader=2).raise_for_failures()
    epoch = live.replicas().epoch
    with pytest.raises(OffsetNotAvailableError):
        live.cluster.offset_for_leader_epoch("t", 0, before)
    leader_log(live.replicas())  # the leader takes over, as before any append
    assert (live.log(2).high_watermark, live.log(2).lineage.entries[-1]) == (6, (epoch, 7))
    for asked in (before, epoch):
        with pytest.raises(
            OffsetNotAvailableError, match=rf"t-0: .* has the high watermark 6, and leader epoch {asked}"
        ):
            live.cluster.offset_for_leader_epoch("t", 0, asked)
    live.append(["h"]).raise_for_failures()
    assert live.cluster.offset_for_leader_epoch("t", 0, before) == EpochEndOffset(before, 7)
    assert live.cluster.offset_for_leader_epoch("t", 0, epoch) == EpochEndOffset(epoch, 8)


def test_only_leaders_answer(live: LiveCluster, epochs: dict[int, int], faults: Faults) -> None:
    """KIP-392, "Protocol Changes": "only leaders are allowed to handle OffsetsForLeaderEpoch queries"."""
    asked: set[str] = set()
    live.cluster.image  # noqa: B018 - the voter is broker 1
    faults.before = lambda uri, what, name: asked.add(uri) if "/t-" in name else None
    live.cluster.offset_for_leader_epoch("t", 0, epochs[6])
    assert asked == {"memory://b3"}


def test_the_leader_epoch_that_a_caller_expects_is_checked(live: LiveCluster, epochs: dict[int, int]) -> None:
    """KIP-320: FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one."""
    now = live.replicas().epoch
    ask = live.cluster.offset_for_leader_epoch
    assert ask("t", 0, epochs[6], current_leader_epoch=now) == EpochEndOffset(epochs[6], 6)
    with pytest.raises(
        FencedLeaderEpochError, match=f"t-0: the leader epoch is {now}, but the call expects {now - 1}"
    ):
        ask("t", 0, epochs[6], current_leader_epoch=now - 1)
    with pytest.raises(UnknownLeaderEpochError, match=f"the call expects {now + 1}"):
        ask("t", 0, epochs[6], current_leader_epoch=now + 1)


@pytest.mark.parametrize("epoch", [-1, True, 1.5, None])
def test_an_invalid_leader_epoch_is_refused(live: LiveCluster, epoch: object) -> None:
    with pytest.raises(InvalidCallError, match=r"leader epoch .*: give a whole number from 0 on"):
        live.cluster.offset_for_leader_epoch("t", 0, epoch)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
        live.cluster.offset_for_leader_epoch("t", 5, 1)


# ------------------------------------------------------------------------------ truncation


@pytest.fixture
def truncated(live: LiveCluster) -> tuple[LiveCluster, Fetched]:
    """A consumer has read [0, 8); [6, 8) was lost in an unclean election, and [6, 9) are other records."""
    live.cluster.brokers.fence(3).raise_for_failures()
    live.fill("gh")
    read = live.cluster.fetch("t", 0, 0)
    assert (values(read), read.next_offset) == ("abcdefgh", 8)
    live.cluster.groups.commit("g", {("t", 0): OffsetAndMetadata(read.next_offset, read.leader_epoch)})
    live.cluster.brokers.unfence(3).raise_for_failures()
    live.cluster.brokers.fence([1, 2], force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    assert live.leader() == 3
    live.fill("GHI")
    return live, read


@pytest.mark.slow
def test_a_returning_consumer_learns_the_offset_up_to_which_the_histories_agree(
    truncated: tuple[LiveCluster, Fetched],
) -> None:
    """KIP-320: the leader epoch of the last record is checked; KIP-392: so that a consumer distinguishes
    truncation from a lagging replica."""
    live, read = truncated
    assert values(live.cluster.fetch("t", 0, 8)) == "I", "without the epoch nobody can tell"
    with pytest.raises(
        LogTruncationError, match=r"t-0: the records that were read up to offset 8, .*from offset 6 on"
    ) as raised:
        live.cluster.fetch("t", 0, 8, leader_epoch=read.leader_epoch)
    assert raised.value.divergent_offset == 6
    assert raised.value.code == "LOG_TRUNCATION"
    went_on = live.cluster.fetch("t", 0, 6, leader_epoch=read.leader_epoch)
    assert values(went_on) == "GHI"
    assert live.cluster.fetch("t", 0, 9, leader_epoch=went_on.leader_epoch).records.num_rows == 0


@pytest.mark.slow
def test_committed_offsets_carry_the_leader_epoch(truncated: tuple[LiveCluster, Fetched]) -> None:
    live, _ = truncated
    (outcome,) = live.cluster.fetch_many(live.cluster.groups.committed("g"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LogTruncationError)


def test_nothing_is_truncated_by_a_clean_election(live: LiveCluster, epochs: dict[int, int]) -> None:
    for offset in range(9):
        epoch = live.cluster.fetch("t", 0, offset).leader_epoch if offset == 8 else None
        before = next((epochs[end] for end in sorted(epochs) if offset <= end), epoch)
        fetched = live.cluster.fetch("t", 0, offset, leader_epoch=before)
        assert fetched.next_offset == 8
        assert fetched.leader_epoch == epochs[8]


def test_a_reader_who_has_heard_of_a_later_leader_waits_for_it(live: LiveCluster) -> None:
    """KIP-320: UNKNOWN_LEADER_EPOCH; it is retriable."""
    began = live.clock.monotonic_s()
    with pytest.raises(UnknownLeaderEpochError, match="in leader epoch 99"):
        live.cluster.fetch("t", 0, 6, leader_epoch=99, timeout_s=5)
    assert live.clock.monotonic_s() - began > 3
