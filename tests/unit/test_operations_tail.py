"""Tail: a topic's records as they are appended, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from engine.cluster_fetch import TailSettings
from engine.operations.reading.tail import Start, Tail, TailOptions
from engine.reading.bounds import Committed
from engine.state.group_commits import OffsetAndMetadata
from partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    LogTruncationError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from partitions.offsets import OffsetSpec
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch
from tests.unit.nearest_harness import racked, unaware


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    """``t``, two partitions: a0 ... a3 and b0, b1."""
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(partitions=2)
    for number in range(4):
        live.append({0: [f"a{number}"], **({1: [f"b{number}"]} if number < 2 else {})}).raise_for_failures()
    return live


def texts(tables: Iterator[pa.Table] | Tail) -> list[str]:
    """The values, by partition; its tables are of one partition each, and their offsets contiguous."""
    found: dict[int, list[str]] = {}
    after: dict[int, int] = {}
    for table in tables:
        (partition,) = set(table.column("partition").to_pylist())
        offsets = table.column("offset").to_pylist()
        assert offsets == list(range(after.get(partition, offsets[0]), offsets[-1] + 1))
        after[partition] = offsets[-1] + 1
        found.setdefault(partition, []).extend(v.decode() for v in table.column("value").to_pylist())
    return [value for partition in sorted(found) for value in found[partition]]


def all_of(live: LiveCluster, start: Start, **settings: object) -> list[str]:
    return texts(live.cluster.tail("t", start=start, follow=False, **settings))  # type: ignore[arg-type]


def while_waiting(live: LiveCluster, *happens: Callable[[], object]) -> None:
    """One thing happens in each wait of a tail, as it begins."""
    left, sleep = list(happens), live.clock.sleep

    def do(seconds: float) -> None:
        if left:
            left.pop(0)()
        sleep(seconds)

    live.clock.sleep = do  # type: ignore[method-assign]


# --------------------------------------------------------------------------------- following


def test_a_tail_hands_on_what_is_appended_from_now_on(live: LiveCluster) -> None:
    while_waiting(
        live,
        lambda: live.append({0: ["a4"]}),
        lambda: live.append({1: ["b2"], 0: ["a5", "a6"]}),
    )
    assert texts(islice(live.cluster.tail("t"), 3)) == ["a4", "a5", "a6", "b2"]


def test_a_tail_of_some_partitions(live: LiveCluster) -> None:
    assert all_of(live, OffsetSpec.EARLIEST, partitions=[1]) == ["b0", "b1"]


def test_the_caller_stops_it(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", start=OffsetSpec.EARLIEST, max_bytes=1)
    for count, _ in enumerate(tail, start=1):
        if count == 3:
            tail.stop()
    assert count == 3


def test_it_stops_while_it_waits(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", first_poll_s=60, longest_poll_s=60)
    while_waiting(live, tail.stop)
    began = live.clock.monotonic_s()
    assert texts(tail) == []
    assert live.clock.monotonic_s() - began < 1


def test_it_ends_when_nothing_has_come_for_long_enough(live: LiveCluster) -> None:
    began = live.clock.monotonic_s()
    while_waiting(live, lambda: None, lambda: live.append(["a4"]))
    assert texts(live.cluster.tail("t", idle_timeout_s=60)) == ["a4"]
    assert 60 <= live.clock.monotonic_s() - began <= 70


def test_without_following_it_ends_at_the_high_watermark_of_the_beginning(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", start=OffsetSpec.EARLIEST, follow=False)
    live.append(["later"]).raise_for_failures()
    found = texts(tail)
    assert found[:4] == ["a0", "a1", "a2", "a3"]
    assert texts(live.cluster.tail("t", follow=False)) == []


def test_to_iterate_again_is_to_go_on(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", start=OffsetSpec.EARLIEST, partitions=[0], max_bytes=1, follow=False)
    assert [texts(islice(tail, 1)) for _ in range(5)] == [["a0"], ["a1"], ["a2"], ["a3"], []]


def test_new_partitions_are_read_from_their_first_record_on(live: LiveCluster) -> None:
    """Once the metadata is read again; not one of their records is missed."""

    assert len(live.cluster.image.topic("t").partitions) == 2

    def grow() -> None:
        live.cluster.create_partitions("t", 3)
        live.append({2: ["c0"]}).raise_for_failures()
        live.append({2: ["c1"]}).raise_for_failures()

    while_waiting(live, grow)
    assert texts(live.cluster.tail("t", idle_timeout_s=60)) == ["c0", "c1"]
    live.append({2: ["c2"]}).raise_for_failures()
    assert texts(live.cluster.tail("t", [0], idle_timeout_s=60)) == []


def test_a_new_leader_is_followed(live: LiveCluster) -> None:
    former = live.leader()
    other = next(broker for broker in (1, 2, 3) if broker != former)

    def moved() -> None:
        live.driver().elect("t", [0], leader=other).raise_for_failures()
        live.append(["a4"], driver=live.driver()).raise_for_failures()

    while_waiting(live, moved)
    tail = live.cluster.tail("t", partitions=[0])
    assert texts(islice(tail, 1)) == ["a4"]
    (row,) = tail.report().rows
    assert row["broker"] == other


# ---------------------------------------------------------------------------------- where it begins


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (OffsetSpec.EARLIEST, ["a0", "a1", "a2", "a3", "b0", "b1"]),
        (None, ["a0", "a1", "a2", "a3", "b0", "b1"]),
        (OffsetSpec.LATEST, []),
        (1, ["a1", "a2", "a3", "b1"]),
        ({0: 3, 1: 1}, ["a3", "b1"]),
        ({0: 3}, ["a3", "b0", "b1"]),
        ({("t", 0): 3, ("t", 1): OffsetSpec.LATEST}, ["a3"]),
        ({("t", 0): OffsetAndMetadata(2, 1), ("t", 1): OffsetAndMetadata(2)}, ["a2", "a3"]),
    ],
    ids=str,
)
def test_it_begins_where_it_is_told_to(live: LiveCluster, start: Start, found: list[str]) -> None:
    assert all_of(live, start) == found


@pytest.mark.parametrize(("last", "found"), [(0, []), (1, ["a3", "b1"]), (3, ["a1", "a2", "a3", "b0", "b1"])])
def test_the_last_records_of_each_partition(live: LiveCluster, last: int, found: list[str]) -> None:
    assert texts(live.cluster.tail("t", last=last, follow=False)) == found


def test_it_begins_at_a_time(live: LiveCluster) -> None:
    at_ms = live.clock.now_ms()
    live.append(["now"], at_ms=at_ms).raise_for_failures()
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    assert all_of(live, at) == ["now"]
    with pytest.raises(InvalidCallError, match="has not come"):
        live.cluster.tail("t", start=at + timedelta(days=1))


def test_a_group_goes_on_where_it_has_come_to(live: LiveCluster) -> None:
    """What was handed on is what is committed; with the leader epoch (KIP-320)."""
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    tail = live.cluster.tail("t", [0], start=OffsetSpec.EARLIEST, max_bytes=1)
    assert texts(islice(tail, 3)) == ["a0", "a1", "a2"]
    assert tail.positions == {("t", 0): OffsetAndMetadata(3, 1)}
    live.cluster.commit("g", tail.positions)
    again = live.cluster.tail("t", start=Committed("g"), follow=False)
    assert again.positions["t", 0] == OffsetAndMetadata(3, 1)
    assert texts(again) == ["a3", "b0", "b1"]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"partitions": [2]}, UnknownTopicOrPartitionError, "no partition 2"),
        ({"start": {2: 0}}, UnknownTopicOrPartitionError, "no partition 2"),
        ({"start": -1}, OffsetOutOfRangeError, "offsets begin at 0"),
        ({"start": "now"}, InvalidCallError, "is no bound"),
        ({"start": 1, "last": 1}, InvalidCallError, "give one of the two"),
        ({"last": -1}, InvalidCallError, "from 1 on"),
        ({"start": datetime(2013, 1, 1)}, InvalidCallError, "has no time zone"),
        ({"start": Committed("nobody")}, GroupIdNotFoundError, "'nobody' does not exist"),
        ({"auto_offset_reset": "newest"}, InvalidCallError, "one of none, earliest, latest"),
        ({"first_poll_s": 0}, InvalidCallError, "above 0"),
        ({"first_poll_s": 9}, InvalidCallError, "at most the second"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_calls(live: LiveCluster, settings: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        live.cluster.tail("t", **settings)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="nobody"):
        live.cluster.tail("nobody")


def test_an_offset_beyond_the_end(live: LiveCluster) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"t-1: offset 4 is not in \[0, 2\]"):
        live.cluster.tail("t", [1], start=4)
    assert all_of(live, 4, auto_offset_reset="earliest", partitions=[1]) == ["b0", "b1"]
    assert all_of(live, 4, auto_offset_reset="latest", partitions=[1]) == []


def test_its_settings_are_its_options() -> None:
    assert set(TailSettings.__annotations__) == {field.name for field in fields(TailOptions)}


# ------------------------------------------------------------------------------------ transactions


def values_of(tables: Iterator[pa.Table] | Tail) -> list[str]:
    """The values, in their order; offsets have gaps where markers are."""
    return [value.decode() for table in tables for value in table.column("value").to_pylist()]


@pytest.fixture
def transactional(live: LiveCluster) -> LiveCluster:
    """``x``: a; b, committed, and its marker; c, aborted, and its marker."""
    live.cluster.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.topic("x")
    live.fill("a", "x")
    with live.cluster.transaction("one") as one:
        one.append_batches("x", {0: [batch(["b"])]})
    two = live.cluster.transaction("two")
    two.append_batches("x", {0: [batch(["c"])]})
    two.abort()
    return live


@pytest.mark.parametrize(
    ("isolation", "found"), [("read_uncommitted", ["a", "b", "c"]), ("read_committed", ["a", "b"])]
)
def test_markers_and_what_the_isolation_level_leaves_out_is_passed_over(
    transactional: LiveCluster, isolation: str, found: list[str]
) -> None:
    """KIP-98; also where a log ends with it, nobody waits for more."""
    began = transactional.clock.monotonic_s()
    tail = transactional.cluster.tail("x", start=0, follow=False, isolation=isolation, max_bytes=1)
    assert values_of(tail) == found
    assert tail.positions["x", 0].offset == 5
    assert transactional.clock.monotonic_s() - began < 1
    assert values_of(transactional.cluster.tail("x", start=0, follow=False)) == ["a", "b", "c"], "Kafka's default"


def test_a_tail_of_committed_records_goes_up_to_the_last_stable_offset(transactional: LiveCluster) -> None:
    """What is behind an open transaction is handed on when that is decided, not before."""
    live = transactional
    t = live.cluster.transaction("three")
    t.append_batches("x", {0: [batch(["d"])]})
    live.fill("e", "x")
    assert values_of(live.cluster.tail("x", start=0, follow=False, isolation="read_committed")) == ["a", "b"]
    assert values_of(live.cluster.tail("x", last=1, follow=False)) == ["e"]
    assert values_of(live.cluster.tail("x", last=4, follow=False, isolation="read_committed")) == ["b"]
    assert values_of(live.cluster.tail("x", last=0, follow=False, isolation="read_committed")) == []
    now = live.cluster.tail("x", isolation="read_committed", idle_timeout_s=60)
    while_waiting(live, t.commit, lambda: live.fill("f", "x"))
    assert values_of(now) == ["d", "e", "f"], "the latest record that such a reader sees is before d"


# ------------------------------------------------------------------------------------ what it costs


def test_an_idle_tail_lists_the_leaders_and_asks_for_nothing_else(live: LiveCluster, faults: Faults) -> None:
    """The metadata once in ``metadata_max_age_s``, not once a poll."""
    tail = iter(live.cluster.tail("t", idle_timeout_s=100, longest_poll_s=1, metadata_max_age_s=50))
    asked: Counter[str] = Counter()

    def count(uri: str, what: str, name: str) -> None:
        of_topic = "/t-" in name
        asked["leader" if of_topic else "root" if (what, name) == ("stat", "broker.json") else "metadata"] += 1
        assert not of_topic or what == "list"

    faults.before = count
    assert list(tail) == []
    polls = asked["leader"] // 2
    assert 100 <= polls <= 110
    assert asked["root"] == asked["leader"]
    assert asked["metadata"] <= 3 * 4


def test_its_polls_become_rarer_while_nothing_comes_and_frequent_again_when_something_does(
    live: LiveCluster,
) -> None:
    waits: list[float] = []
    sleep = live.clock.sleep

    def note(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 6:
            live.append(["a4"]).raise_for_failures()
        sleep(seconds)

    live.clock.sleep = note  # type: ignore[method-assign]
    tail = live.cluster.tail("t", first_poll_s=0.01, longest_poll_s=0.2, idle_timeout_s=0.7)
    assert texts(tail) == ["a4"]
    assert waits[:8] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.01, 0.02])


def test_no_more_tables_are_fetched_at_once_than_memory_is_for(live: LiveCluster, faults: Faults) -> None:
    live.topic("many", partitions=6)
    live.append({partition: ["x"] for partition in range(6)}, "many").raise_for_failures()
    tail = iter(live.cluster.tail("many", start=0, follow=False, max_bytes=100, fetch_max_bytes=250))
    opened: set[str] = set()
    faults.before = lambda uri, what, name: opened.add(name) if what == "open" else None
    next(tail)
    assert len(opened) <= 2, "of two partitions"
    assert len(list(tail)) == 5


# -------------------------------------------------------------------------------- what may go wrong


def overtaken(live: LiveCluster) -> None:
    """The log of partition 0 starts at 3, and who reads it has read the metadata since."""
    live.driver().delete_records("t", {0: 3}).raise_for_failures()
    live.clock.advance_ms(20_000)


def test_retention_that_overtakes_it_is_an_error(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", [0], start=0, max_bytes=1)
    assert texts(islice(tail, 1)) == ["a0"]
    overtaken(live)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offset 1 is not in \[3, 4\]"):
        next(iter(tail))


@pytest.mark.parametrize(("reset", "found"), [("earliest", ["a3", "a4"]), ("latest", ["a4"])])
def test_with_a_reset_policy_it_goes_on(live: LiveCluster, reset: str, found: list[str]) -> None:
    """auto.offset.reset, with Kafka's words."""
    tail = live.cluster.tail("t", [0], start=0, max_bytes=1, auto_offset_reset=reset)
    assert texts(islice(tail, 1)) == ["a0"]
    overtaken(live)
    while_waiting(live, lambda: live.append(["a4"]))
    assert texts(islice(tail, len(found))) == found


