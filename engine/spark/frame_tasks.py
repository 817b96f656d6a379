"""The rows of a DataFrame, as they are fed to the tasks of an append: by the driver where they are few, else by a
shuffle; in batches that are bounded by records alone where the records are narrow, else by bytes too (``narrow``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.records.append import in_threads
from stratalog.engine.records.rounds import PartitionTask, TaskResult
from stratalog.engine.spark.appending import PARTITION, run_appends
from stratalog.engine.spark.narrow import WideRecordError, bounded_by_bytes, bounded_by_records, only_narrow
from stratalog.engine.spark.small_frames import fetched, small_batches


class FrameTasks:
    """Runs tasks over the records of one append, as often as it takes."""

    def __init__(self, context: Context, topic: TopicImage, records: DataFrame, order_by: Sequence[str]) -> None:
        """``records`` are those of ``to_records``."""
        self._context = context
        self._topic = topic
        self._records = records
        self._order_by = order_by

    def run(self, task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        """See ``RunTasks.run``. Raises: as ``run_appends``, ``small_batches``."""
        if self._context.driver_only:
            return in_threads(self._context, self._fetched).run(task, partitions)
        if self._topic.topic_id not in self._context.wide_topics:
            try:
                return self._run_narrow(task, partitions)
            except WideRecordError:
                self._context.wide_topics.add(self._topic.topic_id)
        return self._run_wide(task, partitions)

    def _run_narrow(self, task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        if self._narrow is None:
            return self._run_wide(task, partitions)
        if self._small is not None:
            return in_threads(self._context, self._small).run(task, partitions)
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
            self._context.tasks.counts = self._context.tasks.counts + result.counts
        return results
