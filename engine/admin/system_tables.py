"""The state of a cluster as tables with declared columns, for SQL. Each table is computed on request.

    topics      one row per topic, as in ``describe_topics``
    partitions  one row per replica of each partition, as in ``describe``
    groups      one row per group and partition of its topics, with the lag, as in ``lag``
    operations  one row per event, as in ``history``; for a topic, only the events that name it
    files       one row per file of the log that readers use, in either tier
    offsets     one row per partition of a topic: the offset of a named position or a time, as in ``list_offsets``

A replica that cannot be listed has a row with nulls, and the column ``role`` says so. Queries need no quotes: only
the column ``offset``, which is Kafka's name, is a reserved word of standard SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from stratalog.engine.admin.describe import describe
from stratalog.engine.admin.describe_cluster import describe_topics
from stratalog.engine.admin.history import EventFilter, events
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Value
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import ReadQuery
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.reading.positions import time_text
from stratalog.engine.records.groups import all_groups, lag_rows, list_leaders
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.engine.state.operations import EVENT_COLUMNS
from stratalog.partitions.offsets import FoundOffset

Cell = Value | datetime | Mapping[str, int] | Sequence[str]
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table. A row may omit columns."""

    types: Mapping[str, str]
    """Names and SQL types."""

    @property
    def schema(self) -> str:
        """Return the columns as a SQL declaration."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.types.items())

    def tuples(self, rows: Iterable[Row]) -> list[tuple[Cell, ...]]:
        """Return the rows as tuples with a value for each column, in order."""
        return [tuple(row.get(name) for name in self.types) for row in rows]


@dataclass(frozen=True, slots=True)
class SystemTable(Columns):
    """One table; ``rows`` takes the name of a topic, or None for all."""

    rows: Callable[[MetadataClient, Storage, Execution, Memory, str | None], Iterable[Row]]


_RESERVED = {"time": "event_time", "user": "user_name"}
"""Columns of reports whose names are reserved words, and their names in SQL."""


def _topics(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, topic: str | None
) -> Iterable[Row]:
    rows = describe_topics(metadata, storage, execution).rows
    return [row for row in rows if topic in (None, row["topic"])]


def _partitions(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, topic: str | None
) -> Iterable[Row]:
    return describe(metadata, storage, execution, None if topic is None else [topic]).rows


def _groups(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, topic: str | None
) -> Iterable[Row]:
    with execution.run("groups list") as run:
        image = metadata.image()
        found, run.failures = all_groups(storage, execution.clock, memory, image)
        leaders, _ = list_leaders(storage, memory, image, found.values())
    run.report().raise_for_failures()
    return [
        {"group_id": name, **row.columns()}
        for name, group in sorted(found.items())
        for row in lag_rows(image, group, leaders)
        if topic in (None, row.topic)
    ]


def _files(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, topic: str | None
) -> Iterable[Row]:
    image, client = metadata.image(), client_metadata(storage.file, None, None)
    names = sorted(image.topic_ids.keys() - INTERNAL_TOPICS) if topic is None else [topic]
    return [
        {
            "topic": name,
            "partition": file.partition,
            "start_offset": file.start,
            "end_offset": file.end,
            "tier": "remote" if file.remote else "local",
            "broker": file.broker,
            "bytes": file.size_bytes,
            "uri": file.uri,
        }
        for name in names
        for file in plan_read(metadata, storage, execution.clock, memory, ReadQuery((name,)), client)
    ]


def _operations(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, topic: str | None
) -> Iterable[Row]:
    for event in events(metadata, storage, execution.clock, memory, EventFilter(topic=topic)):
        row = {name: getattr(event, name) for name in EVENT_COLUMNS}
        row |= {"totals": dict(event.totals), "notes": list(event.notes)}
        yield {_RESERVED.get(name, name): value for name, value in row.items()}


def offset_rows(
    metadata: MetadataClient, storage: Storage, memory: Memory, topic: str, position: str
) -> Iterable[Row]:
    """Return the rows of ``OFFSETS``. If a partition has no such record, its row has a ``reason`` instead of an
    offset.

    Raises: see ``list_offsets``.
    """
    for partition, answer in sorted(list_offsets(metadata, storage, memory, topic, position).items()):
        row: dict[str, Value] = {"topic": topic, "partition": partition}
        if isinstance(answer, FoundOffset):
            at = answer.timestamp_us
            row |= {"offset": answer.offset, "leader_epoch": answer.leader_epoch}
            row["timestamp"] = None if at is None else time_text(at)
        else:
            row["reason"] = answer.reason
        yield row


_PLACE = {"topic": "STRING", "partition": "INT"}
_LAGS = ("copy_lag_records", "copy_lag_bytes", "copy_lag_ms")

SYSTEM_TABLES: Mapping[str, SystemTable] = {
    "topics": SystemTable(
        {
            "topic": "STRING",
            "partitions": "INT",
            "replication_factor": "INT",
            **dict.fromkeys(("key", "value", "configs", "topic_id", "table_uri", "table_end"), "STRING"),
        },
        _topics,
    ),
    "partitions": SystemTable(
        {
            **_PLACE,
            "broker": "INT",
            "role": "STRING",
            "isr": "STRING",
            "epoch": "INT",
            **dict.fromkeys(("log_start", "remote_end", "local_start", "high_watermark", "log_end"), "BIGINT"),
            **dict.fromkeys(("files", "local_bytes", "remote_bytes", *_LAGS), "BIGINT"),
            "copy_error": "STRING",
            "copy_attempts": "INT",
            "copy_failing_ms": "BIGINT",
        },
        _partitions,
    ),
    "groups": SystemTable(
        {
            "group_id": "STRING",
            **_PLACE,
            **dict.fromkeys(("committed", "log_end", "high_watermark", "lag", "beyond_end"), "BIGINT"),
            "leader_epoch": "INT",
            "metadata": "STRING",
        },
        _groups,
    ),
    "operations": SystemTable(
        {
            "event_time": "TIMESTAMP",
            **dict.fromkeys(("operation", "phase", "outcome", "user_name", "host", "job", "run"), "STRING"),
            **dict.fromkeys(("cluster", "version", "arguments"), "STRING"),
            "totals": "MAP<STRING, BIGINT>",
            "notes": "ARRAY<STRING>",
            "duration": "BIGINT",
        },
        _operations,
    ),
    "files": SystemTable(
        {
            **_PLACE,
            "start_offset": "BIGINT",
            "end_offset": "BIGINT",
            "tier": "STRING",
            "broker": "INT",
            "bytes": "BIGINT",
            "uri": "STRING",
        },
        _files,
    ),
}

OFFSETS = Columns({**_PLACE, "offset": "BIGINT", "timestamp": "STRING", "leader_epoch": "INT", "reason": "STRING"})
"""The columns of ``offset_rows``."""
