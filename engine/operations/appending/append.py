"""Append: a DataFrame to acknowledged offsets (protocol section 2, Append).

0. probe the roots: brokers that are gone are fenced, so that nobody waits for them
1. one Spark job: per partition one file on the leader, synced to the maximal ISR   (steps 1 to 5)
2. one linearizable read for all partitions                                         (step 6)
3. the high watermark of those that are unchanged; they are acknowledged            (step 7)
4. what has changed is synced again under the new view, or appended again, with the same sequence

The outcome of each partition is one of
    acknowledged   at ``[base_offset, next_offset)``
    duplicate      this producer had appended this sequence before this call; where it is remembered, at
                   ``[base_offset, next_offset)``
    not appended   because of the failure that the report names; nothing of this call is in the log, now or later.
                   Of earlier calls with the same producer and sequence it says nothing
    unknown        it may be in the log, or come into it later, of this call or an earlier one: run it again with
                   the same producer and sequence

A sequence of a named producer stands for one set of records. Who tries it again with other ones is refused
(OUT_OF_ORDER_SEQUENCE_NUMBER), and none of them is stored: where partitions have it already these come first
(``earlier``), and compare. What one lacks, and the others have, is taken for the rest of an attempt that was cut
short. ``on_changed_replay="accept"``, for records that cannot be computed again as they were, such as random ones,
takes whatever comes under the sequence for what was appended: the log has each record of one attempt or of
another, partition by partition, and that is not exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from engine.context import Context
from engine.metadata.image import ClusterImage, TopicImage
from engine.operations.appending.acknowledge import PendingAppend
from engine.operations.appending.answers import answer
from engine.operations.appending.earlier import EarlierTries, earlier_tries
from engine.operations.appending.rounds import PartitionTask, RunTasks, TaskResult, append_all, task_result
from engine.operations.brokers.brokers import settle_brokers
from engine.replication.append import AppendOptions
from engine.report import Report, Value
from engine.settings import TopicConfig
from engine.state.internal_topics import check_not_internal
from partitions.errors import (
    ChangedReplayError,
    InvalidCallError,
)
from partitions.growth import grew
from partitions.producers import OnChangedReplay, ProducerAppend
from partitions.records import check_columns, schema_of
from partitions.runner import values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from engine.spark.appending import RecordColumns

_NONE = EarlierTries()


def append_frame(
    context: Context,
    frame: DataFrame,
    topic: str,
    columns: RecordColumns,
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    order_by: Sequence[str] = (),
    dry_run: bool = False,
    image: ClusterImage | None = None,
) -> Report:
    """Append all rows of ``frame`` to ``topic``; one append per partition that has any.

    With ``who`` the append is idempotent: the same producer and sequence are appended once, however often this is
    called (an application id and a batch id, in Spark's words), also when the topic has more partitions by now:
    rows whose partition is not given go where they went at first. The same of both with other rows is refused,
    unless ``who`` accepts changed replays. A row without a timestamp gets the time of the append, which does not
    count as a difference. ``order_by`` sorts the rows of a partition by columns of the record (``timestamp``,
    ``key``, ``value.x``); otherwise their order is the shuffle's. ``dry_run`` checks the records, and counts them
    by partition. ``image`` is the metadata as it was just read.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidRecordError, InvalidCallError, and what keeps
        the metadata from being read, or the logs' ends of a topic that has grown, before anything is written;
        everything else is a failure of its partition in the report.
    """
    from engine.spark.appending import count_records, run_appends, to_records
    from engine.spark.types import spark_type

    image = image or context.metadata.image()
    image_of_topic = image.topic(topic)
    check_not_internal(topic, "append to")
    partitions = len(image_of_topic.partitions)
    earlier = earlier_tries(context, image, image_of_topic, who)
    dealt = None  # the caller says to which, or never tries it again
    if columns.partition is None and not (who is not None and who.transactional):
        dealt = earlier.dealt_among or partitions
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
        results = [task_result(data) for data in run_appends(records, partitions, task, order_by, only)]
        for result in results:
            context.tasks.counts = context.tasks.counts + result.counts
        return results

    return append_with(context, image, image_of_topic, run, who, acks=acks, dealt_among=dealt, earlier=earlier)


def append_batches(
    context: Context,
    topic: str,
    batches: Mapping[int, Sequence[pa.RecordBatch]],
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    image: ClusterImage | None = None,
) -> Report:
    """Append batches of the record columns, given by partition, in threads of this process; otherwise as
    ``append_frame``. A partition without records is left alone. Structs may lack the last fields that are
    declared, where these are nullable: records have null there.

    Raises: as ``append_frame``.
    """
    check_not_internal(topic, "append to")
    return append_given(context, topic, batches, who, acks=acks, image=image)


def who_appends(
    producer: str | None,
    sequence: int | None,
    producer_epoch: int | None = None,
    *,
    on_changed_replay: OnChangedReplay = "refuse",
    recent: bool = False,
) -> ProducerAppend | None:
    """The producer of an append, as a caller names it; None where none is named. ``recent`` is as in
    ``ProducerAppend``.

    Raises: InvalidCallError for an empty name, and for a sequence or an epoch without a producer: both would
        append again whatever is retried. And for a producer without a sequence: its second append would pass for
        its first.
    """
    if on_changed_replay not in ("refuse", "accept"):
        raise InvalidCallError(f"on_changed_replay is {on_changed_replay!r}: it takes 'refuse' or 'accept'")
    if producer is not None:
        check_producer(producer)
        if sequence is None:
            raise InvalidCallError(
                f"producer {producer!r} without a sequence, by which its appends are told apart: give each the "
                "next one, from 0 on, and one that is tried again the same as before"
            )
        return ProducerAppend(
            producer, producer_epoch or 0, sequence, on_changed_replay=on_changed_replay, recent=recent
        )
    if sequence is not None or producer_epoch is not None or on_changed_replay == "accept":
        raise InvalidCallError(
            "a sequence, a producer epoch, or an answer to changed replays is that of a producer: name the "
            "producer too"
        )
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
    earlier = earlier_tries(context, image, image_of_topic, who)
    run = in_threads(context, batches)
    return append_with(context, image, image_of_topic, run, who, acks=acks, earlier=earlier)


def in_threads(context: Context, batches: Mapping[int, Sequence[pa.RecordBatch]]) -> RunTasks:
    """Runs the tasks of the partitions that have records in threads of this process."""
    filled = [partition for partition, given in batches.items() if any(batch.num_rows for batch in given)]

    def run(task: PartitionTask, only: Sequence[int] | None) -> list[TaskResult]:
        def one(partition: int) -> TaskResult:
            return task_result(task(partition, iter(batches[partition])))

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
    earlier: EarlierTries = _NONE,
) -> Report:
    """Append what ``run`` feeds its tasks with to ``topic``, and acknowledge.

    ``image`` is the metadata as it was just read. ``run`` is called again, for some partitions only, where a
    leader has changed or a race was lost, and where some have it of ``earlier`` tries. Without ``who`` this driver
    is the producer; it says as whom only where it is not known what came of the append. ``dealt_among`` is told to
    who tries it again (``ProducerEntry``).

    Raises: InvalidCallError, UnknownTopicOrPartitionError; what ``run`` raises; what keeps the metadata from being
        read. Everything else is a failure of its partition in the report.
    """
    _check_acks(acks)
    if who is not None:
        context.begun_sequences.begin(topic.topic_id, who)
        return _append_as(context, image, topic, run, replace(who, dealt_among=dealt_among), acks, earlier)
    mine = context.unnamed_producers.take(context.new_id)
    report = _append_as(context, image, topic, run, replace(mine, dealt_among=dealt_among), acks, earlier)
    if all(row["outcome"] != "unknown" for row in report.rows):
        context.unnamed_producers.give_back(mine)
    return report


def _append_as(
    context: Context,
    image: ClusterImage,
    topic: TopicImage,
    run: RunTasks,
    who: ProducerAppend,
    acks: str,
    earlier: EarlierTries,
) -> Report:
    with context.measured() as measure:
        settled = settle_brokers(context, image)
        notes = list(settled.notes)
        options = append_options(topic, context.topic_config(settled.image, topic), acks)
        states = _append_by_turns(context, settled.image, topic, run, who, options, earlier, notes)
    return answer(topic.name, who, states, measure, notes)


def _append_by_turns(
    context: Context,
    image: ClusterImage,
    topic: TopicImage,
    run: RunTasks,
    who: ProducerAppend,
    options: AppendOptions,
    earlier: EarlierTries,
    notes: list[str],
) -> dict[int, PendingAppend]:
    """First the partitions that have it of an earlier try, which can only compare; then, where all of these have
    the same records, the others."""
    late = replace(who, late=earlier.late)
    if not earlier.partitions:
        return append_all(context, image, topic, run, late, options, None, notes)
    states = append_all(context, image, topic, run, who, options, sorted(earlier.partitions), notes)
    if who.on_changed_replay == "refuse":
        for partition in earlier.partitions - states.keys():
            error = ChangedReplayError(
                f"{topic.name}-{partition}: sequence {who.sequence} of producer {who.producer_id!r} was appended "
                "before with records for this partition, now there are none; nothing of it is stored"
            )
            states[partition] = PendingAppend(image.view(topic.topic_id, partition), error=error)
    others = [p.partition for p in topic.partitions if p.partition not in earlier.partitions]
    if others and all(state.error is None for state in states.values()):
        states |= append_all(context, image, topic, run, late, options, others, notes)
    return states


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
