"""Decodes Avro values by ``fastavro``, and translates an Avro schema to a declared type."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from stratalog.bridges.formats.decoder import UndecodedError
from stratalog.bridges.formats.registry import SchemaRegistry
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError

_FRAME = 5
"""Bytes before a value that Confluent's serializer has written: a zero, and the id of its schema."""
_PLAIN = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}
_UNKNOWN = frozenset({"time-millis", "time-micros", "duration", "timestamp-nanos", "local-timestamp-nanos"})


class AvroValues:
    """Decodes values of one Avro schema. If ``framed``, each value begins with the id of a schema, which is
    skipped.
    """

    def __init__(self, path: Path, *, framed: bool) -> None:
        """Raises: InvalidCallError for an invalid schema; EnvironmentUnusableError without fastavro."""
        try:
            import fastavro
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(
                "Avro values need fastavro, which is not installed: pip install 'stratalog[avro]'"
            ) from error
        try:
            self._parsed: Any = fastavro.schema.load_schema(str(path))
        except Exception as error:  # fastavro raises many kinds of errors for an invalid file
            raise InvalidCallError(f"{path} is not a readable Avro schema: {error}") from error
        self.path, self._framed = path, framed

    def decode(self, value: bytes) -> Any:
        """Raises: UndecodedError."""
        import fastavro

        if self._framed and (value[:1] != b"\0" or len(value) < _FRAME):
            raise UndecodedError("the value does not begin with the id of a schema: try --format avro")
        writer, reader = self._schemas(int.from_bytes(value[1:_FRAME]) if self._framed else None)
        source = io.BytesIO(value[_FRAME:] if self._framed else value)
        try:
            found = fastavro.schemaless_reader(source, writer, reader)
        except Exception as error:  # fastavro raises many kinds of errors here, too
            raise UndecodedError(
                f"the value does not match {self.path}: {type(error).__name__}: {error}"
            ) from error
        if rest := len(source.read()):
            raise UndecodedError(f"the value does not match {self.path}: {rest} bytes follow it")
        return found

    def _schemas(self, number: int | None) -> tuple[Any, Any]:
        """The writer's schema of a value, by its id, and the schema to which the value is resolved."""
        return self._parsed, None


class AvroRecords(AvroValues):
    """See ``stratalog.bridges.formats.decoder.Decoder``. With a registry, a value is decoded with the schema of
    its id, and resolved to the schema of the file (Avro, "Schema Resolution"). Without a registry, the schema of
    the file decodes all values.
    """

    def __init__(self, path: Path, *, framed: bool, registry: SchemaRegistry | None = None) -> None:
        """Raises: see ``AvroValues``; InvalidCallError for a schema that no topic can have."""
        super().__init__(path, framed=framed)
        self._tree = _spark(self._parsed, {}, str(path))
        if not isinstance(self._tree, dict) or self._tree["type"] != "struct":
            raise InvalidCallError(
                f"{path} is not the Avro schema of a record; the fields of a record become the topic's columns"
            )
        self.schema = json.dumps(self._tree)
        self._uuids = '"uuid"' in json.dumps(self._parsed, default=str)
        self._registry = registry
        self._writers: dict[int, Any] = {}
        """Schemas by id; None if the id's values are not decoded."""

    def decode(self, value: bytes) -> Any:
        """Raises: UndecodedError; see ``SchemaRegistry.schema``."""
        found = super().decode(value)
        return _texts(found) if self._uuids else found

    def _schemas(self, number: int | None) -> tuple[Any, Any]:
        if self._registry is None or number is None:
            return super()._schemas(number)
        if number not in self._writers:
            self._writers[number] = self._usable(self._registry.schema(number))
        if self._writers[number] is None:
            raise UndecodedError(
                f"the registry has no schema {number}, or the schema in {self.path} lacks some of its fields, or "
                "has times where it has numbers"
            )
        return self._writers[number], self._parsed

    def _usable(self, schema: Any) -> Any:
        """The parsed schema; None if its values would lose a field or their meaning."""
        import fastavro

        if schema is None:
            return None
        try:
            parsed = fastavro.parse_schema(schema)
            tree = _spark(parsed, {}, "a writer")
            return None if _loses(tree, self._tree) or _has_empty_items(tree) else parsed
        except Exception:  # a registry's text may raise any kind of error
            return None


