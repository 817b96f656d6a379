"""The format ``stratalog`` of Spark's streams, both ways."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from stratalog.engine.reading.stream_options import source_options
from stratalog.engine.spark.stream_sink import StreamSink, sink_options
from stratalog.engine.spark.stream_source import StreamReader, source_schema
from stratalog.engine.spark.versions import LIMITS, SINK, check_version, spark_version
from stratalog.partitions.errors import InvalidCallError

FORMAT = "stratalog"


class StratalogDataSource(DataSource):
    """``spark.readStream.format("stratalog")`` and ``df.writeStream.format("stratalog")``."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of a stream that is read."""
        return source_schema(source_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The source. Raises: InvalidCallError for a limit that this version of Spark does not know."""
        options = source_options(self.options)
        if spark_version() >= LIMITS:
            from stratalog.engine.spark.stream_limits import LimitedStreamReader

            return LimitedStreamReader(options, schema)
        if options.max_rows is not None or options.max_bytes is not None:
            check_version(LIMITS, "a limit of a stream's batches", "each batch reads all there is, leave it out")
        return StreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802 - Spark's name
        """The sink. Raises: InvalidCallError for another mode than append, or a version of Spark that lacks it."""
        if overwrite:
            raise InvalidCallError('a log is only appended to: .outputMode("append")')
        check_version(
            SINK, f'writeStream.format("{FORMAT}")', "use foreachBatch with cluster.stream_writer(topic)"
        )
        return StreamSink(sink_options(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Not this way: Spark could not prune columns."""
        raise InvalidCallError(f'spark.read.format("{FORMAT}") is for streams: use cluster.read(topic)')

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Not this way: appends are keyed by partition."""
        raise InvalidCallError(f'df.write.format("{FORMAT}") is for streams: use cluster.append(df, topic)')


def register(spark: SparkSession) -> None:
    """Let ``spark`` know the format."""
    spark.dataSource.register(StratalogDataSource)
