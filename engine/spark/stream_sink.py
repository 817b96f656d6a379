"""The sinks of a stream: append its batches to a topic, each record once, across restarts and replays.

Each record is appended exactly once because a batch is one atomic append to each partition, with the query's
producer id as the producer and the batch id as the sequence. Spark repeats an interrupted batch under the same id,
with the same rows. Other rows under the same id are refused: the checkpoint is then older than the log, and rows
that Spark has planned again would be mistaken for the rows in the log. A batch that was appended too long ago to
be compared is also refused. The producer id contains the query's id from the checkpoint: a query with a new
checkpoint counts its batches from 0 again, and must not be mistaken for the old query. The state of a producer
expires ``producer.id.expiration.ms`` after its last append, so a query must run again before that.

``StreamWriter`` (``foreachBatch``) appends batches of any size from executors. So do ``StreamSink``
(``writeStream.format``) and, for a single batch, ``BatchSink`` with rows from ``Cluster.records``: task n has all
rows of partition n (``sink_tasks``). Rows that do not come from ``Cluster.records`` are not partitioned: a task
may have rows of several partitions, and a replay may distribute them differently, so that a task's append would
not be recognized. Tasks send such rows to the driver in their commit messages, and the driver appends them by
partition. This suits small batches; large ones are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.engine.driver.opening import Ports, open_driver
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.reading.stream_options import known, required, topic_option
from stratalog.engine.records.append import append_bad_records, append_given, end_appends, who_appends
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut, bad_record_policy
from stratalog.engine.records.bad_records import ERRORS, NO_PARTITION, UNKNOWN_PARTITION
from stratalog.engine.records.bad_records import marked as mark
from stratalog.engine.records.earlier import EarlierTries
from stratalog.engine.records.unknown_fields import pruned_schema, settled, unknown_in_schema
from stratalog.engine.spark.given_rows import OFFSET, TOPIC, append_rows_given, named_as_fields
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.sink_tasks import (
    MOST_TASK_BYTES,
    PlannedAppends,
    TaskAppend,
    TaskOf,
    TaskRows,
    append_rows,
    batches_of,
    dealt,
    left_out,
    plan,
    present_task,
    records_of,
)
from stratalog.engine.spark.stream_query import QUERY_ID
from stratalog.engine.spark.versions import arrow_schema
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.errors import (
    DuplicateSequenceNumberError,
    InvalidCallError,
    InvalidRecordError,
    OutOfOrderSequenceNumberError,
)
from stratalog.partitions.printable import printable
from stratalog.partitions.producers import OnChangedReplay, ProducerAppend
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.unknown_fields import (
    OnUnknownField,
    UnknownField,
    arrow_to_json,
    has_struct,
    unknown_field_policy,
)

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0, where the format refuses to be a sink
    from pyspark.sql.datasource import (  # type: ignore[assignment]
        DataSourceStreamWriter as DataSourceStreamArrowWriter,
    )


_log = logging.getLogger(__name__)


@cache
def _opened(cluster_file: str, credentials: str | None, cluster_key_file: str | None) -> Ports:
    """The cluster of a file, opened once per Python process that Spark runs on the driver for its queries."""
    return open_driver(cluster_file, credentials, cluster_key_file)


def _driver(options: SinkOptions) -> Ports:
    return _opened(options.cluster, options.credentials, options.cluster_key_file)


def query_producer(producer: str, query_id: str | None) -> str:
    """The producer id of a query; outside of a query, the producer's name."""
    return producer if query_id is None else f"{producer}@{query_id}"


def with_remedy(report: Report, batch_id: int) -> Report:
    """Return the report of a batch. If the log has other rows under the batch's id, the first failure that shows
    this gets the remedy.
    """
    codes = OutOfOrderSequenceNumberError.code, DuplicateSequenceNumberError.code
    changed = [f for f in report.failures if f.code in codes]
    if not changed:
        return report
    first = replace(
        changed[0],
        message=(
            f"{changed[0].message}. Batch {batch_id} has different rows from the batch {batch_id} that this "
            "query already appended. Either the query's checkpoint is an older copy, or it is shared with another "
            "query, or the source returned other rows. Restore the newer checkpoint; or start from a new "
            "checkpoint positioned after the records already in the topic; or name another producer, which "
            "stores repeated records twice (docs/operations.md: Repeated appends)"
        ),
    )
    return replace(report, failures=[first if f is changed[0] else f for f in report.failures])


