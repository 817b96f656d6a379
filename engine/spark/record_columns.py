"""Which columns of a DataFrame make the records of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from stratalog.engine.records.unknown_fields import OnUnknownField
from stratalog.engine.spark.sql import identifier
from stratalog.partitions.errors import InvalidRecordError

ColumnOrName = Column | str


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Which expressions of a DataFrame make the records. ``value`` None: all columns that are declared
    (typed topics), or the column ``value``.

    Callers of an older schema go on after the topic's schema has grown: added columns may be absent, structs may
    lack their last nullable fields, and records have null there.
    """

    key: ColumnOrName | None = None
    value: ColumnOrName | None = None
    partition: ColumnOrName | None = None
    headers: ColumnOrName | None = None
    timestamp: ColumnOrName | None = None
    on_unknown_field: OnUnknownField = "fail"

    @property
    def names(self) -> set[str]:
        """Those that are named."""
        given = (self.key, self.value, self.partition, self.headers, self.timestamp)
        return {one for one in given if isinstance(one, str)}


@contextmanager
def analysed(what: str) -> Iterator[None]:
    """Spark's error about an expression before it runs, in our words."""
    try:
        yield
    except PySparkException as error:
        said = str(error.getMessage() or error).strip().splitlines()
        raise InvalidRecordError(f"{what}: {said[0] if said else 'Spark cannot do that'}") from error


def named(frame: DataFrame, column: ColumnOrName, what: str) -> Column:
    """The column of a frame. Raises: InvalidRecordError for a name that it lacks."""
    if isinstance(column, Column):
        return column
    if column in frame.columns:
        return frame[identifier(column)]  # a name may have dots in it
    if column.split(".")[0] not in frame.columns:
        raise InvalidRecordError(f"{what}: column {column!r} is not in the DataFrame, it has {frame.columns}")
    return frame[column]
