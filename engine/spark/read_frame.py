"""A planned range of topics, or the latest snapshots of one topic, as a DataFrame.

Every byte that affects a query's result is compared with a checksum. When the DataFrame is made, one ranged read
of each file's end checks the Parquet footer and page index, because Spark trusts both. When the DataFrame is
evaluated, Spark's reader checks the pages.

If a file is gone when the DataFrame is made, its successors are found and used. If the file is deleted later,
before the evaluation (``file.delete.delay.ms`` after its removal from the log, or by a vacuum of the remote
table), the evaluation fails with FAILED_READ_FILE.FILE_NOT_EXIST, which names the file. If this happens, make the
DataFrame again from the same plan. No Spark setting makes a scan skip the file.

If a provider gives a root's credentials, Python tasks read instead of Spark's reader (``task_frame``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.plan import FileRange
from stratalog.engine.reading.plan_read import plan_again
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.engine.spark.reducing import snapshot_rows
from stratalog.engine.spark.scanning import of_times, scan_plan
from stratalog.engine.spark.task_frame import has_provider, slices_frame, store_of, stored_file, task_frame
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.upkeep.snapshots.read_snapshot import locate
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.paths import DataName
from stratalog.partitions.printable import printable
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.runner import values
from stratalog.partitions.segments.footer import check_tail

_TRIES = 5
BY_TASKS = (
    "a provider gives the credentials, which Spark's own reader cannot use: Python tasks read all columns of "
    "this DataFrame's offsets, which is slower than a scan; restrict the read by offsets or times"
)


def read_frame(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, spark: SparkSession, plan: ReadPlan
) -> DataFrame:
    """Return the records of a plan, with the columns ``topic, partition, offset, timestamp, key, value, headers``.
    Warn of deleted records that may be missing.

    Raises: see ``plan_again`` if files were deleted after the plan was made; SourceChangedError if files are
        deleted faster than their successors are found; see ``check_tails``.
    """
    for _ in range(_TRIES - 1):
        try:
            check_tails(storage, plan)
            frame = _frame(metadata, storage, spark, plan)
            break
        except SourceChangedError:
            plan = plan_again(
                metadata, storage, clock, memory, plan, client_metadata(storage.file, spark, plan.client_rack)
            )
    else:
        check_tails(storage, plan)
        frame = _frame(metadata, storage, spark, plan)
    for note in plan.notes:
        warnings.warn(printable(note), stacklevel=3)
    return frame


def _frame(metadata: MetadataClient, storage: Storage, spark: SparkSession, plan: ReadPlan) -> DataFrame:
    if not has_provider(storage, (store_of(storage, file) for file in plan)):
        return scan_plan(spark, plan)
    warnings.warn(BY_TASKS, stacklevel=4)
    return of_times(task_frame(metadata, storage, spark, plan), plan.times)


def check_tails(storage: Storage, plan: ReadPlan) -> None:
    """Check the parts of the plan's files that a Parquet reader trusts, by one ranged read of each file's end.

    Raises: CorruptSegmentError naming topic, partition, offsets and remedy; SourceChangedError for a deleted file;
        StorageError kinds.
    """

    def check(planned: tuple[str, FileRange]) -> None:
        topic, part = planned
        try:
            check_tail(*stored_file(storage, part))
        except CorruptSegmentError as error:
            what = f"{topic}-{part.partition}"
            raise with_remedy(unreadable(what, part.file_start, part.file_end, error)) from error

    planned = [(topic, part) for topic, parts in plan.topics.items() for part in parts]
    values(storage.threads.run(check, planned))


def read_snapshot_frame(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    spark: SparkSession,
    topic: str,
    partitions: Sequence[int] | None = None,
) -> DataFrame:
    """Return the latest snapshots as one DataFrame with the columns ``topic, partition, end_offset, timestamp,
    key, value, headers``. For a user's topic, each row is the latest record of a key below ``end_offset``.

    Raises: see ``locate``.
    """
    topic_image, found = locate(metadata, storage, execution, memory, topic, partitions)
    schema = record_schema(spark_type(topic_image.key_schema), spark_type(topic_image.value_schema))
    stores = [storage.stores[each.broker_id] for each in found]
    if has_provider(storage, stores):
        # The first and the last row of a snapshot are not records.
        slices = [
            FileSlice(store, DataFile(DataName(0, None, each.snapshot_id.epoch), each.stored), 1, each.records + 1)
            for store, each in zip(stores, found, strict=True)
        ]
        rows = slices_frame(spark, slices, schema)
    elif found:
        uris = [store.uri_of(each.stored.name) for store, each in zip(stores, found, strict=True)]
        rows = snapshot_rows(spark, uris, schema)
    else:
        rows = spark.createDataFrame([], schema)
    numbers = [F.lit(number) for each in found for number in (each.partition, each.snapshot_id.end_offset)]
    ends = F.create_map(*numbers or (F.lit(0), F.lit(0)))
    end_offset = F.element_at(ends, F.col("partition")).cast("bigint").alias("end_offset")
    return rows.select(F.lit(topic).alias("topic"), "partition", end_offset, *RECORD_COLUMNS)
