"""Append: a DataFrame to acknowledged offsets (protocol section 2, Append).

0. probe the roots: brokers that are gone are fenced, so that nobody waits for them
1. one Spark job: per partition one file on the leader, synced to the maximal ISR   (steps 1 to 5)
2. one linearizable read for all partitions                                         (step 6)
3. the high watermark of those that are unchanged; they are acknowledged            (step 7)
4. what has changed is synced again under the new view, or appended again, with the same sequence

The outcome of each partition is one of
    acknowledged   at ``[base_offset, next_offset)``
    duplicate      of ``[base_offset, next_offset)``: this producer had appended this sequence before this call
    not appended   because of the failure that the report names; nothing of it is in the log, now or later
    unknown        it may be in the log, or come into it later: run it again with the same producer and sequence
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from engine.context import Context
from engine.metadata.image import ClusterImage, TopicImage
from engine.operations.appending.acknowledge import PendingAppend, acknowledge
from engine.operations.appending.dealing import among_how_many
from engine.operations.brokers.brokers import settle_brokers
from engine.operations.replicas.damaged import replace_leaders
from engine.replication.append import (
    Appended,
    AppendOptions,
    AppendOutcome,
    NotAppended,
    Raced,
    append,
)
from engine.replication.site import Site
from engine.report import Failure, Report, Value
from engine.settings import TopicConfig
from engine.state.internal_topics import check_not_internal
from partitions.clock import Clock
from partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    InvalidCallError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from partitions.growth import grew
from partitions.producers import ProducerAppend, is_unnamed
from partitions.records import check_columns, schema_of
from partitions.runner import Runner, values
from partitions.store import StoreCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from engine.spark.appending import RecordColumns

_ROUNDS = 10
"""How often a partition is tried: each time its leader has changed, or a larger append has lost a race."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What the task of one partition sends back."""

    partition: int
    outcome: AppendOutcome
    counts: StoreCounts


PartitionTask = Callable[[int, Iterator[pa.RecordBatch]], bytes]
"""Appends the batches of one partition, on an executor; answers with a ``TaskResult``, pickled."""

RunTasks = Callable[[PartitionTask, Sequence[int] | None], list[TaskResult]]
"""Runs a task for each partition that has records, or only for those of a list; what the tasks answered."""


def append_frame(
    context: Context,
    frame: DataFrame,
    topic: str,
    columns: RecordColumns,
    *,
    acks: str = "all",
    producer: str | None = None,
    sequence: int | None = None,
    producer_epoch: int | None = None,
    transactional: bool = False,
    order_by: Sequence[str] = (),
    dry_run: bool = False,
    image: ClusterImage | None = None,
) -> Report:
    """Append all rows of ``frame`` to ``topic``; one append per partition that has any.

    With ``producer`` and ``sequence`` the append is idempotent: the same of both is appended once, however often
    this is called (an application id and a batch id, in Spark's words), also when the topic has more partitions by
    now: rows whose partition is not given go where they went at first. ``order_by`` sorts the rows of a partition
    by columns of the record (``timestamp``, ``key``, ``value.x``); otherwise their order is the shuffle's.
    ``transactional``: as a part of the producer's transaction. ``dry_run`` checks the records, and counts them by
    partition. ``image`` is the metadata as it was just read.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidRecordError, InvalidCallError, and what keeps
        the metadata from being read, or the logs' ends of a topic that has grown, before anything is written;
        everything else is a failure of its partition in the report.
    """
    from engine.spark.appending import count_records, run_appends, to_records
    from engine.spark.types import spark_type

    who = who_appends(producer, sequence, producer_epoch, transactional=transactional)
    image = image or context.metadata.image()
    image_of_topic = image.topic(topic)
    check_not_internal(topic, "append to")
    partitions = len(image_of_topic.partitions)
    dealt = None  # the caller says to which, or never tries it again
    if columns.partition is None and not transactional:
        dealt = among_how_many(context, image, image_of_topic, who)
    records = to_records(
        frame,
        columns,
        what=f"append to {topic}",
        partitions=partitions if dealt is None else dealt,
        key_type=spark_type(image_of_topic.key_schema),
        value_type=spark_type(image_of_topic.value_schema),
    )

    if dry_run:
        _check_acks(acks)
        with context.measured() as measure:
            counted = sorted(count_records(records).items())
        rows: list[dict[str, Value]] = [
            {"topic": topic, "partition": partition, "records": count} for partition, count in counted
        ]
        totals: dict[str, Value] = {"records": sum(count for _, count in counted)}
        return Report("append", rows, (), totals, True, measure.seconds, measure.counts)

    def run(task: PartitionTask, only: Sequence[int] | None) -> list[TaskResult]:
        results = [_result(data) for data in run_appends(records, partitions, task, order_by, only)]
        for result in results:
            context.tasks.counts = context.tasks.counts + result.counts
        return results

    return append_with(context, image, image_of_topic, run, who, acks=acks, dealt_among=dealt)


