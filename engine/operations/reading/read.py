"""Read: a planned range of topics as a DataFrame, and what SQL knows it by.

Spark looks for every file when a DataFrame is made, and again when it is evaluated. A file that is gone by the
first is looked for among its successors here. One that goes between the first and the second
(``file.delete.delay.ms`` after it left the log, a vacuum of the remote table) fails the evaluation with
FAILED_READ_FILE.FILE_NOT_EXIST, which names it: make the DataFrame anew from the same plan. No setting of the
session lets a scan skip it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from engine.context import Context
from engine.operations.reading.plan_read import plan_again
from engine.reading.client import client_metadata
from engine.reading.read_plan import ReadPlan
from partitions.errors import SourceChangedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 5


def read_frame(context: Context, spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """The records of a plan: columns ``topic, partition, offset, timestamp, key, value, headers``. What is deleted
    and may be left out is warned of.

    Raises: as ``plan_again`` where files are gone since; SourceChangedError when they go faster than they are
    found.
    """
    from engine.spark.scanning import scan_plan

    for _ in range(_TRIES - 1):
        try:
            frame = scan_plan(spark, plan)
            break
        except SourceChangedError:
            plan = plan_again(context, plan, client_metadata(context.file, spark, plan.client_rack))
    else:
        frame = scan_plan(spark, plan)
    for note in plan.notes:
        warnings.warn(note, stacklevel=3)
    return frame
