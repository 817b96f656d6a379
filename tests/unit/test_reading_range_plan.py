"""A batch of a stream as ranges of offsets: a read of these ranges has the batch's rows, or names the reason."""

from __future__ import annotations

import pytest

from stratalog.engine.reading.range_plan import StreamRange, plan_of_ranges
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.reading.stream_options import source_options
from stratalog.partitions.errors import LogTruncationError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.stream_harness import source


def batch(live: LiveCluster, rows: int | None = None, **options: str) -> list[StreamRange]:
    """The ranges of a first batch, whose offsets went through a checkpoint."""
    stream = source(live, **options)
    begin = stream.initial()
    written_down = StreamOffsets.from_json(stream.latest(begin, rows, None).to_json())
    return stream.ranges(begin, written_down)


def planned(live: LiveCluster, ranges: list[StreamRange], **options: str) -> dict[int, tuple[int, int]]:
    """The offsets of a read of the ranges, by partition; its files must hold all of them."""
    given = source_options({"cluster": str(live.file), "topic": "t", **options})
    plan = with_ports(plan_of_ranges, ports_of(live.driver()))(ranges, given)
    for one in plan.partitions:
        assert [file.start for file in one.files] == [one.start, *(file.end for file in one.files)][:-1]
        assert one.files[-1].end == one.end
    return {one.partition: (one.start, one.end) for one in plan.partitions}


def test_a_batch_has_a_range_for_each_partition_with_records(live: LiveCluster) -> None:
    live.topic(partitions=3)
    live.append({0: "abcde", 2: "xy"})
    ranges = batch(live)
    assert [(one.partition, one.start, one.end) for one in ranges] == [(0, 0, 5), (2, 0, 2)]
    assert planned(live, ranges) == {0: (0, 5), 2: (0, 2)}


def test_a_batch_without_records_has_no_range(live: LiveCluster) -> None:
    live.topic(partitions=2)
    assert batch(live) == []


@pytest.mark.slow
def test_the_ranges_of_a_batch_are_read_from_the_files_that_hold_them_now(live: LiveCluster) -> None:
    """Since the batch was planned, its files were merged, tiered, and dropped from the brokers."""
    live.tiered(segment_bytes="7000", segment_merge_min_files="2")
    live.fill("abcdef")
    ranges = batch(live, rows=4)
    for disturb in (live.cluster.merge, live.cluster.tier, live.cluster.retain, live.cluster.retain):
        disturb().raise_for_failures()
        live.fill("z")
        assert planned(live, ranges) == {0: (0, 4)}
    assert live.log(live.leader()).local_start > 1


def test_ranges_that_retention_has_cut_are_an_error_or_are_shorter(live: LiveCluster) -> None:
    live.topic()
    live.fill("abcde")
    ranges = batch(live)
    live.cluster.topics.delete_records("t", {0: 3})
    with pytest.raises(OffsetOutOfRangeError, match="below the log start"):
        planned(live, ranges)
    assert planned(live, ranges, failOnDataLoss="false") == {0: (3, 5)}


def test_ranges_of_a_topic_that_was_recreated_are_refused(live: LiveCluster) -> None:
    live.topic()
    live.fill("abcde")
    ranges = batch(live)
    live.cluster.topics.delete("t")
    live.topic()
    live.fill("vwxyz")
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        planned(live, ranges)


@pytest.mark.parametrize("instead", ["x", "xy", "xyz"])
def test_ranges_that_an_unclean_election_has_replaced_are_refused(live: LiveCluster, instead: str) -> None:
    """KIP-320: other records have their offsets, in any number."""
    live.topic(min_insync_replicas="1")
    live.fill("ab")
    leader = live.leader()
    for broker in live.followers():
        live.cluster.brokers.fence(broker)
    live.fill("cd")
    ranges = batch(live)
    live.cluster.brokers.fence(leader, force=True)
    live.cluster.brokers.unfence([broker for broker in (1, 2, 3) if broker != leader])
    live.cluster.elect(unclean=True)
    live.fill(instead)
    with pytest.raises((LogTruncationError, OffsetOutOfRangeError)):
        planned(live, ranges)
