"""Appends the rows of a DataFrame to a topic as records, with one append per partition on the executors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from stratalog.engine.brokers.probe import read_and_probe
from stratalog.engine.driver.execution import Execution, measured
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import Measure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_with, check_call
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut
from stratalog.engine.records.bad_records import NO_PARTITION, UNKNOWN_PARTITION
from stratalog.engine.records.earlier import earlier_tries
from stratalog.engine.records.rounds import RunTasks
from stratalog.engine.records.unknown_fields import SettledFields, settled
from stratalog.engine.spark.appending import RecordColumns, check_columns, count_records, to_records
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
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
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
    """Append all rows of ``frame`` to ``topic``, one append per partition with rows; see ``Cluster.append``. With
    ``who`` the append is idempotent: if the topic has got more partitions since the first try, rows without a
    given partition still go to the partition of the first try. A row without a timestamp gets the time of the
    append, which may differ in a replay. Without ``order_by``, the shuffle determines the order of rows.
    Unless ``bad_records`` says otherwise (``bad_record_lane``), a bad record refuses the append before anything is
    written. ``probed`` is the metadata that the caller has just read, after a probe of the roots.

    Raises: UnknownTopicOrPartitionError, InvalidTopicError, InvalidRecordError, InvalidCallError, and errors from
        reading the metadata or the log ends of a topic that has grown. All of these are raised before anything is
        written; the report has any other error as the failure of a partition.
    """
    check_frame(topic, frame)
    if probed is not None or dry_run:
        image, as_registered = probed or metadata.image(), probed is not None
    else:
        image, as_registered = read_and_probe(metadata, storage)
    image_of_topic = image.topic(topic)
    check_not_internal(topic, "append to")
    check_call(image, image_of_topic, acks, bad_records)
    what = f"append to {topic}"
    check_columns(frame, columns, what)
    whole = columns.value is None
    columns = columns.of(frame, spark_type(image_of_topic.value_schema))
    fields = _settled(
        *(metadata, frame, image_of_topic, columns, bad_records, on_unknown_field, what),
        whole=whole,
        dry_run=dry_run,
    )
    image_of_topic = fields.topic
    if fields.image is not None:
        image = fields.image
    partitions = len(image_of_topic.partitions)
    earlier = earlier_tries(metadata, storage, memory, image, image_of_topic, who)
    dealt = None  # the caller names the partitions, or never retries
    if columns.partition is None and not (who is not None and who.transactional):
        dealt = earlier.partition_count or partitions
    config = topic_config_of(image, image_of_topic)
    records = to_records(
        frame,
        columns,
        what=what,
        partitions=partitions if dealt is None else dealt,
        partitioner=config.partitioner,
        key_type=spark_type(image_of_topic.key_schema),
        value_type=spark_type(image_of_topic.value_schema),
        keys_required=config.keys_required,
        bad_records=bad_records,
    )
    lane = None if bad_records is None else Lane(bad_records)

    if dry_run:
        with measured(execution.clock, storage.counts) as measure:
            counted = sorted(count_records(records, by_reason=lane is not None).items(), key=str)
        return fields.add_notes(_counted(topic, counted, measure, bad=lane is not None))

    tasks = RunTasks(FrameTasks(storage, execution, memory, image_of_topic, records, order_by).run)
    report = append_with(
        metadata,
        storage,
        execution.clock,
        memory,
        image,
        image_of_topic,
        tasks,
        who,
        acks=acks,
        partition_count=dealt,
        earlier=earlier,
        probed=as_registered,
        lane=lane,
    )
    return fields.add_notes(report)


def _settled(
    metadata: MetadataClient,
    frame: DataFrame,
    topic: TopicImage,
    columns: RecordColumns,
    bad_records: LeaveOut | None,
    on_unknown_field: OnUnknownField,
    what: str,
    *,
    whole: bool,
    dry_run: bool = False,
) -> SettledFields:
    def unknown(now: TopicImage) -> list[UnknownField]:
        return unknown_in_frame(frame, columns, now, bad_records, whole=whole)

    return settled(metadata, topic, unknown, on_unknown_field, spark_to_json, what, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """The records of a frame, the partition of each record, and the partition count."""

    records: DataFrame
    partitions: int


def records_of_frame(
    metadata: MetadataClient,
    topic: str,
    frame: DataFrame,
    columns: RecordColumns,
    *,
    bad_records: LeaveOut | None = None,
    on_unknown_field: OnUnknownField = "fail",
) -> FrameRecords:
    """Return the rows of ``frame`` as records of ``topic``, which another writer can append.

    Raises: UnknownTopicOrPartitionError, InvalidRecordError, InvalidCallError.
    """
    what = f"records of {topic}"
    image = metadata.image()
    check_columns(frame, columns, what)
    whole = columns.value is None
    columns = columns.of(frame, spark_type(image.topic(topic).value_schema))
    fields = _settled(
        metadata, frame, image.topic(topic), columns, bad_records, on_unknown_field, what, whole=whole
    )
    for note in fields.notes:
        _log.warning("%s", printable(f"{what}: {note}"))
    of_topic = fields.topic
    config = topic_config_of(image, of_topic)
    records = to_records(
        frame,
        columns,
        what=what,
        partitioner=config.partitioner,
        partitions=len(of_topic.partitions),
        key_type=spark_type(of_topic.key_schema),
        value_type=spark_type(of_topic.value_schema),
        keys_required=config.keys_required,
        bad_records=bad_records,
    )
    return FrameRecords(records, len(of_topic.partitions))


def check_frame(topic: str, frame: DataFrame) -> None:
    """Check that a frame is a Spark DataFrame. Raises: InvalidRecordError."""
    if not isinstance(frame, DataFrame):
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}".removeprefix("builtins.")
        raise InvalidRecordError(
            f"append to {topic}: a {kind} is not a Spark DataFrame: use produce for rows and for frames of "
            "pandas, polars and Arrow, or make a DataFrame with spark.createDataFrame"
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
