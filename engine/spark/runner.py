"""Work on executors: items packed into slices by weight, one Spark task a slice, results as they come."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stratalog.engine.driver.context import R, W
from stratalog.partitions.errors import EnvironmentUnusableError, RetriableError
from stratalog.partitions.runner import Failed, Outcome, ThreadRunner
from stratalog.partitions.store import StoreCounts

ITEM_THREADS = 2
"""Items of a slice at once: while one waits for a disk or a server, the other copies."""

_ITEMS_PER_SLICE = 8
_MOST_SLICES_PER_CORE = 4
_JOBS_IN_FLIGHT = 2


class SparkRunner:
    """Runs functions over items on the executors of a session.

    A slice is one task; tasks only create files, so Spark may retry them or run them twice. A job has a
    task for every core, and the next job waits behind it: results come, and are committed, job by job.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Raises: EnvironmentUnusableError for a session of Spark Connect, or one that was stopped."""
        try:
            self._context = spark.sparkContext
            self._cores = max(1, self._context.defaultParallelism)
        except (PySparkException, AttributeError, *CONNECTION_ERRORS) as error:
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise EnvironmentUnusableError(
                f"this Spark session runs no tasks, as those of Spark Connect and those that were stopped do not "
                f"({said}): give a running classic one, or none, for threads of this process"
            ) from error
        self.processes = self._cores
        self._counting = threading.Lock()
        self.counts = StoreCounts()
        """The storage calls of the executors so far."""

    def run(
        self, function: Callable[[W], R], items: Iterable[W], weigh: Callable[[W], int] = lambda _: 1
    ) -> Iterator[Outcome[W, R]]:
        """See ``stratalog.partitions.runner.Runner.run``; heavy items are started first. A job that Spark gave up
        is a RetriableError of each of its items.
        """
        listed = list(items)
        slices = pack(listed, slice_count(len(listed), self._cores), weigh)
        jobs = [slices[start : start + self._cores] for start in range(0, len(slices), self._cores)]
        with ThreadPoolExecutor(_JOBS_IN_FLIGHT) as pool:
            futures = [pool.submit(self._run_job, function, job) for job in jobs]
            for future in as_completed(futures):
                for outcomes, counts in future.result():
                    with self._counting:  # several threads of a driver may each run something
                        self.counts = self.counts + counts
                    yield from outcomes

    def _run_job(
        self, function: Callable[[W], R], slices: list[list[W]]
    ) -> list[tuple[list[Outcome[W, R]], StoreCounts]]:
        def task(parts: Iterable[list[W]]) -> Iterator[tuple[list[Outcome[W, R]], StoreCounts]]:
            # To the end of the input: Spark gives up a worker that leaves some, and starts and imports anew.
            for part in parts:
                yield run_counted(function, part)

        try:
            return self._context.parallelize(slices, len(slices)).mapPartitions(task).collect()
        except CONNECTION_ERRORS as error:
            why = why_given_up(error)
            if why is None:
                raise
            lost = RetriableError(f"Spark gave the job up, finished work stays done: run it again ({why})")
            return [([Failed(item, lost) for part in slices for item in part], StoreCounts())]


def run_counted(function: Callable[[W], R], items: Sequence[W]) -> tuple[list[Outcome[W, R]], StoreCounts]:
    """The outcomes of the items, and what they asked of their stores."""
    stores = {id(store): store for item in items for store in item.stores_used()}
    before = [store.counts.snapshot() for store in stores.values()]
    outcomes = list(ThreadRunner(ITEM_THREADS).run(function, items))
    spent = StoreCounts()
    for store, earlier in zip(stores.values(), before, strict=True):
        spent = spent + (store.counts - earlier)
    return outcomes, spent


def slice_count(items: int, cores: int) -> int:
    """How many slices: a Python task costs some 100 ms of a core, so small work is one task a core; more
    of them where there are many items, so that a heavy slice does not make all wait.
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


_RAISED_IN_PYTHON = "api.python.PythonException: Traceback"

CONNECTION_ERRORS = (Py4JError, ConnectionError)
"""Errors of a call into the JVM for which PySpark has none of its own."""


def why_given_up(error: Exception) -> str | None:
    """Why Spark gave a job up, in one line: executors or workers were lost once too often, the job was
    cancelled, or the JVM is gone. None for everything else, which a retry would not mend: an exception in
    Python, or an expression that fails on a record.
    """
    if isinstance(error, Py4JJavaError):
        said = _message(error)
        return None if _RAISED_IN_PYTHON in said else _first_line(said)
    if isinstance(error, CONNECTION_ERRORS):
        return f"the JVM of the driver is gone ({_first_line(str(error))})"
    return None


def _message(error: Py4JJavaError) -> str:
    try:
        return str(error.java_exception.getMessage() or error.java_exception)
    except CONNECTION_ERRORS:  # the JVM has gone since
        return "the JVM of the driver is gone"


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.partition(". Consider setting ")[0]  # Spark's advice on how to debug Python
