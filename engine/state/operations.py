"""The records of ``__operations``: each record is an event of an operation that has changed something. Pure.

A destructive operation writes an event ``started`` before it acts; every operation writes an event ``ended`` at
its end. The fields of an event are the columns of the topic's value; the key is the operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from stratalog.partitions.records import TIMESTAMP, physical_schema, type_to_json

STARTED, ENDED = "started", "ended"
DONE, FAILED = "done", "failed"

_TEXTS = ("operation", "phase", "outcome", "user", "host", "job", "run", "cluster", "version", "arguments")
EVENT = pa.struct(
    [
        ("time", TIMESTAMP),
        *((name, pa.string()) for name in _TEXTS),
        ("totals", pa.map_(pa.string(), pa.int64())),
        ("notes", pa.list_(pa.field("element", pa.string()))),
        ("duration", pa.int64()),
    ]
)
"""The type of a value."""
KEY_SCHEMA, VALUE_SCHEMA = type_to_json(pa.string()), type_to_json(EVENT)
_SCHEMA = physical_schema(pa.string(), EVENT)
_NEVER_NULL = ("time", "operation", "phase", "user", "host", "run", "cluster", "version", "arguments")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event."""

    time: datetime
    """The time, with a time zone."""
    operation: str
    """The name of the job: ``tier``, ``topics create``."""
    phase: str
    """``started``, or ``ended``."""
    outcome: str | None = None
    """``done`` or ``failed``; None for ``started``."""
    user: str
    host: str
    job: str | None = None
    """The scheduler's job, if known."""
    run: str
    """The scheduler's run id; without a scheduler, the process id."""
    cluster: str
    version: str
    """The version of this package."""
    arguments: str = "{}"
    """The given arguments as a JSON object."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Figures by name; the figures of one topic are prefixed with its name and a slash."""
    notes: Sequence[str] = ()
    """Failures, as ``item: CODE: message``, and the notes of the report."""
    duration: int | None = None
    """The duration, in milliseconds."""

    @property
    def time_ms(self) -> int:
        """The event's time, in milliseconds since the epoch."""
        return (self.time - _EPOCH) // timedelta(milliseconds=1)


EVENT_COLUMNS = tuple(one.name for one in fields(Event))


def event_time(time_ms: int) -> datetime:
    """A time as events store it."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def to_batch(event: Event) -> pa.RecordBatch:
    value: dict[str, Any] = {name: getattr(event, name) for name in EVENT_COLUMNS}
    value |= {"totals": list(event.totals.items()), "notes": list(event.notes)}
    schema = pa.schema([_SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers")])
    columns = {"timestamp": [event.time], "key": [event.operation], "value": [value], "headers": [None]}
    return pa.RecordBatch.from_pydict(columns, schema)


def from_values(values: Iterable[Mapping[str, Any] | None]) -> Iterator[Event]:
    """The events of record values, as Python values from Arrow. A value that lacks a required field was written by
    another program, and is ignored.
    """
    for value in values:
        if value is None or any(value[name] is None for name in _NEVER_NULL):
            continue
        given = {name: value[name] for name in EVENT_COLUMNS}
        totals = {name: figure for name, figure in value["totals"] or () if figure is not None}
        notes = tuple(note for note in value["notes"] or () if note is not None)
        yield Event(**given | {"totals": totals, "notes": notes})
