"""Spark's format ``stratalog``: streams and batches, both ways, and tables of SQL.

Spark does not pass on the options of ``CREATE TABLE t USING stratalog OPTIONS (...)``: readers and writers of the
table get its columns, but only the options of ``t WITH (...)``. So the columns carry the options (``TABLE``).
"""

from __future__ import annotations

import json
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructField, StructType

from stratalog.engine.reading.stream_options import batch_options, source_options, stream_options
from stratalog.engine.spark.batch_sink import BatchReader, BatchSink, batch_sink_options
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.stream_sink import StreamSink, sink_options
from stratalog.engine.spark.stream_source import StreamReader, check_limits, source_schema
from stratalog.engine.spark.versions import LIMITS, SINK, check_version, spark_version
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError

FORMAT = "stratalog"
TABLE = "stratalog.table"
"""Key in the metadata of a table's columns: the options of the table, as JSON, without secrets."""
_OF_TABLE = "option."
"""Prefix of a table's options as Spark passes them when the table is created."""
CATALOG, BUILTIN = "spark.sql.catalog.spark_catalog", "builtin"
"""The setting that replaces Spark's own catalog, and the value that selects Spark's own catalog."""


@short_errors
class StratalogDataSource(DataSource):
    """``spark.read.format("stratalog")``, ``df.write.format("stratalog")``, and the streaming counterparts."""

    catalog: ClassVar[str] = BUILTIN
    """The session's catalog at ``register``. (Spark passes no settings to a source.)"""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns to read. For a new table, the columns also carry the table's options."""
        made = {
            name.removeprefix(_OF_TABLE): value
            for name, value in self.options.items()
            if name.startswith(_OF_TABLE)
        }
        if not made:
            return source_schema(source_options(self.options))
        if self.catalog != BUILTIN:
            raise InvalidCallError(
                f"{CATALOG} is {self.catalog.rpartition('.')[2]}, and with this catalog, Spark cannot load a "
                "table of a Python source: use cluster.create_views() or CREATE TEMPORARY VIEW; or set it to "
                "builtin, and then call register_format(spark)"
            )
        text = json.dumps(made)
        return StructType(
            [
                StructField(field.name, field.dataType, field.nullable, {**field.metadata, TABLE: text})
                for field in source_schema(source_options(made))
            ]
        )

    def _with_table(self, schema: StructType) -> dict[str, str]:
        """Return the options. If they name no cluster, combine them with the options in the table's columns."""
        given = dict(self.options.items())
        text = next((field.metadata[TABLE] for field in schema if TABLE in field.metadata), None)
        if text is None and not given:
            raise InvalidCallError(
                "the table has no options: create it with OPTIONS (cluster '...', subscribe '...'), without a "
                "list of columns and without AS SELECT"
            )
        if text is None or "cluster" in self.options:
            return given
        return {**parse_json(text), **{name.lower(): value for name, value in given.items()}}

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The source of a stream. Raises: InvalidCallError for a limit that this Spark version does not
        support.
        """
        options = stream_options(self._with_table(schema))
        if spark_version() >= LIMITS:
            from stratalog.engine.spark.stream_limits import LimitedStreamReader

            return LimitedStreamReader(options, schema)
        check_limits(options)
        return StreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802 - Spark's name
        """The sink of a stream. Raises: InvalidCallError for a mode other than append, or a Spark version without
        stream sinks.
        """
        if overwrite:
            raise InvalidCallError('a log can only be appended to: use .outputMode("append")')
        check_version(
            SINK, f'writeStream.format("{FORMAT}")', "use foreachBatch with cluster.stream_writer(topic)"
        )
        return StreamSink(sink_options(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The source of a batch. Raises: InvalidCallError naming the option."""
        return BatchReader(batch_options(self._with_table(schema)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The sink of a batch. Raises: InvalidCallError for overwrite or an invalid option; see ``BatchSink``."""
        if overwrite:
            raise InvalidCallError('a log can only be appended to: use .mode("append") or INSERT INTO')
        return BatchSink(batch_sink_options(self._with_table(schema)), schema)


def register(spark: SparkSession) -> None:
    """Register the format with ``spark``. Call this again after the session's catalog has changed."""
    catalog = str(spark.conf.get(CATALOG, BUILTIN))
    of_session = type(StratalogDataSource.__name__, (StratalogDataSource,), {"catalog": catalog})
    spark.dataSource.register(StratalogDataSource if catalog == BUILTIN else of_session)
