"""The tasks of a stream's sink: a task that has all rows of one partition appends them itself.

    Cluster.records    partitions the rows, so that task n has the rows of partition n, and marks this in the
                       schema
    a batch begins     the driver lists the partitions, and passes the result to the tasks (``plan``)
    a task appends     like an append's task (steps 1 to 5 of the protocol), with the query's id as the producer
                       and the batch's id as the sequence, so a second attempt appends nothing
    a batch ends       the driver acknowledges (steps 6 and 7)

Rows that a task cannot append (for example, because their leader has changed) go to the driver if they are few. If
there are many such rows, the task fails, and Spark retries it.

Spark passes a task the id of its batch in an undocumented local property. Without it, all rows go to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as with_changes
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_options
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut, topic_of_bad_records
from stratalog.engine.records.bad_records import ERRORS, FoundBad
from stratalog.engine.records.remote_end import replicas_to_append_to
from stratalog.engine.records.rounds import TaskResult, partition_task
from stratalog.engine.replication.append import Appended, NotAppended
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.spark.appending import PARTITION, by_partition
from stratalog.engine.spark.stream_query import QUERY_ID
from stratalog.engine.spark.versions import repartition_by_id
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import FencedError, InvalidCallError, InvalidRecordError, RetriableError
from stratalog.partitions.growth import grew
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.records import HEADERS, RECORD_COLUMNS, TIMESTAMP, check_columns, typed_nulls
from stratalog.partitions.runner import Done, Runner

DEALT = "stratalog.partitions"
"""Key in the metadata of the column ``partition``: the partition count by which the rows were partitioned. Task n
has all rows of partition n.
"""

LEFT_OUT = "stratalog.bad_records"
"""Key in the metadata of the column ``bad_records.ERRORS``: the topic for bad records, or an empty text to leave
out bad records.
"""

BATCH_ID = "streaming.sql.batchId"

MOST_TASK_BYTES = 64 * 1024 * 1024
"""The maximum size of the rows that a task may send to the driver, in bytes."""


@dataclass(frozen=True, slots=True)
class TaskOf:
    """The running task: its number, and the ids of its query and batch."""

    number: int
    query_id: str
    batch_id: int


@dataclass
class TaskRows(WriterCommitMessage):
    """The rows of one task as an Arrow stream, which the driver appends."""

    query_id: str | None
    data: bytes


@dataclass
class TaskAppend(WriterCommitMessage):
    """The outcome of appending one partition's rows."""

    query_id: str
    view: PartitionView
    outcome: Appended | NotAppended | None
    """None if all rows of the partition are bad and left out."""
    bad: FoundBad | None = None


