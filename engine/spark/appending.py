"""Turns a DataFrame into one append per partition, in one streaming pass.

    df -> record columns and partition id -> shuffle by partition id -> mapInArrow -> one file each

The shuffle is a barrier: a bad row (``bad_rows``) fails the job before the first byte is written to the log,
unless bad rows are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    NullType,
    StructType,
    TimestampNTZType,
)

from stratalog.engine.config.topic_config import SPARK_HASH
from stratalog.engine.records.bad_record_lane import LeaveOut
from stratalog.engine.records.bad_records import ERRORS, NO_PARTITION, UNKNOWN_PARTITION
from stratalog.engine.spark.aborted import aborted_as
from stratalog.engine.spark.bad_rows import REFUSED, RowRules, nullable
from stratalog.engine.spark.key_hash import by_key_hash
from stratalog.engine.spark.runner import RESULT, result, results
from stratalog.engine.spark.sql import identifier
from stratalog.engine.spark.unknown_columns import without_unknown
from stratalog.engine.spark.versions import repartition_by_id
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.partitions.errors import InvalidRecordError, OutcomeUnknownError, RetriableError
from stratalog.partitions.growth import ADDED, widened
from stratalog.partitions.records import columns_of_records, type_from_json
from stratalog.partitions.spelling import did_you_mean

PARTITION = "__partition"

ColumnOrName = Column | str
T = TypeVar("T")

_WIDENED = IntegralType, FloatType, DoubleType, DecimalType, DateType, TimestampNTZType
"""Types that can be widened, and the wider types."""
_TIMES = ("timestamp", "timestamp_ntz", "date", "void")
"""Types of a record's timestamp column."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The expressions that make records from a DataFrame. If ``value`` is None, the value is all declared columns
    (typed topics), or the column ``value``.

    Callers with an older schema can continue after the topic's schema has grown: added columns may be absent, and
    structs may lack trailing nullable fields. The records have nulls for missing columns and fields.
    """

    key: ColumnOrName | None = None
    value: ColumnOrName | None = None
    partition: ColumnOrName | None = None
    headers: ColumnOrName | None = None
    timestamp: ColumnOrName | None = None

    def of(self, frame: DataFrame, value: DataType) -> RecordColumns:
        """Return the given columns. If none but the partition is given, return the record columns that the frame
        has (``key``, ``value``, ``headers``, ``timestamp``, ``partition``).
        """
        if any(one is not None for one in (self.key, self.value, self.headers, self.timestamp)):
            return self
        declared = value.fieldNames() if isinstance(value, StructType) else []
        return RecordColumns(**columns_of_records(frame.columns, declared, self.partition))

    @property
    def names(self) -> set[str]:
        given = (self.key, self.value, self.partition, self.headers, self.timestamp)
        return {one for one in given if isinstance(one, str)}


def to_records(
    frame: DataFrame,
    columns: RecordColumns,
    *,
    what: str,
    partitions: int,
    key_type: DataType,
    value_type: DataType,
    partitioner: str = SPARK_HASH,
    keys_required: bool = False,
    bad_records: LeaveOut | None = None,
) -> DataFrame:
    """Return the record columns of a topic, and the partition of each row.

    If the caller does not give a partition, it is a hash of the key, by the topic's ``partitioner``. For a null
    key, it is Spark's hash of the value, so that a recomputed task gives the same row the same partition.

    ``bad_rows`` defines bad rows. With ``bad_records``, columns of other types are cast, and each bad row gets a
    reason, so that the append's tasks leave the row out. With ``keys_required``, rows without a key are bad.

    Raises: InvalidRecordError naming the column that is missing or of another type.
    """
    rules = RowRules(frame, bad_records)
    with _analysed(what):
        value = _value(frame, columns.value, value_type, what, rules)
        key = (
            F.lit(None).cast(nullable(key_type))
            if columns.key is None
            else _typed(frame, columns.key, key_type, f"{what}: key", "key", rules)
        )
        if columns.key is not None:
            rules.given("key", _named(frame, columns.key, f"{what}: key"))
        timestamp = F.lit(None).cast("timestamp")  # the append fills in missing timestamps
        if columns.timestamp is not None:
            timestamp = _time(frame, columns.timestamp, what)
        partition = (
            _dealt(key, key_type, value, value_type, partitions, partitioner)
            if columns.partition is None
            else _partition(frame, columns.partition, partitions, what, rules)
        )
        rules.corrupt(value_type, columns.names)
        rules.required(key, value, (key_type, value_type), keys_required=keys_required)
        chosen = {
            PARTITION: rules.refusing(partition, key, what) if bad_records is None else partition,
            "timestamp": timestamp,
            "key": key,
            "value": value,
        }
        if columns.headers is not None:  # otherwise the log fills them in
            headers = _named(frame, columns.headers, f"{what}: headers")
            chosen["headers"] = headers.cast("array<struct<key:string,value:binary>>")
        if bad_records is not None:
            chosen[ERRORS] = rules.errors()
        records = frame.select(*(column.alias(name) for name, column in chosen.items()))
        records.schema  # noqa: B018 - analysis happens here, at the latest
        return records


def check_columns(frame: DataFrame, columns: RecordColumns, what: str) -> None:
    """Check that each named column is a name or a Column, and that the DataFrame has it. Raises:
    InvalidRecordError.
    """
    for part in dataclasses.fields(columns):
        given = getattr(columns, part.name)
        if given is not None and not isinstance(given, str | Column):
            raise InvalidRecordError(
                f"{what}: {part.name} is {given!r}: give the name of a column, or an expression such as "
                f"F.lit({given!r})"
            )
        if isinstance(given, str):
            _check_name(frame, given, f"{what}: {part.name}")


def _check_name(frame: DataFrame, column: str, what: str) -> None:
    if column not in frame.columns and column.split(".")[0] not in frame.columns:
        hint = did_you_mean(column, frame.columns)
        raise InvalidRecordError(
            f"{what}: column {column!r} is not in the DataFrame, which has {frame.columns}{hint}"
        )


@contextmanager
def _analysed(what: str) -> Iterator[None]:
    """Translates the errors that Spark raises when it analyzes an expression."""
    try:
        yield
    except PySparkException as error:
        lines = str(error.getMessage() or error).strip().splitlines()
        raise InvalidRecordError(f"{what}: {lines[0] if lines else 'Spark cannot do that'}") from error


def _named(frame: DataFrame, column: ColumnOrName, what: str) -> Column:
    if isinstance(column, Column):
        return column
    if column in frame.columns:
        return frame[identifier(column)]  # a name may contain dots
    _check_name(frame, column, what)
    return frame[column]


def _typed(
    frame: DataFrame, column: ColumnOrName, wanted: DataType, what: str, path: str, rules: RowRules
) -> Column:
    """Return the column with the declared type. The only implicit cast to another type is from text to bytes."""
    expression = _named(frame, column, what)
    with _analysed(what):
        given = frame.select(expression.alias("c")).schema[0].dataType
    expression, given = without_unknown(expression, given, wanted)
    if "void" in given.simpleString():
        given = _without_void(given, wanted)
        expression = expression.cast(given)
    if _plain(given) == _plain(wanted):
        return expression.cast(nullable(wanted))
    if _grew(given, wanted):
        return _filled(expression, given, wanted).cast(nullable(wanted))
    if wanted.simpleString() == "binary" and given.simpleString() == "string":
        return expression.cast("binary")
    if (fitted := rules.fitted(expression, given, wanted, path)) is not None:
        return fitted
    raise InvalidRecordError(
        f"{what} is {given.simpleString()}, but is declared as {wanted.simpleString()}: cast it"
    )


def _time(frame: DataFrame, column: ColumnOrName, what: str) -> Column:
    """A timestamp. Numbers are refused, because their unit is ambiguous: seconds in Spark, milliseconds in Kafka.
    Text is also refused: without ANSI mode invalid text would become null, and null means the time of the append.
    """
    expression = _named(frame, column, f"{what}: timestamp")
    given = frame.select(expression.alias("c")).schema[0].dataType.simpleString()
    if given not in _TIMES:
        raise InvalidRecordError(
            f"{what}: timestamp is {given}: make it a time, by timestamp_millis(...), to_timestamp(...), or a cast"
        )
    return expression.cast("timestamp")


def _without_void(given: DataType, wanted: DataType) -> DataType:
    """The type, with ``void`` replaced by the declared type at any depth; Spark's INSERT casts nulls in the same
    way.
    """
    if isinstance(given, NullType):
        return nullable(wanted)
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        kinds = {field.name: field.dataType for field in wanted}
        struct = StructType()
        for field in given:
            kind = _without_void(field.dataType, kinds[field.name]) if field.name in kinds else field.dataType
            struct = struct.add(field.name, kind, field.nullable)
        return struct
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_without_void(given.elementType, wanted.elementType), given.containsNull)
    return given


def _plain(data_type: DataType) -> str:
    """The type without nullability."""
    return data_type.simpleString()


def _grew(narrow: DataType, wide: DataType) -> bool:
    """See ``stratalog.partitions.growth.grew``, for Spark's types."""
    if not (isinstance(narrow, StructType) and isinstance(wide, StructType)):
        return _plain(narrow) == _plain(wide) or _widened(narrow, wide)
    fields = list(zip(narrow, wide, strict=False))
    return (
        len(fields) == len(narrow)
        and all(one.name == two.name and _grew(one.dataType, two.dataType) for one, two in fields)
        and all(field.nullable for field in wide.fields[len(fields) :])
    )


