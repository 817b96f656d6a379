"""Finds the rows of a DataFrame that cannot become records of their topic. Expressions find them before the
shuffle.

    partition    missing, or not one of the topic's
    key, value   if bad rows are left out: a cast to the declared type loses information (a text that Spark's
                 ``try_cast`` cannot convert, a number that changes, or bytes that are not text)
    required     a field that is declared NOT NULL is null
    no key       in a topic that keeps the latest record of each key
    too large    the row's texts and bytes exceed the memory of readers (for types with lists or maps, whose size
                 costs too much to compute here, a task of the append checks it)
    corrupt      the column ``_corrupt_record`` (``spark.sql.columnNameOfCorruptRecord``) is not null: Spark's
                 reader of JSON or CSV could not parse the line

If bad records are not left out, such a row fails the job before the first byte is written. If they are left out,
the row goes to its task with a reason, in the column ``bad_records.ERRORS``, and the task leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stratalog.engine.records.bad_record_lane import LeaveOut
from stratalog.engine.records.bad_records import MOST_BYTES, NO_KEY, TOO_LARGE, missing
from stratalog.engine.spark.balanced import balanced
from stratalog.engine.spark.narrow import width_of
from stratalog.engine.spark.sql import identifier

REFUSED = "stratalog refuses the record: "
"""The prefix of the reason in a job's error."""
CORRUPT = "Spark's reader could not parse it"
_CORRUPT_SETTING = "spark.sql.columnNameOfCorruptRecord"
_OF_TIME = DateType | TimestampType | TimestampNTZType
_CAST = StringType | BinaryType | BooleanType | NumericType | _OF_TIME


@dataclass(slots=True)
class RowRules:
    """Collects the reasons for which rows of a frame are bad, and the rows as given."""

    frame: DataFrame
    leave_out: LeaveOut | None
    """None means that a bad row makes the append fail, and that columns of other types are refused before the job.
    """
    _bad: list[tuple[str, Column, Column | None]] = field(default_factory=list)
    _given: dict[str, Column] = field(default_factory=dict)
    _text: Column | None = None

    def bad(self, reason: str, where: Column, detail: Column | None = None) -> None:
        """Add a rule: the rows for which ``where`` is true are bad."""
        self._bad.append((reason, where, detail))

    def given(self, name: str, column: Column) -> None:
        """Record the key or value as given."""
        self._given[name] = column

    def corrupt(self, value: DataType, used: set[str]) -> None:
        """Check the column of corrupt records, if the frame has one and the records do not use it."""
        name = corrupt_column(self.frame)
        if name is None or name in used or (isinstance(value, StructType) and name in value.fieldNames()):
            return
        self._text = self.frame[identifier(name)]
        self.bad(CORRUPT, self._text.isNotNull())

    def required(
        self, key: Column, value: Column, types: tuple[DataType, DataType], *, keys_required: bool
    ) -> None:
        """Check the fields that the topic requires."""
        if keys_required:
            self.bad(NO_KEY, key.isNull())
        widths = [width_of(column, kind) for column, kind in zip((key, value), types, strict=True)]
        known = [width for width in widths if width is not None]
        if self.leave_out is None and len(known) == len(widths):  # otherwise the task of the append checks it
            self.bad(TOO_LARGE, balanced(Column.__add__, known) > MOST_BYTES)
        for column, name, kind in ((key, "key", types[0]), (value, "value", types[1])):
            for path, where in _missing(column, kind, name):
                self.bad(missing(path), where)

    def fitted(self, column: Column, given: DataType, wanted: DataType, path: str) -> Column | None:
        """Return a column cast to another type, row by row. Return None if bad rows are refused, or if no cast is
        unambiguous (from numbers to times, for example).
        """
        if self.leave_out is None:
            return None
        if given.simpleString() == wanted.simpleString():
            return column.cast(nullable(wanted))
        if isinstance(given, StructType) and isinstance(wanted, StructType):
            return self._fitted_struct(column, given, wanted, path)
        if not isinstance(given, _CAST) or not isinstance(wanted, _CAST):
            return None
        if isinstance(given, _OF_TIME) != isinstance(wanted, _OF_TIME) and not (
            isinstance(given, StringType) or isinstance(wanted, StringType)
        ):
            return None
        cast = column.try_cast(wanted)
        lost = cast.isNull()
        if isinstance(given, BinaryType):
            lost = lost | ~F.is_valid_utf8(column.cast("string"))
        elif not isinstance(given, StringType):
            lost = lost | ~cast.try_cast(given).eqNullSafe(column)
        try:
            self.frame.select(lost).schema  # noqa: B018 - analysis happens here
        except PySparkException:
            return None
        self.bad(f"{path} is not of type {wanted.simpleString().upper()}", column.isNotNull() & lost)
        return cast

    def _fitted_struct(self, column: Column, given: StructType, wanted: StructType, path: str) -> Column | None:
        names = given.fieldNames()
        if names != wanted.fieldNames()[: len(names)] or not all(f.nullable for f in wanted.fields[len(names) :]):
            return None
        fields = []
        for one, other in zip(given, wanted, strict=False):
            inner = self.fitted(column.getField(one.name), one.dataType, other.dataType, f"{path}.{one.name}")
            if inner is None:
                return None
            fields.append(inner.alias(one.name))
        fields += [F.lit(None).cast(nullable(of.dataType)).alias(of.name) for of in wanted.fields[len(names) :]]
        return F.when(column.isNotNull(), F.struct(*fields))

    def refusing(self, partition: Column, key: Column, what: str) -> Column:
        """The partition of a row, as an expression that fails for a bad row."""
        named = F.to_json(F.struct(key.alias("key")), {"ignoreNullFields": "false"})
        fails = []
        for reason, where, _ in self._bad:
            message = F.concat(F.lit(f"{REFUSED}{what}: the record with "), named, F.lit(f": {reason}"))
            fails.append(F.when(where, F.raise_error(message).cast("int")))
        return F.coalesce(*fails, partition) if fails else partition

    def errors(self) -> Column:
        """The column ``bad_records.ERRORS``."""
        nothing = F.lit(None).cast("string")
        reason = F.coalesce(*(F.when(where, F.lit(text)) for text, where, _ in self._bad), nothing)
        fields = [reason.alias("reason")]
        if self.leave_out is not None and self.leave_out.topic is not None:
            details = (F.when(where, detail) for _, where, detail in self._bad if detail is not None)
            fields.append(F.coalesce(*details, nothing).alias("detail"))
            is_bad = balanced(Column.__or__, [F.lit(False), *(where for _, where, _ in self._bad)])
            fields += [F.when(is_bad, column).alias(name) for name, column in self._given.items()]
            if self._text is not None:
                fields.append(self._text.alias("text"))
            fields += self._places()
        return F.struct(*fields)

    def _places(self) -> list[Column]:
        """The topic, partition and offset from which a row was read, if the frame has these columns of Spark's
        Kafka source or of this format.
        """
        kinds = {"topic": "string", "partition": "int", "offset": "bigint"}
        return [
            self.frame[identifier(name)].try_cast(kind).alias(name)
            for name, kind in kinds.items()
            if name in self.frame.columns
            and isinstance(self.frame.schema[name].dataType, StringType | NumericType)
        ]


