"""Differences of the versions of Spark that work: 4.0, 4.1 and 4.2.

A feature that a version lacks is refused when it is used, and never at an import.
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

from stratalog.partitions.errors import InvalidCallError

Version = tuple[int, int]

BY_ID: Version = (4, 1)
"""Since when rows can be sent to a task by its number (``DataFrame.repartitionById``)."""
SINK: Version = (4, 1)
"""Since when the writer of a Python data source is given a stream's rows as Arrow batches."""
LIMITS: Version = (4, 2)
"""Since when a stream of a Python data source has limits, and ends where the log ended (``AvailableNow``)."""
_MASK = 0xFFFFFFFF
_SEED = 42
"""That of Spark's hash partitioning."""


def spark_version() -> Version:
    """That of the pyspark that is installed."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def check_version(needed: Version, what: str, instead: str) -> None:
    """Raises: InvalidCallError when the version is older than what needs it."""
    if spark_version() < needed:
        raise InvalidCallError(
            f"{what} needs Spark {needed[0]}.{needed[1]} or later, this is {pyspark.__version__}: {instead}"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a frame, as Arrow has them; times are instants in UTC."""
    if spark_version() >= LIMITS:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def repartition_by_id(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """A frame with as many partitions: task n has the rows in whose ``column``, an INT, n is."""
    if spark_version() >= BY_ID:
        return frame.repartitionById(partitions, column)
    numbers = ",".join(map(str, keys_by_partition(partitions)))
    return frame.repartition(partitions, F.expr(f"array({numbers})[`{column}`]"))


@cache
def keys_by_partition(partitions: int) -> tuple[int, ...]:
    """For each partition a number that Spark's hash partitioning sends there."""
    keys: dict[int, int] = {}
    for number in count():
        keys.setdefault(_hash(number) % partitions, number)
        if len(keys) == partitions:
            return tuple(keys[partition] for partition in range(partitions))
    raise AssertionError


def _hash(number: int) -> int:
    """Murmur3 of a 32-bit number, as Spark's ``hash``; signed."""
    mixed = number * 0xCC9E2D51 & _MASK
    mixed = _rotated(mixed, 15) * 0x1B873593 & _MASK
    state = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _MASK
    state ^= 4  # bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ state >> shift) * factor & _MASK
    return state - (state >> 31 << 32)


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _MASK
