"""Temporary views and table functions for ``spark.sql``: of topics, and of the cluster's state.

Views of topics are native scans. The system tables (``create_system_views``) are Python table functions, each with
a view that calls the function without an argument. A query reads the cluster's state at that moment, in a single
task. An argument of the function limits the work; a filter on the view cannot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udtf

from stratalog.engine.admin.system_tables import OFFSETS, SYSTEM_TABLES, Cell, SystemTable, offset_rows
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.opening import open_driver
from stratalog.engine.spark import providers  # noqa: F401 - a provider that was given travels
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.sql import identifier, literal
from stratalog.partitions.errors import InvalidCallError

GLOBAL_SCHEMA = "spark.sql.globalTempDatabase"
"""Spark's setting for the schema of global temporary views. The setting is fixed when the application starts."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def create_view(name: str, frame: DataFrame) -> None:
    """Create or replace a temporary view of the session. Raises: InvalidCallError for an invalid name."""
    check_name(name)
    frame.createOrReplaceTempView(name)


def create_global_view(spark: SparkSession, topic: str, frame: DataFrame) -> str:
    """Create or replace a global temporary view of a topic, and return its name, quoted if SQL requires that."""
    frame.createOrReplaceGlobalTempView(identifier(topic))
    schema = spark.conf.get(GLOBAL_SCHEMA, "global_temp")
    return f"{schema}.{topic if _PLAIN_NAME.fullmatch(topic) else identifier(topic)}"


def check_cases(topics: Collection[str]) -> None:
    """Check that no two topics have names that differ only in case, which are one name in SQL. Raises:
    InvalidCallError.
    """
    by_lower: dict[str, str] = {}
    for topic in topics:
        other = by_lower.setdefault(topic.lower(), topic)
        if other != topic:
            raise InvalidCallError(
                f"topics {other!r} and {topic!r} differ only in case, which SQL does not distinguish: name the "
                "topics that you want, or use create_view to give one of them another name"
            )


def create_range_function(
    spark: SparkSession, name: str, frame: DataFrame, partitions: Mapping[str, Collection[int]]
) -> None:
    """Create a temporary table function ``name(topic, partition, start, end)``: the records ``[start, end)`` of
    one partition of the frame. ``partitions`` has the frame's partitions by topic. The function reads the view
    ``<name>_records``, which is created with it. A call with another topic or partition, or an invalid range,
    fails in Spark.

    Spark inlines the SQL function: a call becomes a filter on the scan of the view, which is pushed down to
    Parquet. All files of the view are opened; row groups and pages outside the range are skipped by statistics.
    For many files and small ranges, limit the read itself (``start``, ``end``). A SQL function cannot raise an
    error, but a query of one row in it can; the optimizer removes that query from a valid call.

    Raises: InvalidCallError for an invalid name.
    """
    view = f"{check_name(name)}_records"
    frame.createOrReplaceTempView(view)
    columns = ", ".join(f"r.{identifier(field.name)}" for field in frame.schema)
    nothing = ", ".join("NULL" for _ in frame.schema)  # has the types of the view without spelling them out
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(topic STRING, partition INT, start BIGINT, end BIGINT) "
        f"RETURNS TABLE RETURN SELECT {columns} FROM {view} AS r "
        f"WHERE r.topic = {name}.topic AND r.partition = {name}.partition "
        f"AND r.offset >= {name}.start AND r.offset < {name}.end "
        f"UNION ALL SELECT {nothing} FROM (SELECT {_wrong(name, partitions)} AS wrong) "
        "WHERE wrong IS NOT NULL AND raise_error(wrong) IS NOT NULL"
    )


def _wrong(function: str, partitions: Mapping[str, Collection[int]]) -> str:
    """An expression that describes the error in a call; NULL for a valid call."""
    topic, partition, start, end = (f"{function}.{each}" for each in ("topic", "partition", "start", "end"))
    topics, names = ", ".join(map(literal, partitions)), ", ".join(partitions)
    other_partition = " ".join(
        f"WHEN {literal(each)} THEN {partition} NOT IN ({', '.join(map(str, sorted(numbers)))})"
        for each, numbers in partitions.items()
    )
    of_topic = literal(f"{function}: topic ")
    return (
        f"CASE WHEN {topic} IS NULL OR {partition} IS NULL OR {start} IS NULL OR {end} IS NULL "
        f"THEN {literal(f'{function}: topic, partition, start and end must all be given')} "
        f"WHEN {topic} NOT IN ({topics}) "
        f"THEN {of_topic} || {topic} || {literal(' is not in this function, which reads ' + names)} "
        f"WHEN CASE {topic} {other_partition} END "
        f"THEN {of_topic} || {topic} || ' has no partition ' || {partition} || ' in this function' "
        f"WHEN {start} < 0 OR {start} > {end} "
        f"THEN {literal(f'{function}: start must be at least 0 and at most end, not ')} || {start} || ' and ' || "
        f"{end} END"
    )


def check_name(name: str) -> str:
    """Check a name. Raises: InvalidCallError for a name that SQL does not accept unquoted."""
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidCallError(f"{name!r} is not a name for a view or function: use only letters, digits and _")
    return name


Found = Iterator[tuple[Cell, ...]]


def create_system_views(spark: SparkSession, file: ClusterFile, prefix: str) -> None:
    """Create temporary views ``<prefix>_topics``, ``_partitions``, ``_groups``, ``_operations`` and ``_files``,
    table functions of the same names that take a topic, and the function ``<prefix>_offsets(topic, position)``.
    Existing ones are replaced.

    Raises: InvalidCallError for an invalid prefix.
    """
    check_name(prefix)
    for name, table in SYSTEM_TABLES.items():
        function = f"{prefix}_{name}"
        _register(spark, function, _handler(file, name), table.schema)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {function} AS SELECT * FROM {function}()")
    _register(spark, f"{prefix}_offsets", _offsets(file), OFFSETS.schema)


def _register(spark: SparkSession, name: str, handler: type, schema: str) -> None:
    function = udtf(handler, returnType=schema, useArrow=False)
    spark.udtf.register(name, function)  # type: ignore[arg-type]  # its type is that of both uses of udtf


def _handler(file: ClusterFile, name: str) -> type:
    @short_errors
    class Rows:
        def eval(self, topic: str | None = None) -> Found:
            table: SystemTable = SYSTEM_TABLES[name]
            ports = open_driver(file)
            rows = table.rows(*ports.all, topic)
            yield from table.tuples(rows)

    return Rows


def _offsets(file: ClusterFile) -> type:
    @short_errors
    class Rows:
        def eval(self, topic: str, position: str = "latest") -> Found:
            ports = open_driver(file)
            yield from OFFSETS.tuples(offset_rows(ports.metadata, ports.storage, ports.memory, topic, position))

    return Rows
