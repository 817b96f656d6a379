"""The schema of a remote table: the physical schema of a topic's segments, in Delta's words. Pure.

A topic's schema may grow by nullable fields, at the end of the record or of any struct in it (Kafka's users add
fields to their values so). Segments that were written before lack them, and every reader fills in nulls. So
of two schemas that grew one from the other the table has the wider one, and a driver that still knows the
narrower one goes on: its segments are readable under both.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import StructType

from stratalog.partitions.errors import CorruptionError, InvalidRecordError
from stratalog.tiering.remote_change import TableChange


def delta_schema(schema: pa.Schema, what: str) -> Schema:
    """A physical schema as Delta has it. Raises: InvalidRecordError naming ``what``."""
    try:
        return Schema.from_arrow(schema)
    except (DeltaError, ValueError) as error:
        raise InvalidRecordError(f"{what}: a Delta table cannot have the schema {schema}: {error}") from error


def grown_fields(present: Schema, wanted: Schema) -> list[Field] | None:
    """The top-level fields of ``wanted`` that ``present`` has to be merged with; none when it has everything.
    None when neither grew from the other.
    """
    if _grew(wanted.fields, present.fields):
        return []
    if not _grew(present.fields, wanted.fields):
        return None
    known = {field.name: field for field in present.fields}
    return [field for field in wanted.fields if known.get(field.name) != field]


def _grew(narrow: list[Field], wide: list[Field]) -> bool:
    """Whether ``wide`` is ``narrow`` and nullable fields behind it, at every depth of structs."""
    if len(narrow) > len(wide) or not all(field.nullable for field in wide[len(narrow) :]):
        return False
    return all(_same_or_grew(one, two) for one, two in zip(narrow, wide, strict=False))


def _same_or_grew(one: Field, two: Field) -> bool:
    if one == two:
        return True
    if one.name != two.name or one.nullable != two.nullable:
        return False
    return (
        isinstance(one.type, StructType)
        and isinstance(two.type, StructType)
        and _grew(one.type.fields, two.type.fields)
    )


_UNDERSTOOD = frozenset({"timestampNtz"})
"""Features that leave paths, offsets and records what they are."""
_WRITTEN = _UNDERSTOOD | {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
"""Those with which delta-rs commits (measured: it refuses all else that a table says its writers must know)."""
_WRITER_VERSION = 7
"""Delta's greatest: with it a table names the features that its writers must know."""


def check_readable(table: DeltaTable, uri: str) -> None:
    """Raises: CorruptionError when the files of the table do not say any more which records are in it."""
    protocol = table.protocol()
    features = {"columnMapping"} if protocol.min_reader_version == 2 else {*(protocol.reader_features or ())}
    if foreign := ", ".join(sorted(features - _UNDERSTOOD)):
        raise CorruptionError(
            f"the table {uri} was upgraded by another writer, to {foreign}: its files alone "
            "no longer determine its records; restore the table to its state before the upgrade"
        )


def check_writable(table: DeltaTable, change: TableChange, uri: str) -> None:
    """Raises: CorruptionError when others have set what keeps us from making this change."""
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
    append_only = table.metadata().configuration.get("delta.appendOnly") == "true"
    if append_only and change.of_data and change.removes:
        raise CorruptionError(
            f"the table {uri} was made append-only by another writer: {change.removes[0].path} "
            "has left the log, but cannot be removed from the table; set delta.appendOnly to false"
        )
