"""How a topic's declared schema grows: by nullable fields at the end of a struct, at any depth of structs. Pure.

Nothing else about a schema ever changes. So of any two schemas that a topic has had, one grew from the other. A
file of the narrower one reads as if it held nulls in the fields that it lacks, and the wider one holds the records
of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptionError, InvalidCallError, StaleMetadataError
from stratalog.partitions.records import same_type, type_from_json

Records = TypeVar("Records", pa.RecordBatch, pa.Table)

ADDED = "stratalog.added"
"""The metadata key of a declared field that was added later. Producers that do not know the field may omit it."""


def grown_schema(present: str, wanted: str, column: str) -> tuple[str, list[str]]:
    """The declared type after growing from ``present`` to ``wanted`` (both Spark's JSON text), and the dotted
    names of the fields that this adds to ``column``, in order. Without added fields: ``present`` and an empty
    list.

    Raises: InvalidCallError for a type that no topic can have, or a change that ``present`` cannot grow by.
    """
    type_from_json(wanted)
    added: list[str] = []
    node = _grown(parse_json(present), parse_json(wanted), column, added)
    if not added:
        return present, []
    return json.dumps(node, separators=(",", ":")), added


def _grown(present: Any, wanted: Any, path: str, added: list[str]) -> Any:
    if not _is_struct(present) or not _is_struct(wanted):
        if _type(present) != _type(wanted):
            raise InvalidCallError(f"{path} is {_type(present)}, and cannot become {_type(wanted)}; {_ONLY}")
        return present
    before, after = present["fields"], wanted["fields"]
    fields = []
    for index, field in enumerate(before):
        name = f"{path}.{field['name']}"
        if index >= len(after):
            raise InvalidCallError(f"{name} would be removed; {_ONLY}")
        other = after[index]
        if other["name"] != field["name"]:
            raise InvalidCallError(f"{path}.{other['name']} would replace {name}; {_ONLY}")
        if other.get("nullable", True) != field.get("nullable", True):
            raise InvalidCallError(f"{name} would change whether it is nullable; {_ONLY}")
        fields.append({**field, "type": _grown(field["type"], other["type"], name, added)})
    for field in after[len(before) :]:
        name = f"{path}.{field['name']}"
        if not field.get("nullable", True):
            raise InvalidCallError(f"{name} must be nullable: existing records lack it")
        added.append(name)
        fields.append({**field, "metadata": {**field.get("metadata", {}), ADDED: True}})
    return {**present, "fields": fields}


_ONLY = "a declared schema only grows, by nullable fields at the end of a struct"


def _is_struct(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "struct"


def _type(node: Any) -> pa.DataType:
    return type_from_json(json.dumps(node))


def grew(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether ``wide`` equals ``narrow`` or grew from it, ignoring the nullability of common fields."""
    if not (pa.types.is_struct(narrow) and pa.types.is_struct(wide)):
        return same_type(narrow, wide)
    fields = list(zip(narrow, wide, strict=False))
    return (
        len(fields) == narrow.num_fields
        and all(one.name == two.name and grew(one.type, two.type) for one, two in fields)
        and all(field.nullable for field in list(wide)[len(fields) :])
    )


def widest(schemas: Iterable[pa.Schema], what: str) -> pa.Schema:
    """The schema, of at least one, that all others grew to, so that it can hold all of their records.

    Raises: CorruptionError, which names ``what``, if two schemas did not grow from one another.
    """

    def wider(one: pa.Schema, two: pa.Schema) -> pa.Schema:
        if grew(pa.struct(list(two)), pa.struct(list(one))):
            return one
        if grew(pa.struct(list(one)), pa.struct(list(two))):
            return two
        raise CorruptionError(
            f"{what} has records of two schemas, neither of which grew from the other: {one} and {two}"
        )

    return reduce(wider, schemas)


def fitted(records: Records, schema: pa.Schema, what: str) -> Records:
    """Records in the columns of ``schema``, which equals or grew from theirs; fields that they lack are null.

    Raises: StaleMetadataError if they have a field that ``schema`` lacks: then ``schema`` is outdated, and no
        value may be dropped.
    """
    if not grew(pa.struct(list(records.schema)), pa.struct(list(schema))):
        raise StaleMetadataError(
            f"{what} has the schema {records.schema}, but this run knows the topic with {schema}: try again"
        )
    return records.cast(schema)
