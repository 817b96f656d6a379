"""Records that are narrow travel to Python faster.

Spark ends a batch at a number of records or of bytes. To know the bytes it asks every column's array for its size
after each record: of small typed records that is a third of the processor time of their append. Where all records
are narrow, their number is bound enough. So an append is tried in this way first: the shuffle, which ends before
anything is written, fails at the first record that is not narrow, and the append goes the other way, as later ones
of its topic do. Types with lists or maps, whose widths cost too much to know, always go the other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import AtomicType, BinaryType, DataType, NullType, StringType, StructType

from stratalog.engine.spark.sql import identifier

NARROW_BYTES = 16 * 1024
"""Of a record's texts and bytes together, at most."""
BATCH_RECORDS = 2048

_WIDE = f"stratalog: a record has more than {NARROW_BYTES} bytes, so batches are bounded by bytes now"
_UNBOUNDED = 2**31 - 1
"""The number that Spark takes for no bound, and does not look at bytes at all."""
_BY_RECORDS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_RECORDS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(_UNBOUNDED),
}


class WideRecordError(Exception):
    """A record is not narrow; nothing was written."""


def only_narrow(records: DataFrame, checked: str) -> DataFrame | None:
    """The records; to evaluate their column ``checked`` fails where one of them is not narrow. None where their
    types do not tell how wide they are.
    """
    widths = [width_of(records[identifier(field.name)], field.dataType) for field in records.schema]
    known = [width for width in widths if width is not None]
    if len(known) < len(widths):
        return None
    width = reduce(Column.__add__, known)
    refused = F.raise_error(F.lit(_WIDE)).cast(records.schema[checked].dataType)
    return records.withColumn(
        checked, F.when(width <= NARROW_BYTES, records[identifier(checked)]).otherwise(refused)
    )


def width_of(column: Column, kind: DataType) -> Column | None:
    """Bytes of what has no fixed width; None where it takes a walk to know."""
    if isinstance(kind, StringType | BinaryType):
        return F.coalesce(F.octet_length(column), F.lit(0))
    if isinstance(kind, StructType):
        widths = [width_of(column.getField(field.name), field.dataType) for field in kind]
        known = [width for width in widths if width is not None]
        return None if len(known) < len(widths) else reduce(Column.__add__, known)
    return F.lit(0) if isinstance(kind, AtomicType | NullType) else None


@contextmanager
def bounded_by_records(spark: SparkSession) -> Iterator[None]:
    """Batches of the jobs that begin inside end at ``BATCH_RECORDS`` alone. A setting that is so already is the
    user's, or another append's, in another thread: it is left to them.

    Raises: WideRecordError.
    """
    before = {key: spark.conf.get(key, None) for key in _BY_RECORDS}
    ours = {key: value for key, value in before.items() if value != _BY_RECORDS[key]}
    for key in ours:
        spark.conf.set(key, _BY_RECORDS[key])
    try:
        yield
    except PySparkException as error:
        if _WIDE in str(error):
            raise WideRecordError from error
        raise
    finally:
        for key, value in ours.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)