def append_batches(
    context: Context,
    topic: str,
    batches: Mapping[int, Sequence[pa.RecordBatch]],
    *,
    acks: str = "all",
    producer: str | None = None,
    sequence: int | None = None,
    producer_epoch: int | None = None,
    transactional: bool = False,
    image: ClusterImage | None = None,
) -> Report:
    """Append batches of the record columns, given by partition, in threads of this process; otherwise as
    ``append_frame``. A partition without records is left alone. Structs may lack the last fields that are
    declared, where these are nullable: records have null there.

    Raises: as ``append_frame``.
    """
    who = who_appends(producer, sequence, producer_epoch, transactional=transactional)
    check_not_internal(topic, "append to")
    return append_given(context, topic, batches, who, acks=acks, image=image)


def who_appends(
    producer: str | None,
    sequence: int | None,
    producer_epoch: int | None,
    *,
    transactional: bool,
) -> ProducerAppend | None:
    """The producer of an append; None where none is named.

    Raises: InvalidCallError for an empty name, and for a sequence or an epoch without a producer: both would
        append again whatever is retried. And for a producer without a sequence: its second append would pass for
        its first.
    """
    if producer is not None:
        check_producer(producer)
        if sequence is None:
            raise InvalidCallError(
                f"producer {producer!r} without a sequence, by which its appends are told apart: give each the "
                "next one, from 0 on, and one that is tried again the same as before"
            )
        return ProducerAppend(producer, producer_epoch or 0, sequence, transactional)
    if sequence is not None or producer_epoch is not None:
        raise InvalidCallError("a sequence, or a producer epoch, is that of a producer: name the producer too")
    return None


def check_producer(producer: str) -> str:
    """The name. Raises: InvalidCallError for an empty one."""
    if not producer:
        raise InvalidCallError("the name of the producer is empty: give it one, or leave it out")
    return producer


def append_given(
    context: Context,
    topic: str,
    batches: Mapping[int, Sequence[pa.RecordBatch]],
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    image: ClusterImage | None = None,
) -> Report:
    """As ``append_batches``, also to internal topics: what the engine itself appends. ``who`` is as in
    ``append_with``.

    Raises: as ``append_frame``.
    """
    image = image or context.metadata.image()
    image_of_topic = image.topic(topic)
    schema = schema_of(image_of_topic.key_schema, image_of_topic.value_schema)
    for partition, given in batches.items():
        image.partition(image_of_topic.topic_id, partition)
        for batch in given:
            check_columns(batch.schema, schema, f"append to {topic}-{partition}", fits=grew)
    return append_with(context, image, image_of_topic, in_threads(context, batches), who, acks=acks)


def in_threads(context: Context, batches: Mapping[int, Sequence[pa.RecordBatch]]) -> RunTasks:
    """Runs the tasks of the partitions that have records in threads of this process."""
    filled = [partition for partition, given in batches.items() if any(batch.num_rows for batch in given)]

    def run(task: PartitionTask, only: Sequence[int] | None) -> list[TaskResult]:
        def one(partition: int) -> TaskResult:
            return _result(task(partition, iter(batches[partition])))

        return values(context.threads.run(one, [p for p in filled if only is None or p in only]))

    return run


