"""Appends rows and frames of this process as records, partitioned without Spark.

Rows with a key go to the same partition as with Spark (``partitioner``). All rows without a key in a call go to
one partition, as in a batch of Kafka's producer. For one producer and sequence, this is always the same partition,
so a retry is recognized.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.engine.config.topic_config import SPARK_HASH
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_given, check_call
from stratalog.engine.records.bad_record_lane import Lane, LeaveOut
from stratalog.engine.records.earlier import earlier_tries
from stratalog.engine.records.partitioner import partitions_of
from stratalog.engine.records.tables import ArrowStream, is_frame, to_arrow
from stratalog.engine.records.unknown_fields import settled
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.growth import ADDED, grew
from stratalog.partitions.numbers import whole
from stratalog.partitions.printable import first_line
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.records import (
    HEADERS,
    RECORD_COLUMNS,
    TIMESTAMP,
    columns_of_records,
    same_type,
    schema_of,
)
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.unknown_fields import (
    OnUnknownField,
    UnknownField,
    arrow_parts,
    arrow_to_json,
    has_struct,
    inferred,
    pruned_type,
    unknown_in_types,
    unknown_in_values,
)

Rows = Iterable[Mapping[str, Any] | bytes | str] | ArrowStream
"""A pandas, polars or Arrow frame; mappings by column; or values, texts or bytes."""

_TAKES = "give rows as mappings, values, a pandas or polars frame, or an Arrow table"


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns that make the records, by name. If ``value`` is None, the declared columns of a typed topic are
    used, otherwise the column ``value``. ``partition`` may be a number for all rows. If no other column is named,
    rows with a record's columns (``key``, ``value``, ``headers``, ``timestamp``, ``partition``) are records.

    Raises: InvalidCallError for a partition that is neither a name nor a whole number.
    """

    key: str | None = None
    value: str | None = None
    partition: str | int | None = None
    headers: str | None = None
    timestamp: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.partition, str | None):
            object.__setattr__(self, "partition", whole(self.partition, "partition"))

    def of(self, given: _Given, topic: TopicImage) -> RowColumns:
        """The named columns, or the columns of a record if none but the partition is named."""
        if replace(self, partition=None) != RowColumns():
            return self
        value = schema_of(topic.key_schema, topic.value_schema).field("value").type
        declared = [field.name for field in value] if pa.types.is_struct(value) else []
        return RowColumns(**columns_of_records(given.names, declared, self.partition))


def produce(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    rows: Rows,
    columns: RowColumns,
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    bad_records: LeaveOut | None = None,
    on_unknown_field: OnUnknownField = "fail",
    spread: bool = False,
) -> Report:
    """Append the rows from this process; ``who``: see ``append_with``. ``bad_records`` is the policy for records
    of fitting types that the topic cannot store; ``on_unknown_field`` is the policy for fields that the topic's
    type lacks. ``spread``: rows without a key go to partitions by Spark's hash of the value, like the rows of a
    DataFrame, unless only Spark can compute that hash.

    Raises: InvalidRecordError naming the row or column that does not fit, before anything is appended; see
    ``append_with``.
    """
    image = metadata.image()
    of_topic = image.topic(topic)
    check_not_internal(topic, "produce to")
    check_call(image, of_topic, acks, bad_records)
    what = f"produce to {topic}"
    given = _given(rows, columns, what)
    given.check_named(columns)
    whole = columns.value is None
    columns = columns.of(given, of_topic)

    def unknown(now: TopicImage) -> list[UnknownField]:
        return given.unknown(columns, now, whole=whole)

    fields = settled(metadata, of_topic, unknown, on_unknown_field, arrow_to_json, what)
    if fields.image is not None:
        image, of_topic = fields.image, fields.topic
    records = given.records(columns, of_topic)
    earlier = earlier_tries(metadata, storage, memory, image, of_topic, who)
    count = len(of_topic.partitions)
    dealt = None  # the caller names the partitions
    if columns.partition is None:
        dealt = earlier.partition_count or count
        keyless = (
            crc32((storage.new_id() if who is None else f"{who.producer_id} {who.sequence}").encode()) % dealt
        )
        keys = records.table.column("key").combine_chunks()
        chosen = _by_value(records.table, dealt, keyless) if spread else np.full(len(keys), keyless, np.int64)
        if keys.null_count < len(keys):
            partitioner = topic_config_of(image, of_topic).partitioner
            of_keys = partitions_of(keys, dealt, partitioner)
            chosen = np.where(keys.is_valid().to_numpy(zero_copy_only=False), of_keys, chosen)
    else:
        chosen = records.partitions
        if len(wrong := np.flatnonzero((chosen < 0) | (chosen >= count))):
            raise InvalidRecordError(
                f"produce to {topic}: row {wrong[0]}: partition {chosen[wrong[0]]}: the topic "
                f"has partitions 0 to {count - 1}"
            )
    batches = {
        int(partition): records.table.filter(pa.array(chosen == partition)).to_batches()
        for partition in np.unique(chosen)
    }
    lane = None if bad_records is None else Lane(bad_records)
    report = append_given(
        metadata,
        storage,
        clock,
        memory,
        topic,
        batches,
        who,
        acks=acks,
        image=image,
        partition_count=dealt,
        earlier=earlier,
        lane=lane,
    )
    return fields.add_notes(report, len(chosen))


