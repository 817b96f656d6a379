"""The tasks of a stream's sink: a task that has all rows of one partition appends them itself.

    Cluster.records    deals the rows out, task n gets those of partition n, and says so in the stream's schema
    a batch begins     the driver looks at the partitions, and the tasks are told (``plan``)
    a task             appends as an append's task does (steps 1 to 5 of the protocol), under the query's id as the
                       producer and the batch's as the sequence: a second attempt of it appends nothing
    a batch ends       the driver acknowledges (steps 6 and 7)

Rows that a task cannot append, for their leader has changed, say, go to the driver where they are few; else the
task fails, and Spark tries it again.

Spark tells a task the id of its batch in a local property, which no document promises. Where it does not, all rows
go to the driver.
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
from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.records.append import append_options
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut, topic_of_bad_records
from stratalog.engine.records.bad_records import ERRORS, FoundBad
from stratalog.engine.records.remote_end import replicas_to_append_to
from stratalog.engine.records.rounds import TaskResult, partition_task
from stratalog.engine.replication.append import Appended, AppendOptions, NotAppended
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.spark.appending import PARTITION
from stratalog.engine.spark.stream_query import QUERY_ID
from stratalog.engine.spark.versions import repartition_by_id
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import FencedError, InvalidCallError, InvalidRecordError, RetriableError
from stratalog.partitions.growth import grew
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.records import check_columns, typed_nulls
from stratalog.partitions.runner import Done, Runner

DEALT = "stratalog.partitions"
"""Key of the metadata of the column ``partition``: the number of partitions among which the rows were dealt out.
The task with a partition's number has all of its rows."""

LEFT_OUT = "stratalog.bad_records"
"""Key of the metadata of the column ``bad_records.ERRORS``: the topic that bad records go to; empty: they are left
out."""

BATCH_ID = "streaming.sql.batchId"

MOST_TASK_BYTES = 64 * 1024 * 1024
"""Of a task's rows, on their way to the driver."""


@dataclass(frozen=True, slots=True)
class TaskOf:
    """The task that runs: its number, and the ids of its query and batch."""

    number: int
    query_id: str
    batch_id: int


@dataclass
class TaskRows(WriterCommitMessage):
    """The rows of one task, as an Arrow stream, for the driver to append."""

    query_id: str | None
    data: bytes


@dataclass
class TaskAppend(WriterCommitMessage):
    """The outcome of the append of one partition's rows."""

    query_id: str
    view: PartitionView
    outcome: Appended | NotAppended | None
    """None: all of its rows are bad, and left out."""
    bad: FoundBad | None = None


