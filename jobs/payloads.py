"""Records as tail prints them: keys and values as text, JSON, hex or base64, or decoded by an Avro schema."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.engine.driver.plain_values import plain, raw_bytes, time_text
from stratalog.engine.formats.avro import AvroValues
from stratalog.engine.formats.decoder import AVRO, CONFLUENT_AVRO, UndecodedError
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.printable import printable

FORMATS = ("text", "json", "hex", "base64", AVRO, CONFLUENT_AVRO)

Show = Callable[[dict[str, Any]], str]
"""Formats a record as a line."""


def shown_as(how: str, avro_schema: str | None = None) -> Show:
    """The formatter for a name of ``FORMATS``; ``avro_schema`` is the schema file of the Avro formats.

    Raises: InvalidCallError; EnvironmentUnusableError without fastavro. The formatter raises InvalidCallError for
        a value that does not fit the schema.
    """
    avro = how in (AVRO, CONFLUENT_AVRO)
    if avro != (avro_schema is not None):
        raise InvalidCallError("--format avro and confluent-avro need --avro-schema, and only they take it")
    if avro_schema is not None:
        decode = _avro(AvroValues(Path(avro_schema), framed=how == CONFLUENT_AVRO))
        return lambda record: _object({**record, "value": decode(record)})
    return {"text": _line, "json": _object, "hex": _hex, "base64": _base64}[how]


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


def _avro(values: AvroValues) -> Callable[[dict[str, Any]], Any]:
    """The value of a record, decoded. Raises: InvalidCallError."""

    def decode(record: dict[str, Any]) -> Any:
        value = record["value"]
        if value is None:
            return None
        of = f"partition {record['partition']}, offset {record['offset']}"
        if not isinstance(value, bytes):
            raise InvalidCallError(f"{of}: the topic is typed, so its values are not Avro: omit --format")
        try:
            return values.decode(value)
        except UndecodedError as error:
            raise InvalidCallError(f"{of}: {error}") from error

    return decode