def _by_value(records: pa.Table, count: int, otherwise: int) -> npt.NDArray[np.int64]:
    """Partitions by Spark's hash of the value; ``otherwise`` for a type whose hash only Spark knows."""
    try:
        return partitions_of(records.column("value").combine_chunks(), count, SPARK_HASH)
    except InvalidRecordError:
        return np.full(records.num_rows, otherwise, np.int64)


@dataclass(frozen=True, slots=True)
class Records:
    """Rows converted to records."""

    table: pa.Table
    """The record columns, with the topic's types."""
    partitions: npt.NDArray[np.int64]
    """The partition of each record, if the caller gives it."""


@dataclass(frozen=True, slots=True)
class _Given:
    """The rows of a caller: a frame, or mappings."""

    what: str
    table: pa.Table | None
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def names(self) -> Sequence[str]:
        """The names of all columns."""
        if self.table is not None:
            return list(self.table.column_names)
        return list(dict.fromkeys(str(name) for row in self.rows for name in row))

    def check_named(self, columns: RowColumns) -> None:
        """Check that each named column is in at least one row. Raises: InvalidRecordError."""
        for part in dataclasses.fields(columns):
            name = getattr(columns, part.name)
            if isinstance(name, str) and self.names and name not in self.names:
                hint = did_you_mean(name, self.names) or f"; the columns are {', '.join(self.names)}"
                raise InvalidRecordError(
                    f"{self.what}: no row has the column {name!r} of {part.name}={name!r}{hint}"
                )

    def unknown(self, columns: RowColumns, topic: TopicImage, *, whole: bool) -> list[UnknownField]:
        """The fields that the topic's type lacks, and the columns that no part of a record uses. Other columns of
        a frame are ignored if the caller names the value's column, that is, unless ``whole``.
        """
        schema = schema_of(topic.key_schema, topic.value_schema)
        wanted = _wanted(columns, topic, schema)
        spread = _is_spread(columns, schema.field("value").type)
        known = tuple(wanted)
        column = "value" if spread else ""
        found: list[UnknownField] = []
        if self.table is not None:
            types = {field.name: field.type for field in self.table.schema}
            if whole and (spread or "value" in types):  # a missing value is an error of its own
                others = {name: kind for name, kind in types.items() if name not in wanted}
                found += [UnknownField(column, (name,), name, known, kind) for name, kind in others.items()]
            for name, one in wanted.items():
                if name in types:
                    at = one.place(name)
                    found += unknown_in_types(types[name], one.kind, at[0], arrow_parts, f"{name}.", at[1])
            return [replace(one, count=self.table.num_rows) for one in found]
        names = dict.fromkeys(str(name) for row in self.rows for name in row.keys() - wanted.keys())
        for name in sorted(names):
            having = [(number, row[name]) for number, row in enumerate(self.rows) if name in row]
            kind = inferred([value for _, value in having])
            found.append(
                UnknownField(
                    column, (name,), name, known, kind, count=len(having), row=having[0][0] if having else 0
                )
            )
        for name, one in wanted.items():
            if one.kind != HEADERS and has_struct(one.kind):
                values = ((number, row.get(name)) for number, row in enumerate(self.rows))
                found += unknown_in_values(values, one.kind, *one.place(name), f"{name}.")
        return found

    def records(self, columns: RowColumns, topic: TopicImage) -> Records:
        """Make records of the topic from the rows, without fields that the topic lacks. Raises:
        InvalidRecordError."""
        what = self.what
        schema = schema_of(topic.key_schema, topic.value_schema)
        wanted = _wanted(columns, topic, schema)
        if self.table is not None:
            found = {name: _fitted(self.table, name, each, what) for name, each in wanted.items()}
            size = self.table.num_rows
        else:
            _complete(self.rows, wanted, what)
            found = {name: _built(self.rows, name, each, what) for name, each in wanted.items()}
            size = len(self.rows)

        def column(name: str | None, kind: pa.DataType) -> pa.Array:
            return pa.nulls(size, kind) if name is None else found[name]

        value = schema.field("value").type
        made = {
            "timestamp": column(columns.timestamp, TIMESTAMP),
            "key": column(columns.key, schema.field("key").type),
            "value": _struct(found, value)
            if _is_spread(columns, value)
            else column(columns.value or "value", value),
            "headers": column(columns.headers, HEADERS),
        }
        given_partitions = np.full(size, columns.partition if isinstance(columns.partition, int) else 0, np.int64)
        if isinstance(columns.partition, str):
            if found[columns.partition].null_count:
                raise InvalidRecordError(
                    f"{what}: a row has null in column {columns.partition!r}, which names the partition"
                )
            given_partitions = found[columns.partition].to_numpy(zero_copy_only=False)
        return Records(pa.table([made[name] for name in RECORD_COLUMNS], RECORD_COLUMNS), given_partitions)