def present_task() -> TaskOf | None:
    """None outside of a query's batch, and where Spark does not tell which one it is."""
    task = TaskContext.get()
    query_id, batch_id = (None if task is None else task.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if task is None or query_id is None or batch_id is None:
        return None
    return TaskOf(task.partitionId(), query_id, int(batch_id))


def deal_out(records: DataFrame, partitions: int, bad_records: LeaveOut | None = None) -> DataFrame:
    """Records with their partitions as the sink takes them: task n has the rows of partition n. The column with
    the reasons of bad ones says what becomes of them."""
    named = records.withColumnRenamed(PARTITION, "partition").withMetadata("partition", {DEALT: partitions})
    if bad_records is not None:
        named = named.withMetadata(ERRORS, {LEFT_OUT: bad_records.topic or ""})
    return repartition_by_id(named, partitions, "partition")


def dealt(schema: StructType) -> int | None:
    """Among how many partitions ``Cluster.records`` has dealt the rows out; None where nobody has."""
    found = schema["partition"].metadata.get(DEALT)
    return found if isinstance(found, int) else None


def left_out(schema: StructType) -> LeaveOut | None:
    """What ``Cluster.records`` was told of bad records; None where the rows say nothing of them."""
    found = schema[ERRORS].metadata.get(LEFT_OUT) if ERRORS in schema.fieldNames() else None
    return LeaveOut(found or None) if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class PlannedAppends:
    """The partitions of a topic as a batch begins, and how to append to them. Picklable where the stores are."""

    topic: str
    bad_records: LeaveOut | None
    replicas_of: Mapping[int, PartitionReplicas]
    options: AppendOptions
    clock: Clock
    copies: Runner
    sequences: Mapping[str, Mapping[int, int]]
    """The last sequence of each query, by its producer id, in each partition."""

    def comes_late(self, who: ProducerAppend) -> bool:
        """Whether some partition has a later sequence: one that lacks this one will not get it."""
        return any(last > who.sequence for last in self.sequences.get(who.producer_id, {}).values())

    def is_rest(self, who: ProducerAppend, partition: int) -> bool:
        """Whether others have the sequence and this one does not: they first say that it has the same records."""
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
    context: Context, topic: str, partitions: int, producer: str, bad_records: LeaveOut | None = None
) -> PlannedAppends:
    """The partitions as they are now. Those that cannot be looked at are not known to have anything.

    Raises: UnknownTopicOrPartitionError; as ``topic_of_bad_records``; errors of reading the metadata.
    """
    image = probe_brokers(context).image
    if bad_records is not None:
        topic_of_bad_records(context, image, bad_records)
    of_topic = image.topic(topic)
    views = [image.view(of_topic.topic_id, partition) for partition in range(partitions)]
    replicas_of = replicas_to_append_to(context, image, views, [])

    def look(partition: int) -> dict[str, int]:
        leader = replicas_of[partition].leader
        found = leader.producers(look_at_leader(replicas_of[partition]))
        return {
            name: entry.sequence
            for name, entry in found.items()
            if name == producer or name.startswith(f"{producer}@")  # of a batch, of a stream's queries
        }

    sequences: dict[str, dict[int, int]] = {}
    for outcome in context.threads.run(look, replicas_of):
        if isinstance(outcome, Done):
            for name, sequence in outcome.value.items():
                sequences.setdefault(name, {})[outcome.item] = sequence
    options = append_options(of_topic, context.topic_config(image, of_topic), "all")
    return PlannedAppends(topic, bad_records, replicas_of, options, context.clock, context.copies, sequences)


def append_rows(
    planned: PlannedAppends,
    task: TaskOf,
    who: ProducerAppend,
    batches: Iterator[pa.RecordBatch],
    records_of: Callable[[pa.RecordBatch], pa.RecordBatch],
    rows_for_driver: Callable[[Iterator[pa.RecordBatch]], TaskRows],
) -> TaskAppend | TaskRows:
    """Append the rows of a task, which are of one partition. ``records_of`` makes records of rows.

    Raises: RetriableError and its like, when they were not appended, and are too many for the driver.
    """
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
    raise outcome.error if isinstance(outcome, NotAppended) else RetriableError(f"{replicas}: others were faster")


class _Kept:
    """A task's rows, kept as long as they are small."""

    def __init__(self, batches: Iterator[pa.RecordBatch], partition: int, what: str) -> None:
        self._rest = batches
        self._partition = partition
        self._what = what
        self._bytes = 0
        self.rows: list[pa.RecordBatch] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """All of them, once. Raises: InvalidRecordError for a row of another partition."""
        yield from list(self.rows)
        while (batch := self._next()) is not None:
            yield batch

    def all_fit(self) -> bool:
        """Read on until all are kept, or they are too many."""
        while self._bytes <= MOST_TASK_BYTES and self._next() is not None:
            pass
        return self._bytes <= MOST_TASK_BYTES

    def _next(self) -> pa.RecordBatch | None:
        batch = next(self._rest, None)
        if batch is None:
            return None
        if pc.any(pc.not_equal(batch.column("partition"), self._partition).fill_null(True)).as_py():
            raise InvalidRecordError(
                f"append to {self._what}: its task has rows of other partitions: write the rows as "
                "cluster.records(topic, df, ...) has made them, nothing may deal the rows out otherwise"
            )
        if self._bytes <= MOST_TASK_BYTES:
            self.rows.append(batch)
        self._bytes += batch.nbytes
        return batch
