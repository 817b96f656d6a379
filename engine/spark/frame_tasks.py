"""Feeds the rows of a DataFrame to append tasks: a few rows from the driver, many by a shuffle.

If all records are narrow, Spark limits batches only by the number of records. If some records are not narrow, it
also limits batches by bytes (``narrow``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.records.append import in_threads
from stratalog.engine.records.rounds import PartitionTask, TaskResult
from stratalog.engine.spark.aborted import aborted_as
from stratalog.engine.spark.appending import PARTITION, by_partition, in_order, refusals, run_appends
from stratalog.engine.spark.key_hash import HASH_NAME
from stratalog.engine.spark.narrow import WideRecordError, bounded_by_bytes, bounded_by_records, only_narrow
from stratalog.engine.spark.versions import repartition_by_id
from stratalog.partitions.errors import RetriableError


class FrameTasks:
    """Runs tasks over the records of one append, as often as needed."""

    def __init__(
        self,
        storage: Storage,
        execution: Execution,
        memory: Memory,
        topic: TopicImage,
        records: DataFrame,
        order_by: Sequence[str],
    ) -> None:
        """``records`` come from ``to_records``."""
        self._storage = storage
        self._execution = execution
        self._memory = memory
        self._topic = topic
        self._records = records
        self._order_by = order_by

    def run(self, task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        """See ``RunTasks.run``. Raises: see ``run_appends``, ``small_batches``."""
        if self._execution.driver_only:
            return in_threads(self._storage, self._fetched).run(task, partitions)
        if not self._memory.wide_topics.get(self._topic.topic_id):
            try:
                return self._run_narrow(task, partitions)
            except WideRecordError:
                self._memory.wide_topics.put(self._topic.topic_id, value=True)
        return self._run_wide(task, partitions)

    def _run_narrow(self, task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        if self._narrow is None:
            return self._run_wide(task, partitions)
        if self._small is not None:
            return in_threads(self._storage, self._small).run(task, partitions)
        with bounded_by_records(self._records.sparkSession):
            return self._run_shuffled(task, partitions, self._narrow)

    def _run_wide(self, task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        with bounded_by_bytes(self._records.sparkSession):
            return self._run_shuffled(task, partitions, self._records)

    @cached_property
    def _fetched(self) -> dict[int, list[pa.RecordBatch]]:
        return fetched(self._records, len(self._topic.partitions), self._order_by)

    @cached_property
    def _narrow(self) -> DataFrame | None:
        return only_narrow(self._records, PARTITION)

    @cached_property
    def _small(self) -> dict[int, list[pa.RecordBatch]] | None:
        assert self._narrow is not None
        return small_batches(self._records, self._narrow, self._order_by)

    def _run_shuffled(
        self, task: PartitionTask, partitions: Sequence[int], records: DataFrame
    ) -> list[TaskResult]:
        count = len(self._topic.partitions)
        some = partitions if len(partitions) < count else None
        results = run_appends(records, count, task, self._order_by, some)
        for result in results:
            self._execution.tasks.counts = self._execution.tasks.counts + result.counts
        return results


SMALL_BYTES = 1024 * 1024
"""The maximum size of a small frame, according to the statistics of its plan."""
SMALL_ROWS = 10_000
"""The maximum number of rows of a small frame, all of which must be narrow."""

_ROW_BY_ROW = {"Project", "Filter", "Union", "LocalRelation", "LogicalRelation", "Range", "InMemoryRelation"}
"""Operators of an optimized plan that run no user code, do not shuffle, and do not multiply rows."""
_MOST_OPERATORS = 50


def small_batches(
    records: DataFrame, narrow: DataFrame, order_by: Sequence[str]
) -> dict[int, list[pa.RecordBatch]] | None:
    """Fetch the records by partition, in the order of ``run_appends``; None unless the records are known to be
    few. ``narrow`` has the same records from ``only_narrow``.

    Raises: WideRecordError if the records are few, but not narrow; see ``count_records``.
    """
    if not _is_small(records):
        return None
    few = narrow.limit(SMALL_ROWS + 1)
    if order_by:
        few = in_order(few.coalesce(1), order_by)  # one task; the limit alone does not ensure that
    with bounded_by_records(records.sparkSession):
        table = _table(few)
    return None if table.num_rows > SMALL_ROWS else _by_partition(table)


def fetched(records: DataFrame, partitions: int, order_by: Sequence[str]) -> dict[int, list[pa.RecordBatch]]:
    """Fetch all records by partition, however many, for executors that cannot reach the storage.

    Raises: see ``count_records``.
    """
    if order_by:
        records = in_order(repartition_by_id(records, partitions, PARTITION), order_by)
    return _by_partition(_table(records))


def _table(records: DataFrame) -> pa.Table:
    with refusals(), aborted_as(RetriableError, "nothing was appended"):
        return records.toArrow()


def _by_partition(table: pa.Table) -> dict[int, list[pa.RecordBatch]]:
    return by_partition(table.drop_columns([PARTITION]), table.column(PARTITION))


def _is_small(frame: DataFrame) -> bool:
    """Whether the frame is small according to its plan. (Spark Connect does not provide the plan.)"""
    query = getattr(frame, "_jdf", None)
    if query is None:
        return False
    plan = query.queryExecution().optimizedPlan()
    operators = [operator for operator, _ in zip(_operators(plan), range(_MOST_OPERATORS), strict=False)]
    if len(operators) == _MOST_OPERATORS or not _ROW_BY_ROW.issuperset(operators):
        return False
    return int(str(plan.stats().sizeInBytes())) <= SMALL_BYTES


def _operators(plan: Any) -> Iterator[str]:
    """The names of a LogicalPlan's operators, by py4j. The evaluation of the key hash is named ``Project``."""
    name = plan.nodeName()
    if name == "ArrowEvalPython" and {one.name() for one in _elements(plan.udfs())} == {HASH_NAME}:
        name = "Project"
    yield name
    for child in _elements(plan.children()):
        yield from _operators(child)


def _elements(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
