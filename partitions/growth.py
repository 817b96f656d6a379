"""How a topic's declared schema grows: by nullable fields at the end of a struct, at every depth of structs. Pure.

Nothing else ever changes about it. So of two schemas that a topic has had, one grew from the other; a file of the
narrower one reads as if it held nulls in the fields it lacks; and the wider one holds the records of both.
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
"""In the metadata of a declared field: it came later. Producers that do not know it may leave it out."""


def grown_schema(present: str, wanted: str, column: str) -> tuple[str, list[str]]:
    """A declared type after it has grown to another one (Spark's JSON texts of both), and the dotted names of the
    fields that this adds to ``column``, in order. A type that adds no field gives ``present`` and an empty list.

    Raises: InvalidCallError for a type that no topic can have, and naming what ``present`` cannot grow to.
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
            raise InvalidCallError(f"{path} is {_type(present)}, it cannot become {_type(wanted)}; {_ONLY}")
        return present
    before, after = present["fields"], wanted["fields"]
    fields = []
    for index, field in enumerate(before):
        name = f"{path}.{field['name']}"
        if index >= len(after):
            raise InvalidCallError(f"{name} would be gone; {_ONLY}")
        other = after[index]
        if other["name"] != field["name"]:
            raise InvalidCallError(f"{path}.{other['name']} would stand where {name} is; {_ONLY}")
        if other.get("nullable", True) != field.get("nullable", True):
            raise InvalidCallError(f"{name} would be nullable or no longer so; {_ONLY}")
        fields.append({**field, "type": _grown(field["type"], other["type"], name, added)})
    for field in after[len(before) :]:
        name = f"{path}.{field['name']}"
        if not field.get("nullable", True):
            raise InvalidCallError(f"{name} must be nullable: records that are there already lack it")
        added.append(name)
        fields.append({**field, "metadata": {**field.get("metadata", {}), ADDED: True}})
    return {**present, "fields": fields}


_ONLY = "a declared schema only grows, by nullable fields at the end of a struct"


def _is_struct(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "struct"


def _type(node: Any) -> pa.DataType:
    return type_from_json(json.dumps(node))


def grew(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether ``wide`` is ``narrow`` or has grown from it; whether fields of both are nullable does not count."""
    if not (pa.types.is_struct(narrow) and pa.types.is_struct(wide)):
        return same_type(narrow, wide)
    fields = list(zip(narrow, wide, strict=False))
    return (
        len(fields) == narrow.num_fields
        and all(one.name == two.name and grew(one.type, two.type) for one, two in fields)
        and all(field.nullable for field in list(wide)[len(fields) :])
    )


def widest(schemas: Iterable[pa.Schema], what: str) -> pa.Schema:
    """The one of the schemas (at least one) that all others grew to: every record of theirs fits into it.

    Raises: CorruptionError where two of them did not grow from one another; ``what`` has them.
    """

    def wider(one: pa.Schema, two: pa.Schema) -> pa.Schema:
        if grew(pa.struct(list(two)), pa.struct(list(one))):
            return one
        if grew(pa.struct(list(one)), pa.struct(list(two))):
            return two
        raise CorruptionError(f"{what} has records of two schemas, neither grew from the other: {one} and {two}")

    return reduce(wider, schemas)


def fitted(records: Records, schema: pa.Schema, what: str) -> Records:
    """Records in the columns of ``schema``, which are theirs or grew from theirs, with nulls in what they lack.

    Raises: StaleMetadataError when they have a field that ``schema`` does not know: it is not the topic's present
        one, and nothing may be dropped.
    """
    if not grew(pa.struct(list(records.schema)), pa.struct(list(schema))):
        raise StaleMetadataError(
            f"{what}: there are records with the schema {records.schema}; the topic's, as this run knows it, is "
            f"{schema}: try again"
        )
    return records.cast(schema)