def _widened(narrow: DataType, wide: DataType) -> bool:
    if not isinstance(narrow, _WIDENED) or not isinstance(wide, _WIDENED):
        return False
    return widened(type_from_json(narrow.json()), type_from_json(wide.json()))


def _filled(column: Column, narrow: DataType, wide: DataType) -> Column:
    """A column of an earlier form of the type ``wide``, with nulls added for the missing fields."""
    if not (isinstance(narrow, StructType) and isinstance(wide, StructType)):
        return column
    known = {field.name: field.dataType for field in narrow}
    fields = [
        _filled(column.getField(field.name), known[field.name], field.dataType)
        if field.name in known
        else F.lit(None).cast(field.dataType)
        for field in wide
    ]
    named = (field.alias(of.name) for field, of in zip(fields, wide, strict=True))
    return F.when(column.isNotNull(), F.struct(*named))


def _value(frame: DataFrame, column: ColumnOrName | None, wanted: DataType, what: str, rules: RowRules) -> Column:
    if column is None and not isinstance(wanted, StructType):
        column = "value"
    if column is not None:
        rules.given("value", _named(frame, column, f"{what}: value"))
        return _typed(frame, column, wanted, f"{what}: value", "value", rules)
    assert isinstance(wanted, StructType)
    absent = {field.name for field in wanted if field.name not in frame.columns}
    missing = [field.name for field in wanted if field.name in absent and ADDED not in field.metadata]
    if missing:
        raise InvalidRecordError(
            f"{what}: the DataFrame lacks the declared value columns {missing}; it has {frame.columns}"
        )
    rules.given("value", F.struct(*(F.col(identifier(f.name)) for f in wanted if f.name not in absent)))
    fields = [
        F.lit(None).cast(nullable(f.dataType)).alias(f.name)
        if f.name in absent
        else _typed(
            *(frame, F.col(identifier(f.name)), f.dataType, f"{what}: value column {f.name!r}"),
            path=f"value.{f.name}",
            rules=rules,
        ).alias(f.name)
        for f in wanted
    ]
    return F.struct(*fields).cast(nullable(wanted))


