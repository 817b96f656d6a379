"""A DataFrame appended to a topic: its rows as records, an append per partition on the executors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import Measure
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.records.append import append_with, check_acks
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut, topic_of_bad_records
from stratalog.engine.records.bad_records import NO_PARTITION, UNKNOWN_PARTITION
from stratalog.engine.records.earlier import earlier_tries
from stratalog.engine.records.rounds import RunTasks
from stratalog.engine.records.unknown_fields import SettledFields, settled
from stratalog.engine.spark.appending import RecordColumns, count_records, to_records
from stratalog.engine.spark.frame_tasks import FrameTasks
from stratalog.engine.spark.types import spark_type
from stratalog.engine.spark.unknown_columns import spark_to_json, unknown_in_frame
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.printable import printable
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.unknown_fields import OnUnknownField, UnknownField

_log = logging.getLogger(__name__)


def append_frame(
    context: Context,
    topic: str,
    frame: DataFrame,
    columns: RecordColumns,
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    order_by: Sequence[str] = (),
    bad_records: LeaveOut | None = None,
    on_unknown_field: OnUnknownField = "fail",
    dry_run: bool = False,
    probed: ClusterImage | None = None,
) -> Report:
    """Append all rows of ``frame`` to ``topic``; one append per partition that has any.

    With ``who`` the append is idempotent: the same producer and sequence are appended once, however often this is
    called (an application id and a batch id, in Spark's words), also when the topic has more partitions since:
    rows whose partition is not given go where they went at first. The same of both with other rows is refused,
    unless ``who`` accepts changed replays. A row without a timestamp gets the time of the append, which does not
    count as a difference. ``order_by`` sorts the rows of a partition by columns of the record (``timestamp``,
    ``key``, ``value.x``); otherwise their order is the shuffle's. A bad record refuses the append, before anything
    is written; with ``bad_records`` it is left out, counted in the report, and appended to their topic where they
    have one (``bad_record_lane``). ``on_unknown_field`` is as in
    ``stratalog.engine.records.unknown_fields``. ``dry_run`` checks the records, and counts them by partition.
    ``probed`` is the metadata as it was just read, with a look at the roots.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidRecordError, InvalidCallError, and errors of
        reading the metadata, or the logs' ends of a topic that has grown, before anything is written; everything
        else is a failure of its partition in the report.
    """
    check_frame(topic, frame)
    image = probed or context.metadata.image()
    image_of_topic = image.topic(topic)
    check_not_internal(topic, "append to")
    what = f"append to {topic}"
    columns = columns.of(frame, spark_type(image_of_topic.value_schema))
    fields = _settled(
        context, frame, image_of_topic, columns, bad_records, on_unknown_field, what, dry_run=dry_run
    )
    image_of_topic = fields.topic
    if fields.added and not dry_run:
        image = context.metadata.image()
    partitions = len(image_of_topic.partitions)
    earlier = earlier_tries(context, image, image_of_topic, who)
    dealt = None  # the caller says to which, or never tries it again
    if columns.partition is None and not (who is not None and who.transactional):
        dealt = earlier.partition_count or partitions
    config = context.topic_config(image, image_of_topic)
    records = to_records(
        frame,
        columns,
        what=what,
        partitions=partitions if dealt is None else dealt,
        partitioner=config.partitioner,
        key_type=spark_type(image_of_topic.key_schema),
        value_type=spark_type(image_of_topic.value_schema),
        keys_required=config.snapshots,
        bad_records=bad_records,
    )
    lane = None
    if bad_records is not None:
        topic_of_bad_records(context, image, bad_records)
        lane = Lane(bad_records)

    if dry_run:
        check_acks(acks)
        with context.measured() as measure:
            counted = sorted(count_records(records, by_reason=lane is not None).items(), key=str)
        return fields.said(_counted(topic, counted, measure, bad=lane is not None))

    tasks = RunTasks(FrameTasks(context, image_of_topic, records, order_by).run)
    report = append_with(
        context,
        image,
        image_of_topic,
        tasks,
        who,
        acks=acks,
        partition_count=dealt,
        earlier=earlier,
        probed=probed is not None,
        lane=lane,
    )
    return fields.said(report)


def _settled(
    context: Context,
    frame: DataFrame,
    topic: TopicImage,
    columns: RecordColumns,
    bad_records: LeaveOut | None,
    on_unknown_field: OnUnknownField,
    what: str,
    *,
    dry_run: bool = False,
) -> SettledFields:
    def unknown(now: TopicImage) -> list[UnknownField]:
        return unknown_in_frame(frame, columns, now, bad_records)

    return settled(context, topic, unknown, on_unknown_field, spark_to_json, what, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """The records of a frame, with the partition of each, and how many partitions there are."""

    records: DataFrame
    partitions: int


def records_of_frame(
    context: Context,
    topic: str,
    frame: DataFrame,
    columns: RecordColumns,
    *,
    bad_records: LeaveOut | None = None,
    on_unknown_field: OnUnknownField = "fail",
) -> FrameRecords:
    """The rows of ``frame`` as records of ``topic``, to be appended by somebody else.

    Raises: UnknownTopicOrPartitionError, InvalidRecordError, InvalidCallError.
    """
    what = f"records of {topic}"
    image = context.metadata.image()
    columns = columns.of(frame, spark_type(image.topic(topic).value_schema))
    fields = _settled(context, frame, image.topic(topic), columns, bad_records, on_unknown_field, what)
    for note in fields.notes:
        _log.warning("%s", printable(f"{what}: {note}"))
    of_topic = fields.topic
    config = context.topic_config(image, of_topic)
    records = to_records(
        frame,
        columns,
        what=what,
        partitioner=config.partitioner,
        partitions=len(of_topic.partitions),
        key_type=spark_type(of_topic.key_schema),
        value_type=spark_type(of_topic.value_schema),
        keys_required=config.snapshots,
        bad_records=bad_records,
    )
    return FrameRecords(records, len(of_topic.partitions))


def check_frame(topic: str, frame: DataFrame) -> None:
    """Raises: InvalidRecordError for a frame that is not Spark's."""
    if not isinstance(frame, DataFrame):
        raise InvalidRecordError(
            f"append to {topic}: a {type(frame).__name__} is no DataFrame of Spark: produce takes rows and frames "
            "of pandas, polars and Arrow; spark.createDataFrame makes a DataFrame of one"
        )


def _counted(
    topic: str, counted: Sequence[tuple[tuple[int, str | None], int]], measure: Measure, *, bad: bool
) -> Report:
    """The report of a dry run."""
    rows: list[dict[str, Value]] = [
        {
            "topic": topic,
            "partition": None if reason in (NO_PARTITION, UNKNOWN_PARTITION) else partition,
            "records": count,
            **({"reason": reason} if bad else {}),
        }
        for (partition, reason), count in counted
    ]
    totals: dict[str, Value] = {"records": sum(count for (_, reason), count in counted if reason is None)}
    if bad:
        totals["bad_records"] = sum(count for (_, reason), count in counted if reason is not None)
    return Report("append", rows, (), totals, True, measure.seconds, measure.counts)
