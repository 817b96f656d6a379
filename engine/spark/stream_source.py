"""``spark.readStream.format("stratalog")``: the source of a stream for Spark's Python data source.

Spark keeps one Python process per query on the driver. That process plans batches, with all methods of
``StreamReader`` except ``read``. Tasks call ``read``; the reader is sent to them without its open cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from stratalog.engine.driver.opening import Ports, open_driver
from stratalog.engine.reading.plan_read import check_same_types
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.reading.stream_options import SourceOptions
from stratalog.engine.reading.stream_read import StreamTask, read_task
from stratalog.engine.reading.stream_source import StreamProgress, StreamSource, topics_of
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.stream_columns import check_new_fields, conformed, parquet_columns, stream_schema
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.spark.versions import LIMITS, arrow_schema, check_version
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.partitions.errors import InvalidCallError


def open_named(options: SourceOptions) -> Ports:
    """The cluster that the options of a stream name. Raises: see ``open_driver``."""
    return open_driver(options.cluster, options.credentials, options.cluster_key_file)


def source_schema(options: SourceOptions) -> StructType:
    """The columns of a stream.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for unknown columns, and for topics whose records do not
        fit in one frame.
    """
    ports = open_named(options)
    topics = topics_of(ports.metadata.image(), options.topics)
    check_same_types(topics)
    records = record_schema(spark_type(topics[0].key_schema), spark_type(topics[0].value_schema))
    if not options.include_headers:
        records = StructType([field for field in records if field.name != "headers"])
    return stream_schema(records, options.columns)


def check_limits(options: SourceOptions) -> None:
    """Check that this version of Spark supports the limit of a stream's batches. Raises: InvalidCallError."""
    if options.max_rows is not None or options.max_bytes is not None:
        check_version(LIMITS, "a limit of a stream's batches", "a limit of a stream's batches")


class Slice(InputPartition):
    """The work of one task of a batch."""

    def __init__(self, task: StreamTask) -> None:
        super().__init__(task)
        self.task = task


def records_of_slice(part: Slice, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a task, ``columns`` by Parquet's names, in batches of exactly ``schema``."""
    for records in read_task(part.task, columns):
        yield from conformed(records, schema, part.task.topic)


@short_errors
class StreamReader(DataSourceStreamReader):
    """The source of a query. Offsets are ``stratalog.engine.reading.stream_offsets``. Spark does not pass the
    start of a batch, so each batch reads everything (``stream_limits`` has the source with limits).
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Does not access storage."""
        self._options = options
        self._arrow: pa.Schema = arrow_schema(schema)
        self._columns = parquet_columns(schema)
        self._schema = schema
        self._opened: tuple[StreamSource, StreamProgress | None] | None = None
        self._last: StreamOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _open(self) -> tuple[StreamSource, StreamProgress | None]:
        if self._opened is None:
            given = self._options
            ports = open_named(given)
            group = given.group
            progress = None if group is None else StreamProgress(*ports.all, group)
            self._opened = (StreamSource(*ports.for_records, self._options), progress)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The start of a query without a checkpoint."""
        return self._open()[0].initial().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """The current end of the log. The first batch of a query that continues from its checkpoint may be
        empty.
        """
        source, _ = self._open()
        if self._last is None:
            try:
                self._last = source.initial()
            except InvalidCallError:
                # The query may continue from its checkpoint, far behind a start that no longer exists. A new query
                # fails as well, because Spark then calls initialOffset.
                self._last = source.ends()
        self._last = source.latest(self._last, None, None)
        self._check_new_fields(source)
        return self._last.to_json()

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end of a processed batch to the group."""
        _, progress = self._open()
        if progress is not None:
            progress.report(StreamOffsets.from_json(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. The start of the batch is only known here, so it is checked here."""
        self._open()[0].latest(StreamOffsets.from_json(start), None, None)
        return self._slices(start, end)

    def _slices(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        source, _ = self._open()
        tasks = source.plan(StreamOffsets.from_json(start), StreamOffsets.from_json(end))
        # check again: the type may have grown between the two calls, before the batch ended
        self._check_new_fields(source)
        return [Slice(task) for task in tasks]

    def _check_new_fields(self, source: StreamSource) -> None:
        """Check that no topic's type has grown since the query began, unless that is allowed. Raises:
        InvalidCallError.
        """
        if self._options.fail_on_new_fields:
            for topic in source.topics_seen:
                records = record_schema(spark_type(topic.key_schema), spark_type(topic.value_schema))
                check_new_fields(self._schema, records, self._options.columns, topic.name)

    @in_worker
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        assert isinstance(partition, Slice)
        yield from records_of_slice(partition, self._columns, self._arrow)