def _dealt(
    key: Column, key_type: DataType, value: Column, value_type: DataType, partitions: int, partitioner: str
) -> Column:
    """The partition computed from the key, or from the value for a null key."""

    def by_hash(column: Column, data_type: DataType) -> Column:
        if "map<" in data_type.simpleString():  # Spark cannot hash maps
            column = F.to_json(F.struct(column))
        return F.pmod(F.hash(column), F.lit(partitions))

    of_key = by_hash(key, key_type)
    if partitioner != SPARK_HASH:
        of_key = by_key_hash(key, key_type, partitions, partitioner)
    return F.when(key.isNotNull(), of_key).otherwise(by_hash(value, value_type))


def _partition(frame: DataFrame, column: ColumnOrName, partitions: int, what: str, rules: RowRules) -> Column:
    """The partition that a row names; if bad rows are left out, 0 for an invalid partition."""
    given = _named(frame, column, f"{what}: partition")
    kind = frame.select(given.alias("c")).schema[0].dataType.simpleString()
    if kind not in ("tinyint", "smallint", "int", "bigint"):
        raise InvalidRecordError(f"{what}: the partition column is {kind}, but must be an integer")
    elsewhere = (given < 0) | (given >= partitions)
    if rules.leave_out is not None:
        rules.bad(NO_PARTITION, given.isNull())
        rules.bad(UNKNOWN_PARTITION, elsewhere, given.cast("string"))
        return F.when(given.isNull() | elsewhere, F.lit(0)).otherwise(given.cast("int"))
    refuse_null = F.raise_error(F.lit(f"{REFUSED}{what}: a row's partition is null; give each row a partition"))
    refuse_range = F.raise_error(
        F.concat(
            F.lit(f"{REFUSED}{what}: a row's partition is "),
            given.cast("string"),
            F.lit(f", but the topic has partitions 0 to {partitions - 1}"),
        )
    )
    return (
        F.when(given.isNull(), refuse_null.cast("int"))
        .when(elsewhere, refuse_range.cast("int"))
        .otherwise(given.cast("int"))
    )


