"""How a topic's declared schema grows: by nullable fields at the end of a struct, at any depth of structs, and by
wider types of fields of the value. Pure.

Nothing else about a schema ever changes. So of any two schemas that a topic has had, one grew from the other. A
file of the narrower schema is read with nulls in the fields that it lacks, and with its values in the wider types.
So the wider schema can hold the records of both schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
    names of the fields of ``column`` that the change adds or widens, in order. If nothing changes: ``present`` and
    no names. Keys are not widened, because the hash of a key selects its partition, and depends on the type of the
    key.

    Raises: InvalidCallError for a type that no topic can have, or a change of ``present`` that is not growth.
    """
    type_from_json(wanted)
    added: list[str] = []
    node = _grown(parse_json(present), parse_json(wanted), column, added, widens=column != "key")
    if not added:
        return present, []
    return json.dumps(node, separators=(",", ":")), added


def _grown(present: Any, wanted: Any, path: str, added: list[str], *, widens: bool) -> Any:
    if not _is_struct(present) or not _is_struct(wanted):
        before, after = _type(present), _type(wanted)
        if before == after:
            return present
        if widens and widened(before, after):
            added.append(path)
            return wanted
        raise InvalidCallError(f"{path} is {before}, and cannot become {after}; {_ONLY if widens else _KEY}")
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
        fields.append({**field, "type": _grown(field["type"], other["type"], name, added, widens=widens)})
    for field in after[len(before) :]:
        name = f"{path}.{field['name']}"
        if not field.get("nullable", True):
            raise InvalidCallError(f"{name} must be nullable: existing records lack it")
        added.append(name)
        fields.append({**field, "metadata": {**field.get("metadata", {}), ADDED: True}})
    return {**present, "fields": fields}


_ONLY = (
    "a declared schema can only grow: it gets nullable fields at the end of a struct, or wider types (a larger "
    "whole number, FLOAT to DOUBLE, DATE to TIMESTAMP_NTZ, or a DECIMAL to one with a larger scale and at least "
    "as many digits before the point, such as DECIMAL(9, 2) to DECIMAL(20, 3))"
)
_KEY = "a key can only get nullable fields at the end of a struct, because the hash of a key depends on its type"

_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def widened(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether each value of ``narrow`` is also a value of ``wide``, and Delta's type widening allows the change. A
    DECIMAL becomes wider only if its scale grows. With an equal scale, Spark's Parquet reader would compare a
    filter's number with a column of an older file that may be too narrow for the number. The query would fail or
    lose rows.
    """
    if narrow in _WHOLE and wide in _WHOLE:
        return _WHOLE.index(narrow) < _WHOLE.index(wide)
    if pa.types.is_decimal128(narrow) and pa.types.is_decimal128(wide):
        digits, places = int(wide.precision - narrow.precision), int(wide.scale - narrow.scale)
        return digits >= places > 0
    return (narrow, wide) in {(pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us"))}


def _is_struct(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "struct"


def _type(node: Any) -> pa.DataType:
    return type_from_json(json.dumps(node))


def not_in_iceberg(present: str | None, wanted: str | None) -> list[str]:
    """The dotted names of fields whose types become wider in a way that Iceberg does not support, each with its
    old and new type.
    """
    if present is None or wanted is None:
        return []
    return list(_not_in_iceberg(parse_json(present), parse_json(wanted), "value"))


def _not_in_iceberg(present: Any, wanted: Any, path: str) -> Iterator[str]:
    if _is_struct(present):
        for one, two in zip(present["fields"], wanted["fields"], strict=False):
            yield from _not_in_iceberg(one["type"], two["type"], f"{path}.{one['name']}")
    elif present != wanted and isinstance(present, str) and present.startswith(("date", "decimal")):
        yield f"{path} from {present.upper()} to {wanted.upper()}"


def grew(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether ``wide`` equals ``narrow`` or grew from it, ignoring the nullability of common fields."""
    if not (pa.types.is_struct(narrow) and pa.types.is_struct(wide)):
        return same_type(narrow, wide) or widened(narrow, wide)
    fields = list(zip(narrow, wide, strict=False))
    return (
        len(fields) == narrow.num_fields
        and all(one.name == two.name and grew(one.type, two.type) for one, two in fields)
        and all(field.nullable for field in list(wide)[len(fields) :])
    )


def widest(schemas: Iterable[pa.Schema], what: str) -> pa.Schema:
    """The widest of these schemas (at least one): all others grew to it, so it can hold all their records.

    Raises: CorruptionError, which names ``what``, if neither of two schemas grew from the other.
    """

    def wider(one: pa.Schema, two: pa.Schema) -> pa.Schema:
        if one.equals(two) or grew(pa.struct(list(two)), pa.struct(list(one))):
            return one
        if grew(pa.struct(list(one)), pa.struct(list(two))):
            return two
        raise CorruptionError(
            f"{what} has records of two schemas, neither of which grew from the other: {one} and {two}"
        )

    return reduce(wider, schemas)


def fitted(records: Records, schema: pa.Schema, what: str) -> Records:
    """The records with the columns of ``schema``, which equals or grew from the records' schema. Fields that the
    records lack are null.

    Raises: StaleMetadataError if the records have a field that ``schema`` lacks. In that case, ``schema`` is
        outdated, and no value may be dropped.
    """
    if not grew(pa.struct(list(records.schema)), pa.struct(list(schema))):
        raise StaleMetadataError(
            f"{what} has the schema {records.schema}, but for this run the topic has the schema {schema}: try "
            "again"
        )
    return records.cast(schema)
