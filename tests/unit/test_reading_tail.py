"""Tail: a topic's records as they are appended, without Spark; its cost, and its replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.engine.reading.tail import Tail
from stratalog.partitions.offsets import OffsetSpec
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch
from tests.unit.nearest_harness import racked, unaware
from tests.unit.tail_harness import texts, two_partitions, while_waiting


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    return two_partitions(tmp_path, faults)


# ------------------------------------------------------------------------------ following


def test_a_tail_hands_on_what_is_appended_from_now_on(live: LiveCluster) -> None:
    while_waiting(live, lambda: live.append({0: ["a4"]}), lambda: live.append({1: ["b2"], 0: ["a5", "a6"]}))
    assert texts(islice(live.cluster.tail("t"), 3)) == ["a4", "a5", "a6", "b2"]


def test_a_tail_may_choose_partitions(live: LiveCluster) -> None:
    assert texts(live.cluster.tail("t", [1], start=OffsetSpec.EARLIEST, follow=False)) == ["b0", "b1"]


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


def test_iterating_again_continues(live: LiveCluster) -> None:
    tail = live.cluster.tail("t", start=OffsetSpec.EARLIEST, partitions=[0], max_bytes=1, follow=False)
    assert [texts(islice(tail, 1)) for _ in range(5)] == [["a0"], ["a1"], ["a2"], ["a3"], []]


def test_new_partitions_are_read_from_their_first_record_on(live: LiveCluster) -> None:
    """Their first records are read after the metadata is read again; none is missed."""

    assert len(live.cluster.image.topic("t").partitions) == 2

    def grow() -> None:
        live.cluster.topics.create_partitions("t", 3)
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


# --------------------------------------------------------------------------- transactions


def values_of(tables: Iterator[pa.Table] | Tail) -> list[str]:
    """The values in order; offsets have gaps at markers."""
    return [value.decode() for table in tables for value in table.column("value").to_pylist()]


@pytest.fixture
def transactional(live: LiveCluster) -> LiveCluster:
    """``x``: a; b, committed, and its marker; c, aborted, and its marker."""
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.topic("x")
    live.fill("a", "x")
    with live.cluster.transactions.begin("one") as one:
        one.append_batches("x", {0: [batch(["b"])]})
    two = live.cluster.transactions.begin("two")
    two.append_batches("x", {0: [batch(["c"])]})
    two.abort()
    return live


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "found"), [("read_uncommitted", ["a", "b", "c"]), ("read_committed", ["a", "b"])]
)
def test_markers_and_records_outside_the_isolation_level_are_skipped(
    transactional: LiveCluster, isolation: str, found: list[str]
) -> None:
    """KIP-98; if a log ends with such a record, the tail does not wait for more."""
    began = transactional.clock.monotonic_s()
    tail = transactional.cluster.tail("x", start=0, follow=False, isolation=isolation, max_bytes=1)
    assert values_of(tail) == found
    assert tail.positions["x", 0].offset == 5
    assert transactional.clock.monotonic_s() - began < 1
    assert values_of(transactional.cluster.tail("x", start=0, follow=False)) == ["a", "b", "c"], "Kafka's default"


def test_a_tail_of_committed_records_goes_up_to_the_last_stable_offset(transactional: LiveCluster) -> None:
    """Records after an open transaction are returned when it is decided, not before."""
    live = transactional
    t = live.cluster.transactions.begin("three")
    t.append_batches("x", {0: [batch(["d"])]})
    live.fill("e", "x")
    assert values_of(live.cluster.tail("x", start=0, follow=False, isolation="read_committed")) == ["a", "b"]
    assert values_of(live.cluster.tail("x", last=1, follow=False)) == ["e"]
    assert values_of(live.cluster.tail("x", last=1, follow=False, isolation="read_committed")) == ["b"]
    assert values_of(live.cluster.tail("x", last=4, follow=False, isolation="read_committed")) == ["a", "b"]
    assert values_of(live.cluster.tail("x", last=0, follow=False, isolation="read_committed")) == []
    now = live.cluster.tail("x", isolation="read_committed", idle_timeout_s=60)
    while_waiting(live, t.commit, lambda: live.fill("f", "x"))
    assert values_of(now) == ["d", "e", "f"], "the latest record that such a reader sees is before d"


# -------------------------------------------------------------------------- what it costs


def test_an_idle_tail_lists_the_leaders_and_asks_for_nothing_else(live: LiveCluster, faults: Faults) -> None:
    """The metadata is read once in ``metadata_max_age_s``, not once per poll."""
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


# -------------------------------------------------------------------------- who served it


@pytest.mark.slow
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
