"""``df.write.format("stratalog")`` and ``INSERT INTO``: rows with the columns of records, into one topic.

As the sink of a stream (``stream_sink``), with one append for the whole write: what ``Cluster.records`` has dealt
out is appended by the tasks, under one producer and sequence, so that a task that runs twice appends once; other
rows, each of which says its partition, by the driver. The driver acknowledges. A write that fails may have
appended to some partitions: with the options ``producer`` and ``sequence`` it can be run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.engine.reading.stream_options import SOURCE_OPTIONS, known, topic_option
from stratalog.engine.records.append import who_appends
from stratalog.engine.spark.sink_tasks import TaskAppend, TaskOf, TaskRows
from stratalog.engine.spark.stream_sink import (
    SINK_OPTIONS,
    RecordSink,
    SinkOptions,
    sink_options,
    tell_of_bad_records,
)
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.producers import ProducerAppend, unnamed

_SINK_OPTIONS = (*SINK_OPTIONS, "sequence")
_OF_LOG = ("topic", "offset")
"""Columns of a table that no record is given: the table says the first, the log the second."""


@dataclass(frozen=True, slots=True)
class BatchSinkOptions:
    """Where a write goes, and under which name."""

    sink: SinkOptions
    who: ProducerAppend | None
    """None: the write names no producer."""


def batch_sink_options(given: Mapping[str, str]) -> BatchSinkOptions:
    """The options of a write. Those of a read are left alone, for a table or a view has both; ``subscribe`` names
    the topic there.

    Raises: InvalidCallError naming the option.
    """
    options = topic_option(known(given, (*_SINK_OPTIONS, *SOURCE_OPTIONS)))
    if "topic" not in options:
        one = options.get("subscribe", "")
        if not one or "," in one:
            raise InvalidCallError('a write goes to one topic: .save("topic"), or the option topic')
        options["topic"] = one
    producer, sequence = options.get("producer"), options.pop("sequence", None)
    if sequence is not None and not sequence.strip().isdecimal():
        raise InvalidCallError(f"the option sequence is {sequence!r}: it takes a number, 0 or more")
    sink = sink_options({name: value for name, value in options.items() if name in _SINK_OPTIONS})
    number = None if sequence is None else int(sequence)
    return BatchSinkOptions(sink, who_appends(producer, number, on_changed_replay=sink.on_changed_replay))


class BatchSink(RecordSink, DataSourceArrowWriter):
    """One write."""

    _instead = "use cluster.append(topic, df, ...)"

    def __init__(self, options: BatchSinkOptions, schema: StructType) -> None:
        """Looks at the topic. Raises: InvalidRecordError for other columns; as ``sink_tasks.plan``."""
        super().__init__(options.sink, StructType([field for field in schema if field.name not in _OF_LOG]))
        self._context.metadata.image().topic(options.sink.topic)
        self._who = options.who or ProducerAppend(unnamed(self._context.new_id), 0, 0)
        self._plan(self._who.producer_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppend | TaskRows:
        """Append a task's rows, or have them sent to the driver.

        Raises: InvalidRecordError when they are too many for that, or have an offset or another topic; as
            ``append_rows``.
        """
        batches = self._full(self._ours(batch) for batch in iterator)
        task = TaskContext.get()
        if self._planned is None or task is None:
            return self._rows(batches)
        return self._append(batches, TaskOf(task.partitionId(), "", self._who.sequence), self._who)

    def _ours(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        topic = self._options.topic
        for name in _OF_LOG:
            if name not in batch.schema.names:
                continue
            given = batch.column(name).drop_null()
            if name == "topic":
                given = given.filter(pc.not_equal(given, topic))
            if len(given):
                raise InvalidRecordError(
                    f"append to {topic}: a row's {name} is {given[0].as_py()!r}: leave the column out, "
                    "INSERT INTO t (partition, key, value)"
                )
        return batch.select(self._arrow.names)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows, as far as the tasks have not, and acknowledge them.

        Raises: OperationFailedError; as ``append_frame``.
        """
        for report in self._end(messages, self._who):
            tell_of_bad_records(report.raise_for_failures(), "this write")