def lose(live: LiveCluster) -> None:
    """Of partition 0 the last record is lost by an unclean election, and another is in its place."""
    away = next(broker for broker in (1, 2, 3) if broker != live.leader())
    live.cluster.fence(away).raise_for_failures()
    live.append(["lost"]).raise_for_failures()
    live.cluster.unfence(away).raise_for_failures()


def replace_lost(live: LiveCluster) -> None:
    out = next(broker for broker in (1, 2, 3) if broker not in live.isr())
    live.cluster.fence([broker for broker in (1, 2, 3) if broker != out], force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.append(["new"]).raise_for_failures()


def test_an_unclean_election_is_found_out(live: LiveCluster) -> None:
    """KIP-320: a consumer that has read what is lost is told, and up to where the histories agree."""
    lose(live)
    tail = live.cluster.tail("t", [0], start=0)
    assert texts(islice(tail, 1)) == ["a0", "a1", "a2", "a3", "lost"]
    replace_lost(live)
    with pytest.raises(LogTruncationError) as raised:
        next(iter(tail))
    assert raised.value.divergent_offset == 4


def test_with_a_reset_policy_it_goes_on_where_the_histories_part(live: LiveCluster) -> None:
    """KIP-320: whoever has a policy gets the records that took the place of the lost ones."""
    lose(live)
    tail = live.cluster.tail("t", [0], start=0, auto_offset_reset="latest")
    assert texts(islice(tail, 1))[-1] == "lost"
    replace_lost(live)
    assert texts(islice(tail, 1)) == ["new"]


def test_a_topic_that_was_deleted_and_created_anew_is_another_log(live: LiveCluster) -> None:
    def again() -> None:
        live.driver().delete_topic("t").raise_for_failures()
        live.driver().create_topic("t", partitions=2, replication_factor=1)

    while_waiting(live, again)
    with pytest.raises(UnknownTopicOrPartitionError, match="created anew"):
        list(live.cluster.tail("t", start=OffsetSpec.LATEST, idle_timeout_s=60))


def test_faults_that_pass_are_not_noticed_and_others_are_raised(live: LiveCluster, faults: Faults) -> None:
    tail = live.cluster.tail("t", [1], start=0, follow=False, timeout_s=5)
    failing = [StorageError("503 slow down")] * 2

    def fail(uri: str, what: str, name: str) -> None:
        if "/t-" in name and failing:
            raise failing.pop()

    faults.before = fail
    assert texts(tail) == ["b0", "b1"]
    live.append({1: ["b2"]}).raise_for_failures()
    tail = live.cluster.tail("t", [1], start=0, follow=False, timeout_s=5)
    failing += [StorageError("503 slow down")] * 1000
    with pytest.raises(StorageError, match="503"):
        list(tail)
    failing.clear()
    assert texts(tail) == ["b0", "b1", "b2"], "nothing is lost by an error"


def test_what_a_new_leader_does_not_know_of_is_waited_for(tmp_path: Path, faults: Faults) -> None:
    live = racked(tmp_path, faults)
    unaware(live, 1)
    while_waiting(
        live,
        lambda: None,
        lambda: live.driver().replicate().raise_for_failures(),
        lambda: live.append(["h"], driver=live.driver()).raise_for_failures(),
    )
    assert texts(islice(live.cluster.tail("t", start=7), 1)) == ["h"]


def test_an_error_of_a_former_leader_is_not_believed(tmp_path: Path, faults: Faults) -> None:
    """Its replica is gone, and with it every offset: whoever does not know that would call the offset out of
    range."""
    live = racked(tmp_path, faults)
    former = live.replica(1)

    def move() -> None:
        live.driver().reassign({("t", 0): [2, 3]}).raise_for_failures()
        former.store.delete([stored.name for stored in former.store.list(former.folder)])
        live.append(["g"], driver=live.driver()).raise_for_failures()

    while_waiting(live, move)
    assert texts(islice(live.cluster.tail("t", start=6), 1)) == ["g"]


def test_without_following_nobody_waits_for_a_new_leader_for_ever(tmp_path: Path, faults: Faults) -> None:
    live = racked(tmp_path, faults)
    live.append(["g"]).raise_for_failures()
    tail = live.cluster.tail("t", start=6, follow=False)
    replica = live.replica(1)
    replica.store.delete([replica.path(mark) for mark in replica.list().watermarks if mark.offset == 7])
    with pytest.raises(OffsetNotAvailableError, match=r"partitions \[0\], elected of late"):
        list(tail)


# ------------------------------------------------------------------------------------- who served it


def test_it_reports_which_broker_served_which_range_and_what_crossed_racks(tmp_path: Path, faults: Faults) -> None:
    live = racked(tmp_path, faults)
    unaware(live, 2)
    tail = live.cluster.tail("t", start=0, follow=False, client_rack="b")
    assert len(texts(tail)) == 7
    near, far = tail.report().rows
    assert [near[name] for name in ("broker", "rack", "start", "end", "records", "cross_rack_bytes")] == [
        *(2, "b", 0, 6, 6, 0),
    ]
    assert [far[name] for name in ("broker", "rack", "start", "end", "records")] == [1, "a", 6, 7, 1]
    assert far["bytes"] == far["cross_rack_bytes"] == tail.report().totals["cross_rack_bytes"]
    assert int(str(near["bytes"])) > int(str(far["bytes"])) > 0


def test_it_reports_what_came_from_the_remote_tier(tmp_path: Path, faults: Faults) -> None:
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    tail = live.cluster.tail("t", start=0, follow=False)
    assert texts(tail) == ["a", "b", "c"]
    assert [(row["broker"], row["start"], row["end"]) for row in tail.report().rows] == [
        ("remote", 0, 2),
        (live.leader(), 2, 3),
    ]
