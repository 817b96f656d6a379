"""The start of a tail: a bound, the last records, a time, a group's offsets; and its refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.reading.bounds import Committed
from stratalog.engine.reading.positions import FirstAt
from stratalog.engine.reading.tail_start import Start
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.offsets import OffsetSpec
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.snapshot_harness import DAY_MS, Keyed
from tests.unit.tail_harness import texts, two_partitions


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    return two_partitions(tmp_path, faults)


def all_of(live: LiveCluster, start: Start, **settings: object) -> list[str]:
    return texts(live.cluster.tail("t", start=start, follow=False, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (OffsetSpec.EARLIEST, ["a0", "a1", "a2", "a3", "b0", "b1"]),
        (None, ["a0", "a1", "a2", "a3", "b0", "b1"]),
        (OffsetSpec.LATEST, []),
        ("latest", []),
        ("earliest", ["a0", "a1", "a2", "a3", "b0", "b1"]),
        (1, ["a1", "a2", "a3", "b1"]),
        ({0: 3, 1: 1}, ["a3", "b1"]),
        ({0: 3}, ["a3", "b0", "b1"]),
        ({("t", 0): 3, ("t", 1): OffsetSpec.LATEST}, ["a3"]),
        ({("t", 0): OffsetAndMetadata(2, 1), ("t", 1): OffsetAndMetadata(2)}, ["a2", "a3"]),
    ],
    ids=str,
)
def test_it_begins_where_requested(live: LiveCluster, start: Start, found: list[str]) -> None:
    assert all_of(live, start) == found


@pytest.mark.parametrize(("last", "found"), [(0, []), (1, ["a3", "b1"]), (3, ["a1", "a2", "a3", "b0", "b1"])])
def test_the_last_records_of_each_partition(live: LiveCluster, last: int, found: list[str]) -> None:
    assert texts(live.cluster.tail("t", last=last, follow=False)) == found


def test_it_begins_at_a_time(live: LiveCluster) -> None:
    at_ms = live.clock.now_ms()
    live.append(["now"], at_ms=at_ms).raise_for_failures()
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    assert all_of(live, at) == all_of(live, FirstAt(at)) == all_of(live, at.isoformat()) == ["now"]
    with pytest.raises(InvalidCallError, match="is in the future"):
        live.cluster.tail("t", start=at + timedelta(days=1))


def test_a_group_continues_where_it_stopped(live: LiveCluster) -> None:
    """The returned records are those committed, with the leader epoch (KIP-320)."""
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    tail = live.cluster.tail("t", [0], start=OffsetSpec.EARLIEST, max_bytes=1)
    assert texts(islice(tail, 3)) == ["a0", "a1", "a2"]
    assert tail.positions == {("t", 0): OffsetAndMetadata(3, 1)}
    live.cluster.groups.commit("g", tail.positions)
    again = live.cluster.tail("t", start=Committed("g"), follow=False)
    assert again.positions["t", 0] == OffsetAndMetadata(3, 1)
    assert texts(again) == ["a3", "b0", "b1"]


@pytest.mark.parametrize(
    ("reset", "found"), [("earliest", ["a0", "a1", "a2", "a3", "b0", "b1"]), ("latest", []), ("none", None)]
)
def test_a_group_that_has_committed_nothing_begins_as_its_reset_says(
    live: LiveCluster, reset: str, found: list[str] | None
) -> None:
    """Kafka's auto.offset.reset. An existing group continues, in the partitions for which it has committed."""
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    if found is None:
        with pytest.raises(GroupIdNotFoundError):
            all_of(live, Committed("new"), auto_offset_reset=reset)
    else:
        assert all_of(live, Committed("new"), auto_offset_reset=reset) == found
    live.cluster.groups.commit("g", {("t", 0): 3})
    rest = [] if reset == "latest" else ["b0", "b1"]
    assert all_of(live, Committed("g"), auto_offset_reset=reset) == ["a3", *rest]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"partitions": []}, InvalidCallError, "partitions is empty"),
        ({"partitions": [2]}, UnknownTopicOrPartitionError, "no partition 2"),
        ({"start": {2: 0}}, UnknownTopicOrPartitionError, "no partition 2"),
        ({"start": -1}, OffsetOutOfRangeError, "offsets start at 0"),
        ({"start": "now"}, InvalidCallError, "start = 'now': give an offset, a position"),
        ({"start": 1, "last": 1}, InvalidCallError, "give only one of them"),
        ({"last": -1}, InvalidCallError, "a whole number from 1"),
        ({"start": datetime(2013, 1, 1)}, InvalidCallError, "has no time zone"),
        ({"start": Committed("nobody")}, GroupIdNotFoundError, "'nobody' does not exist"),
        ({"auto_offset_reset": "newest"}, InvalidCallError, "one of none, earliest, latest"),
        ({"first_poll_s": 0}, InvalidCallError, "above 0"),
        ({"max_bytes": 0}, InvalidCallError, "max_bytes = 0, timeout_s = 30.0: both must be above 0"),
        ({"timeout_s": float("nan")}, InvalidCallError, "timeout_s = nan: both must be above 0"),
        ({"first_poll_s": 9}, InvalidCallError, "at most the second"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_calls_are_refused(
    live: LiveCluster, settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        live.cluster.tail("t", **settings)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="nobody"):
        live.cluster.tail("nobody")


def test_an_offset_beyond_the_end(live: LiveCluster) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"t-1: offset 4 is not in \[0, 2\]"):
        live.cluster.tail("t", [1], start=4)
    assert all_of(live, 4, auto_offset_reset="earliest", partitions=[1]) == ["b0", "b1"]
    assert all_of(live, 4, auto_offset_reset="latest", partitions=[1]) == []


@pytest.mark.parametrize(
    ("start", "notes"),
    [
        ({"start": "earliest"}, 1),
        ({"last": 10}, 1),
        ({"start": {0: 2}}, 1),
        ({"start": {0: 3}}, 0),
        ({"start": "latest"}, 0),
        ({"last": 0}, 0),
    ],
)
def test_it_says_which_records_only_a_snapshot_has(tmp_path: Path, start: dict[str, Any], notes: int) -> None:
    live = Keyed(tmp_path).begin(copies=1, file_delete_delay_ms="0", retention_ms="1")
    live.put([("a", "1"), ("b", "2")], at_ms=1)
    assert live.cluster.tail("t", follow=False, start="earliest").report().notes == ()
    live.take()
    live.clock.sleep(DAY_MS / 1000)
    live.cluster.retain().raise_for_failures()
    live.put([("a", "3")])
    assert live.replicas().view.log_start_offset == 2
    found = live.cluster.tail("t", follow=False, **start).report().notes
    assert [note for note in found if "t-0: only its snapshot has the records before offset 2" in note] == [*found]
    assert len(found) == notes
