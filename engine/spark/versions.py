"""Differences between the supported versions of Spark: 4.0 to 4.3.

A feature that a version lacks is refused when it is used, never at an import.
"""

from __future__ import annotations

from functools import cache
from itertools import count

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stratalog.engine.records.spark_hash import hashes_of
from stratalog.partitions.errors import InvalidCallError

Version = tuple[int, int]

BY_ID: Version = (4, 1)
"""The first version that can send rows to a task by the task's number (``DataFrame.repartitionById``)."""
SINK: Version = (4, 1)
"""The first version that passes the rows of a stream to a Python data source as Arrow batches."""
LIMITS: Version = (4, 2)
"""The first version in which a stream of a Python data source has limits, and ends at the current log end
(``AvailableNow``).
"""
_BLOCK = 1024
"""The number of numbers for which to compute partitions in one call."""


def spark_version() -> Version:
    """The version of the installed pyspark."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def check_version(needed: Version, what: str, instead: str) -> None:
    """Check that the version is new enough for the feature. Raises: InvalidCallError."""
    if spark_version() < needed:
        raise InvalidCallError(
            f"{what} needs Spark {needed[0]}.{needed[1]} or later, but this is {pyspark.__version__}: {instead}"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a frame as an Arrow schema; times are instants in UTC."""
    if spark_version() >= LIMITS:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def repartition_by_id(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """The frame with ``count`` partitions: task n has the rows whose ``column``, an INT, is n."""
    if spark_version() >= BY_ID:
        return frame.repartitionById(partitions, column)
    numbers = ",".join(map(str, keys_by_partition(partitions)))
    return frame.repartition(partitions, F.expr(f"array({numbers})[`{column}`]"))


@cache
def keys_by_partition(partitions: int) -> tuple[int, ...]:
    """For each partition, a number that Spark's hash partitioning sends to it."""
    keys: dict[int, int] = {}
    for start in count(0, _BLOCK):
        block = pa.array(range(start, start + _BLOCK), pa.int32())
        for number, partition in enumerate((hashes_of(block) % partitions).tolist(), start):
            keys.setdefault(partition, number)
        if len(keys) == partitions:
            return tuple(keys[partition] for partition in range(partitions))
    raise AssertionError
