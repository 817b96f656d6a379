"""Known bugs of Kafka's retention of tiered logs: bytes counted twice, or for unfinished uploads, segments of two
overlapping leader epochs, and forgotten leader epochs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.retention import KEPT_EPOCHS
from stratalog.partitions.root import format_root
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_segment import RemoteSegment
from tests.ports import ports_of
from tests.unit.cluster_harness import Dying, LiveCluster, fence, unfence
from tests.unit.retention_harness import filled, local_start, retained
from tests.unit.tiering_harness import segment, uploaded


def remote(live: LiveCluster) -> tuple[RemoteSegment, ...]:
    return ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("t")).load().of_partition(0)


def log_start(live: LiveCluster) -> int:
    return live.replicas().view.log_start_offset


def handed_over(live: LiveCluster) -> int:
    """The next replica leads; a driver without caches continues."""
    heir = live.followers()[0]
    live.cluster.elect("t", leader=heir).raise_for_failures()
    live.cluster = live.driver()
    assert live.leader() == heir
    return heir


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 2, 4])
def test_a_new_leader_counts_what_both_tiers_hold_once(live: LiveCluster, dropped: int) -> None:
    """KAFKA-20732: a new leader counted the bytes of local segments that are also remote twice, and deleted
    segments that ``retention.bytes`` still keeps. Here a record must count once, whichever replica leads, and
    whatever part of the log is in both tiers."""
    filled(live, "abcdef", local_retention_bytes="-2")
    sizes = [one.size_bytes for one in remote(live)]
    if dropped:
        live.cluster.topics.alter_configs("t", {"local.retention.bytes": str(sum(sizes[dropped:]))})
        retained(live)
        assert local_start(live) == dropped
    live.cluster.topics.alter_configs("t", {"retention.bytes": str(sum(sizes))})
    for _ in range(3):
        handed_over(live)
        retained(live)
        assert (log_start(live), len(remote(live))) == (0, 6)
        assert live.read() == {0: list("abcdef")}
    live.cluster.topics.alter_configs("t", {"retention.bytes": str(sum(sizes[1:]))})
    handed_over(live)
    retained(live)
    assert log_start(live) == 1
    assert live.read() == {0: list("bcdef")}


@pytest.mark.slow
@pytest.mark.parametrize("new_leader", [False, True])
def test_uploads_that_have_not_ended_count_for_nothing(live: LiveCluster, new_leader: bool) -> None:
    """KAFKA-17062: segments in the state COPY_SEGMENT_STARTED, of failed uploads, counted for the size of the log,
    and valid ones were deleted because of them. Here only commits must count, for any number of failed uploads,
    including those of an earlier leader."""
    filled(live, "ab", local_retention_bytes="-2")
    live.fill("cdef")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            live.driver(progress=Dying()).tier()
        if new_leader:
            handed_over(live)
    objects = [path for path in live.remote.rglob("*.parquet") if path.parent.name == "0"]
    assert len(objects) > len(remote(live)) == 2
    kept = sum(len(data) for data in live.data(live.leader()).values())
    live.cluster.topics.alter_configs("t", {"retention.bytes": str(kept)})
    retained(live)
    assert log_start(live) == 0
    assert live.read() == {0: list("abcdef")}
    live.cluster.tier().raise_for_failures()
    retained(live)
    assert (log_start(live), len(remote(live))) == (0, 6)
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
@pytest.mark.parametrize("records", ["", "xyz"])
def test_segments_of_two_epochs_that_overlap_do_not_stop_retention(live: LiveCluster, records: str) -> None:
    """KAFKA-16511: if segments of two leader epochs overlapped, the earlier one's end was never below the log
    start in its own epoch, and nothing was deleted from there on. Here the whole remote log must expire, including
    the segments of a lost history and the segments that they overlap."""
    filled(live, "ab", local_retention_bytes="-1")
    table = ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("t"))
    epoch = live.replicas().view.leader_epoch
    deposed = Histories({0: Lineage([(epoch, 0)])}, lambda: {0: Present(epoch)})
    one, *others = live.replicas().view.replicas
    fence(live, *others, one)
    unfence(live, *others)
    live.cluster.elect("t", unclean=True).raise_for_failures()
    # Committed late, with records that no replica has any more.
    table.commit([uploaded(segment(2, 5, epoch=epoch))], (), deposed)
    live.cluster = live.driver()
    if records:
        live.fill(records)
    live.cluster.tier().raise_for_failures()
    ends = [one.next_offset for one in remote(live)]
    assert ends == sorted(set(ends))
    assert all(a.next_offset == b.base_offset for a, b in pairwise(remote(live)))
    live.fill("!", at_ms=live.clock.now_ms())
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "-2", "retention.ms": "1000"})
    live.clock.advance_ms(10)
    retained(live)
    assert log_start(live) == 2 + len(records)
    assert remote(live) == ()
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: ["!"]}


def test_a_leader_whose_files_have_other_bounds_uploads_no_offset_twice(live: LiveCluster) -> None:
    """KAFKA-16511, the origin of the overlap: the new leader's segments have other boundaries. Here the remote log
    must continue at its end, and expire completely."""
    filled(live, "abc", local_retention_bytes="-1")
    live.fill("de")
    live.cluster.topics.alter_configs("t", {"segment.bytes": "1000000", "segment.merge.min.files": "2"})
    live.cluster.merge().raise_for_failures()
    handed_over(live)
    live.cluster.topics.alter_configs("t", {"segment.bytes": "1"})
    live.cluster.tier().raise_for_failures()
    bounds = [(one.base_offset, one.next_offset) for one in remote(live)]
    assert bounds[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    live.fill("!", at_ms=live.clock.now_ms())
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "-2", "retention.ms": "1000"})
    retained(live)
    assert live.read() == {0: ["!"]}
    assert remote(live) == ()


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("rebuilt", [True, False])
def test_leader_epochs_that_no_broker_has_a_register_of_expire_nothing(live: LiveCluster, rebuilt: bool) -> None:
    """A leader epoch cache that was truncated at the local start considered remote segments of earlier epochs
    orphaned, and deleted them long before their time. Here remote segments must stay as long as retention says,
    whatever epochs the brokers' registers still have, and even if the leader was recreated."""
    values = [f"{number:02}" for number in range(KEPT_EPOCHS + 4)]
    live.tiered()
    for value in values:
        live.fill([value])
        live.cluster.tier().raise_for_failures()
        handed_over(live)
        retained(live)
        live.clock.advance_ms(3_600_000)
    assert min(live.log(broker).local_start for broker in (1, 2, 3)) >= len(values) - 2
    if rebuilt:
        broker = next(follower for follower in live.followers() if follower != 1)  # broker 1 votes
        live.wipe(broker)
        format_root(live.store(broker), "c", broker, live.new_id)
        live.cluster.replicate().raise_for_failures()
        live.cluster.elect("t", leader=broker).raise_for_failures()
        live.cluster = live.driver()
    for _ in range(3):
        live.clock.advance_ms(3_600_000)
        live.cluster.maintain().raise_for_failures()
        live.cluster.vacuum().raise_for_failures()
        retained(live)
    assert log_start(live) == 0
    assert [one.base_offset for one in remote(live)] == list(range(len(remote(live))))
    assert len({one.epoch for one in remote(live)}) > KEPT_EPOCHS
    assert live.read() == {0: values}
    live.cluster.verify(deep=True).raise_for_failures()
