"""The source of a stream on a cluster without Spark: its start, the end of a trigger, its replica, and
transactions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stratalog.partitions.errors import (
    InvalidCallError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.isolation import Isolation
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch
from tests.unit.nearest_harness import racked
from tests.unit.stream_harness import Query, ends, first_tasks, source, values_of

# ------------------------------------------------------------------------------------- begin


def test_a_stream_reads_from_the_earliest_record_on_and_then_what_is_new(live: LiveCluster) -> None:
    live.topic(partitions=2)
    live.append({0: ["a", "b"], 1: ["c"]})
    query = Query(live)
    assert query.batch() == ["a", "b", "c"]
    live.append({1: ["d"]})
    assert query.batch() == ["d"]
    assert query.batch() == []


def test_without_new_records_the_offsets_are_the_very_same(live: LiveCluster) -> None:
    """Spark begins no batch then."""
    live.topic()
    live.fill("ab")
    query = Query(live)
    query.batch()
    assert query.done is not None
    assert query.source.latest(query.done, None, None) is query.done


def test_latest_begins_at_the_end(live: LiveCluster) -> None:
    live.topic()
    live.fill("ab")
    query = Query(live, startingOffsets="latest")
    assert query.batch() == []
    live.fill("c")
    assert query.batch() == ["c"]


def test_a_first_batch_that_is_run_again_begins_where_it_began(live: LiveCluster) -> None:
    """Spark requests the initial offsets again, and the latest ones have changed by then."""
    live.topic()
    live.fill("ab")
    query = Query(live, startingOffsets="latest")
    begin = query.begin()
    live.fill("cd")
    query.planned = query.source.latest(begin, None, None)
    assert query.run() == ["c", "d"]
    live.fill("ef")
    query.start()  # the driver died after the batch
    assert query.run() == ["c", "d"]
    query.finish()
    assert query.batch() == ["e", "f"]


def test_an_empty_range_has_no_tasks_also_just_after_the_first_batch(live: LiveCluster) -> None:
    """Spark requests an empty range when a query is started again; the first batch is not read again for it."""
    live.topic()
    live.fill("ab")
    query = Query(live)
    query.batch()
    assert query.done is not None
    assert query.done.began is not None
    assert query.source.plan(query.done, query.done) == []


def test_a_stream_begins_at_the_offset_given_for_each_partition(live: LiveCluster) -> None:
    live.topic(partitions=3)
    live.append({0: ["a", "b"], 1: ["c", "d"], 2: ["e"]})
    assert Query(live, startingOffsets='{"0": 1, "1": -2, "2": -1}').batch() == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ('{"0": 1}', InvalidCallError, "is given for t-0, but t-0, t-1 are read: give a position for each"),
        ('{"0": 1, "1": 0, "2": 0}', InvalidCallError, "is given for t-0, t-1, t-2, but t-0, t-1 are read"),
        ('{"0": 3, "1": 0}', OffsetOutOfRangeError, "t-0: startingOffsets is 3, but the log has [0, 2)"),
    ],
)
def test_offsets_that_are_missing_are_refused(
    live: LiveCluster, given: str, error: type[Exception], message: str
) -> None:
    live.topic(partitions=2)
    live.append({0: ["a", "b"]})
    with pytest.raises(error) as caught:
        source(live, startingOffsets=given).initial()
    assert message in str(caught.value)


def test_a_time_begins_at_the_first_record_that_is_as_late(live: LiveCluster) -> None:
    live.topic(partitions=2)
    for number, value in enumerate("abcd"):
        live.append([value], at_ms=1000 * number)
    assert Query(live, startingTimestamp="1500").batch() == ["c", "d"]
    assert Query(live, startingTimestamp="4000").batch() == []


def test_a_time_that_has_not_come_is_refused(live: LiveCluster) -> None:
    live.topic()
    later = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=live.clock.now_ms() + 60_000)
    with pytest.raises(InvalidCallError, match="is in the future"):
        source(live, startingTimestamp=later.isoformat()).initial()


def test_a_missing_topic_is_refused(live: LiveCluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        source(live).initial()


# ---------------------------------------------------------------------------------- triggers


def test_a_limit_of_rows_bounds_each_batch(live: LiveCluster) -> None:
    live.topic(partitions=2)
    live.append({0: "abcdefgh", 1: "x"})
    query = Query(live)
    assert query.batch(4) == ["a", "b", "c", "x"]
    assert query.batch(4) == ["d", "e", "f", "g"]
    assert query.batch(4) == ["h"]


def test_a_limit_of_bytes_counts_both_tiers(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    live.fill("e")
    assert live.log(live.leader()).local_start > 0
    stream = source(live)
    at, steps = stream.initial(), []
    size = max(path.stat().st_size for path in live.remote.rglob("*.parquet"))
    while (following := stream.latest(at, None, 2 * size)) is not at:
        steps.append(sum(ends(following).values()) - sum(ends(at).values()))
        at = following
    assert sum(steps) == 5
    assert max(steps) <= 3
    assert len(steps) >= 2


def test_available_now_stops_at_what_there_was_and_ends(live: LiveCluster) -> None:
    live.topic(partitions=2)
    live.append({0: "abc", 1: "x"})
    query = Query(live)
    query.source.stop_at_present_end()
    live.append({0: "de", 1: "y"})
    assert query.batch(3) + query.batch(3) == ["a", "b", "x", "c"]
    assert query.done is not None
    assert query.source.latest(query.done, 3, None) is query.done
    query.start()  # this is the next run
    assert query.batch() == ["d", "e", "y"]


def test_an_empty_trigger_opens_no_file(live: LiveCluster) -> None:
    """The trigger reads the metadata and lists the leaders; the remote tier gets no requests."""
    live.tiered(partitions=2)
    live.append({0: "ab", 1: "c"})
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    live.append({0: "d", 1: "e"})
    query = Query(live)
    query.batch()
    assert query.done is not None
    query.source.latest(query.done, None, None)
    stores = query.source._storage.all_stores
    before = [store.counts.snapshot() for store in stores]
    query.source.latest(query.done, None, None)
    spent = [store.counts - earlier for store, earlier in zip(stores, before, strict=True)]
    assert (
        sum(counts.read_bytes for counts in spent[:-1]) < 2000
    )  # broker.json of each root, .epoch of each leader
    assert spent[-1].requests == 0


def test_the_end_of_the_log_is_reported_whatever_the_limit(live: LiveCluster) -> None:
    live.topic()
    live.fill("abcde")
    query = Query(live)
    query.plan(2)
    assert query.source.latest_seen is not None
    assert ends(query.source.latest_seen) == {0: 5}
    assert query.source.planned is not None
    assert query.source.planned.behind(query.source.latest_seen)["maxOffsetsBehindLatest"] == 3


# --------------------------------------------------------------------- replicas, transactions


def test_a_stream_reads_from_the_replica_in_its_rack(live: LiveCluster) -> None:
    """KIP-392, ``client.rack``; records that the replica does not know to be committed come from the leader."""
    live.cluster.topics.alter_configs(
        None, {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    )
    live.topic()
    live.fill("abc")
    live.cluster.replicate().raise_for_failures()
    near = live.followers()[0]
    tasks = first_tasks(live, **{"client.rack": chr(96 + near)})
    assert {one.piece.store.uri for task in tasks for one in task.parts} == {live.store(near).uri}
    assert values_of(tasks) == ["a", "b", "c"]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_stream_in_the_rack_of_a_replica_moves_no_byte_of_a_file_across_racks(
    tmp_path: Path, isolation: str
) -> None:
    """The stores count the requests of triggers, plans and tasks together."""
    faults = Faults()
    live = racked(tmp_path, faults)
    query = Query(live, isolation=isolation, **{"client.rack": "b"})
    query.batch()  # the leader returns the start of the leader epoch
    live.append([f"long {number:050}" for number in range(500)]).raise_for_failures()
    read: set[str] = set()
    faults.before = lambda uri, what, name: read.add(uri) if what in ("open", "read") and "/t-" in name else None
    assert len(query.batch()) == 500
    assert read == {"memory://b2"}


def test_a_stream_of_committed_records_waits_for_open_transactions_and_leaves_out_aborted_ones(
    live: LiveCluster,
) -> None:
    live.topic()
    live.fill("a")
    committed, all_of_them = Query(live, isolation="read_committed"), Query(live)
    open_one = live.cluster.transactions.begin("loader")
    open_one.append_batches("t", {0: [batch(["b"])]})
    live.fill("c")
    assert committed.batch() == ["a"]
    assert all_of_them.batch() == ["a", "b", "c"]
    open_one.abort()
    live.fill("d")
    assert committed.batch() == ["c", "d"]
    assert all_of_them.batch() == ["d"]
    with live.cluster.transactions.begin("loader") as another:
        another.append_batches("t", {0: [batch(["e"])]})
    assert committed.batch() == ["e"]
    assert all_of_them.batch() == ["e"]


@pytest.mark.slow
def test_outcomes_of_transactions_survive_merges_and_tiering(live: LiveCluster) -> None:
    live.tiered(segment_bytes="8000", segment_merge_min_files="2")
    live.fill("a")
    for number, value in enumerate("bcde"):
        one = live.cluster.transactions.begin("loader")
        one.append_batches("t", {0: [batch([value])]})
        one.abort() if number % 2 else one.commit()
    committed, all_of_them = Query(live, isolation="read_committed"), Query(live)
    committed.plan()
    all_of_them.plan()
    jobs = (live.cluster.merge, live.cluster.tier, live.cluster.retain, live.cluster.retain)
    for disturb in (lambda: None, *(lambda job=job: job().raise_for_failures() for job in jobs)):
        disturb()
        assert committed.run() == ["a", "b", "d"]
        assert all_of_them.run() == ["a", "b", "c", "d", "e"]
    assert live.log(live.leader()).local_start > 0
