"""Frames of others as Spark's: what pandas, polars and Arrow hold in this process becomes a DataFrame."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stratalog.engine.records.tables import ArrowStream, said, to_arrow
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError

Frame = DataFrame | ArrowStream

_TAKES = (
    "it takes a DataFrame of Spark, pandas or polars, an Arrow table, record batch or reader, and whatever else "
    "has __arrow_c_stream__"
)


def to_dataframe(frame: Any, spark: SparkSession | None, what: str) -> DataFrame:
    """The frame as a DataFrame of ``spark``, or of the session of this process: rows and columns as they are (an
    index of pandas is no column).

    Raises: InvalidRecordError for a value that is no frame, or has a type that Spark has not; InvalidCallError
        where there is no session.
    """
    if isinstance(frame, DataFrame):
        return frame
    table = to_arrow(frame, what, _TAKES)
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise InvalidCallError(
            f"{what}: a {type(frame).__name__} is appended by Spark: Cluster.open(file, spark); produce needs none"
        )
    try:
        return session.createDataFrame(table)
    except Exception as error:  # of many kinds: whatever Spark stumbles upon in a type
        raise InvalidRecordError(
            f"{what}: Spark cannot take this {type(frame).__name__}: {said(error)}"
        ) from error
