"""Converts values of records to JSON, for people and for topics of bytes, and back."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from stratalog.engine.driver.report import json_float

if TYPE_CHECKING:
    import pyarrow as pa

_EXAMPLE_FIELDS = 5
_EXACT_DIGITS = 15
"""The number of significant digits of a decimal that a double keeps."""


def as_it_is(scalar: pa.Scalar) -> Any:
    """Convert a value to Python. A time outside Python's range becomes an integer, and text that is not UTF-8
    becomes bytes.
    """
    import pyarrow as pa  # here, so that ``tail --help`` does not load it

    match scalar:
        case pa.StructScalar() if scalar.is_valid:
            return {name: as_it_is(scalar[name]) for name in scalar}
        case pa.MapScalar() if scalar.is_valid:
            return [(as_it_is(entry[0]), as_it_is(entry[1])) for entry in scalar.values]
        case pa.ListScalar() if scalar.is_valid:
            return [as_it_is(one) for one in scalar.values]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return bytes(scalar.as_buffer())
    except OverflowError:
        return scalar.value


def plain(value: Any, timespec: str | None = None) -> Any:
    """A value for JSON: bytes as text, or as an object with their base64. For floats see ``json_float``.
    ``timespec`` is as in ``datetime.isoformat``; for None see ``time_text``.
    """
    match value:
        case float():
            return json_float(value)
        case bytes():
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode("ascii")}
        case datetime():
            return time_text(value, timespec)
        case dict():
            return {name: plain(one, timespec) for name, one in value.items()}
        case list() | tuple():  # an array; an entry of a map
            return [plain(one, timespec) for one in value]
    return value


def time_text(time: datetime | int | None, timespec: str | None = None) -> str:
    """ISO text in UTC; without a zone if the time has none. An int is in microseconds; None gives None.
    ``timespec`` None: milliseconds, unless that loses precision.
    """
    if isinstance(time, int):
        return f"{time} us"
    if time is None:
        return ""
    if timespec is None:
        timespec = "microseconds" if time.microsecond % 1000 else "milliseconds"
    return (time if time.tzinfo is None else time.astimezone(UTC)).isoformat(timespec=timespec)


def raw_bytes(value: Any) -> bytes | None:
    """A Python value as bytes: bytes unchanged, text as UTF-8, other values as JSON."""
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode("utf-8", errors="surrogatepass")
    return json.dumps(plain(value, "microseconds"), default=str, allow_nan=False).encode()


def raw_column(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values of a column, converted by ``raw_bytes``, as a BINARY column."""
    import pyarrow as pa  # as above

    kinds, kind = pa.types, column.type
    if kinds.is_integer(kind):  # the text of an integer is also its JSON
        return column.cast(pa.string()).cast(pa.binary())
    if (
        kinds.is_binary(kind)
        or kinds.is_string(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_large_string(kind)
    ):
        return column.cast(pa.binary())
    try:
        values = column.to_pylist()
    except (OverflowError, UnicodeDecodeError):  # not a Python time (after the year 9999), or not UTF-8
        values = [as_it_is(one) for one in column]
    return pa.array(map(raw_bytes, values), pa.binary())


def from_plain(value: Any, kind: pa.DataType) -> Any:
    """Return the value of this type whose ``plain`` form is given. A time without a zone is UTC if the type has a
    zone; a map may be an object, and a missing field is null.

    Raises: ValueError naming the part that does not fit.
    """
    import pyarrow as pa  # as above

    is_a = pa.types
    match value:
        case None:
            return None
        case dict() if is_a.is_struct(kind):
            return _fields(value, kind)
        case list() if is_a.is_list(kind):
            return [from_plain(one, kind.value_type) for one in value]
        case dict() | list() if is_a.is_map(kind):
            pairs = list(value.items()) if isinstance(value, dict) else value
            if not all(isinstance(one, list | tuple) and len(one) == 2 for one in pairs):
                raise ValueError("a map must be an object, or a list of [key, value]")
            return [(from_plain(one, kind.key_type), from_plain(two, kind.item_type)) for one, two in pairs]
        case {"base64": str(text), **others} if is_a.is_binary(kind) and not others:
            return base64.b64decode(text, validate=True)
        case str():
            return _from_text(value, kind)
        case bool() if is_a.is_boolean(kind):
            return value
        case int() if not isinstance(value, bool) and (is_a.is_integer(kind) or is_a.is_floating(kind)):
            return value if is_a.is_integer(kind) else float(value)
        case float() if is_a.is_floating(kind):
            return value
        case int() | float() if is_a.is_decimal(kind) and not isinstance(value, bool):
            if isinstance(value, float) and len(Decimal(str(value)).as_tuple().digits) > _EXACT_DIGITS:
                raise ValueError(f"{value!r} may be rounded: write a decimal with that many digits as text")
            return Decimal(str(value))
    raise ValueError(f"{json.dumps(value)[:100]} is not of type {kind}")


def example(kind: pa.DataType) -> Any:
    """An example of this type, in the form that ``from_plain`` takes; for a struct, its first fields."""
    import pyarrow as pa  # as above

    is_a = pa.types
    if is_a.is_struct(kind):
        return {field.name: example(field.type) for field in list(kind)[:_EXAMPLE_FIELDS]}
    if is_a.is_list(kind):
        return [example(kind.value_type)]
    if is_a.is_map(kind):
        return [[example(kind.key_type), example(kind.item_type)]]
    if is_a.is_timestamp(kind):
        return "2013-01-02T03:04:05" if kind.tz is None else "2013-01-02T03:04:05Z"
    if is_a.is_date(kind):
        return "2013-01-02"
    if is_a.is_boolean(kind):
        return True
    if is_a.is_floating(kind):
        return 1.5
    return 1 if is_a.is_integer(kind) or is_a.is_decimal(kind) else "text"


def _from_text(text: str, kind: pa.DataType) -> Any:
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_string(kind):
        return text
    if is_a.is_binary(kind):
        return text.encode()
    try:
        if is_a.is_timestamp(kind):
            if text.endswith(" us"):
                return pa.scalar(int(text.removesuffix(" us")), kind)
            found = datetime.fromisoformat(text)
            if kind.tz is None and found.tzinfo is not None:
                raise ValueError
            return found if kind.tz is None or found.tzinfo is not None else found.replace(tzinfo=UTC)
        if is_a.is_date(kind):
            return date.fromisoformat(text)
        if is_a.is_decimal(kind):
            return Decimal(text)
        if is_a.is_floating(kind) and text in ("NaN", "Infinity", "-Infinity"):
            return float(text)
    except (ValueError, OverflowError, InvalidOperation):
        pass
    raise ValueError(f"{text[:100]!r} is not of type {kind}")


def _fields(value: dict[str, Any], kind: pa.DataType) -> dict[str, Any]:
    """The object's fields, converted to the types of the struct. Fields that the type lacks are unchanged, for
    ``partitions.unknown_fields``.
    """
    types = {field.name: field.type for field in kind}
    found = {name: one for name, one in value.items() if name not in types}
    for name, one in types.items():
        try:
            found[name] = from_plain(value.get(name), one)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return found


def cell_text(scalar: pa.Scalar) -> str:
    """A value in a table."""
    value = as_it_is(scalar)
    if isinstance(value, datetime):
        return time_text(value)
    shown = plain(value)
    if shown is None or isinstance(shown, str):
        return "-" if shown is None else shown
    return json.dumps(shown, default=str, allow_nan=False, ensure_ascii=False)