def append_with(
    context: Context,
    image: ClusterImage,
    topic: TopicImage,
    run: RunTasks,
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    dealt_among: int | None = None,
) -> Report:
    """Append what ``run`` feeds its tasks with to ``topic``, and acknowledge.

    ``image`` is the metadata as it was just read. ``run`` is called again, for some partitions only, where a
    leader has changed or a race was lost. Without ``who`` this driver is the producer; it says as whom only where
    it is not known what came of the append. ``dealt_among`` is told to who tries it again (``ProducerEntry``).

    Raises: InvalidCallError, UnknownTopicOrPartitionError; what ``run`` raises; what keeps the metadata from being
        read. Everything else is a failure of its partition in the report.
    """
    _check_acks(acks)
    if who is not None:
        return _append_as(context, image, topic, run, replace(who, dealt_among=dealt_among), acks)
    mine = context.unnamed_producers.take(context.new_id)
    report = _append_as(context, image, topic, run, replace(mine, dealt_among=dealt_among), acks)
    if all(row["outcome"] != "unknown" for row in report.rows):
        context.unnamed_producers.give_back(mine)
    return report


def _append_as(
    context: Context, image: ClusterImage, topic: TopicImage, run: RunTasks, who: ProducerAppend, acks: str
) -> Report:
    with context.measured() as measure:
        settled = settle_brokers(context, image)
        notes = list(settled.notes)
        config = context.topic_config(settled.image, topic)
        states = _append_all(context, settled.image, topic, run, who, append_options(topic, config, acks), notes)
    rows = [_row(topic.name, partition, state) for partition, state in sorted(states.items())]
    failures = [
        Failure.of(f"{topic.name}-{partition}", state.error)
        for partition, state in sorted(states.items())
        if state.error is not None
    ]
    done = [s.appended for s in states.values() if s.appended is not None and s.error is None]
    if any(row["outcome"] == "unknown" for row in rows):
        until = ", within a day" if is_unnamed(who.producer_id) else ""
        again = f"producer {who.producer_id!r}, sequence {who.sequence}"
        notes.append(f"what is unknown: run it again with {again}{until}")
    return Report(
        operation="append",
        rows=rows,
        failures=failures,
        totals={
            "records": sum(appended.next_offset - appended.base_offset for appended in done),
            "bytes": sum(appended.bytes for appended in done),
        },
        seconds=measure.seconds,
        counts=measure.counts,
        notes=notes,
    )


def _check_acks(acks: str) -> None:
    if acks not in ("all", "leader"):
        raise InvalidCallError(f"acks is {acks!r}: it takes 'all' or 'leader'")


def append_options(topic: TopicImage, config: TopicConfig, acks: str) -> AppendOptions:
    """How to append to a topic as it is configured."""
    return AppendOptions(
        schema=schema_of(topic.key_schema, topic.value_schema),
        acks_all=acks == "all",
        min_insync_replicas=config.min_insync_replicas,
        compression=config.compression_type,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
        producer_expiration_ms=config.producer_id_expiration_ms,
        keys_required=config.snapshots,
    )


