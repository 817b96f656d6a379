"""Positions by time in both tiers: their cost, and that they skip no matching record (KIP-79, KIP-734).

The remote table has bounds of a segment's timestamps; the files have the exact ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.reading.list_offsets import position
from stratalog.engine.reading.look import look
from stratalog.engine.reading.positions import FirstAt
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import FoundOffset, OffsetSpec
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch

SEGMENTS = 12
SECOND_US = 1_000_000


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def only_remote(live: LiveCluster) -> None:
    """Keep only the last file on the leader."""
    live.tier_and_drop("t")


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    """One record per segment, offset n at second n; only the last one is local."""
    made = LiveCluster(tmp_path, through=faults.wrap)
    made.tiered()
    for second in range(SEGMENTS):
        made.append([f"v{second}"], at_ms=second * 1000).raise_for_failures()
    only_remote(made)
    assert made.log(made.leader()).local_start == SEGMENTS - 1
    made.cluster.groups.commit("g", {("t", 0): 0}).raise_for_failures()
    return made


def to_time(driver: Cluster) -> object:
    return driver.groups.reset_offsets("g", "t", to=at(8)).rows[0]["new_offset"]


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "answer", "opened"),
    [
        (lambda driver: driver.offsets("t", at(8)), {0: FoundOffset(8, 8 * SECOND_US, 1)}, {8}),
        (lambda driver: driver.offsets("t", at(7.5)), {0: FoundOffset(8, 8 * SECOND_US, 1)}, {8}),
        (lambda driver: driver.plan_read("t", start=FirstAt(at(8))).partitions[0].start, 8, {8, 9, 10}),
        (lambda driver: [part.start for part in driver.plan_read("t", at(8), at(10))], [8, 9], {8, 9}),
        (lambda driver: driver.tail("t", start=at(8)).positions["t", 0].offset, 8, {8}),
        (to_time, 8, {8}),
        (lambda driver: driver.offsets("t", at(11)), {0: FoundOffset(11, 11 * SECOND_US, 1)}, set()),
        (lambda driver: driver.offsets("t", OffsetSpec.MAX_TIMESTAMP)[0].offset, 11, set()),
    ],
    ids=["offsets", "between", "read", "read of times", "tail", "reset", "local", "largest"],
)
def test_only_the_remote_segments_that_may_match_are_opened(
    live: LiveCluster, faults: Faults, ask: Callable[[Cluster], object], answer: object, opened: set[int]
) -> None:
    """The table has bounds for each segment, so none is opened for them, however many segments there are. (A read
    looks up the ends of the files that it will read.)
    """
    seen: set[int] = set()

    def note(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote") and what in ("open", "read") and name.endswith(".parquet"):
            seen.add(int(name.rpartition("/")[2][:20]))

    driver = live.driver()
    faults.before = note
    assert ask(driver) == answer
    assert seen == opened


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_answers_are_those_of_a_walk_through_all_files(tmp_path: Path, seed: int) -> None:
    """Timestamps out of order, records of committed, aborted and open transactions, and their markers: at any
    time, for readers of either isolation level.
    """
    rng = random.Random(seed)
    live = LiveCluster(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.tiered(segment_bytes=str(rng.choice([1, 6000])))
    for number in range(14):
        rows = batch([f"{number}", f"{number}-"], rng.randrange(0, 9_000, 250))
        kind = rng.choice(["plain", "commit", "abort"])
        if kind == "plain":
            live.cluster.append_batches("t", {0: [rows]}).raise_for_failures()
        else:
            transaction = live.cluster.transactions.begin("x")
            transaction.append_batches("t", {0: [rows]}).raise_for_failures()
            (transaction.commit if kind == "commit" else transaction.abort)()
        if number == 10:
            only_remote(live)
    live.cluster.transactions.begin("y").append_batches("t", {0: [batch(["open"], 8_999)]}).raise_for_failures()
    (state,) = with_ports(look, ports_of(live.cluster))("t")[1]
    bounds = [piece.max_timestamp_us for piece in state.readable.pieces]
    assert None in bounds
    assert len(bounds) > bounds.count(None) + 1, "of both tiers"
    pieces = [replace(piece, max_timestamp_us=None) for piece in state.readable.pieces]
    plain = replace(state, readable=replace(state.readable, pieces=pieces))
    for isolation in Isolation:
        for time_us in [*range(-10, 9_010, 125), live.clock.now_ms() * 1000]:
            asked = at(time_us / 1e6)
            assert position(state, FirstAt(asked), isolation) == position(plain, FirstAt(asked), isolation), asked
        largest = OffsetSpec.MAX_TIMESTAMP
        assert position(state, largest, isolation) == position(plain, largest, isolation)