def corrupt_column(frame: DataFrame) -> str | None:
    """The column for lines that Spark's reader could not parse, if the frame has one."""
    name = str(frame.sparkSession.conf.get(_CORRUPT_SETTING, "_corrupt_record"))
    if name in frame.columns and isinstance(frame.schema[name].dataType, StringType):
        return name
    return None


def nullable(kind: DataType) -> DataType:
    """The type with all fields nullable, because nulls are checked per row."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, nullable(f.dataType), True, f.metadata) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def _missing(column: Column, kind: DataType, path: str) -> list[tuple[str, Column]]:
    """The name of each required field, and a condition that is true where the field is null."""
    found: list[tuple[str, Column]] = []
    if isinstance(kind, StructType):
        for of in kind:
            child, name = column.getField(of.name), f"{path}.{of.name}"
            if not of.nullable:
                found.append((name, column.isNotNull() & child.isNull()))
            found += _missing(child, of.dataType, name)
    elif isinstance(kind, ArrayType):
        found += _missing_inside(column, kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        found += _missing_inside(F.map_keys(column), kind.keyType, f"{path}.key")
        found += _missing_inside(F.map_values(column), kind.valueType, f"{path}.value")
    return found


def _missing_inside(column: Column, kind: DataType, path: str) -> list[tuple[str, Column]]:
    if not _requires(kind):
        return []

    def of_elements(at: int) -> Column:
        return F.coalesce(F.exists(column, lambda one: _missing(one, kind, path)[at][1]), F.lit(False))

    return [(name, of_elements(at)) for at, (name, _) in enumerate(_missing(F.lit(None), kind, path))]


def _requires(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(not of.nullable or _requires(of.dataType) for of in kind)
    if isinstance(kind, ArrayType):
        return _requires(kind.elementType)
    return isinstance(kind, MapType) and (_requires(kind.keyType) or _requires(kind.valueType))
