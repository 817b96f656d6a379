"""The schema of a remote table: the physical schema of a topic's segments, as a Delta schema. Pure.

A topic's schema may grow by nullable fields, at the end of the record or of any nested struct, and by wider types.
Earlier segments lack the new fields, so readers fill in nulls. Earlier values may have narrower types, so readers
convert them. The table has the wider of two schemas. A driver that only knows the narrower schema can continue,
because its segments are readable under the wider schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType, StructType

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptionError, InvalidRecordError
from stratalog.partitions.growth import widened
from stratalog.partitions.records import type_from_json
from stratalog.tiering.remote_change import TableChange


def delta_schema(schema: pa.Schema, what: str) -> Schema:
    """A physical schema as a Delta schema. Raises: InvalidRecordError naming ``what``."""
    try:
        return Schema.from_arrow(schema)
    except (DeltaError, ValueError) as error:
        raise InvalidRecordError(f"{what}: a Delta table cannot have the schema {schema}: {error}") from error


def grown_fields(present: Schema, wanted: Schema) -> list[Field] | None:
    """The top-level fields of ``wanted`` to merge into ``present``; empty if ``present`` has all of them. None if
    neither schema grew from the other. Nullable columns that other programs have added to ``present`` do not
    matter. ``present`` must already have the types of ``wanted`` (``with_wider_types``).
    """
    fields = _without_others(present.fields, {field.name for field in wanted.fields})
    if _grew(wanted.fields, fields):
        return []
    if not _grew(fields, wanted.fields):
        return None
    known = {field.name: field for field in fields}
    return [field for field in wanted.fields if known.get(field.name) != field]


def _without_others(fields: list[Field], own: set[str]) -> list[Field]:
    """The columns with these names, if there is one of each name and all other columns are nullable; otherwise
    all columns.
    """
    found = [field for field in fields if field.name in own]
    others_are_nullable = all(field.nullable for field in fields if field.name not in own)
    return found if len(found) == len(own) and others_are_nullable else fields


def _grew(narrow: list[Field], wide: list[Field]) -> bool:
    """Whether ``wide`` is ``narrow`` plus trailing nullable fields, at every depth of structs."""
    if len(narrow) > len(wide) or not all(field.nullable for field in wide[len(narrow) :]):
        return False
    return all(_same_or_grew(one, two) for one, two in zip(narrow, wide, strict=False))


def _same_or_grew(one: Field, two: Field) -> bool:
    if one == two:
        return True
    if one.name != two.name or one.nullable != two.nullable:
        return False
    if isinstance(one.type, PrimitiveType) and isinstance(two.type, PrimitiveType):
        return one.type == two.type or _widened(one.type.type, two.type.type)
    return (
        isinstance(one.type, StructType)
        and isinstance(two.type, StructType)
        and _grew(one.type.fields, two.type.fields)
    )


def _widened(narrow: str, wide: str) -> bool:
    return widened(*(type_from_json(json.dumps(name)) for name in (narrow, wide)))


def with_wider_types(present: Schema, wanted: Schema) -> str | None:
    """The JSON text of ``present`` with the wider types of ``wanted``; None if ``wanted`` has no wider types.
    Names, metadata, and fields that only one of the schemas has stay unchanged.
    """
    before, after = (parse_json(schema.to_json()) for schema in (present, wanted))
    wider = list(_wider(before, after))
    for field, kind in wider:
        field["type"] = kind
    return json.dumps(before) if wider else None


def _wider(present: Any, wanted: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The fields of ``present`` whose types ``wanted`` widens, with these types."""
    types = {field["name"]: field["type"] for field in wanted["fields"]}
    for field in present["fields"]:
        one, two = field["type"], types.get(field["name"])
        if isinstance(one, str) and isinstance(two, str):
            if one != two and _widened(one, two):
                yield field, two
        elif isinstance(one, dict) and isinstance(two, dict) and one["type"] == two["type"] == "struct":
            yield from _wider(one, two)


_UNDERSTOOD = frozenset({"timestampNtz", "variantType"})
"""Features that do not change paths, offsets or records. If delta-rs 1.6.6 sets a property of a table with
``timestampNtz``, it adds ``variantType``.
"""
_WRITTEN = _UNDERSTOOD | {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
"""Writer features with which delta-rs commits (measured; it refuses all others)."""
_WRITER_VERSION = 7
"""Delta's greatest writer version. A table of this version names its writer features."""


def check_readable(table: DeltaTable, uri: str) -> None:
    """Check that the table's records can still be read from its files alone. Raises: CorruptionError."""
    protocol = table.protocol()
    features = {"columnMapping"} if protocol.min_reader_version == 2 else {*(protocol.reader_features or ())}
    if foreign := ", ".join(sorted(features - _UNDERSTOOD)):
        raise CorruptionError(
            f"the table {uri} was upgraded by another writer, to {foreign}: its files alone "
            "no longer determine its records; restore the table to its state before the upgrade"
        )


def check_commits(table: DeltaTable, uri: str) -> None:
    """Check that delta-rs can commit to the table. Raises: CorruptionError."""
    if unknown := ", ".join(sorted({*(table.protocol().writer_features or ())} - _WRITTEN)):
        raise CorruptionError(
            f"the table {uri} was upgraded by another writer, to {unknown}: it can be read, "
            f"but delta-rs cannot commit to it; ALTER TABLE delta.`{uri}` DROP FEATURE reverts this"
        )
    if (version := table.protocol().min_writer_version) > _WRITER_VERSION:
        raise CorruptionError(
            f"the table {uri} was upgraded by another writer, to minWriterVersion {version}. "
            "It can be read, but no writer can commit to it: Delta has no version above "
            f"{_WRITER_VERSION}. Restore its former log from a backup of the remote tier"
        )


def is_append_only(table: DeltaTable) -> bool:
    """Whether another writer has forbidden the removal of data."""
    return table.metadata().configuration.get("delta.appendOnly") == "true"


def check_writable(table: DeltaTable, change: TableChange, uri: str) -> None:
    """Check that no property or feature set by other writers prevents this change. Raises: CorruptionError."""
    check_commits(table, uri)
    if is_append_only(table) and change.of_data and change.removes:
        raise CorruptionError(
            f"the table {uri} was made append-only by another writer: {change.removes[0].path} "
            "has left the log, but cannot be removed from the table; set delta.appendOnly to false"
        )
