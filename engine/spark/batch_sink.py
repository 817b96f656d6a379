"""``df.write.format("stratalog")``, ``INSERT INTO`` and ``spark.read.format("stratalog")``: batches, both ways.

A write is one append to one topic, as ``stream_sink`` makes one append per batch. Tasks append the rows that
``Cluster.records`` has partitioned, under one producer and sequence, so a task that runs twice appends once. The
driver appends other rows, each of which names its partition, and acknowledges all appends. A failed write may have
appended to some partitions: with the options ``producer`` and ``sequence`` it can be repeated.

The first query of a DataFrame fixes its read plan: Spark 4.1 and 4.2 keep the plan in the source
(``PythonDataSourceV2.readInfo``), which all scans of the DataFrame share. (SPARK-58551 moves the plan to the scan
in 5.0.) A plan with one query's filters would also be used by later queries, so the reader takes no filters. Spark
filters the records; options limit the read and select its columns. All records pass through Python;
``Cluster.read`` is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.engine.reading.stream_options import SOURCE_OPTIONS, SourceOptions, known, topic_option
from stratalog.engine.reading.stream_source import StreamSource
from stratalog.engine.records.append import who_appends
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.sink_tasks import TaskAppend, TaskOf, TaskRows
from stratalog.engine.spark.stream_columns import parquet_columns
from stratalog.engine.spark.stream_sink import (
    SINK_OPTIONS,
    RecordSink,
    SinkOptions,
    conclude,
    sink_options,
)
from stratalog.engine.spark.stream_source import Slice, open_named, records_of_slice
from stratalog.engine.spark.versions import arrow_schema
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.producers import ProducerAppend, unnamed

_SINK_OPTIONS = (*SINK_OPTIONS, "sequence")


@dataclass(frozen=True, slots=True)
class BatchSinkOptions:
    """The target of a write, and its producer."""

    sink: SinkOptions
    who: ProducerAppend | None
    """None if the write names no producer."""


def batch_sink_options(given: Mapping[str, str]) -> BatchSinkOptions:
    """Parse the options of a write. Options of reads are ignored, because a table or view has options of both
    kinds. The topic of a table or view is its ``subscribe`` option.

    Raises: InvalidCallError naming the option.
    """
    options = topic_option(known(given, (*_SINK_OPTIONS, *SOURCE_OPTIONS)))
    if "topic" not in options:
        one = options.get("subscribe", "")
        if "," in one or "subscribePattern" in options or "assign" in options:
            raise InvalidCallError('a write goes to one topic: .save("topic"), or the option topic')
        if one:
            options["topic"] = one
    producer, sequence = options.get("producer"), options.pop("sequence", None)
    if sequence is not None and not sequence.strip().isdecimal():
        raise InvalidCallError(f"the option sequence is {sequence!r}: give a number, 0 or more")
    sink = sink_options({name: value for name, value in options.items() if name in _SINK_OPTIONS})
    number = None if sequence is None else int(sequence)
    return BatchSinkOptions(sink, who_appends(producer, number, on_changed_replay=sink.on_changed_replay))


@short_errors
class BatchSink(RecordSink, DataSourceArrowWriter):
    """One write."""

    _instead = "use cluster.append(topic, df, ...)"

    def __init__(self, options: BatchSinkOptions, schema: StructType) -> None:
        """Reads the topic's metadata. Raises: InvalidRecordError for columns that do not fit; see
        ``sink_tasks.plan``.
        """
        super().__init__(options.sink, schema)
        if options.sink.topic is not None:
            self._ports.metadata.image().topic(options.sink.topic)
        self._who = options.who or ProducerAppend(unnamed(self._ports.storage.new_id), 0, 0)
        self._plan(self._who.producer_id)

    @in_worker
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppend | TaskRows:
        """Append a task's rows, or return them for the driver to append.

        Raises: InvalidRecordError when the rows are too many for the driver, or have an offset or another topic;
            see ``append_rows``.
        """
        batches = self._full(iterator)
        task = TaskContext.get()
        if self._planned is None or task is None:
            return self._rows(batches)
        return self._append(batches, TaskOf(task.partitionId(), "", self._who.sequence), self._who)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows that the tasks have not appended, and acknowledge all rows.

        Raises: OperationFailedError; see ``append_frame``.
        """
        conclude(self._end(messages, self._who), "this write")


@short_errors
class BatchReader(DataSourceReader):
    """The read of one DataFrame."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Does not access storage."""
        self._options = options
        self._arrow: pa.Schema = arrow_schema(schema)
        self._columns = parquet_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the read."""
        given = self._options
        ports = open_named(given)
        source = StreamSource(*ports.for_records, given)
        return [Slice(task) for task in source.plan(*source.bounds())]

    @in_worker
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task. Without partitions Spark still runs one task, which has no records."""
        if isinstance(partition, Slice):
            yield from records_of_slice(partition, self._columns, self._arrow)
