"""Measures how long an append, a fetch and a commit wait for storage: in round trips, and on storage that answers
slowly.

A round trip is a request that can begin only after another request has ended; concurrent requests are one round
trip. The number for an operation is the length of its longest chain of requests, which does not depend on the
machine. The times are measured on the same storage in memory, with a delay of 30 ms per answer, or of ten times
that for some requests.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.bench import TOPIC, Bench
from bench.calls import BROKERS, CountedCluster, append_one
from bench.measuring import seconds_of
from bench.table import Cells
from stratalog import Cluster
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.driver.opening import open_ports
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.runner import Outcome, attempt

T = TypeVar("T")
R = TypeVar("R")

ANSWER_S = 0.030
LATE, LATE_IN = 10, 50
"""With a long tail, one of ``LATE_IN`` answers takes ``LATE`` times as long."""
WARM_UP, TURNS = 3, 100
GROUP = "latency"
NOTE = (
    "Three brokers in memory, one metadata voter, and a driver that has run the operation before. "
    "Round trips: the longest chain of requests in which each request depends on the previous answer. p50 and "
    "p99: over 100 repetitions. Each answer takes 30 ms. Long tail: one in 50 answers, chosen at random, takes "
    "300 ms."
)


class Depth:
    """The length of the longest chain of requests so far. Independent work runs one after the other, and is
    counted as if it ran concurrently."""

    def __init__(self) -> None:
        self.now = 0

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] | None = None
    ) -> Iterator[Outcome[T, R]]:
        yield from self.probe(function, [*items], 0)

    def probe(self, question: Callable[[T], R], items: Sequence[T], deadline_s: float) -> list[Outcome[T, R]]:
        begin, ends, outcomes = self.now, [self.now], []
        for item in items:
            self.now = begin
            outcomes.append(attempt(question, item))
            ends.append(self.now)
        self.now = max(ends)
        return outcomes


class WaitingCluster(CountedCluster):
    """A cluster whose requests wait, or count as one round trip each."""

    def __init__(self, folder: Path) -> None:
        self.wait: Callable[[], None] = lambda: None
        super().__init__(folder)

    def _note(self, kind: str, name: str) -> None:
        super()._note(kind, name)
        self.wait()

    def driver_of(self, depth: Depth | None = None) -> Cluster:
        """A driver as users have it, or one that counts round trips."""
        ports = open_ports(
            load_cluster_file(self._file),
            clock=SystemClock(),
            new_id=self._new_id,
            opener=self._open,
            key=None,
            prober=depth,
        )
        if depth is not None:
            ports.storage.copies = ports.storage.threads = depth
        return Cluster(ports)


def _append(cluster: Cluster) -> None:
    append_one(cluster, [0]).raise_for_failures()


def _fetch(cluster: Cluster) -> None:
    assert cluster.fetch(TOPIC, 0, 0, max_bytes=1)


def _commit(cluster: Cluster) -> None:
    cluster.groups.commit(GROUP, {(TOPIC, 0): 1}).raise_for_failures()


@dataclass(frozen=True, slots=True)
class Measured:
    """An operation: the function that runs it, its number of replicas, and its targets."""

    what: str
    run: Callable[[Cluster], None]
    replicas: int
    p50: int | None = None
    """The target, which is the maximum number of round trips."""


OPERATIONS = (
    Measured("append, acks=all, 3 replicas", _append, BROKERS, 6),
    Measured("append, acks=all, 1 replica", _append, 1, 4),
    Measured("fetch of one file", _fetch, BROKERS),
    Measured("commit of a group's offset", _commit, BROKERS),
)


def latency_line(what: str, rounds: int, times_s: Sequence[float], to_reach: int | None) -> Cells:
    """The round trips of one operation; ``times_s``: p50 and p99, and the same with a long tail."""
    headings = (
        *("operation", "round trips", "p50", "p99", "p50, long tail", "p99, long tail", "target round trips"),
    )
    reach = "" if to_reach is None else f"<= {to_reach}"
    return Cells(headings, (what, str(rounds), *(f"{each * 1000:.0f} ms" for each in times_s), reach), NOTE)


def rounds_of(folder: Path, operation: Measured) -> int:
    """The round trips of an operation by a driver that has run it before."""
    made, depth = WaitingCluster(folder), Depth()
    made.cluster.topics.create(TOPIC, partitions=1, replication_factor=operation.replicas)
    made.append(1)
    driver = made.driver_of(depth)
    for _ in range(WARM_UP):
        operation.run(driver)

    def counted() -> None:
        depth.now += 1

    made.wait, depth.now = counted, 0
    operation.run(driver)
    return depth.now


def times_of(folder: Path, operation: Measured, late_in: int | None, turns: int = TURNS) -> list[float]:
    """The seconds of some turns, with storage that answers late."""
    made, rng, lock = WaitingCluster(folder), random.Random(42), threading.Lock()
    made.cluster.topics.create(TOPIC, partitions=1, replication_factor=operation.replicas)
    made.append(1)
    driver = made.driver_of()
    for _ in range(WARM_UP):
        operation.run(driver)

    def waited() -> None:
        with lock:
            late = late_in is not None and rng.randrange(late_in) == 0
        time.sleep(ANSWER_S * LATE if late else ANSWER_S)

    made.wait = waited
    taken = [seconds_of(lambda: operation.run(driver)) for _ in range(turns)]
    made.wait = lambda: None
    return sorted(taken)


def latency(bench: Bench) -> list[Cells]:
    """A line for each operation."""
    lines = []
    for operation in OPERATIONS:
        bench.say(f"latency: {operation.what}")
        times: list[float] = []
        for late_in in (None, LATE_IN):
            with tempfile.TemporaryDirectory() as folder:
                taken = times_of(Path(folder), operation, late_in)
            times += [taken[len(taken) // 2], taken[len(taken) * 99 // 100]]
        with tempfile.TemporaryDirectory() as folder:
            rounds = rounds_of(Path(folder), operation)
        lines.append(latency_line(operation.what, rounds, times, operation.p50))
    return lines