def avro_decoder(path: Path, *, framed: bool, registry: SchemaRegistry | None = None) -> AvroRecords:
    """Create the decoder. Raises: see ``AvroRecords``."""
    return AvroRecords(path, framed=framed, registry=registry)


def _loses(writer: Any, reader: Any) -> bool:
    """Whether values of the writer's schema would lose a field or their meaning in the reader's schema."""
    match writer, reader:
        case {"fields": wrote}, {"fields": reads}:
            kinds = {field["name"]: field["type"] for field in reads}
            return any(
                field["name"] not in kinds or _loses(field["type"], kinds[field["name"]]) for field in wrote
            )
        case {"elementType": wrote}, {"elementType": reads}:
            return _loses(wrote, reads)
        case {"valueType": wrote}, {"valueType": reads}:
            return _loses(wrote, reads)
    # fastavro applies the writer's logical type, so a plain number would be read as microseconds
    return writer != reader and reader in ("timestamp", "timestamp_ntz")


def _has_empty_items(tree: Any) -> bool:
    """Whether an array has items of zero bytes: ten bytes could encode billions of them."""
    match tree:
        case {"elementType": items}:
            return _takes_no_bytes(items) or _has_empty_items(items)
        case {"valueType": values}:
            return _has_empty_items(values)  # a key takes at least one byte
        case {"fields": fields}:
            return any(_has_empty_items(field["type"]) for field in fields)
    return False


def _takes_no_bytes(tree: Any) -> bool:
    match tree:
        case {"fields": fields}:
            return all(_takes_no_bytes(field["type"]) for field in fields)
    return False


def _texts(value: Any) -> Any:
    """The schema with uuids as texts."""
    import uuid

    if isinstance(value, dict):
        return {key: _texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return str(value) if isinstance(value, uuid.UUID) else value


def _spark(node: Any, named: dict[str, Any], path: str) -> Any:
    """The tree of the declared type. ``named``: the named types so far; None for the types that enclose this one.

    Raises: InvalidCallError.
    """
    if isinstance(node, list):
        kinds = [one for one in node if one != "null"]
        if len(kinds) != 1:
            raise InvalidCallError(f"{path} has a union of {len(kinds)} types, but a column has one type, or null")
        return _spark(kinds[0], named, path)
    if isinstance(node, str):
        if node in _PLAIN:
            return _PLAIN[node]
        if named.get(node) is None:
            raise InvalidCallError(
                f"{path} has the type {node!r}, which is unknown or recursive, so it cannot be a column"
            )
        return named[node]
    kind, logical = node["type"], node.get("logicalType")
    if logical in _UNKNOWN:
        raise InvalidCallError(f"{path} has the logical type {logical!r}, which no column can have")
    if kind == "array":
        return {"type": "array", "elementType": _spark(node["items"], named, path), "containsNull": True}
    if kind == "map":
        value = _spark(node["values"], named, path)
        return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}
    if kind in ("record", "error"):
        named[node["name"]] = None
        fields = [
            {"name": field["name"], "type": _spark(field["type"], named, path), "nullable": True, "metadata": {}}
            for field in node["fields"]
        ]
        named[node["name"]] = {"type": "struct", "fields": fields}
        return named[node["name"]]
    if kind == "fixed" and not node["size"]:
        raise InvalidCallError(f"{path} has a type of zero bytes, {node['name']!r}, which cannot be a column")
    if logical == "decimal":
        made = f"decimal({node['precision']},{node.get('scale', 0)})"
    else:
        made = _LOGICAL[logical] if logical in _LOGICAL else _spark(kind, named, path)
    if "name" in node:
        named[node["name"]] = made
    return made
