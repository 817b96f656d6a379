"""Runs work on executors: packs items into slices by weight, runs one Spark task per slice, and returns results as
they complete.

The runner works the same in a classic session and on Spark Connect: it sends a range of numbers, one per
partition, through ``mapInArrow``, without a SparkContext or a shuffle.
"""

from __future__ import annotations

import heapq
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from stratalog.engine.driver.running import OPERATION
from stratalog.engine.driver.tasks import R, W
from stratalog.engine.spark.aborted import why_aborted
from stratalog.engine.spark.described import described
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.partitions.errors import EnvironmentUnusableError, RetriableError
from stratalog.partitions.printable import first_line
from stratalog.partitions.runner import Failed, Outcome, ThreadRunner
from stratalog.partitions.store import StoreCounts

ITEM_THREADS = 2
"""The number of concurrent items of a slice: while one item waits for a disk or server, another item copies."""

_ITEMS_PER_SLICE = 8
_MOST_SLICES_PER_CORE = 4
_JOBS_IN_FLIGHT = 2
_MOST_CORES = 1 << 16

RESULT = "result binary"
"""The schema of the results of tasks, pickled."""


class SparkRunner:
    """Runs functions over items on the executors of a session.

    A slice is one task; tasks only create files, so Spark may retry them or run them twice. A job has one task per
    core, and the next job starts after that job, so results arrive and are committed job by job.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Raises: EnvironmentUnusableError for a session that was stopped."""
        try:
            spark.range(1).schema  # noqa: B018 - the first that a session that was stopped cannot do
        except Exception as error:  # a stopped session raises many kinds of errors
            raise EnvironmentUnusableError(
                f"this Spark session runs no tasks; it was probably stopped ({first_line(error)}): give a "
                "running session, or none to use threads of this process"
            ) from error
        self._spark = spark
        self._counting = threading.Lock()
        self.counts = StoreCounts()
        """The storage calls of the executors so far."""

    @cached_property
    def processes(self) -> int:
        """The number of executor cores, among which Spark divides a range of numbers."""
        [row] = self._spark.range(_MOST_CORES).select(F.spark_partition_id()).tail(1)
        return int(row[0]) + 1

    def run(
        self, function: Callable[[W], R], items: Iterable[W], weigh: Callable[[W], int] = lambda _: 1
    ) -> Iterator[Outcome[W, R]]:
        """See ``stratalog.partitions.runner.Runner.run``; heavy items start first. If Spark aborts a job, each of
        its items fails with RetriableError.
        """
        listed = list(items)
        if not listed:
            return
        slices = pack(listed, slice_count(len(listed), self.processes), weigh)
        jobs = [slices[start : start + self.processes] for start in range(0, len(slices), self.processes)]
        with ThreadPoolExecutor(_JOBS_IN_FLIGHT) as pool:
            futures = [pool.submit(self._run_job, function, job, OPERATION.get()) for job in jobs]
            try:
                for future in as_completed(futures):
                    for outcomes, counts in future.result():
                        with self._counting:  # several threads of a driver may run tasks at the same time
                            self.counts = self.counts + counts
                        yield from outcomes
            finally:  # after a bug, or when the caller stops iterating, start no more jobs
                pool.shutdown(wait=False, cancel_futures=True)

    def _run_job(
        self, function: Callable[[W], R], slices: list[list[W]], operation: str | None
    ) -> list[tuple[list[Outcome[W, R]], StoreCounts]]:
        count = len(slices)
        pickled = [_pickled(items) for items in slices]

        @in_worker
        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # Read the input to its end: if a worker leaves a part of it unread, Spark discards the worker and
            # starts a new one.
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    items = pickle.loads(pickled[number])  # noqa: S301 - of this very function, by its driver
                    yield result(run_counted(function, items))

        try:
            with described(self._spark, operation):
                return results(self._spark.range(0, count, 1, count).mapInArrow(task, RESULT).toArrow())
        except Exception as error:
            why = why_aborted(error)
            if why is None:
                raise
            lost = RetriableError(f"Spark aborted the job; finished work is kept: run the operation again ({why})")
            return [([Failed(item, lost) for part in slices for item in part], StoreCounts())]


def result(value: object) -> pa.RecordBatch:
    """The result of a task, as a row of ``RESULT``."""
    return pa.RecordBatch.from_pydict({"result": pa.array([_pickled(value)], pa.binary())})


def _pickled(value: object) -> bytes:
    """Pickle a value as Spark does, including types defined in a notebook."""
    made: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return made


def results(rows: pa.Table) -> list[Any]:
    """The results of tasks, one per row."""
    return [pickle.loads(row) for row in rows.column(0).to_pylist()]  # noqa: S301 - by Spark from its workers


def run_counted(function: Callable[[W], R], items: Sequence[W]) -> tuple[list[Outcome[W, R]], StoreCounts]:
    """The outcomes of the items, and the counts of their store requests."""
    stores = {id(store): store for item in items for store in item.stores_used()}
    before = [store.counts.snapshot() for store in stores.values()]
    outcomes = list(ThreadRunner(ITEM_THREADS).run(function, items))
    spent = StoreCounts()
    for store, earlier in zip(stores.values(), before, strict=True):
        spent = spent + (store.counts - earlier)
    return outcomes, spent


def slice_count(items: int, cores: int) -> int:
    """The number of slices. A Python task costs about 100 ms of CPU time, so small work has one task per core.
    With many items there are more tasks, so that a heavy slice does not delay the entire job.
    """
    return min(max(cores, -(-items // _ITEMS_PER_SLICE)), cores * _MOST_SLICES_PER_CORE)


def pack(items: Sequence[W], slices: int, weigh: Callable[[W], int]) -> list[list[W]]:
    """At most ``slices`` lists of about equal weight, heaviest items first."""
    heap = [(0, index) for index in range(min(slices, len(items)))]
    packed: list[list[W]] = [[] for _ in heap]
    for item in sorted(items, key=weigh, reverse=True):
        weight, index = heapq.heappop(heap)
        packed[index].append(item)
        heapq.heappush(heap, (weight + max(1, weigh(item)), index))
    return packed
