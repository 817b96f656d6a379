"""The names of a read in ``spark.sql``: a view, and a table function of ranges of it.

The function is one of SQL, not of Python: Spark inlines it, so that a call is a filter on the scan of the view,
which reaches Parquet as any other does. The list of files is not pruned: all files of the view are opened, and row
groups and pages outside the range are skipped by their statistics. Where files are many and ranges small, a read
or a view of the range itself (``start``, ``end``) leaves the other files out.

A call that names something outside the read is an error, not an empty answer. SQL functions cannot raise; a query
of one row can, and of a call that is right the optimizer leaves nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame, SparkSession

from stratalog.engine.spark.sql import identifier, literal
from stratalog.partitions.errors import InvalidCallError


def create_view(name: str, frame: DataFrame) -> None:
    """A temporary view of the session; one of that name is replaced. Raises: InvalidCallError for no name."""
    check_name(name)
    frame.createOrReplaceTempView(name)


def create_range_function(
    spark: SparkSession, name: str, frame: DataFrame, partitions: Mapping[str, Collection[int]]
) -> None:
    """A temporary table function ``name(topic, partition, start, end)``: the records of ``[start, end)`` of one
    partition of the frame, whose partitions by topic are ``partitions``. It reads the view ``<name>_records``,
    which is made with it. A call fails in Spark that names another topic or partition, or no range of offsets.

    Raises: InvalidCallError for no name.
    """
    view = f"{check_name(name)}_records"
    frame.createOrReplaceTempView(view)
    columns = ", ".join(f"r.{identifier(field.name)}" for field in frame.schema)
    nothing = ", ".join("NULL" for _ in frame.schema)  # of the types of the view, by which no text has to say them
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(topic STRING, partition INT, start BIGINT, end BIGINT) "
        f"RETURNS TABLE RETURN SELECT {columns} FROM {view} AS r "
        f"WHERE r.topic = {name}.topic AND r.partition = {name}.partition "
        f"AND r.offset >= {name}.start AND r.offset < {name}.end "
        f"UNION ALL SELECT {nothing} FROM (SELECT {_wrong(name, partitions)} AS wrong) "
        "WHERE wrong IS NOT NULL AND raise_error(wrong) IS NOT NULL"
    )


def _wrong(function: str, partitions: Mapping[str, Collection[int]]) -> str:
    """An expression that says what is wrong with a call; NULL when nothing is."""
    topic, partition, start, end = (f"{function}.{each}" for each in ("topic", "partition", "start", "end"))
    topics = ", ".join(map(literal, partitions))
    other_partition = " ".join(
        f"WHEN {literal(each)} THEN {partition} NOT IN ({', '.join(map(str, sorted(numbers)))})"
        for each, numbers in partitions.items()
    )
    of_topic = literal(f"{function}: topic ")
    return (
        f"CASE WHEN {topic} IS NULL OR {partition} IS NULL OR {start} IS NULL OR {end} IS NULL "
        f"THEN {literal(f'{function}: topic, partition, start and end must all be given')} "
        f"WHEN {topic} NOT IN ({topics}) "
        f"THEN {of_topic} || {topic} || {literal(' is not among what it reads: ' + ', '.join(partitions))} "
        f"WHEN CASE {topic} {other_partition} END "
        f"THEN {of_topic} || {topic} || ' has no partition ' || {partition} || ' among what it reads' "
        f"WHEN {start} < 0 OR {start} > {end} "
        f"THEN {literal(f'{function}: start must be at least 0 and at most end, not ')} || {start} || ' and ' || "
        f"{end} END"
    )


def check_name(name: str) -> str:
    """The name. Raises: InvalidCallError for what SQL would not take unquoted."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidCallError(f"{name!r} is no name of a view or a function: letters, digits and _ only")
    return name
