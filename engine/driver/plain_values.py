"""Values of records as JSON has them, for people and for topics of bytes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stratalog.engine.driver.report import json_float

if TYPE_CHECKING:
    import pyarrow as pa


def as_it_is(scalar: pa.Scalar) -> Any:
    """A value for Python; the number of a time that Python cannot hold, the bytes of a text that is not UTF-8."""
    import pyarrow as pa  # here: ``tail --help`` does not wait for it

    match scalar:
        case pa.StructScalar() if scalar.is_valid:
            return {name: as_it_is(scalar[name]) for name in scalar}
        case pa.ListScalar() if scalar.is_valid:  # a map, too, of pairs
            return [as_it_is(one) for one in scalar.values]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return bytes(scalar.as_buffer())
    except OverflowError:
        return scalar.value


def plain(value: Any, timespec: str = "milliseconds") -> Any:
    """For JSON: bytes as text, or as an object with their base64. Floats as ``json_float``; ``timespec`` is
    ``datetime.isoformat``'s, of times."""
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


def time_text(time: datetime | int | None, timespec: str = "milliseconds") -> str:
    """ISO text, UTC; one without a zone as it is. A number is one of microseconds; nothing for None."""
    if isinstance(time, int):
        return f"{time} us"
    if time is None:
        return ""
    return (time if time.tzinfo is None else time.astimezone(UTC)).isoformat(timespec=timespec)


def raw_bytes(scalar: pa.Scalar) -> bytes | None:
    """A value as bytes: bytes as they are, text as UTF-8, anything else as JSON."""
    value = as_it_is(scalar)
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode("utf-8", errors="surrogatepass")
    return json.dumps(plain(value, "microseconds"), default=str, allow_nan=False).encode()


def cell_text(scalar: pa.Scalar) -> str:
    """A value in a table for people."""
    value = as_it_is(scalar)
    if isinstance(value, datetime):
        return time_text(value)
    shown = plain(value)
    if shown is None or isinstance(shown, str):
        return "-" if shown is None else shown
    return json.dumps(shown, default=str, allow_nan=False, ensure_ascii=False)
