"""A DataFrame appended to a topic: its rows as records, an append per partition on the executors."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import Measure
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.records.append import append_with, check_acks
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut, topic_of_bad_records
from stratalog.engine.records.bad_records import NO_PARTITION, UNKNOWN_PARTITION
from stratalog.engine.records.earlier import earlier_tries
from stratalog.engine.records.rounds import RunTasks
from stratalog.engine.spark.appending import RecordColumns, count_records, to_records
from stratalog.engine.spark.frame_tasks import FrameTasks
from stratalog.engine.spark.types import spark_type
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.producers import ProducerAppend


def append_frame(
    context: Context,
    frame: DataFrame,
    topic: str,
    columns: RecordColumns,
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    order_by: Sequence[str] = (),
    bad_records: LeaveOut | None = None,
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
    have one (``bad_record_lane``). ``dry_run`` checks the records, and counts them by partition. ``probed`` is the
    metadata as it was just read, with a look at the roots.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidRecordError, InvalidCallError, and errors of
        reading the metadata, or the logs' ends of a topic that has grown, before anything is written; everything
        else is a failure of its partition in the report.
    """
    check_frame(frame, topic)
    image = probed or context.metadata.image()
    image_of_topic = image.topic(topic)
    check_not_internal(topic, "append to")
    partitions = len(image_of_topic.partitions)
    earlier = earlier_tries(context, image, image_of_topic, who)
    dealt = None  # the caller says to which, or never tries it again
    if columns.partition is None and not (who is not None and who.transactional):
        dealt = earlier.partition_count or partitions
    records = to_records(
        frame,
        columns,
        what=f"append to {topic}",
        partitions=partitions if dealt is None else dealt,
        key_type=spark_type(image_of_topic.key_schema),
        value_type=spark_type(image_of_topic.value_schema),
        keys_required=context.topic_config(image, image_of_topic).snapshots,
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
        return _counted(topic, counted, measure, bad=lane is not None)

    tasks = RunTasks(FrameTasks(context, image_of_topic, records, order_by).run)
    return append_with(
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


def check_frame(frame: DataFrame, topic: str) -> None:
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
