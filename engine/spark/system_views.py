"""System tables for ``spark.sql``: a table function of each, and a view of the function without an argument.

The functions are Python's, so a query of one asks the cluster at that moment, in a task of one row: nothing is
pinned, and an argument limits what is looked at, which a filter cannot. Records are not read this way, but by the
views and functions of ``views``, which are native scans.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from stratalog.engine.admin.system_tables import OFFSETS, SYSTEM_TABLES, Cell, SystemTable, offset_rows
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.opening import open_driver
from stratalog.engine.spark import providers  # noqa: F401 - a provider that was given travels
from stratalog.engine.spark.views import check_name

Found = Iterator[tuple[Cell, ...]]


def create_system_views(spark: SparkSession, file: ClusterFile, prefix: str) -> None:
    """Temporary views ``<prefix>_topics``, ``_partitions``, ``_groups``, ``_operations`` and ``_files``, table
    functions of the same names that take a topic, and the function ``<prefix>_offsets(topic, position)``. Those
    that are there are replaced.

    Raises: InvalidCallError for no name.
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
    class Rows:
        def eval(self, topic: str | None = None) -> Found:
            table: SystemTable = SYSTEM_TABLES[name]
            yield from table.tuples(table.rows(open_driver(file), topic))

    return Rows


def _offsets(file: ClusterFile) -> type:
    class Rows:
        def eval(self, topic: str, position: str = "latest") -> Found:
            yield from OFFSETS.tuples(offset_rows(open_driver(file), topic, position))

    return Rows