def run_appends(
    records: DataFrame,
    partitions: int,
    task: Callable[[int, Iterator[pa.RecordBatch]], T],
    order_by: Sequence[str] = (),
    only: Sequence[int] | None = None,
) -> list[T]:
    """Shuffle the records by partition (restricted to ``only``, if given), run ``task(partition, batches)`` for
    each partition with records, and return the results of the tasks.

    Raises: InvalidRecordError for a row without a valid partition; OutcomeUnknownError when Spark aborted the job:
    any number of tasks may have appended. ``task`` returns its own errors.
    """

    @in_worker
    def per_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        if first is not None:
            yield result(task(first.column(PARTITION)[0].as_py(), _records(first, full)))

    if only is not None:
        records = records.where(F.col(PARTITION).isin(list(only)))
    shuffled = in_order(repartition_by_id(records, partitions, PARTITION), order_by)
    unknown = "its outcome is unknown: append again with the same producer and sequence"
    with refusals(), aborted_as(OutcomeUnknownError, unknown):
        return results(shuffled.mapInArrow(per_task, RESULT).toArrow())


def in_order(records: DataFrame, order_by: Sequence[str]) -> DataFrame:
    """Return the records, with each partition in one task, sorted by the given columns of the record, if any.

    Raises: InvalidRecordError naming a missing column.
    """
    if not order_by:
        return records
    with _analysed(f"order_by {list(order_by)}"):
        late = [F.col(name).asc_nulls_last() if name == "timestamp" else name for name in order_by]
        ordered = records.sortWithinPartitions(*late)  # a null timestamp becomes the time of the append
        ordered.schema  # noqa: B018 - analysis happens here, at the latest
        return ordered


def by_partition(rows: pa.Table, partitions: pa.ChunkedArray) -> dict[int, list[pa.RecordBatch]]:
    """Rows as batches by partition; ``partitions`` has the partition of each row and no nulls."""
    return {
        number: rows.filter(pc.equal(partitions, number)).combine_chunks().to_batches()
        for number in sorted(pc.unique(partitions).to_pylist())
    }


def count_records(records: DataFrame, *, by_reason: bool = False) -> dict[tuple[int, str | None], int]:
    """Count the records of each partition. With ``by_reason``, bad records are counted separately, by reason.

    Raises: InvalidRecordError, see ``run_appends``; RetriableError when Spark aborted the job.
    """
    with refusals(), aborted_as(RetriableError, "the records were not counted"):
        reason = records[ERRORS]["reason"] if by_reason else F.lit(None).cast("string")
        counted = records.groupBy(records[PARTITION], reason.alias("reason")).count()
        return {(row[0], row[1]): row[2] for row in counted.collect()}


@contextmanager
def refusals() -> Iterator[None]:
    """Translates the error that ``raise_error`` raised for a row."""
    try:
        yield
    except PySparkException as error:
        text = str(error)
        if REFUSED in text:
            message = text.split(REFUSED, 1)[1].splitlines()[0].partition(" SQLSTATE:")[0]
            raise InvalidRecordError(message.rstrip("'\"")) from error
        raise


def _records(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The record columns of one partition's batches, without the partition column."""
    partition = first.column(PARTITION)[0].as_py()
    columns = [name for name in first.schema.names if name != PARTITION]
    yield first.select(columns)
    for batch in rest:
        if batch.column(PARTITION)[0].as_py() != partition:
            raise AssertionError("a shuffle by partition id has put two partitions into one task")
        yield batch.select(columns)
