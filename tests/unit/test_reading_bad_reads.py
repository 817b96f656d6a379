"""Mistakes of a reader, at every method: one clear error, which names the wrong value and the right ones, and
nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.reading.bounds import Committed
from stratalog.engine.reading.positions import FirstAt
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.replication.replica_selector import ClientMetadata, Replicas, ReplicaSelector, ReplicaView
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.harness import batch
from tests.unit.stream_harness import source


def built(folder: Path) -> LiveCluster:
    """``trips``: offsets [2, 6) of one partition; the group ``dashboard`` is at 4."""
    made = LiveCluster(folder)
    made.cluster.topics.alter_configs(
        None, {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "1"}
    )
    made.topic("trips")
    made.fill("abcdef", "trips")
    made.cluster.groups.commit("dashboard", {("trips", 0): 4}).raise_for_failures()
    made.cluster.topics.delete_records("trips", {0: 2}).raise_for_failures()
    return made


live, shared = live_and_shared(built)


Door = Callable[..., object]


def batch_read(live: LiveCluster, topic: str = "trips", **asked: Any) -> object:
    return live.cluster.plan_read(topic, **asked)


def tail(live: LiveCluster, topic: str = "trips", **asked: Any) -> object:
    return list(live.cluster.tail(topic, follow=False, **asked))


def fetch(live: LiveCluster, topic: str = "trips", start: int = 2, **asked: Any) -> object:
    return live.cluster.fetch(topic, 0, start, **asked)


def stream(live: LiveCluster, topic: str = "trips", **options: str) -> object:
    made = source(live, topic, **options)
    begin = made.initial()
    return made.plan(begin, made.latest(begin, None, None))


def offsets(live: LiveCluster, topic: str = "trips", spec: Any = "2024-01-01", **asked: Any) -> object:
    return live.cluster.offsets(topic, spec, **asked)


def lag(live: LiveCluster, group: str) -> object:
    return live.cluster.groups.lag(group)


def reset(live: LiveCluster, group: str = "dashboard", topic: str = "trips") -> object:
    return live.cluster.groups.reset_offsets(group, topic, to=3)


def delete(live: LiveCluster, group: str) -> object:
    return live.cluster.groups.delete(group)


def commit(live: LiveCluster, topic: str = "trips", offset: int = 3) -> object:
    return live.cluster.groups.commit("dashboard", {(topic, 0): offset})


LATE = datetime(2999, 1, 1, tzinfo=UTC)
NO_SPECS = ("lattest", 5, None, True, date(2013, 6, 1), {0: 1})
NO_GROUP = (GroupIdNotFoundError, "'dashbord' does not exist.*; did you mean 'dashboard'?")
NO_TOPIC = (UnknownTopicOrPartitionError, "'tripz' does not exist.*; did you mean 'trips'?")
NO_LEVEL = (InvalidCallError, "unknown isolation 'read_comitted'; did you mean 'read_committed'?")


@pytest.mark.parametrize(
    ("door", "asked", "error", "message"),
    [
        (batch_read, {"start": Committed("dashbord")}, *NO_GROUP),
        (tail, {"start": Committed("dashbord")}, *NO_GROUP),
        (lag, {"group": "dashbord"}, *NO_GROUP),
        (reset, {"group": "dashbord"}, *NO_GROUP),
        (delete, {"group": "dashbord"}, *NO_GROUP),
        *((door, {"topic": "tripz"}, *NO_TOPIC) for door in (batch_read, tail, fetch, stream, offsets)),
        *((door, {"topic": "tripz"}, *NO_TOPIC) for door in (reset, commit)),
        *((d, {"isolation": "read_comitted"}, *NO_LEVEL) for d in (batch_read, tail, fetch, stream, offsets)),
        (stream, {"startingOffset": "latest"}, InvalidCallError, "did you mean 'startingOffsets'?"),
        # Negative, beyond the end, below the start.
        (batch_read, {"start": -1}, OffsetOutOfRangeError, "start is -1: offsets start at 0"),
        (tail, {"start": -1}, OffsetOutOfRangeError, "start is -1: offsets start at 0"),
        (fetch, {"start": -1}, OffsetOutOfRangeError, r"offset -1 is not in \[2, 6\]"),
        (stream, {"startingOffsets": '{"0": -3}'}, InvalidCallError, "-2 for earliest, -1 for latest"),
        (commit, {"offset": -1}, InvalidCallError, "-1"),
        (
            batch_read,
            {"start": 7},
            OffsetOutOfRangeError,
            r"start 7 is above the high watermark: readers see \[2, 6\)",
        ),
        (
            batch_read,
            {"start": 1_764_320_000_000},
            OffsetOutOfRangeError,
            "a number is an offset: give a time as a",
        ),
        (tail, {"start": 7}, OffsetOutOfRangeError, r"offset 7 is not in \[2, 6\]"),
        (fetch, {"start": 7}, OffsetOutOfRangeError, r"offset 7 is not in \[2, 6\]"),
        (stream, {"startingOffsets": '{"0": 7}'}, OffsetOutOfRangeError, r"is 7, but the log has \[2, 6\)"),
        (commit, {"offset": 7}, OffsetOutOfRangeError, "offset 7 cannot be committed: the log ends at 6"),
        (batch_read, {"start": 1}, OffsetOutOfRangeError, r"start 1 is below the log start: readers see \[2, 6\)"),
        (tail, {"start": 1}, OffsetOutOfRangeError, r"offset 1 is not in \[2, 6\]"),
        (fetch, {"start": 1}, OffsetOutOfRangeError, r"offset 1 is not in \[2, 6\]"),
        (stream, {"startingOffsets": '{"0": 1}'}, OffsetOutOfRangeError, r"is 1, but the log has \[2, 6\)"),
        # ranges
        (batch_read, {"start": 5, "end": 4}, OffsetOutOfRangeError, "start 5 is after end 4"),
        (batch_read, {"start": FirstAt(LATE)}, InvalidCallError, "is in the future"),
        (batch_read, {"end": FirstAt(LATE)}, InvalidCallError, "is in the future"),
        (
            batch_read,
            {"end": FirstAt("9999-12-31T23:59-12:00")},
            InvalidCallError,
            "us after 1970 is in the future",
        ),
        (tail, {"start": LATE}, InvalidCallError, "is in the future"),
        (stream, {"startingTimestamp": LATE.isoformat()}, InvalidCallError, "is in the future"),
        (batch_read, {"start": LATE, "end": "2998-01-01"}, InvalidCallError, "is after end = 2998-01-01"),
        (tail, {"start": "soon"}, InvalidCallError, "start = 'soon': give an offset, a position"),
        (stream, {"startingTimestamp": "soon"}, InvalidCallError, "startingTimestamp.* 'soon' is not a time"),
        *((offsets, {"spec": one}, InvalidCallError, "spec = .*: give a position") for one in NO_SPECS),
        (batch_read, {"start": 3, "last": 1}, InvalidCallError, "give only one of them"),
        (tail, {"start": 3, "last": 1}, InvalidCallError, "give only one of them"),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value) if isinstance(value, dict) else "",
)
def test_a_bad_read_is_one_clear_error_whichever_way_it_is_asked_for(
    shared: LiveCluster, door: Door, asked: Mapping[str, Any], error: type[StratalogError], message: str
) -> None:
    with shared.unchanged(), pytest.raises(error, match=message):
        door(shared, **asked)


def test_a_time_that_no_record_has_reached_is_the_end(shared: LiveCluster) -> None:
    """The range is not in the future, but after the last record: there is nothing to read, and no error."""
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=shared.clock.now_ms())
    assert shared.cluster.plan_read("trips", FirstAt(now)).partitions[0].start == 6
    assert list(shared.cluster.plan_read("trips", now)) == []
    assert tail(shared, start=now) == []


@pytest.mark.parametrize("anew", [False, True], ids=["another topic", "created anew"])
def test_a_checkpoint_of_another_log_is_refused(live: LiveCluster, anew: bool) -> None:
    """The checkpoint's offsets have no meaning for another log."""
    checkpoint: StreamOffsets = source(live, "trips").initial()
    if anew:
        live.cluster.topics.delete("trips").raise_for_failures()
    live.topic("trips" if anew else "rides")
    other = source(live, "trips" if anew else "rides")
    text = "was deleted and created again" if anew else "the checkpoint belongs to topic 'trips'"
    with pytest.raises(InvalidCallError, match=f"{text}.*checkpointLocation"):
        other.latest(checkpoint, None, None)
    with pytest.raises(InvalidCallError, match=text):
        other.plan(checkpoint, StreamOffsets(checkpoint.topic_ids, {}))


