"""What ``spark.sql`` knows a read by: a view, and a table function of ranges of it.

The function is one of SQL, not of Python: Spark inlines it, so that a call is a filter on the scan of the view,
which reaches Parquet as any other does. What is not pruned is the list of files: those of the whole view are
opened, and all row groups and pages outside the range skipped by their statistics. Where files are many and
ranges small, a read or a view of the range itself (``start``, ``end``) leaves the other files out.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from partitions.errors import InvalidCallError


def create_view(name: str, frame: DataFrame) -> None:
    """A temporary view of the session; one of that name is replaced. Raises: InvalidCallError for no name."""
    check_name(name)
    frame.createOrReplaceTempView(name)


def create_range_function(spark: SparkSession, name: str, frame: DataFrame) -> None:
    """A temporary table function ``name(topic, partition, start, end)``: the records of ``[start, end)`` of one
    partition of the frame. It reads the view ``<name>_records``, which is made with it.

    Raises: InvalidCallError for no name.
    """
    view = f"{check_name(name)}_records"
    frame.createOrReplaceTempView(view)
    columns = ", ".join(f"r.{field.name}" for field in frame.schema)
    # Of a function's result SQL knows nullable columns only.
    result = StructType([StructField(field.name, field.dataType) for field in frame.schema])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(topic STRING, partition INT, start BIGINT, end BIGINT) "
        f"RETURNS TABLE ({result.toDDL()}) RETURN SELECT {columns} FROM {view} AS r "
        f"WHERE r.topic = {name}.topic AND r.partition = {name}.partition "
        f"AND r.offset >= {name}.start AND r.offset < {name}.end"
    )


def check_name(name: str) -> str:
    """The name. Raises: InvalidCallError for what SQL would not take unquoted."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidCallError(f"{name!r} is no name of a view or a function: letters, digits and _ only")
    return name
