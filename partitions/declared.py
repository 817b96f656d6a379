"""The type of a topic's keys or values as users declare it: DDL, or Spark's JSON text. Pure.

DDL is that of Spark's ``CREATE TABLE``, as far as topics support it: ``STRING``, ``carrier STRING, legs INT``,
``legs ARRAY<STRUCT<gate: STRING NOT NULL>> COMMENT 'of one day'``. All other types of Spark are refused.
``TIMESTAMP`` is a point in time, whatever ``spark.sql.timestampType`` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.growth import ADDED
from stratalog.partitions.records import MOST_NESTED, type_from_json
from stratalog.partitions.spelling import did_you_mean

LONGEST = 1_000_000
"""The maximum number of characters of a declared type."""

_COLLATIONS = "__COLLATIONS"
"""Spark's key for the collations of texts, in the metadata of a field."""
_SHOWN = 200
_TOKEN = re.compile(
    r"(?P<blank>\s+)|(?P<word>[A-Za-z_]\w*)|`(?P<quoted>(?:[^`]|``)+)`|'(?P<text>[^'\\]*)'|(?P<number>\d{1,9})"
    r"|(?P<sign>[<>(),:])",
    re.ASCII,
)
_ATOMIC: Mapping[str, str] = {
    "string": "string",
    "binary": "binary",
    "boolean": "boolean",
    "byte": "byte",
    "tinyint": "byte",
    "short": "short",
    "smallint": "short",
    "int": "integer",
    "integer": "integer",
    "long": "long",
    "bigint": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_DECIMAL = ("decimal", "dec", "numeric")
_NAMES = (*_ATOMIC, *_DECIMAL, "array", "map", "struct")
_SQL = {"integer": "INT", "long": "BIGINT", "short": "SMALLINT", "byte": "TINYINT"}


def declared(text: str) -> str:
    """The JSON text of a declared type for the metadata: Spark's text, reduced to the parts that a topic keeps.
    From a field's metadata, a topic keeps the comment, and the mark of a field that was added later.

    Raises: InvalidCallError for a text that is not a type, or a type that no topic can have.
    """
    if len(text) > LONGEST:
        raise InvalidCallError(f"a declared type has at most {LONGEST:,} characters: {text[:_SHOWN]!r}...")
    if text.lstrip().startswith(("{", '"')):
        if f'"{_COLLATIONS}":' in text:
            raise InvalidCallError(
                "a topic's schema cannot hold collations: declare a STRING, and collate it in queries"
            )
        type_from_json(text)
        tree = _kept(parse_json(text))
    else:
        tree = _Ddl(text).whole()
    made = json.dumps(tree, separators=(",", ":"), sort_keys=True)
    type_from_json(made)
    return made


def ddl(schema: str | None) -> str:
    """A declared schema as readable DDL; ``BINARY`` without a schema.

    Raises: InvalidCallError for a text that is not a schema.
    """
    if schema is None:
        return "BINARY"
    found = fields_of(schema)
    return ", ".join(f"{name} {kind}" for name, kind in found.items()) if found else _sql(parse_json(schema))


def fields_of(schema: str | None) -> dict[str, str]:
    """The fields of a declared struct, names and types as DDL; empty for another type.

    Raises: InvalidCallError for a text that is not a schema.
    """
    if schema is None:
        return {}
    type_from_json(schema)
    tree = parse_json(schema)
    return dict(map(_field, tree["fields"])) if isinstance(tree, dict) and "fields" in tree else {}


def _sql(node: Any) -> str:
    match node:
        case {"type": "struct", "fields": fields}:
            return f"STRUCT<{', '.join(': '.join(_field(field)) for field in fields)}>"
        case {"type": "array", "elementType": element}:
            return f"ARRAY<{_sql(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{_sql(key)}, {_sql(value)}>"
    return _SQL.get(node, str(node).upper())


def _field(field: Mapping[str, Any]) -> tuple[str, str]:
    name = field["name"]
    quoted = name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"
    return quoted, _sql(field["type"]) + ("" if field.get("nullable") is not False else " NOT NULL")


# ------------------------------------------------------------------------------- Spark's JSON text


def _kept(node: Any) -> Any:
    """A valid type tree with defaults filled in, without the parts that a topic does not keep."""
    match node:
        case {"type": "struct", "fields": fields}:
            return _struct(
                _of_struct(
                    field["name"], _kept(field["type"]), field.get("nullable") is not False, field.get("metadata")
                )
                for field in fields
            )
        case {"type": "array", "elementType": element}:
            return _array(_kept(element), node.get("containsNull") is not False)
        case {"type": "map", "keyType": key, "valueType": value}:
            return _map(_kept(key), _kept(value), node.get("valueContainsNull") is not False)
    return node


def _struct(fields: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def _of_struct(name: str, kind: Any, nullable: bool, metadata: Any) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in (metadata.items() if isinstance(metadata, dict) else ())
        if (key == ADDED and value is True) or (key == "comment" and isinstance(value, str))
    }
    return {"name": name, "type": kind, "nullable": nullable, "metadata": kept}


def _array(element: Any, nulls: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def _map(key: Any, value: Any, nulls: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nulls}


# --------------------------------------------------------------------------------------------- DDL


class _Ddl:
    """A parser of one text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []  # kind and text
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._no_type(f"{text[at : at + 20]!r} is not part of a type")
            kind = str(found.lastgroup)
            if kind != "blank":
                self._tokens.append((kind, found[kind].replace("``", "`")))
            at = found.end()
        self._at = 0

    def whole(self) -> Any:
        """The tree of the text: fields, or one type."""
        first, second = self._peek(), self._peek(1)
        of_fields = first[0] == "quoted" or (
            first[0] == "word" and (second[0] in {"word", "quoted"} or second[1] == ":")
        )
        tree = _struct(self._fields(MOST_NESTED)) if of_fields else self._type(MOST_NESTED)
        if self._at < len(self._tokens):
            raise self._no_type(f"the type should end before {self._peek()[1]!r}")
        return tree

    def _fields(self, levels: int) -> Iterator[dict[str, Any]]:
        while True:
            kind, name = self._next()
            if kind not in {"word", "quoted"}:
                raise self._no_type(f"{name!r} is not the name of a field")
            self._taken(":")
            made, nullable, comment = self._type(levels - 1), True, {}
            if self._taken("not"):
                if not self._taken("null"):
                    raise self._no_type("NOT must be followed by NULL")
                nullable = False
            if self._taken("comment"):
                kind, text = self._next()
                if kind != "text":
                    raise self._no_type("a comment must be in single quotes, without backslashes")
                comment = {"comment": text}
            yield _of_struct(name, made, nullable, comment)
            if not self._taken(","):
                return

    def _type(self, levels: int) -> Any:
        if levels == 0:
            raise InvalidCallError(f"a declared schema can nest types at most {MOST_NESTED} levels deep")
        kind, word = self._next()
        name = word.lower()
        if kind != "word" or name not in _NAMES:
            raise self._no_type(f"{word!r} is unknown{did_you_mean(name, _NAMES)}")
        if name in _DECIMAL:
            return self._decimal()
        if name in _ATOMIC:
            return _ATOMIC[name]
        self._need("<", name)
        if name == "struct":
            made = _struct(self._fields(levels))
        elif name == "array":
            made = _array(self._type(levels - 1))
        else:
            key = self._type(levels - 1)
            self._need(",", name)
            made = _map(key, self._type(levels - 1))
        self._need(">", name)
        return made

    def _decimal(self) -> str:
        precision, scale = 10, 0
        if self._taken("("):
            precision = self._number()
            scale = self._number() if self._taken(",") else 0
            self._need(")", "decimal")
        if not scale <= precision <= 38 or precision == 0:
            raise self._no_type(
                "DECIMAL(precision, scale) needs a precision of 1 to 38, and a scale that is not greater"
            )
        return f"decimal({precision},{scale})"

    def _number(self) -> int:
        kind, text = self._next()
        if kind != "number":
            raise self._no_type(f"{text!r} is not a number")
        return int(text)

    # ---------------------------------------------------------------------------------- tokens

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "the end")

    def _next(self) -> tuple[str, str]:
        found = self._peek()
        self._at += 1
        return found

    def _taken(self, wanted: str) -> bool:
        """Whether this sign or word is next; consumes it if so."""
        kind, text = self._peek()
        if kind not in {"word", "sign"} or text.lower() != wanted:
            return False
        self._at += 1
        return True

    def _need(self, sign: str, name: str) -> None:
        if not self._taken(sign):
            raise self._no_type(f"{name.upper()} lacks {sign!r} before {self._peek()[1]!r}")

    def _no_type(self, why: str) -> InvalidCallError:
        shown = repr(self._text) if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]!r}..."
        return InvalidCallError(
            f"{shown} does not declare a type that a topic can have: {why}; give STRING, "
            "BIGINT, ARRAY<...>, fields such as name TYPE, `other name` TYPE, or Spark's JSON text of a type"
        )
