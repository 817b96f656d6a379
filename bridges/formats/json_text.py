"""Decodes JSON texts to values of a declared type, without omitting or rounding anything: an object with an
undeclared name, or a number that does not fit, is not decoded.
"""

from __future__ import annotations

import base64
import math
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from stratalog.bridges.formats.decoder import UndecodedError, schema_bytes
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.declared import declared
from stratalog.partitions.errors import InvalidCallError

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    **dict.fromkeys(("byte", "short", "integer", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("binary", "date", "timestamp", "timestamp_ntz"), (str,)),
}
_LARGEST_FLOAT = 3.4028234663852886e38
_FINER = re.compile(r"[.,]\d{6}\d*[1-9]")
"""A fraction of a second with more than six digits that count."""
_EXACT_DIGITS = 15
"""The number of significant digits of a decimal that was a double."""


class JsonValues:
    """See ``stratalog.bridges.formats.decoder.Decoder``."""

    def __init__(self, schema: str) -> None:
        """``schema`` is the result of ``declared``. Raises: InvalidCallError unless it is a struct whose maps have
        texts as keys.
        """
        self.schema = schema
        self._tree = parse_json(schema)
        if not isinstance(self._tree, dict) or self._tree.get("type") != "struct":
            raise InvalidCallError(
                "a schema for JSON must have fields, which become the topic's columns: id LONG, at TIMESTAMP"
            )
        _check(self._tree)

    def decode(self, value: bytes) -> Any:
        """Raises: UndecodedError."""
        try:
            found = parse_json(value)
            if found is None:
                raise UndecodedError("null has no fields")
            return _of(self._tree, found)
        except UndecodedError:
            raise
        except (ValueError, ArithmeticError) as error:
            raise UndecodedError(str(error)) from error


def json_decoder(path: Path) -> JsonValues:
    """A decoder for the type in a file, as DDL or as Spark's JSON text. Raises: InvalidCallError."""
    try:
        return JsonValues(declared(schema_bytes(path).decode().strip()))
    except (UnicodeDecodeError, InvalidCallError) as error:
        raise InvalidCallError(f"the schema {path}: {error}") from error


def _check(tree: Any) -> None:
    match tree:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                _check(field["type"])
        case {"type": "array", "elementType": element}:
            _check(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            if key != "string":
                raise InvalidCallError(
                    f"keys of a JSON object are strings, so a MAP cannot have keys of type {key}"
                )
            _check(value)


def _of(tree: Any, value: Any) -> Any:
    """Convert a value to a type. Raises: UndecodedError; ValueError, ArithmeticError for a text that does not
    match.
    """
    if value is None:
        return None
    match tree:
        case str():
            return _atom(tree, value)
        case {"type": "struct", "fields": fields} if isinstance(value, dict):
            names = {field["name"] for field in fields}
            if unknown := sorted(value.keys() - names):
                raise UndecodedError(f"{unknown[0]!r} is not declared")
            made = {}
            for field in fields:
                one = made[field["name"]] = _of(field["type"], value.get(field["name"]))
                if one is None and not field["nullable"]:
                    raise UndecodedError(f"{field['name']!r} is NOT NULL, but null or missing")
            return made
        case {"type": "array", "elementType": element} if isinstance(value, list):
            return [_of(element, one) for one in value]
        case {"type": "map", "valueType": of_value} if isinstance(value, dict):
            return [(key, _of(of_value, one)) for key, one in value.items()]
    raise UndecodedError(f"a {type(value).__name__} is not a {tree['type']}")


def _atom(kind: str, value: Any) -> Any:
    """Convert a value of a type that is not nested."""
    if kind.startswith("decimal"):
        return _decimal(value)
    fits: bool = isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not fits:
        raise UndecodedError(f"a {type(value).__name__} is not a {kind}")
    if kind == "binary":
        return base64.b64decode(value, validate=True)
    if kind == "date":
        return date.fromisoformat(value)
    if kind in ("timestamp", "timestamp_ntz"):
        when = datetime.fromisoformat(value)
        if _FINER.search(value):  # ``fromisoformat`` drops the digits after the sixth
            raise UndecodedError(f"{value!r} is finer than a microsecond")
        if (when.tzinfo is None) != (kind == "timestamp_ntz"):
            raise UndecodedError(f"{value!r} is not a {kind}: only a TIMESTAMP_NTZ has no offset from UTC")
        return when
    if kind == "float" and isinstance(value, float) and math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        raise UndecodedError(f"{value!r} is not a float")
    return value


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UndecodedError(f"a {type(value).__name__} is not a decimal")
    made = Decimal(str(value))
    if not made.is_finite() or (isinstance(value, float) and len(made.as_tuple().digits) > _EXACT_DIGITS):
        raise UndecodedError(f"{value!r} is not an exact decimal: write it as a string")
    return made
