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

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

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
    """Limit the batches of jobs that begin in the block by ``BATCH_RECORDS`` alone, unless another thread's block
    also limits them by bytes.

    Raises: WideRecordError.
    """
    try:
        with _bounded(spark, {_RECORDS: BATCH_RECORDS, _BYTES: _UNBOUNDED}, lambda _, most: most):
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

    def bound(own: str | None, most: int) -> int:
        return int(own) if own is not None and own.isdecimal() and 0 < int(own) <= most else most

    with _bounded(spark, {_RECORDS: BATCH_RECORDS, _BYTES: BATCH_BYTES}, bound):
        yield


class _Setting:
    """A setting of a session that blocks change, perhaps in several threads. It has the least of their values, and
    after the last block the session's own value again. If the session refuses changes, as sessions of serverless
    platforms do, it keeps its own value.
    """

    def __init__(self, spark: SparkSession, key: str) -> None:
        self._spark = spark
        self._key = key
        self.own: str | None = spark.conf.get(key, None)
        self._present = self.own
        self.values: list[int] = []
        """The values of the running blocks."""

    def settle(self) -> None:
        """Set the value that follows from ``values``."""
        value = str(min(self.values)) if self.values else self.own
        if value == self._present:
            return
        with suppress(PySparkException):
            if value is None:
                self._spark.conf.unset(self._key)
            else:
                self._spark.conf.set(self._key, value)
            self._present = value


_settling = threading.Lock()
_settings: dict[tuple[int, str], _Setting] = {}
"""The changed settings, by the id of the session and the key."""


@contextmanager
def _bounded(
    spark: SparkSession, bounds: Mapping[str, int], bound: Callable[[str | None, int], int]
) -> Iterator[None]:
    """Give the session these settings in the block. ``bound`` makes a setting's value from the session's own and
    from the one in ``bounds``.
    """
    taken: list[tuple[tuple[int, str], int]] = []
    try:
        with _settling:
            for key, most in bounds.items():
                place = id(spark), key
                setting = _settings[place] = _settings.get(place) or _Setting(spark, key)
                value = bound(setting.own, most)
                setting.values.append(value)
                taken.append((place, value))
                setting.settle()
        yield
    finally:
        with _settling:
            settings = [_settings[place] for place, _ in taken]
            for setting, (place, value) in zip(settings, taken, strict=True):
                setting.values.remove(value)
                if not setting.values:
                    del _settings[place]
            for setting in settings:
                setting.settle()
