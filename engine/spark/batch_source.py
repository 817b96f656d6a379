"""``spark.read.format("stratalog")``: a batch read as Spark's Python data source has it, one batch of a stream.

A DataFrame is pinned by its first query, which plans it in a process of its own on the driver: Spark 4.1 and 4.2
hold the plan in the source (``PythonDataSourceV2.readInfo``), which all scans of a DataFrame share. A plan that
was made by a query's filters would stay there, too, for the next query, which has others: a ``count()`` after a
``where(...).count()`` counts what the latter had read, for a scan without filters does not ask. Spark 5.0 is to
hold it in the scan (SPARK-58551). So this reader takes no filters: Spark filters the records, and options bound
what is read. Columns cannot be pruned this way either (the option ``columns`` names those that are wanted), and
all records pass through Python: ``Cluster.read`` is the faster way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stratalog.engine.driver.opening import open_driver
from stratalog.engine.reading.stream_options import SourceOptions
from stratalog.engine.reading.stream_source import StreamSource
from stratalog.engine.spark.stream_columns import parquet_columns
from stratalog.engine.spark.stream_source import Slice, records_of_slice
from stratalog.engine.spark.versions import arrow_schema


class BatchReader(DataSourceReader):
    """The read of one DataFrame."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Touches no storage."""
        self._options = options
        self._arrow: pa.Schema = arrow_schema(schema)
        self._columns = parquet_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        given = self._options
        source = StreamSource(open_driver(given.cluster, given.credentials, given.cluster_key_file), given)
        return [Slice(task) for task in source.plan(*source.bounds())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task. Where there is nothing to read, Spark runs one of its own."""
        if isinstance(partition, Slice):
            yield from records_of_slice(partition, self._columns, self._arrow)