def partition_task(
    sites: Mapping[int, Site], who: ProducerAppend, options: AppendOptions, clock: Clock, copies: Runner
) -> PartitionTask:
    """The function that appends one partition's batches. Running it twice appends once: ``who`` is the
    same.
    """

    def task(partition: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        site = sites[partition]
        before = [store.counts.snapshot() for store in site.stores.values()]
        outcome = append(site, who, batches, options, clock=clock, copies=copies)
        spent = StoreCounts()
        for store, earlier in zip(site.stores.values(), before, strict=True):
            spent = spent + (store.counts - earlier)
        return pickle.dumps(TaskResult(partition, outcome, spent))

    return task


def _append_all(
    context: Context,
    image: ClusterImage,
    topic: TopicImage,
    run: RunTasks,
    who: ProducerAppend,
    options: AppendOptions,
    notes: list[str],
) -> dict[int, PendingAppend]:
    """Append, and bring every partition to an end: acknowledged, or failed."""
    states: dict[int, PendingAppend] = {}
    again: Sequence[int] | None = None
    for _ in range(_ROUNDS):
        views = [image.view(topic.topic_id, partition.partition) for partition in topic.partitions]
        sites = {view.partition: context.site(view) for view in views}
        task = partition_task(sites, who, options, context.clock, context.copies)
        raced: list[int] = []
        troubled: list[int] = []
        appended: dict[int, PendingAppend] = {}
        try:
            results = run(task, again)
        except OutcomeUnknownError as lost:  # tasks were lost: what they did, they did
            for partition in sites if again is None else again:
                states[partition] = PendingAppend(views[partition], error=lost, tried=True)
            break
        for result in results:
            view = views[result.partition]
            before = states.get(result.partition, PendingAppend(view))
            state = states[result.partition] = PendingAppend(view, tried=before.tried, ours=before.ours)
            match result.outcome:
                case Appended(missed=missed, duplicate=duplicate):
                    state.appended, state.missed, state.tried = result.outcome, missed, True
                    state.ours = state.ours or not duplicate
                    appended[result.partition] = state
                case Raced(tried):
                    state.tried, state.ours = state.tried or tried, state.ours or tried
                    state.error = RetriableError("another append was faster; run it again with the same sequence")
                    raced.append(result.partition)
                case NotAppended(error, tried):
                    state.error, state.tried, state.ours = error, state.tried or tried, state.ours or tried
                    troubled.append(result.partition)
        try:
            if options.acks_all:
                troubled += acknowledge(context, appended, options.min_insync_replicas, notes)
                appended.clear()
            if not raced and not troubled:
                break
            image, again = _next_round(context, topic, states, raced, troubled, notes)
        except StratalogError as error:  # the metadata is out of reach: what is in the logs stays there
            if options.acks_all:
                for state in appended.values():  # those that were not brought to an end
                    state.error = error
            notes.append(f"it ended early: {error.code}: {error}")
            break
        if not again:
            break
    return states


def _next_round(
    context: Context,
    topic: TopicImage,
    states: Mapping[int, PendingAppend],
    raced: Sequence[int],
    troubled: Sequence[int],
    notes: list[str],
) -> tuple[ClusterImage, list[int]]:
    """Do what can be done about the leaders that failed. The metadata now, and the partitions to append to
    again: those that were raced, and those for which it has helped (a fresh view that is no other than the one
    that failed helps nobody).
    """
    errors = {partition: states[partition].error for partition in troubled}
    if any(isinstance(error, BrokerUnreachableError | StaleMetadataError) for error in errors.values()):
        settled = settle_brokers(context)
        image, noted = settled.image, settled.notes
    else:
        image, noted = context.metadata.image(), ()
    notes += noted
    if topic.topic_id not in image.topics:
        return image, []
    damaged = {
        (topic.topic_id, partition): (states[partition].view, error)
        for partition, error in errors.items()
        if isinstance(error, CorruptionError)
    }
    if damaged:
        replaced = replace_leaders(context, damaged)
        image, noted = context.metadata.image(), tuple(replaced.values())
        notes += noted
    if topic.topic_id not in image.topics:
        return image, []
    return image, [*raced, *(p for p in troubled if image.view(topic.topic_id, p) != states[p].view)]


def _result(pickled: bytes) -> TaskResult:
    result = pickle.loads(pickled)
    assert isinstance(result, TaskResult)
    return result


def _row(topic: str, partition: int, state: PendingAppend) -> dict[str, Value]:
    appended = state.appended
    if state.error is not None or appended is None:
        outcome = "unknown" if state.tried else "not appended"
    else:
        outcome = "acknowledged" if state.ours else "duplicate"
    return {
        "topic": topic,
        "partition": partition,
        "base_offset": appended.base_offset if appended is not None else None,
        "next_offset": appended.next_offset if appended is not None else None,
        "records": appended.next_offset - appended.base_offset if appended is not None else 0,
        "outcome": outcome,
    }
