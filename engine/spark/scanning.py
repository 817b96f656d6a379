"""A read plan as a DataFrame: Spark's own Parquet reader over exactly the planned files.

The scan is vectorized, prunes columns, and skips row groups. Files that are read completely are one scan without
an added filter. For files that are read in part, a filter on partition and offset is pushed down to Parquet, so
only pages of the range are read. If a plan has times, its filter on ``timestamp`` is also pushed down. Spark
splits large files at row groups into tasks.

Parquet checks only pages. The rest of a file has already been checked (``stratalog.partitions.segments.footer``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import IntegerType, StructField, StructType
from pyspark.sql.utils import is_remote

from stratalog.engine.reading.plan import FileRange
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.spark.balanced import balanced
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.partitions.errors import EnvironmentUnusableError, SourceChangedError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lookup import TimeRange
from stratalog.partitions.records import ABORTED

PAGE_CHECKS = "parquet.page.verify-checksum.enabled"
"""Parquet's setting in Hadoop's conf; as an option of a reader, it applies only to that reader's files."""
_GLOBS = "__globPaths__"
_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")
_NO_FILE_SYSTEM = re.compile(r'No FileSystem for scheme "?\w+"?|Class \S+FileSystem not found')
_JOIN_ABOVE = 200  # ranges; beyond that a filter expression costs more than a broadcast join


def scan_plan(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """The records of a plan, one scan per topic.

    Raises: SourceChangedError when a file is gone; EnvironmentUnusableError for a session without a file system
        for the storage.
    """
    schema = record_schema(spark_type(plan.key_schema), spark_type(plan.value_schema))
    try:
        frames = [scan(spark, topic, ranges, schema, plan.isolation) for topic, ranges in plan.topics.items()]
        for frame in frames:
            frame.schema  # noqa: B018 - a session of Spark Connect looks for the files here, at the latest
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise SourceChangedError(f"a file was deleted since the read was planned: {error}") from error
    except Exception as error:  # py4j and Spark Connect raise different errors
        if (lacking := without_file_system(error)) is None:
            raise
        raise lacking from error
    return reduce(DataFrame.unionAll, (of_times(frame, plan.times) for frame in frames))


def without_file_system(error: Exception) -> EnvironmentUnusableError | None:
    """The error for a session in which Hadoop lacks a file system for the storage; None for other errors."""
    lacking = _NO_FILE_SYSTEM.search(str(error))
    return lacking and EnvironmentUnusableError(
        f"this Spark session cannot read the log's files itself ({lacking[0]}): give it Hadoop's connector "
        "(python -m stratalog.jobs.jars fetches it), or read in Python, which needs no jar: "
        'spark.read.format("stratalog")'
    )


def of_times(frame: DataFrame, times: TimeRange | None) -> DataFrame:
    """The records of these times (None: all), independent of the session's time zone."""
    if times is None:
        return frame
    conditions = [F.lit(True)]
    if times.start_us is not None:
        conditions.append(F.col("timestamp") >= F.timestamp_micros(F.lit(times.start_us)))
    if times.end_us is not None:
        conditions.append(F.col("timestamp") < F.timestamp_micros(F.lit(times.end_us)))
    return frame.where(reduce(lambda one, two: one & two, conditions))


def scan(
    spark: SparkSession,
    topic: str,
    ranges: Sequence[FileRange],
    schema: StructType,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> DataFrame:
    """Return the records of the ranges that are visible at this isolation level, with the columns of Spark's Kafka
    source and ``headers``.
    """
    scans = []
    for marked in (False, True):
        some = [part for part in ranges if part.marked == marked]
        whole = [part for part in some if part.whole]
        of_files = [_parquet(spark, schema, whole, marked)] if whole else []
        cut = _layers([part for part in some if not part.whole])
        of_files += [_trimmed(spark, schema, layer, marked) for layer in cut]
        scans += [rows.where(_visible(isolation)) for rows in of_files] if marked else of_files
    if not scans:
        scans = [spark.createDataFrame([], schema)]
    columns = (F.lit(topic).alias("topic"), "partition", "offset", "timestamp", "key", "value", "headers")
    return reduce(DataFrame.unionAll, (rows.select(*columns) for rows in scans))


def pinned_files(spark: SparkSession, schema: StructType, uris: Sequence[str]) -> DataFrame:
    """Return all rows of files that must exist, whatever the settings of the session and Hadoop. Records are never
    skipped silently (``spark.sql.files.ignore*``), and pages are compared with their checksums. An address names
    exactly one file, and is not a glob pattern.
    """
    options = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", PAGE_CHECKS: "true"}
    if is_remote():  # a Spark Connect server lowercases the names of options, and so does not find _GLOBS
        uris = [_OF_PATTERNS.sub(r"\\\g<0>", uri) for uri in uris]
    else:
        options[_GLOBS] = "false"
    return spark.read.options(**options).schema(schema).parquet(*uris)


def _visible(isolation: Isolation) -> Column:
    """The visible records of files with the outcomes of transactions
    (``stratalog.partitions.transactions.visible``).
    """
    seen = F.col("control").isNull()
    return seen if isolation is Isolation.READ_COMMITTED else seen | (F.col("control") == ABORTED)


def _parquet(spark: SparkSession, schema: StructType, ranges: Sequence[FileRange], marked: bool) -> DataFrame:
    if marked:
        schema = StructType([*schema.fields, StructField("control", IntegerType())])
    return pinned_files(spark, schema, [part.uri for part in ranges])


def _layers(ranges: Sequence[FileRange]) -> list[list[FileRange]]:
    """Groups in which no two files of a partition overlap, so that ``(partition, offset)`` identifies the file of
    a row. Nearly always one group.
    """
    layers: list[list[FileRange]] = []
    ends: list[dict[int, int]] = []
    for part in sorted(ranges, key=lambda p: (p.partition, p.file_start)):
        for layer, end in zip(layers, ends, strict=True):
            if end.get(part.partition, -1) <= part.file_start:
                layer.append(part)
                end[part.partition] = part.file_end
                break
        else:
            layers.append([part])
            ends.append({part.partition: part.file_end})
    return layers


def _trimmed(spark: SparkSession, schema: StructType, ranges: Sequence[FileRange], marked: bool) -> DataFrame:
    rows = _parquet(spark, schema, ranges, marked)
    lowest, highest = min(part.start for part in ranges), max(part.end for part in ranges)
    rows = rows.where((F.col("offset") >= lowest) & (F.col("offset") < highest))
    if len(ranges) <= _JOIN_ABOVE:
        wanted = (
            (F.col("partition") == part.partition) & (F.col("offset") >= part.start) & (F.col("offset") < part.end)
            for part in ranges
        )
        return rows.where(balanced(Column.__or__, list(wanted)))
    bounds = spark.createDataFrame(
        [(part.partition, part.start, part.end) for part in ranges], "p int, s long, e long"
    )
    matches = (F.col("partition") == F.col("p")) & (F.col("offset") >= F.col("s")) & (F.col("offset") < F.col("e"))
    return rows.join(F.broadcast(bounds), matches, "left_semi")