class Raises(ReplicaSelector):
    """A case with a mistake."""

    def select(
        self, topic_partition: tuple[str, int], client: ClientMetadata, partition: Replicas
    ) -> ReplicaView | None:
        raise KeyError("cost of rack b")


@pytest.mark.parametrize("door", [batch_read, tail, fetch, stream])
def test_a_selector_that_raises_is_one_clear_error(live: LiveCluster, door: Door) -> None:
    live.select_by(Raises=Raises)
    text = "Raises: for trips-0 it cannot select: KeyError: 'cost of rack b'.*unset replica.selector"
    asked = {"startingOffsets": "earliest"} if door is stream else {"start": 2}
    with live.unchanged(), pytest.raises(InvalidConfigError, match=text):
        door(live, **asked)


@pytest.mark.slow
def test_the_first_of_two_streams_with_one_transactional_id_must_stop(live: LiveCluster) -> None:
    """A stream is started twice: the later one continues; the earlier one appends and commits nothing."""
    first = live.cluster.transactions.begin("copy")
    first.append_batches("trips", {0: [batch(["x"])]})
    with live.driver().transactions.begin("copy") as second:
        with pytest.raises(ProducerFencedError, match="newer producer"):
            first.append_batches("trips", {0: [batch(["y"])]})
        with pytest.raises(ProducerFencedError):
            first.commit()
        second.append_batches("trips", {0: [batch(["z"])]})
    committed = live.cluster.plan_read("trips", isolation="read_committed")
    assert [value for part in committed for _, value in live.records(part)] == ["c", "d", "e", "f", "z"]
