"""A DataFrame of Python tasks, for roots whose credentials come from a provider, which Spark's own reader cannot
use.

Tasks on executors call the provider themselves. The tasks of a read plan read like the tasks of a stream: only the
offsets of the plan, but all columns; Spark filters and projects afterwards.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.plan import FileRange
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.reading.stream_read import StreamTask, read_task
from stratalog.engine.reading.stream_tasks import Part, group_ends, pack, part, split, task_bytes
from stratalog.engine.spark.stream_columns import conformed, parquet_columns, stream_schema
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.spark.versions import arrow_schema
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.partitions.errors import SourceChangedError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.paths import DataName
from stratalog.partitions.runner import values
from stratalog.partitions.segments.reader import read_row_groups
from stratalog.partitions.store import Store
from stratalog.partitions.store.protocol import StoredObject

Work = TypeVar("Work")


def has_provider(storage: Storage, stores: Iterable[Store | None]) -> bool:
    """Whether a provider gives the credentials for the root of one of these stores."""
    roots = {store.uri for store in stores if store is not None}
    return any(options.credentials is not None for root, options in storage.file.roots.items() if root in roots)


def store_of(storage: Storage, file: FileRange) -> Store | None:
    """The store of a planned file. None if the file's broker no longer belongs to this cluster."""
    return storage.remote if file.broker is None else storage.stores.get(file.broker)


def stored_file(storage: Storage, file: FileRange) -> tuple[Store, StoredObject]:
    """The store of a planned file, and the file there. Raises: SourceChangedError if the store was removed."""
    store = store_of(storage, file)
    if store is None:
        raise SourceChangedError(f"{file.uri} no longer belongs to this cluster's stores")
    return store, StoredObject(file.uri.removeprefix(f"{store.uri}/"), file.size_bytes, 0, "")


def task_frame(metadata: MetadataClient, storage: Storage, spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """The records of a plan, not restricted to its times, with the columns of ``scan_plan``. If a file is gone
    before a task reads it, its successors are read.

    Raises: SourceChangedError for a plan with removed brokers.
    """
    schema = stream_schema(record_schema(spark_type(plan.key_schema), spark_type(plan.value_schema)), None)
    arrow, columns = arrow_schema(schema), parquet_columns(schema)

    def read(task: StreamTask) -> Iterator[pa.RecordBatch]:
        for records in read_task(task, columns):
            yield from conformed(records, arrow, task.topic)

    return frame_by_tasks(spark, _tasks(metadata, storage, plan), read, schema)


def slices_frame(spark: SparkSession, slices: Iterable[FileSlice], schema: StructType) -> DataFrame:
    """The columns of ``schema`` of parts of files, one task each; columns that a file lacks are null."""
    arrow, columns = arrow_schema(schema), parquet_columns(schema)

    def read(piece: FileSlice) -> Iterator[pa.RecordBatch]:
        for _, rows in read_row_groups(piece.store, piece.file, piece.start, piece.end, columns):
            yield from conformed(rows, arrow, "")

    return frame_by_tasks(spark, slices, read, schema)


def frame_by_tasks(
    spark: SparkSession,
    works: Iterable[Work],
    read: Callable[[Work], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """The results of ``read`` for each task, in batches of exactly ``schema``."""
    pickled = [cloudpickle.dumps(work) for work in works]  # type: ignore[no-untyped-call]
    if not pickled:
        return spark.createDataFrame([], schema)

    @in_worker
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(pickle.loads(pickled[number]))  # noqa: S301 - of this very function, by its driver

    return spark.range(0, len(pickled), 1, len(pickled)).mapInArrow(rows, schema)


def _tasks(metadata: MetadataClient, storage: Storage, plan: ReadPlan) -> Iterator[StreamTask]:
    planned = [(topic, _part(storage, file)) for topic, files in plan.topics.items() for file in files]
    most = task_bytes(sum(each.size_bytes for _, each in planned), None)
    topics: dict[str, list[Part]] = {}
    for name, parts in values(storage.threads.run(lambda of: (of[0], split(of[1], most, group_ends)), planned)):
        topics.setdefault(name, []).extend(parts)
    image = metadata.image()
    for name, smaller in topics.items():
        topic = image.topic(name)
        tiered = topic_config_of(image, topic).remote_storage_enable
        smaller.sort(key=lambda one: (one.partition, one.piece.start))
        for parts in pack(smaller, most):
            numbers = sorted({each.partition for each in parts})
            replicas = {p: storage.replicas(image.view(topic.topic_id, p)) for p in numbers}
            remote = storage.remote_table(topic) if tiered else None
            yield StreamTask(name, tuple(parts), replicas, remote, plan.isolation)


def _part(storage: Storage, file: FileRange) -> Part:
    store, stored = stored_file(storage, file)
    data = DataFile(DataName(file.file_start, file.file_end, 0), stored)
    return part(file.partition, FileSlice(store, data, file.start, file.end))
