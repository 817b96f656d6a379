"""Finds fields of an append that the topic's type lacks, before anything is written. All appends use the same
policies (``partitions.unknown_fields``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from msgspec.structs import replace as with_changes

from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.answers import append_row
from stratalog.engine.records.bad_records import ERRORS
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.growth import grown_schema
from stratalog.partitions.records import RECORD_COLUMNS, schema_of
from stratalog.partitions.unknown_fields import (
    OnUnknownField,
    UnknownField,
    arrow_parts,
    pruned_type,
    refused,
    unknown_in_types,
    with_fields,
)

_TRIES = 5
"""The number of tries to add fields to a type while other drivers also add fields."""

_COLUMNS = (*RECORD_COLUMNS, "topic", "partition", "offset", ERRORS)
"""Columns of batches: the columns of records, and the origin of each record, for bad records."""


@dataclass(frozen=True, slots=True)
class SettledFields:
    """A topic that can store the fields of the records."""

    topic: TopicImage
    """The topic with its current types; in a dry run, with the types that it would get."""
    image: ClusterImage | None = None
    """The metadata of the commit that added fields; None without a commit. With this metadata, the cluster's
    metadata does not have to be read again.
    """
    added: tuple[str, ...] = ()
    dropped: Sequence[UnknownField] = ()

    @property
    def notes(self) -> list[str]:
        """Notes about added and dropped fields, for the report."""
        notes = [f"the type of {self.topic.name} grew by {', '.join(self.added)}"] if self.added else []
        for one in self.dropped:
            count = "every record" if one.count is None else f"{one.count:,} values"
            notes.append(f"{one.path!r} is dropped from {count}: the type of {self.topic.name} has no such field")
        return notes

    def add_notes(self, report: Report, records: int | None = None) -> Report:
        """Return the report with these notes, and with a row per dropped path. ``records``: the number of records;
        None: the number in the report.
        """
        if not self.added and not self.dropped:
            return report
        appended = int(report.totals.get("records") or 0) if records is None else records
        counts = [appended if one.count is None else one.count for one in self.dropped]
        rows = [
            append_row(self.topic.name, None, count, "dropped", reason=f"no field {one.path}")
            for one, count in zip(self.dropped, counts, strict=True)
        ]
        totals = {**report.totals, "dropped_fields": sum(counts)} if rows else report.totals
        return replace(report, rows=[*report.rows, *rows], totals=totals, notes=[*report.notes, *self.notes])


def settled(
    metadata: MetadataClient,
    topic: TopicImage,
    find: Callable[[TopicImage], Sequence[UnknownField]],
    on_unknown_field: OnUnknownField,
    to_json: Callable[[Any], Any],
    what: str,
    *,
    dry_run: bool = False,
) -> SettledFields:
    """Find the fields that the topic's type lacks, then refuse them, drop them, or add them to the type. If
    another driver is adding fields, this call waits for that change. The fields that the other driver has added
    are then no longer unknown.

    Raises: InvalidRecordError naming the fields; InvalidCallError if the fields cannot be added to the type; see
    ``AlterTopic``.
    """
    added: tuple[str, ...] = ()
    image: ClusterImage | None = None
    for _ in range(_TRIES):
        unknown = find(topic)
        if not unknown or on_unknown_field == "drop":
            return SettledFields(topic, image, added, unknown)
        if on_unknown_field == "fail":
            raise InvalidRecordError(f"{what}: {refused(unknown)}")
        unplaced = [one for one in unknown if one.column not in ("key", "value")]
        with_fields(None, unplaced, to_json, what)
        key, value = (
            with_fields(schema, [one for one in unknown if one.column == column], to_json, what)
            for column, schema in (("key", topic.key_schema), ("value", topic.value_schema))
        )
        try:
            added += metadata.submit(AlterTopic(topic.name, key, value), dry_run=dry_run)
        except InvalidCallError as error:
            image = metadata.image()
            now = image.topic(topic.name)
            if (now.key_schema, now.value_schema) == (topic.key_schema, topic.value_schema):
                raise InvalidCallError(f"{what}: on_unknown_field is 'add': {error}") from error
            topic = now
            continue
        if dry_run:
            topic = _as_it_would_be(topic, key, value)
        else:
            image = metadata.last_known.image
            topic = image.topic(topic.name)
    raise InvalidCallError(
        f"{what}: other drivers keep altering the type of {topic.name}, which still lacks "
        f"{', '.join(repr(one.path) for one in find(topic))}: append again"
    )


def _as_it_would_be(topic: TopicImage, key: str | None, value: str | None) -> TopicImage:
    def grown(present: str | None, wanted: str | None, column: str) -> str | None:
        return present if present is None or wanted is None else grown_schema(present, wanted, column)[0]

    return with_changes(
        topic,
        key_schema=grown(topic.key_schema, key, "key"),
        value_schema=grown(topic.value_schema, value, "value"),
    )


def unknown_in_batches(batches: Mapping[int, Sequence[pa.RecordBatch]], topic: TopicImage) -> list[UnknownField]:
    """Fields of batches that the declared types lack, and columns that no record has."""
    found: dict[str, UnknownField] = {}
    for schema, rows in _rows_by_schema(batches):
        for one in unknown_in_schema(schema, topic):
            known = found.get(one.path)
            found[one.path] = replace(one, count=rows + (0 if known is None else known.count or 0))
    return list(found.values())


def _rows_by_schema(batches: Mapping[int, Sequence[pa.RecordBatch]]) -> list[tuple[pa.Schema, int]]:
    found: list[tuple[pa.Schema, int]] = []
    for given in batches.values():
        for batch in given:
            if found and found[-1][0] == batch.schema:
                found[-1] = (batch.schema, found[-1][1] + batch.num_rows)
            else:
                found.append((batch.schema, batch.num_rows))
    return found


def unknown_in_schema(given: pa.Schema, topic: TopicImage) -> list[UnknownField]:
    """Fields of record columns that the declared types lack, and columns that no record has."""
    schema = schema_of(topic.key_schema, topic.value_schema)
    found = [
        UnknownField("", (field.name,), field.name, RECORD_COLUMNS, field.type)
        for field in given
        if field.name not in _COLUMNS
    ]
    for name in ("key", "value"):
        if (index := given.get_field_index(name)) >= 0:
            wanted = schema.field(name).type
            found += unknown_in_types(given.field(index).type, wanted, name, arrow_parts, f"{name}.")
    return found


def pruned_schema(given: pa.Schema, topic: TopicImage) -> pa.Schema:
    """The schema without the fields that the topic's types lack."""
    schema = schema_of(topic.key_schema, topic.value_schema)
    return pa.schema(
        [
            field.with_type(pruned_type(field.type, schema.field(field.name).type))
            if field.name in ("key", "value")
            else field
            for field in given
            if field.name in _COLUMNS
        ]
    )


def without_unknown(
    batches: Mapping[int, Sequence[pa.RecordBatch]], topic: TopicImage
) -> dict[int, list[pa.RecordBatch]]:
    """The batches without the fields that the topic's types lack."""
    return {
        partition: [pruned(batch, pruned_schema(batch.schema, topic)) for batch in given]
        for partition, given in batches.items()
    }


def pruned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch, reduced to a schema that has fewer fields."""
    return batch.select(schema.names).cast(schema)