def present_task() -> TaskOf | None:
    """The running task. None outside of a query's batch, or if Spark does not identify the batch."""
    task = TaskContext.get()
    query_id, batch_id = (None if task is None else task.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if task is None or query_id is None or batch_id is None:
        return None
    return TaskOf(task.partitionId(), query_id, int(batch_id))


def deal_out(records: DataFrame, partitions: int, bad_records: LeaveOut | None = None) -> DataFrame:
    """Distribute records for the sink: task n gets the rows of partition n. The policy for bad records is in the
    metadata of the column with their reasons.
    """
    named = records.withColumnRenamed(PARTITION, "partition").withMetadata("partition", {DEALT: partitions})
    if bad_records is not None:
        named = named.withMetadata(ERRORS, {LEFT_OUT: bad_records.topic or ""})
    return repartition_by_id(named, partitions, "partition")


def dealt(schema: StructType) -> int | None:
    """The partition count with which ``Cluster.records`` partitioned the rows; None for other rows."""
    found = schema["partition"].metadata.get(DEALT)
    return found if isinstance(found, int) else None


def left_out(schema: StructType) -> LeaveOut | None:
    """The policy for bad records from ``Cluster.records``; None for other rows."""
    found = schema[ERRORS].metadata.get(LEFT_OUT) if ERRORS in schema.fieldNames() else None
    return LeaveOut(found or None) if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class PlannedAppends:
    """The partitions of a topic at the start of a batch, and the options of appending to them. Picklable if the
    stores are.
    """

    topic: str
    bad_records: LeaveOut | None
    replicas_of: Mapping[int, PartitionReplicas]
    options: AppendOptions
    clock: Clock
    copies: Runner
    sequences: Mapping[str, Mapping[int, int]]
    """By partition, the last sequence of each query, by its producer id."""

    def comes_late(self, who: ProducerAppend) -> bool:
        """Whether a later sequence is already in some partition. If so, the records of this sequence are not
        appended to partitions that lack it."""
        return any(last > who.sequence for last in self.sequences.get(who.producer_id, {}).values())

    def is_rest(self, who: ProducerAppend, partition: int) -> bool:
        """Whether other partitions have the sequence and this one does not. The other partitions must first
        confirm that the records are the same.
        """
        known = self.sequences.get(who.producer_id, {})
        return known.get(partition, -1) < who.sequence and who.sequence in known.values()

    def append(self, partition: int, who: ProducerAppend, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Append the record columns of a partition."""
        what = f"append to {self.replicas_of[partition]}"

        def records() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                typed = typed_nulls(batch, self.options.schema)
                check_columns(typed.schema, self.options.schema, what, fits=grew)
                yield typed

        late = with_changes(who, late=self.comes_late(who))
        rule = None if self.bad_records is None else Lane(self.bad_records).rule(self.topic, self.options, who)
        task = partition_task(self.replicas_of, late, self.options, self.clock, self.copies, {}, rule)
        done = task(partition, records())
        if isinstance(done.outcome, Appended):
            return replace(done, outcome=replace(done.outcome, end=None))
        return done


def plan(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    partitions: int,
    producer: str,
    bad_records: LeaveOut | None = None,
) -> PlannedAppends:
    """List the current partitions of the topic. A partition that cannot be listed is treated as empty.

    Raises: UnknownTopicOrPartitionError; see ``topic_of_bad_records``; errors from reading the metadata.
    """
    image = probe_brokers(metadata, storage).image
    if bad_records is not None:
        topic_of_bad_records(image, bad_records)
    of_topic = image.topic(topic)
    views = [image.view(of_topic.topic_id, partition) for partition in range(partitions)]
    replicas_of = replicas_to_append_to(storage, clock, memory, image, views, [])

    def look(partition: int) -> dict[str, int]:
        leader = replicas_of[partition].leader
        found = leader.producers(look_at_leader(replicas_of[partition]))
        return {
            name: entry.sequence
            for name, entry in found.items()
            if name == producer or name.startswith(f"{producer}@")  # a query of this stream
        }

    sequences: dict[str, dict[int, int]] = {}
    for outcome in storage.threads.run(look, replicas_of):
        if isinstance(outcome, Done):
            for name, sequence in outcome.value.items():
                sequences.setdefault(name, {})[outcome.item] = sequence
    options = append_options(of_topic, topic_config_of(image, of_topic), "all")
    return PlannedAppends(topic, bad_records, replicas_of, options, clock, storage.copies, sequences)


def append_rows(
    planned: PlannedAppends,
    task: TaskOf,
    who: ProducerAppend,
    batches: Iterator[pa.RecordBatch],
    records_of: Callable[[pa.RecordBatch], pa.RecordBatch],
    rows_for_driver: Callable[[Iterator[pa.RecordBatch]], TaskRows],
) -> TaskAppend | TaskRows:
    """Append the rows of a task, which all belong to one partition. ``records_of`` converts rows to records.

    Raises: RetriableError kinds if the rows were not appended, and are too many for the driver.
    """
    if task.number not in planned.replicas_of:
        raise InvalidRecordError(
            f"append to {planned.topic}: task {task.number} has no partition: write the rows of "
            "cluster.records(topic, df, ...) without redistributing them"
        )
    replicas = planned.replicas_of[task.number]
    kept = _Kept(batches, task.number, str(replicas))
    if planned.is_rest(who, task.number) and kept.all_fit():
        return rows_for_driver(iter(kept.rows))
    done = planned.append(task.number, who, (records_of(batch) for batch in kept))
    outcome = done.outcome
    if outcome is None or isinstance(outcome, Appended):
        return TaskAppend(task.query_id, replicas.view, outcome, done.bad)
    if isinstance(outcome, NotAppended) and isinstance(outcome.error, InvalidCallError | FencedError):
        return TaskAppend(task.query_id, replicas.view, outcome, done.bad)
    if kept.all_fit():
        return rows_for_driver(iter(kept.rows))
    raise (
        outcome.error
        if isinstance(outcome, NotAppended)
        else RetriableError(f"{replicas}: other appends were faster")
    )


class _Kept:
    """A task's rows, kept while they are small."""

    def __init__(self, batches: Iterator[pa.RecordBatch], partition: int, what: str) -> None:
        self._rest = batches
        self._partition = partition
        self._what = what
        self._bytes = 0
        self.rows: list[pa.RecordBatch] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """All rows, once. Raises: InvalidRecordError for a row of another partition."""
        yield from list(self.rows)
        while (batch := self._next()) is not None:
            yield batch

    def all_fit(self) -> bool:
        """Read until all rows are kept, or until there are too many rows. Returns whether all rows are kept."""
        while self._bytes <= MOST_TASK_BYTES and self._next() is not None:
            pass
        return self._bytes <= MOST_TASK_BYTES

    def _next(self) -> pa.RecordBatch | None:
        batch = next(self._rest, None)
        if batch is None:
            return None
        if pc.any(pc.not_equal(batch.column("partition"), self._partition).fill_null(True)).as_py():
            raise InvalidRecordError(
                f"append to {self._what}: its task has rows of other partitions: write the rows of "
                "cluster.records(topic, df, ...) without redistributing them"
            )
        if self._bytes <= MOST_TASK_BYTES:
            self.rows.append(batch)
        self._bytes += batch.nbytes
        return batch


def batches_of(rows: pa.Table, topic: str) -> dict[int, list[pa.RecordBatch]]:
    """Rows that the driver appends, as batches of the record columns by partition; absent columns become null.

    Raises: InvalidRecordError for a row without a partition.
    """
    partition = rows.column("partition")
    if partition.null_count:
        raise InvalidRecordError(f"append to {topic}: a row's partition is null; give each row a partition")
    return by_partition(records_of(rows), partition)


def records_of(rows: pa.Table) -> pa.Table:
    """The record columns of rows; absent columns become null."""
    absent = {"timestamp": TIMESTAMP, "key": pa.null(), "headers": HEADERS}  # the key takes the topic's type
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    for name in (*RECORD_COLUMNS, ERRORS):
        if name in rows.column_names:
            columns[name] = rows.column(name)
        elif name in absent:
            columns[name] = pa.nulls(rows.num_rows, absent[name])
    columns["timestamp"] = columns["timestamp"].cast(TIMESTAMP)
    return pa.table(columns)
