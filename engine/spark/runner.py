"""Work on executors: items packed into slices by weight, one Spark task a slice, results as they come."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from pyspark.sql import SparkSession

from engine.context import R, W
from partitions.runner import Outcome, attempt
from partitions.store import StoreCounts


class SparkRunner:
    """Runs functions over items on the executors of a session.

    A slice is one task; tasks only create files, so Spark may retry them or run them twice.
    """

    def __init__(self, spark: SparkSession, slices_per_core: int = 4) -> None:
        self._context = spark.sparkContext
        self._slices = max(1, self._context.defaultParallelism) * slices_per_core
        self.counts = StoreCounts()
        """What the executors asked of stores so far."""

    def run(
        self, function: Callable[[W], R], items: Iterable[W], weigh: Callable[[W], int] = lambda _: 1
    ) -> Iterator[Outcome[W, R]]:
        """See ``partitions.runner.Runner.run``; heavy items are started first."""
        slices = pack(list(items), self._slices, weigh)
        if not slices:
            return
        with ThreadPoolExecutor(max(1, self._context.defaultParallelism)) as pool:
            futures = [pool.submit(self._run_slice, function, part) for part in slices]
            for future in as_completed(futures):
                outcomes, counts = future.result()
                self.counts = self.counts + counts
                yield from outcomes

    def _run_slice(self, function: Callable[[W], R], items: list[W]) -> tuple[list[Outcome[W, R]], StoreCounts]:
        def task(numbers: Iterable[int]) -> Iterator[tuple[list[Outcome[W, R]], StoreCounts]]:
            # Spark ends a worker that leaves input unread; the next one would import everything again.
            for _ in numbers:
                yield run_counted(function, items)

        return self._context.parallelize([0], 1).mapPartitions(task).collect()[0]


def run_counted(function: Callable[[W], R], items: Sequence[W]) -> tuple[list[Outcome[W, R]], StoreCounts]:
    """The outcomes of the items, and what they asked of their stores."""
    stores = {id(store): store for item in items for store in item.stores_used()}
    before = [store.counts.snapshot() for store in stores.values()]
    outcomes = [attempt(function, item) for item in items]
    spent = StoreCounts()
    for store, earlier in zip(stores.values(), before, strict=True):
        spent = spent + (store.counts - earlier)
    return outcomes, spent


def pack(items: Sequence[W], slices: int, weigh: Callable[[W], int]) -> list[list[W]]:
    """At most ``slices`` lists of about equal weight, heaviest items first."""
    heap = [(0, index) for index in range(min(slices, len(items)))]
    packed: list[list[W]] = [[] for _ in heap]
    for item in sorted(items, key=weigh, reverse=True):
        weight, index = heapq.heappop(heap)
        packed[index].append(item)
        heapq.heappush(heap, (weight + max(1, weigh(item)), index))
    return packed
