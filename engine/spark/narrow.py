"""Passes narrow records to Python faster.

Spark ends a batch at a number of records or of bytes. To count the bytes, Spark computes the size of every
column's array after each record, which takes a third of the CPU time of appending small typed records. If all
records are narrow, a limit on their number is enough. So an append first runs without a byte limit. The shuffle,
which ends before anything is written, fails at the first record that is not narrow; then this append, and later
appends to the topic, use a byte limit. Types with lists or maps always use a byte limit, because their widths cost
too much to compute.

The byte limit overrides that of the session: Spark's default is 2 GiB, and a platform may give a Python worker
only half as much memory. A session that refuses to change settings keeps its own limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import AtomicType, BinaryType, DataType, NullType, StringType, StructType

from stratalog.engine.spark.balanced import balanced
from stratalog.engine.spark.sql import identifier

NARROW_BYTES = 16 * 1024
"""The maximum total size of a narrow record's texts and bytes."""
BATCH_RECORDS = 2048
BATCH_BYTES = 16 * 1024 * 1024
"""Bytes per batch of records that are not narrow."""

_WIDE = f"stratalog: a record has more than {NARROW_BYTES} bytes, so batches are now limited by bytes"
_UNBOUNDED = 2**31 - 1
"""The value that means "no limit" to Spark, so that Spark does not count bytes."""
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


class WideRecordError(Exception):
    """A record is not narrow; nothing was written."""


def only_narrow(records: DataFrame, checked: str) -> DataFrame | None:
    """Return the records, with a column ``checked`` that fails for a record that is not narrow. Return None if the
    types do not show the width.
    """
    widths = [width_of(records[identifier(field.name)], field.dataType) for field in records.schema]
    known = [width for width in widths if width is not None]
    if len(known) < len(widths):
        return None
    width = balanced(Column.__add__, known)
    refused = F.raise_error(F.lit(_WIDE)).cast(records.schema[checked].dataType)
    return records.withColumn(
        checked, F.when(width <= NARROW_BYTES, records[identifier(checked)]).otherwise(refused)
    )


def width_of(column: Column, kind: DataType) -> Column | None:
    """Bytes of variable-width columns; None if computing them requires a walk over elements."""
    if isinstance(kind, StringType | BinaryType):
        return F.coalesce(F.octet_length(column), F.lit(0))
    if isinstance(kind, StructType):
        widths = [width_of(column.getField(field.name), field.dataType) for field in kind]
        known = [width for width in widths if width is not None]
        return None if len(known) < len(widths) else balanced(Column.__add__, known)
    return F.lit(0) if isinstance(kind, AtomicType | NullType) else None


@contextmanager
def bounded_by_records(spark: SparkSession) -> Iterator[None]:
    """Limit the batches of jobs that begin in the block by ``BATCH_RECORDS`` alone. If the setting already has
    that value, the user or another thread's append has set it, and it stays unchanged.

    Raises: WideRecordError.
    """
    try:
        with _changed(spark, {_RECORDS: BATCH_RECORDS, _BYTES: _UNBOUNDED}):
            yield
    except PySparkException as error:
        if _WIDE in str(error):
            raise WideRecordError from error
        raise


@contextmanager
def bounded_by_bytes(spark: SparkSession) -> Iterator[None]:
    """Limit the batches of jobs that begin in the block by ``BATCH_RECORDS`` and ``BATCH_BYTES``, or by smaller
    values of the session.
    """

    def is_wider(key: str, most: int) -> bool:
        setting = spark.conf.get(key, None)
        return setting is None or not setting.isdecimal() or not 0 < int(setting) <= most

    bounds = {_RECORDS: BATCH_RECORDS, _BYTES: BATCH_BYTES}
    with _changed(spark, {key: most for key, most in bounds.items() if is_wider(key, most)}):
        yield


@contextmanager
def _changed(spark: SparkSession, values: Mapping[str, int]) -> Iterator[None]:
    """Give the session these settings in the block, except those that it refuses."""
    before = {key: spark.conf.get(key, None) for key in values}
    changed = []
    try:
        for key, value in values.items():
            if before[key] != str(value) and _set(spark, key, str(value)):
                changed.append(key)
        yield
    finally:
        for key in changed:
            value_before = before[key]
            if value_before is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value_before)


def _set(spark: SparkSession, key: str, value: str) -> bool:
    """Change a setting. Returns False if the session refuses, as sessions of serverless platforms do."""
    try:
        spark.conf.set(key, value)
    except PySparkException:
        return False
    return True
