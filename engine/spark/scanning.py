"""A read plan as a DataFrame: Spark's own Parquet reader over exactly the planned files.

Vectorised, with column pruning and row-group skipping. Files that count whole are one scan without any
filter of ours; files of which a part counts carry a filter on partition and offset, which reaches Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StructType

from engine.reading.plan import FileRange

_JOIN_ABOVE = 200  # ranges; beyond that a filter expression costs more than a broadcast join


def scan(spark: SparkSession, topic: str, ranges: Sequence[FileRange], schema: StructType) -> DataFrame:
    """The records of the ranges, with the columns of Spark's Kafka source and ``headers``."""
    whole = [part for part in ranges if part.whole]
    scans = [_parquet(spark, schema, whole)] if whole else []
    scans += [_trimmed(spark, schema, layer) for layer in _layers([p for p in ranges if not p.whole])]
    if not scans:
        scans = [spark.createDataFrame([], schema)]
    rows = reduce(DataFrame.unionAll, scans)
    return rows.select(F.lit(topic).alias("topic"), "partition", "offset", "timestamp", "key", "value", "headers")


def _parquet(spark: SparkSession, schema: StructType, ranges: Sequence[FileRange]) -> DataFrame:
    return spark.read.schema(schema).parquet(*(part.uri for part in ranges))


def _layers(ranges: Sequence[FileRange]) -> list[list[FileRange]]:
    """Groups in which no two files of a partition overlap, so that ``(partition, offset)`` tells which
    file's part a row belongs to. Nearly always one group.
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


def _trimmed(spark: SparkSession, schema: StructType, ranges: Sequence[FileRange]) -> DataFrame:
    rows = _parquet(spark, schema, ranges)
    lowest, highest = min(part.start for part in ranges), max(part.end for part in ranges)
    rows = rows.where((F.col("offset") >= lowest) & (F.col("offset") < highest))
    if len(ranges) <= _JOIN_ABOVE:
        wanted = (
            (F.col("partition") == part.partition) & (F.col("offset") >= part.start) & (F.col("offset") < part.end)
            for part in ranges
        )
        return rows.where(reduce(lambda one, two: one | two, wanted))
    bounds = spark.createDataFrame(
        [(part.partition, part.start, part.end) for part in ranges], "p int, s long, e long"
    )
    matches = (F.col("partition") == F.col("p")) & (F.col("offset") >= F.col("s")) & (F.col("offset") < F.col("e"))
    return rows.join(F.broadcast(bounds), matches, "left_semi")
