"""Appends rows of a sink that do not come from ``Cluster.records``. The rows have Kafka's columns, or the columns
of a typed topic.

The driver turns the rows into records and assigns partitions as ``Cluster.produce`` does: by the key, with the
topic's ``partitioner``; for rows without a key, by Spark's hash of the value. So when Spark repeats a batch, each
row goes to the same partition again, however the rows are distributed over tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.bad_record_lane import LeaveOut
from stratalog.engine.records.produce import RowColumns, produce
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidRecordError, StratalogError
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.records import schema_of
from stratalog.partitions.unknown_fields import OnUnknownField

TOPIC, OFFSET = "topic", "offset"
_PARTS = ("key", "headers", "timestamp", "partition")
"""The columns of a record other than its value."""


def named_as_fields(names: Collection[str], topic: TopicImage) -> set[str]:
    """Return which of the columns ``topic`` and ``offset`` are fields of the topic's value, if the value's fields
    are columns.
    """
    value = schema_of(topic.key_schema, topic.value_schema).field("value").type
    fields = [field.name for field in value] if pa.types.is_struct(value) else []
    return {TOPIC, OFFSET} & {*names} & {*fields} if "value" not in names or "value" in fields else set()


def row_columns(names: Sequence[str], topic: TopicImage) -> RowColumns:
    """Return the column of each part of a record. Without a column ``value``, the fields of a typed value are
    columns; a column with the name of a declared field is that field.

    Raises: InvalidRecordError for columns that have no place in a record.
    """
    value = schema_of(topic.key_schema, topic.value_schema).field("value").type
    fields = [field.name for field in value] if pa.types.is_struct(value) else []
    if fields and ("value" not in names or "value" in fields):
        parts = {name: name for name in _PARTS if name in names and name not in fields}
        return RowColumns(**parts)
    others = [name for name in names if name not in (*_PARTS, "value")]
    if others or "value" not in names:
        what = f"no place for the columns {others}" if others else "no column value"
        fitting = f", or the columns {', '.join(fields)}" if fields else ""
        raise InvalidRecordError(
            f"append to {topic.name}: a record has {what}: give key, value, headers, timestamp, partition{fitting}"
        )
    return RowColumns(value="value", **{name: name for name in _PARTS if name in names})


def by_topic(rows: pa.Table, topic: str | None) -> Mapping[str, pa.Table]:
    """Split the rows by topic, without the column ``topic``. ``topic`` is the topic that the options name, if any;
    the value of that topic has no field ``topic``.

    Raises: InvalidRecordError for a row without a topic, or with a topic other than the topic of the options.
    """
    if TOPIC not in rows.column_names:
        assert topic is not None
        return {topic: rows}
    given = rows.column(TOPIC)
    found = pc.unique(given).to_pylist()
    rest = rows.drop_columns([TOPIC])
    if topic is None:
        if None in found:
            raise InvalidRecordError("a row has a null topic, and the option topic is not set")
        return {one: rest.filter(pc.equal(given, one)) for one in sorted(found)}
    if other := [one for one in found if one not in (None, topic)]:
        raise InvalidRecordError(
            f"append to {topic}: a row's topic is {other[0]!r}: omit the option topic, or the column topic"
        )
    return {topic: rest}


def append_rows_given(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str | None,
    rows: pa.Table,
    who: ProducerAppend,
    bad_records: LeaveOut | None,
    on_unknown_field: OnUnknownField,
) -> list[Report]:
    """Append the rows, with one append to each topic. If a topic's append raises an error after that of another
    topic, its report has the error as a failure.

    Raises: InvalidRecordError and UnknownTopicOrPartitionError, before anything is appended; see ``produce``.
    """
    image = metadata.image()
    if topic is not None and TOPIC in named_as_fields(rows.column_names, image.topic(topic)):
        parts: Mapping[str, pa.Table] = {topic: rows}
    else:
        parts = by_topic(rows, topic)
    columns = {}
    for name, some in parts.items():
        check_not_internal(name, "append to")
        if "partition" in some.column_names and some.column("partition").null_count == some.num_rows:
            parts = {**parts, name: some.drop_columns(["partition"])}
        columns[name] = row_columns(parts[name].column_names, image.topic(name))
    reports: list[Report] = []
    for name, some in parts.items():
        try:
            report = produce(
                *(metadata, storage, clock, memory),
                *(name, some, columns[name], who),
                bad_records=bad_records,
                on_unknown_field=on_unknown_field,
                spread=True,
            )
        except StratalogError as error:
            if not reports:
                raise
            again = f"producer {who.producer_id!r}, sequence {who.sequence}"
            remedy = f"fix the cause, and run the append again with {again}: nothing is appended twice"
            report = Report("append", (), [Failure.of(name, error)], remedy=remedy)
        reports.append(report)
    return reports
