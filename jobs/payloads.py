"""Records as tail prints them: keys and values as text, JSON, hex or base64, or decoded by a bridge."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.engine.config.bridges import bridges
from stratalog.engine.driver.plain_values import plain, raw_bytes, time_text
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.printable import printable

FORMATS = ("text", "json", "hex", "base64")
"""The formats without a schema."""

Show = Callable[[dict[str, Any]], str]
"""Formats a record as a line."""


def decoded_formats() -> list[str]:
    """The formats of bridges: they decode values by a schema."""
    return [name for bridge in bridges() for name in bridge.formats]


def shown_as(how: str, schema: str | None = None) -> Show:
    """The formatter for a name of ``FORMATS`` or ``decoded_formats``; ``schema`` is the schema file of the latter.

    Raises: InvalidCallError; EnvironmentUnusableError without the bridge or its library. The formatter raises
        InvalidCallError for a value that does not fit the schema.
    """
    if how in FORMATS:
        if schema is not None:
            raise InvalidCallError(f"--schema is for --format {' and '.join(decoded_formats())}")
        return {"text": _line, "json": _object, "hex": _hex, "base64": _base64}[how]
    if schema is None:
        raise InvalidCallError(f"--format {how} needs --schema")
    bridge = next(one for one in bridges() if how in one.formats)
    decode = _decoded(bridge.load(bridge.formats[how])(Path(schema)), how)
    return lambda record: _object({**record, "value": decode(record)})


def _line(record: dict[str, Any], text: Callable[[Any], str] | None = None) -> str:
    text = text or _text
    said = ("" if record[name] is None else text(record[name]) for name in ("key", "value"))
    return "\t".join((str(record["partition"]), str(record["offset"]), time_text(record["timestamp"]), *said))


def _object(record: dict[str, Any]) -> str:
    headers = [{"key": plain(one["key"]), "value": plain(one["value"])} for one in record["headers"] or ()]
    shown = {name: plain(record[name]) for name in ("partition", "offset")}
    shown |= {
        "timestamp": time_text(record["timestamp"]),
        "key": plain(record["key"]),
        "value": plain(record["value"]),
    }
    return json.dumps({**shown, "headers": headers}, default=str, allow_nan=False)


def _text(value: Any) -> str:
    """A value as part of a line: backslashes are escaped, then bytes that are not UTF-8, then unprintable text."""
    if isinstance(value, bytes):
        return printable(value.replace(b"\\", b"\\\\").decode("utf-8", errors="backslashreplace"))
    shown = plain(value)
    if not isinstance(shown, str):
        return printable(json.dumps(shown, default=str, allow_nan=False))
    return printable(shown.replace("\\", "\\\\"))


def _hex(record: dict[str, Any]) -> str:
    return _line(record, lambda value: (raw_bytes(value) or b"").hex())


def _base64(record: dict[str, Any]) -> str:
    return _line(record, lambda value: base64.b64encode(raw_bytes(value) or b"").decode())


def _decoded(decode: Callable[[bytes], Any], how: str) -> Callable[[dict[str, Any]], Any]:
    """The value of a record, decoded. Raises: InvalidCallError."""

    def decoded(record: dict[str, Any]) -> Any:
        value = record["value"]
        if value is None:
            return None
        of = f"partition {record['partition']}, offset {record['offset']}"
        if not isinstance(value, bytes):
            raise InvalidCallError(f"{of}: the topic is typed, so its values are not {how}: omit --format")
        try:
            return decode(value)
        except ValueError as error:
            raise InvalidCallError(f"{of}: {error}") from error

    return decoded
