"""Rows that the driver appends, as batches of records."""

from __future__ import annotations

import pyarrow as pa

from stratalog.engine.records.bad_records import ERRORS
from stratalog.engine.spark.appending import by_partition
from stratalog.partitions.errors import (
    InvalidRecordError,
)
from stratalog.partitions.records import HEADERS, RECORD_COLUMNS, TIMESTAMP


def batches_of(rows: pa.Table, topic: str) -> dict[int, list[pa.RecordBatch]]:
    """Rows as batches of the record columns, by partition; absent columns become null.

    Raises: InvalidRecordError for a row without a partition.
    """
    partition = rows.column("partition")
    if partition.null_count:
        raise InvalidRecordError(f"append to {topic}: a row's partition is null")
    return by_partition(records_of(rows), partition)


def records_of(rows: pa.Table) -> pa.Table:
    """The record columns of rows; absent columns become null."""
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    for name in RECORD_COLUMNS:
        if name in rows.column_names:
            columns[name] = rows.column(name)
        elif name == "timestamp":
            columns[name] = pa.nulls(rows.num_rows, TIMESTAMP)
        elif name == "headers":
            columns[name] = pa.nulls(rows.num_rows, HEADERS)
        elif name == "key":
            columns[name] = pa.nulls(rows.num_rows)  # they take the topic's type
    if "timestamp" in rows.column_names:
        columns["timestamp"] = rows.column("timestamp").cast(TIMESTAMP)
    if ERRORS in rows.column_names:
        columns[ERRORS] = rows.column(ERRORS)
    return pa.table(columns)
