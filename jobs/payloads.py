"""Records as tail shows them: keys and values as text, JSON, hex, base64, or decoded by a schema of Avro."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.engine.driver.plain_values import plain, raw_bytes, time_text
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.printable import printable

FORMATS = ("text", "json", "hex", "base64", "avro", "confluent-avro")

_FRAME = 5
"""Bytes before a value that Confluent's serializer has written: a zero, and the id of its schema."""

Show = Callable[[dict[str, Any]], str]
"""The line of a record."""


def shown_as(how: str, avro_schema: str | None = None) -> Show:
    """How the records are shown, by a name of ``FORMATS``; ``avro_schema`` is the file of those of Avro.

    Raises: InvalidCallError; EnvironmentUnusableError without fastavro; while records are shown, InvalidCallError
        for a value that is not of the schema.
    """
    avro = how in ("avro", "confluent-avro")
    if avro != (avro_schema is not None):
        raise InvalidCallError("--format avro and confluent-avro go together with --avro-schema")
    if avro_schema is not None:
        decode = _avro(Path(avro_schema), framed=how == "confluent-avro")
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
    """In a line: with its backslashes escaped, and then what is no text in bytes, and what is not printable."""
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


def _avro(path: Path, *, framed: bool) -> Callable[[dict[str, Any]], Any]:
    """The value of a record, decoded. Raises: as ``shown_as``."""
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise EnvironmentUnusableError(
            "values of Avro need fastavro, which is not installed: pip install 'stratalog[avro]'"
        ) from error
    try:
        schema = fastavro.schema.load_schema(str(path))
    except Exception as error:  # of many kinds: whatever it stumbles upon in a file
        raise InvalidCallError(f"{path} holds no schema of Avro that can be read: {error}") from error

    def decode(record: dict[str, Any]) -> Any:
        value = record["value"]
        if value is None:
            return None
        of = f"partition {record['partition']}, offset {record['offset']}"
        if not isinstance(value, bytes):
            raise InvalidCallError(f"{of}: the topic is typed, its values are not of Avro: leave --format out")
        if framed and (value[:1] != b"\0" or len(value) < _FRAME):
            raise InvalidCallError(f"{of}: no id of a schema stands before the value: try --format avro")
        source = io.BytesIO(value[_FRAME:] if framed else value)
        try:
            found = fastavro.schemaless_reader(source, schema, None)
        except Exception as error:  # of many kinds, too
            raise InvalidCallError(f"{of}: the value is not of {path}: {type(error).__name__}: {error}") from error
        if rest := len(source.read()):
            raise InvalidCallError(f"{of}: the value is not of {path}: it has {rest} bytes more than that")
        return found

    return decode