SINK_OPTIONS = (
    *("cluster", "topic", "producer", "onChangedReplay", "onBadRecord", "badRecordTopic"),
    "onUnknownField",
    *("credentials", "clusterKeyFile", "path"),
)


def report_bad_records(report: Report, what: str) -> None:
    """Warn of bad records and fields that an append has left out, if its report is not returned."""
    for row in report.rows:
        if row["outcome"] == "dropped":
            note = f"append to {row['topic']}, {what}: {row['records']} values were dropped: {row['reason']}"
            _log.warning("%s", printable(note))
    bad = [row for row in report.rows if row["outcome"] == "bad"]
    if bad:
        reasons = "; ".join(f"{row['reason']} ({row['records']})" for row in bad)
        total = report.totals["bad_records"]
        note = f"append to {bad[0]['topic']}, {what}: {total} bad records were left out: {reasons}"
        _log.warning("%s", printable(note))


def conclude(reports: Sequence[Report], what: str) -> None:
    """Warn of what the appends of a write have left out, one append per topic. Raises: OperationFailedError with
    the rows and failures of all appends.
    """
    for report in reports:
        report_bad_records(report, what)
    failed = next((report for report in reports if report.failures), None)
    if failed is not None:
        replace(
            failed,
            rows=[row for report in reports for row in report.rows],
            failures=[failure for report in reports for failure in report.failures],
            notes=[note for report in reports for note in report.notes],
        ).raise_for_failures()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The target of a sink, and its producer."""

    cluster: str
    topic: str | None
    """The topic; None if the column ``topic`` names it."""
    producer: str
    on_changed_replay: OnChangedReplay
    credentials: str | None = None
    """The name of a provider; see ``load_cluster_file``."""
    cluster_key_file: str | None = None
    """The key file of the cluster on the driver; None: the key is in the driver's environment."""
    bad_records: LeaveOut | None = None
    on_unknown_field: OnUnknownField = "fail"


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options; ``path``, the argument of ``start``, is the topic. Raises: InvalidCallError naming the
    option.
    """
    options = known(given, SINK_OPTIONS)
    if "/" in options.get("path", ""):
        raise InvalidCallError(
            f'{options["path"]!r} is a folder, not a topic: name the topic with start("topic"); toTable passes '
            "the folder of a table instead of the table's options"
        )
    options = topic_option(options)
    options.setdefault("producer", "stream")
    replay = options.get("onChangedReplay", "refuse")
    if replay not in ("refuse", "accept"):
        raise InvalidCallError(f"the option onChangedReplay is {replay!r}: give 'refuse' or 'accept'")
    cluster, producer = (required(options, name) for name in ("cluster", "producer"))
    topic = options.get("topic")
    if topic is not None:
        check_not_internal(required(options, "topic"), "append to")
    bad = bad_record_policy(options.get("onBadRecord", "fail"), options.get("badRecordTopic"), topic or "")
    return SinkOptions(
        cluster,
        topic,
        producer,
        "accept" if replay == "accept" else "refuse",
        options.get("credentials"),
        options.get("clusterKeyFile"),
        bad,
        unknown_field_policy(options.get("onUnknownField", "fail")),
    )


class RecordSink:
    """Appends rows with the columns of records: ``partition``, ``value``, and optionally ``timestamp``, ``key``,
    ``headers``, as ``Cluster.records`` makes them. Other rows go to the driver, which turns them into records
    (``given_rows``).
    """

    _instead: str
    """Another way to append a batch that is too large."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises: InvalidCallError if neither the options nor the rows name a topic; InvalidRecordError for
        columns of ``Cluster.records`` mixed with others.
        """
        self._options = options
        self._bad_records = options.bad_records or left_out(schema)
        names = set(schema.fieldNames())
        if options.topic is None and TOPIC not in names:
            raise InvalidCallError('name the topic: save("topic"), start("topic"), or the option or column topic')
        fields: set[str] = set()
        if options.topic is not None and names & {TOPIC, OFFSET}:
            fields = named_as_fields(names, self._ports.metadata.image().topic(options.topic))
        if OFFSET in names - fields:
            schema = StructType([field for field in schema if field.name != OFFSET])
        records = {"partition", TOPIC, OFFSET, ERRORS, *RECORD_COLUMNS}
        self._given = options.topic is None or "partition" not in names or bool(fields) or not names <= records
        if not self._given:
            schema = StructType([field for field in schema if field.name != TOPIC])
        if ERRORS in names and (self._bad_records is None or self._given):
            raise InvalidRecordError(
                f"append to {options.topic}: the column {ERRORS} is reserved for cluster.records"
            )
        self._arrow: pa.Schema = arrow_schema(schema)
        self._dealt = None if self._given else dealt(schema)
        self._planned: PlannedAppends | None = None
        self._settle()

    def _settle(self) -> None:
        """Apply the policy for fields that the topic's type lacks; does nothing if the rows have no structs."""
        given = self._arrow
        if self._given or not any(has_struct(field.type) for field in given if field.name in ("key", "value")):
            return
        topic = self._topic
        metadata = self._ports.metadata

        def unknown(now: TopicImage) -> list[UnknownField]:
            return unknown_in_schema(pa.schema([f for f in given if f.name in ("key", "value")]), now)

        fields = settled(
            *(metadata, metadata.image().topic(topic), unknown, self._options.on_unknown_field),
            arrow_to_json,
            f"append to {topic}",
        )
        for note in fields.notes:
            _log.warning("%s", printable(f"append to {topic}: {note}"))
        if fields.dropped:
            self._arrow = pruned_schema(given, fields.topic)

    @property
    def _ports(self) -> Ports:
        return _driver(self._options)

    @property
    def _topic(self) -> str:
        """The topic of rows that have no column for it."""
        assert self._options.topic is not None
        return self._options.topic

    def _plan(self, producer: str) -> None:
        """List the partitions, if each task has all rows of one partition."""
        if self._dealt is not None:
            self._planned = plan(*self._ports.for_records, self._topic, self._dealt, producer, self._bad_records)

    def _append(
        self, batches: Iterator[pa.RecordBatch], task: TaskOf, who: ProducerAppend
    ) -> TaskAppend | TaskRows:
        """Append a task's rows, or return them for the driver to append.

        Raises: see ``append_rows``.
        """
        assert self._planned is not None
        first = next(batches, None)
        if first is None:
            return TaskRows(task.query_id, b"")
        return append_rows(self._planned, task, who, chain([first], batches), self._records, self._rows)

    def _full(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with rows, without columns that only the log fills in; timestamps are instants in any time zone.

        Raises: InvalidRecordError for a row with an offset, or of another topic.
        """
        return (self._ours(batch).cast(self._arrow) for batch in batches if batch.num_rows)

    def _ours(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        topic = self._options.topic
        for name in (TOPIC, OFFSET):
            if name not in batch.schema.names or name in self._arrow.names:
                continue
            given = batch.column(name).drop_null()
            if name == TOPIC:
                given = given.filter(pc.not_equal(given, topic))
            if len(given):
                raise InvalidRecordError(
                    f"append to {topic}: a row's {name} is {given[0].as_py()!r}: omit the column, as in "
                    f"frame.drop({name!r}) or INSERT INTO t (key, value)"
                )
        return batch.select(self._arrow.names)

    def _records(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return records_of(pa.Table.from_batches([rows])).to_batches()[0]

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> TaskRows:
        """The rows for the driver. Raises: InvalidRecordError when there are too many."""
        sink, size = pa.BufferOutputStream(), 0
        writer: pa.RecordBatchStreamWriter | None = None
        for batch in batches:
            if writer is None:
                options = pa.ipc.IpcWriteOptions(compression="zstd")
                writer = pa.ipc.new_stream(sink, self._arrow, options=options)
            writer.write_batch(batch)
            size += batch.nbytes
            if size > MOST_TASK_BYTES:
                raise InvalidRecordError(
                    f"append to {self._options.topic}: a task of the batch has more than {MOST_TASK_BYTES} bytes, "
                    "which is too much for the driver: write the result of cluster.records(topic, df, ...) "
                    f"unchanged, or {self._instead}"
                )
        if writer is not None:
            writer.close()
        task = TaskContext.get()
        query_id = None if task is None else task.getLocalProperty(QUERY_ID)
        return TaskRows(query_id, sink.getvalue().to_pybytes() if writer is not None else b"")

    def _end(self, messages: Sequence[WriterCommitMessage | None], who: ProducerAppend) -> list[Report]:
        """Append the rows that tasks have not appended, and acknowledge all rows.

        Raises: see ``append_frame``.
        """
        reports = []
        lane = None if self._bad_records is None else Lane(self._bad_records)
        appended = [message for message in messages if isinstance(message, TaskAppend)]
        outcomes = {one.view.partition: (one.view, one.outcome) for one in appended if one.outcome is not None}
        if outcomes:
            reports.append(end_appends(*self._ports.for_records, self._topic, who, outcomes))
        for message in appended:
            if lane is not None:
                lane.add(message.view.partition, message.bad)
        tasks = [message for message in messages if isinstance(message, TaskRows) and message.data]
        if tasks and not any(report.failures for report in reports):
            rows = pa.concat_tables([pa.ipc.open_stream(task.data).read_all() for task in tasks])
            if self._given or (lane is None and rows.column("partition").null_count == rows.num_rows):
                options = self._options
                how = options.bad_records, options.on_unknown_field
                return append_rows_given(*self._ports.for_records, options.topic, rows, who, *how)
            if lane is not None:
                rows = self._marked(rows)
            topic = self._topic
            batches = batches_of(rows, topic)
            # Appends by the tasks of this batch are not an earlier try: the tasks have compared the records.
            earlier = EarlierTries() if appended else None
            reports.append(append_given(*self._ports.for_records, topic, batches, who, earlier=earlier, lane=lane))
        elif lane is not None and lane.bad:
            image = self._ports.metadata.image()
            of_topic = image.topic(self._topic)
            done = reports.pop() if reports else Report("append", ())
            reports.append(append_bad_records(*self._ports.for_records, of_topic, done, who, "all", lane))
        return reports

    def _marked(self, rows: pa.Table) -> pa.Table:
        """The rows; rows without a valid partition are marked as bad rows of partition 0."""
        count = len(self._ports.metadata.image().topic(self._topic).partitions)
        marked = []
        for batch in rows.to_batches():
            partition = batch.column("partition")
            none = np.asarray(partition.is_null())
            elsewhere = np.asarray(
                pc.or_(pc.less(partition, 0), pc.greater_equal(partition, count)).fill_null(False)
            )
            reasons = {NO_PARTITION: none, UNKNOWN_PARTITION: elsewhere}
            batch = mark(batch, reasons, partition.cast(pa.string()))
            placed = pc.if_else(pa.array(none | elsewhere), pa.scalar(0, partition.type), partition)
            marked.append(batch.set_column(batch.schema.get_field_index("partition"), "partition", placed))
        return pa.Table.from_batches(marked)


@short_errors
class StreamSink(RecordSink, DataSourceStreamArrowWriter):
    """Appends the batches of a query. Spark creates one sink per batch, on the driver."""

    _instead = "use foreachBatch with cluster.stream_writer, or limit the source's batches"

    def __getstate__(self) -> dict[str, object]:
        """The sink for the tasks of a batch."""
        self._plan(self._options.producer)
        return self.__dict__

    @in_worker
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppend | TaskRows:
        """Append a task's rows, or return them for the driver to append.

        Raises: InvalidRecordError when the rows are too many for the driver; see ``append_rows``.
        """
        task = present_task()
        if self._planned is None or task is None:
            return self._rows(self._full(iterator))
        return self._append(self._full(iterator), task, self._who(task.query_id, task.batch_id))

    def _who(self, query_id: str | None, batch_id: int) -> ProducerAppend:
        who = who_appends(
            query_producer(self._options.producer, query_id),
            batch_id,
            on_changed_replay=self._options.on_changed_replay,
        )
        assert who is not None
        return who

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Append the rows of the batch that tasks have not appended, and acknowledge all rows.

        Raises: see ``StreamWriter``.
        """
        query_id = next((one.query_id for one in messages if isinstance(one, TaskAppend)), None)
        if query_id is None:
            query_id = next((one.query_id for one in messages if isinstance(one, TaskRows) and one.data), None)
        reports = self._end(messages, self._who(query_id, batchId))
        conclude([with_remedy(report, batchId) for report in reports], f"batch {batchId}")