def _given(rows: Rows, columns: RowColumns, what: str) -> _Given:
    """Raises: InvalidRecordError."""
    if is_frame(rows):
        return _Given(what, to_arrow(rows, what, _TAKES))
    return _Given(what, None, _mappings(rows, columns, what))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A column from which records are made."""

    kind: pa.DataType
    absent: bool = False
    """Whether the column may be missing, because it was added to the topic's type later."""
    column: str = ""
    """The record column: key or value."""
    is_field: bool = False
    """Whether the column becomes a field of the value."""

    def place(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The record column, and the path within it."""
        return self.column, (name,) if self.is_field else ()


def _is_spread(columns: RowColumns, value: pa.DataType) -> bool:
    return columns.value is None and pa.types.is_struct(value)


def _wanted(columns: RowColumns, topic: TopicImage, schema: pa.Schema) -> dict[str, _Wanted]:
    """The columns from which records are made, by name."""
    value = schema.field("value").type
    wanted: dict[str, _Wanted] = {}
    if _is_spread(columns, value):
        assert topic.value_schema is not None
        added = {f["name"] for f in parse_json(topic.value_schema)["fields"] if ADDED in f.get("metadata", {})}
        wanted |= {f.name: _Wanted(f.type, f.name in added, "value", is_field=True) for f in value}
    else:
        wanted[columns.value or "value"] = _Wanted(value, column="value")
    others = {
        columns.key: schema.field("key").type,
        columns.headers: HEADERS,
        columns.timestamp: TIMESTAMP,
        columns.partition if isinstance(columns.partition, str) else None: pa.int64(),
    }
    return wanted | {
        name: _Wanted(kind, column="key" if name == columns.key else "")
        for name, kind in others.items()
        if name is not None and name not in wanted
    }


def _struct(found: Mapping[str, pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.StructArray.from_arrays([found[field.name] for field in kind], fields=list(kind))


# ---------------------------------------------------------------------------------- rows of Python


def _mappings(rows: Any, columns: RowColumns, what: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise InvalidRecordError(f"{what}: a {type(rows).__name__} is not a list of rows: {_TAKES}")
    found: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        if isinstance(row, str | bytes):
            row = {columns.value or "value": row}
        elif not isinstance(row, Mapping):
            raise InvalidRecordError(f"{what}: row {number} is a {type(row).__name__}: {_TAKES}")
        found.append(row)
    return found


def _complete(rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, _Wanted], what: str) -> None:
    needed = [name for name, one in wanted.items() if not one.absent]
    for number, row in enumerate(rows):
        for name in needed:
            if name not in row:
                raise InvalidRecordError(
                    f"{what}: row {number} lacks column {name!r}: use None for a missing value"
                )


def _built(rows: Sequence[Mapping[str, Any]], name: str, wanted: _Wanted, what: str) -> pa.Array:
    values = [row.get(name) for row in rows]
    if wanted.kind == HEADERS:
        values = [_headers(value) for value in values]
    if pa.types.is_timestamp(wanted.kind):
        _check_times(values, name, what)
    try:
        return pa.array(values, wanted.kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        for number, value in enumerate(values):
            try:
                pa.array([value], wanted.kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as wrong:
                where = f"{what}: row {number}: column {name!r}"
                raise InvalidRecordError(f"{where} is declared {wanted.kind}: {first_line(wrong)}") from error
        raise


def _check_times(values: Iterable[Any], name: str, what: str) -> None:
    """Check for times that Arrow would misread as microseconds, or truncate. Raises: InvalidRecordError."""
    for number, value in enumerate(values):
        where = f"{what}: row {number}: column {name!r}"
        if isinstance(value, Number) and not isinstance(value, bool):
            raise InvalidRecordError(
                f"{where} is {value}, and a number does not say its unit: give a datetime, or a frame whose "
                "column has a unit, such as pa.timestamp('ms', 'UTC')"
            )
        if getattr(value, "nanosecond", 0):  # pandas has nanoseconds
            raise InvalidRecordError(f"{where} is {value}, and the log stores microseconds: round it")


def _headers(value: Any) -> Any:
    """Headers in Arrow's form, from a mapping, pairs or structs."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return [(one.get("key"), one.get("value")) if isinstance(one, Mapping) else one for one in value]
    return value


# ---------------------------------------------------------------------------------- frames


def _fitted(table: pa.Table, name: str, wanted: _Wanted, what: str) -> pa.Array:
    """The column of a frame in the declared type; numbers and times only if the cast is lossless."""
    if name not in table.column_names:
        if wanted.absent:
            return pa.nulls(table.num_rows, wanted.kind)
        raise InvalidRecordError(f"{what}: column {name!r} is not in the frame, which has {table.column_names}")
    column = table.column(name)
    pruned = _without_null(pruned_type(column.type, wanted.kind), wanted.kind)
    if pruned != column.type:
        column = column.cast(pruned)
    if same_type(column.type, wanted.kind):
        return column.combine_chunks().cast(wanted.kind)
    if pa.types.is_null(column.type) or _may_fit(column.type, wanted.kind):
        try:
            return column.cast(wanted.kind).combine_chunks()
        except pa.ArrowException as error:
            raise InvalidRecordError(
                f"{what}: column {name!r} is {column.type}, but is declared as {wanted.kind}: {first_line(error)}"
            ) from error
    raise InvalidRecordError(
        f"{what}: column {name!r} is {column.type}, but is declared as {wanted.kind}: cast it"
    )


def _without_null(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The type, with Arrow's null type replaced by the declared type, at any depth."""
    if pa.types.is_null(given):
        return wanted
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        kinds = {field.name: field.type for field in wanted}
        return pa.struct(
            [field.with_type(_without_null(field.type, kinds.get(field.name, field.type))) for field in given]
        )
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return pa.list_(given.value_field.with_type(_without_null(given.value_type, wanted.value_type)))
    return given


def _may_fit(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may fit the other type. The lossless cast makes the final decision."""
    kinds = pa.types
    if kinds.is_string(given):
        return bool(kinds.is_binary(wanted))
    if kinds.is_integer(given):
        return bool(kinds.is_integer(wanted) or kinds.is_floating(wanted) or kinds.is_decimal(wanted))
    if kinds.is_timestamp(given):
        return bool(kinds.is_timestamp(wanted) and (given.tz is None) == (wanted.tz is None))
    return bool((kinds.is_floating(given) and wanted == pa.float64()) or grew(given, wanted))
