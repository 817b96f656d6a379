"""A planned batch of a stream has the same rows, whatever happens to its files; lost rows are never skipped
silently."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.engine.reading import stream_read
from stratalog.engine.reading.stream_offsets import Position, StreamOffsets
from stratalog.partitions.errors import (
    InvalidCallError,
    LogGapError,
    LogTruncationError,
    OffsetOutOfRangeError,
    SourceChangedError,
    UnknownTopicOrPartitionError,
)
from tests.unit.cluster_harness import LiveCluster
from tests.unit.stream_harness import Query, first_tasks, source, values_of

# ----------------------------------------------------------------------- what becomes of files


@pytest.mark.slow
def test_a_planned_batch_is_replayed_exactly_whatever_became_of_its_files(live: LiveCluster) -> None:
    """Appends are merged, tiered, dropped from the brokers, and more is appended."""
    live.tiered(segment_bytes="7000", segment_merge_min_files="2")
    live.fill("abcdef")
    query = Query(live)
    query.plan(4)
    first = query.run()
    assert first == ["a", "b", "c", "d"]
    for disturb in (live.cluster.merge, live.cluster.tier, live.cluster.retain, live.cluster.retain):
        disturb().raise_for_failures()
        live.fill("z")
        query.start()
        assert query.run() == first
    assert live.log(live.leader()).local_start > 1
    assert any(part.remote and part.file_end - part.file_start > 1 for part in live.cluster.plan_read("t"))


@pytest.mark.slow
def test_records_move_to_the_remote_tier_between_triggers(live: LiveCluster) -> None:
    live.tiered()
    query = Query(live)
    seen: list[str] = []
    for value in "abcdefgh":
        live.fill(value)
        live.cluster.tier().raise_for_failures()
        live.cluster.retain().raise_for_failures()
        seen += query.batch(1) if value in "bcf" else []
    while more := query.batch(3):
        seen += more
    assert seen == list("abcdefgh")


def test_a_file_that_goes_between_the_plan_and_the_read_is_found_in_its_successor(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abc")
    tasks = first_tasks(live)
    live.tier_and_drop()
    assert live.log(live.leader()).local_start > 0
    assert not live.log(live.leader()).dead
    assert values_of(tasks) == ["a", "b", "c"]


def reading(patch: pytest.MonkeyPatch, raising: Exception | None) -> None:
    """The first file returns one record, and then fails, or ends."""
    real, tries = stream_read.read_row_groups, iter([True])

    def failing(*args: Any) -> Iterator[tuple[int, pa.Table]]:
        if not next(tries, False):
            yield from real(*args)
            return
        first, records = next(real(*args))
        yield first, records.slice(0, 1)
        if raising is not None:
            raise raising

    patch.setattr(stream_read, "read_row_groups", failing)


def test_a_read_continues_after_the_records_that_it_has_when_their_file_disappears(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.topic()
    live.append(["a", "b", "c"])
    tasks = first_tasks(live)
    reading(monkeypatch, SourceChangedError("it is gone"))
    assert values_of(tasks) == ["a", "b", "c"]


def test_a_file_that_is_shorter_than_the_log_says_is_an_error(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.topic()
    live.append(["a", "b", "c"])
    tasks = first_tasks(live)
    reading(monkeypatch, None)
    with pytest.raises(LogGapError, match="ends at offset 1, and no file has the offsets from there to 3"):
        values_of(tasks)


def test_records_that_retention_takes_between_the_plan_and_the_read_are_an_error(live: LiveCluster) -> None:
    live.topic(file_delete_delay_ms="0", retention_bytes="1", segment_bytes="1")
    live.fill("abc")
    tasks = first_tasks(live)
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert live.log(live.leader()).local_start == 2
    with pytest.raises(SourceChangedError, match="deleted before they were read"):
        values_of(tasks)


def test_retention_below_the_stream_is_an_error_or_is_skipped(live: LiveCluster) -> None:
    live.topic()
    live.fill("abcdef")
    query = Query(live)
    query.batch(2)
    live.cluster.topics.delete_records("t", {0: 4}).raise_for_failures()
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets \[2, 4\) are no longer in the log"):
        query.plan()
    query.options = {"failOnDataLoss": "false"}
    query.start()
    assert query.batch() == ["e", "f"]


def test_retention_just_up_to_the_stream_is_nothing_new(live: LiveCluster) -> None:
    live.topic()
    live.fill("abc")
    query = Query(live)
    query.batch()
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    assert query.nothing_new()


@pytest.mark.parametrize("instead", ["x", "xy", "xyz"])
def test_an_unclean_election_below_the_stream_is_an_error_or_is_gone_back_to(
    live: LiveCluster, instead: str
) -> None:
    """KIP-320, "Truncation detection": the records at these offsets differ from those read, in any number."""
    live.topic(min_insync_replicas="1")
    live.fill("ab")
    query = Query(live)
    leader = live.leader()
    for broker in live.followers():
        live.cluster.brokers.fence(broker)
    live.fill("cd")
    assert query.batch() == ["a", "b", "c", "d"]
    live.cluster.brokers.fence(leader, force=True)
    live.cluster.brokers.unfence([broker for broker in (1, 2, 3) if broker != leader]).raise_for_failures()
    live.cluster.elect(unclean=True).raise_for_failures()
    live.fill(instead)
    with pytest.raises(LogTruncationError, match="truncated to offset 2"):
        query.plan()
    query.options = {"failOnDataLoss": "false"}
    query.start()
    assert query.batch() == list(instead)
    assert query.nothing_new()


def test_a_planned_batch_is_read_from_a_leader_that_does_not_know_it_to_be_committed(live: LiveCluster) -> None:
    """The leader was newly elected (KIP-207); the batch was committed when it was planned, so every later leader
    has it. Records that are not planned yet have to wait.
    """
    live.topic()
    live.fill("abcd")
    query = Query(live)
    query.batch(1)
    query.plan(1)
    follower, _ = live.followers()
    for store in map(live.store, (live.leader(), *live.followers())):  # a leader asks the other members
        marks = [one.name for one in store.list("") if one.name.endswith(".hw") and "/t-" in one.name]
        assert marks
        store.delete(marks)
    live.cluster.elect(leader=follower).raise_for_failures()
    assert live.log(follower).high_watermark == 0
    query.start()
    assert query.run() == ["b"]
    query.finish()
    assert query.nothing_new()
    live.fill("e")
    assert query.batch() == ["c", "d", "e"]


def test_a_topic_that_was_deleted_and_created_again_is_not_taken_for_the_old_one(live: LiveCluster) -> None:
    live.topic()
    live.fill("ab")
    query = Query(live)
    query.batch()
    live.cluster.topics.delete("t").raise_for_failures()
    with pytest.raises(UnknownTopicOrPartitionError):
        query.plan()
    live.topic()
    live.fill("abc")
    with pytest.raises(InvalidCallError, match="was deleted and created again"):
        query.plan()


def test_a_checkpoint_of_another_topic_is_refused(live: LiveCluster) -> None:
    live.topic("t")
    live.topic("u")
    done = source(live, "u").initial()
    with pytest.raises(InvalidCallError, match="the checkpoint belongs to topic 'u', but the query reads 't'"):
        source(live).latest(done, None, None)
    with pytest.raises(InvalidCallError, match="the checkpoint belongs to topic 'u', but the query reads 't'"):
        source(live).plan(done, StreamOffsets(done.topic_ids, {("u", 0): Position(7)}))


def test_a_partition_that_the_checkpoint_does_not_know_is_read_from_its_first_record(live: LiveCluster) -> None:
    live.topic(partitions=2)
    live.append({0: "a", 1: "bc"})
    query = Query(live)
    query.batch()
    assert query.done is not None
    query.done = StreamOffsets(query.done.topic_ids, {("t", 0): query.done.partitions["t", 0]})
    assert query.batch() == ["b", "c"]
    query.done = StreamOffsets(query.done.topic_ids, {("t", 0): query.done.partitions["t", 0]})
    live.cluster.topics.delete_records("t", {1: 1}).raise_for_failures()
    with pytest.raises(OffsetOutOfRangeError, match=r"t-1: offsets \[0, 1\)"):
        query.plan()


def test_a_leader_that_is_gone_is_replaced(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    live.fill("ab")
    query = Query(live)
    query.batch(1)
    leader = live.leader()
    if leader == 1:  # the metadata's only voter stays
        live.cluster.elect(leader=2).raise_for_failures()
        leader = 2
    with live.unreachable(leader):
        live.clock.advance_ms(3_600_000)
        assert query.batch() == ["b"]


def test_tasks_travel_and_say_nothing_secret(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-stays")
    live.topic()
    live.fill("ab")
    (task,) = first_tasks(live)
    sent = pickle.dumps([(one.partition, one.piece.file, one.size_bytes) for one in task.parts])
    assert b"a-secret-that-stays" not in sent


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.slow
def test_every_record_comes_once_whatever_happens_between_the_steps(live: LiveCluster, seed: int) -> None:
    """Appends, merges, tiering, retention of the brokers, elections and restarts of the driver, in any order:
    replayed batches are the same, and together they are the log."""
    rng = random.Random(seed)
    live.tiered(partitions=2, segment_bytes="3000")
    query = Query(live)
    written, seen, number = [], [], 0

    def append() -> None:
        nonlocal number
        for _ in range(rng.randrange(1, 4)):
            written.append(str(number))
            live.append({rng.randrange(2): [str(number)]}).raise_for_failures()
            number += 1

    def elect() -> None:
        live.cluster.elect(leader=rng.choice([1, 2, 3]))

    jobs = [append, elect, live.cluster.merge, live.cluster.tier, live.cluster.retain, live.cluster.replicate]
    for _ in range(12):
        rng.choice(jobs)()
        query.plan(rng.choice([None, 1, 3]))
        before = query.run()
        rng.choice(jobs)()
        if rng.random() < 0.5:
            query.start()
        assert query.run() == before
        seen += before
        query.finish()
    seen += query.batch()
    assert sorted(seen, key=int) == written
