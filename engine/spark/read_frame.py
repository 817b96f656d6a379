"""Read: a planned range of topics as a DataFrame, and what SQL knows it by.

Every byte that decides what a query sees is compared with a checksum: Parquet's footer and the page index of each
file when a DataFrame is made (a ranged read of its end; Spark would take them for true), pages when it is
evaluated, by Spark's own reader.

Spark looks for every file when a DataFrame is made, and again when it is evaluated. A file that is gone by the
first is looked for among its successors here. One that goes between the first and the second
(``file.delete.delay.ms`` after it left the log, a vacuum of the remote table) fails the evaluation with
FAILED_READ_FILE.FILE_NOT_EXIST, which names it: make the DataFrame anew from the same plan. No setting of the
session lets a scan skip it.

Where a provider gives a root's credentials, Python tasks read instead of Spark's reader (``task_frame``).
"""

from __future__ import annotations

import warnings

from pyspark.sql import DataFrame, SparkSession

from stratalog.engine.driver.context import Context
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.plan import FileRange
from stratalog.engine.reading.plan_read import plan_again
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.engine.spark.scanning import of_times, scan_plan
from stratalog.engine.spark.task_frame import has_provider, store_of, task_frame
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.printable import printable
from stratalog.partitions.runner import values
from stratalog.partitions.segment_tail import check_tail
from stratalog.partitions.store.protocol import StoredObject

_TRIES = 5
BY_TASKS = (
    "a provider gives the credentials, which Spark's own reader cannot ask: Python tasks read all columns of this "
    "DataFrame's offsets, slower than a scan; bound the read by offsets or times"
)


def read_frame(context: Context, spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """The records of a plan: columns ``topic, partition, offset, timestamp, key, value, headers``. Warns of
    deleted records that may be left out.

    Raises: as ``plan_again`` where files are gone since; SourceChangedError when they go faster than they are
    found; as ``check_tails``.
    """
    for _ in range(_TRIES - 1):
        try:
            check_tails(context, plan)
            frame = _frame(context, spark, plan)
            break
        except SourceChangedError:
            plan = plan_again(context, plan, client_metadata(context.file, spark, plan.client_rack))
    else:
        check_tails(context, plan)
        frame = _frame(context, spark, plan)
    for note in plan.notes:
        warnings.warn(printable(note), stacklevel=3)
    return frame


def _frame(context: Context, spark: SparkSession, plan: ReadPlan) -> DataFrame:
    if not has_provider(context, (store_of(context, file) for file in plan)):
        return scan_plan(spark, plan)
    warnings.warn(BY_TASKS, stacklevel=4)
    return of_times(task_frame(context, spark, plan), plan.times)


def check_tails(context: Context, plan: ReadPlan) -> None:
    """Check what of the plan's files a reader of Parquet takes for true, by a ranged read of each one's end.

    Raises: CorruptSegmentError naming topic, partition, offsets, and what to do; SourceChangedError where a file
        is gone; StorageError kinds.
    """

    def check(planned: tuple[str, FileRange]) -> None:
        topic, part = planned
        store = store_of(context, part)
        if store is None:
            raise SourceChangedError(f"{part.uri} is not of this cluster's stores any more")
        name = part.uri.removeprefix(f"{store.uri}/")
        try:
            check_tail(store, StoredObject(name, part.size_bytes, 0, ""))
        except CorruptSegmentError as error:
            what = f"{topic}-{part.partition}"
            raise with_remedy(unreadable(what, part.file_start, part.file_end, error)) from error

    planned = [(topic, part) for topic, parts in plan.topics.items() for part in parts]
    values(context.threads.run(check, planned))
