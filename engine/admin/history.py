"""The history of a cluster: the events of ``__operations``, latest first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report, Value, utc_text
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.reading.positions import micros, time_of
from stratalog.engine.state.internal_topics import OPERATIONS_TOPIC
from stratalog.engine.state.operations import EVENT_COLUMNS, Event, from_values
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from stratalog.partitions.offsets import FoundOffset, OffsetSpec

MOST = 100
_STRETCH = 500
_AGE = re.compile(r"(\d{1,9})([smhd])")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOPIC_ARGUMENTS = ("name", "topic", "topics")


@dataclass(frozen=True, slots=True)
class EventFilter:
    since_ms: int | None = None
    """Only events at or after this time, in milliseconds since the epoch."""
    operation: str | None = None
    topic: str | None = None
    """Only events with this topic among their arguments or figures."""

    def takes(self, event: Event) -> bool:
        return (
            (self.since_ms is None or event.time_ms >= self.since_ms)
            and (self.operation is None or event.operation == self.operation)
            and (self.topic is None or _names(event, self.topic))
        )


def history(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    wanted: EventFilter,
    *,
    limit: int = MOST,
) -> Report:
    """List the latest ``limit`` selected events, latest first. Each event has one row, with the columns of
    ``Event``; the time is text, and ``totals`` and ``notes`` are JSON. Reads both tiers without Spark.

    Raises: InvalidCallError for an invalid limit; see ``fetch``.
    """
    if limit < 1:
        raise InvalidCallError(f"limit is {limit}: give 1 or more")
    with execution.run("history") as run:
        for event in events(metadata, storage, execution.clock, memory, wanted):
            run.rows.append(event_row(event))
            if len(run.rows) == limit:
                break
    return run.report()


def since_time_ms(since: datetime | str, now_ms: int) -> int:
    """Convert a time, or an age such as ``90s``, ``15m``, ``12h`` or ``7d``, to milliseconds since the epoch.
    Raises: InvalidCallError."""
    if isinstance(since, str) and (age := _AGE.fullmatch(since.strip())):
        return now_ms - int(age[1]) * _UNITS_MS[age[2]]
    return micros(time_of(since, "since =")) // 1000


def events(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, wanted: EventFilter = EventFilter()
) -> Iterator[Event]:
    """Return the selected events, latest first. Raises: see ``fetch``."""
    if OPERATIONS_TOPIC not in metadata.image().topic_ids:
        return
    first, end = (_position(metadata, storage, memory, spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
    while first < end:
        start = max(first, end - _STRETCH)
        found, _ = events_between(metadata, storage, clock, memory, start, end)
        yield from filter(wanted.takes, reversed(found))
        if found and wanted.since_ms is not None and found[0].time_ms < wanted.since_ms:
            return
        end = start


def events_between(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, start: int, end: int | None = None
) -> tuple[list[Event], int]:
    """Return the events at the offsets ``[start, end)``, and the next offset. If ``end`` is None, the events end
    at the high watermark.

    Raises: see ``fetch``.
    """
    found: list[Event] = []
    while end is None or start < end:
        got = fetch(metadata, storage, clock, memory, OPERATIONS_TOPIC, 0, start)
        if got.next_offset == start:
            break
        rows = zip(got.records["offset"].to_pylist(), got.records["value"].to_pylist(), strict=True)
        found += from_values(value for offset, value in rows if end is None or offset < end)
        start = got.next_offset
    return found, start if end is None else min(start, end)


class NewEvents:
    """A callable. Each call returns the events since the previous call, in order, as far as retention has left
    them. The first call returns the events since this object was created."""

    def __init__(self, metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory) -> None:
        """Use ``Cluster.new_events``."""
        self._metadata = metadata
        self._storage = storage
        self._clock = clock
        self._memory = memory
        self._next = _position(metadata, storage, memory, OffsetSpec.LATEST) if self._is_there() else 0

    def __call__(self) -> list[Event]:
        """Return the new events. Raises: see ``fetch``."""
        if not self._is_there():
            return []
        ports = self._metadata, self._storage, self._clock, self._memory
        try:
            found, self._next = events_between(*ports, self._next)
        except OffsetOutOfRangeError:
            first = _position(self._metadata, self._storage, self._memory, OffsetSpec.EARLIEST)
            if first <= self._next:
                raise
            found, self._next = events_between(*ports, first)
        return found

    def _is_there(self) -> bool:
        return OPERATIONS_TOPIC in self._metadata.image().topic_ids


def event_row(event: Event) -> dict[str, Value]:
    texts = {
        "time": utc_text(event.time_ms),
        "totals": json.dumps(dict(event.totals)),
        "notes": json.dumps(list(event.notes)),
    }
    return {name: texts.get(name, getattr(event, name)) for name in EVENT_COLUMNS}


def _position(metadata: MetadataClient, storage: Storage, memory: Memory, spec: OffsetSpec) -> int:
    answer = list_offsets(metadata, storage, memory, OPERATIONS_TOPIC, spec)[0]
    return answer.offset if isinstance(answer, FoundOffset) else 0


def _names(event: Event, topic: str) -> bool:
    if any(name.startswith(f"{topic}/") for name in event.totals):
        return True
    try:
        given = parse_json(event.arguments, dict[str, Any])
    except ValueError:  # another program wrote this record
        return False
    topics = (given.get(name) for name in _TOPIC_ARGUMENTS)
    return any(topic == one or (isinstance(one, list) and topic in one) for one in topics)
