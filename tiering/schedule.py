"""The list of partitions that the remote log manager processes, each with its due time (KIP-405, "Thread Pools",
1.). Pure.

    appears, or its leadership moves    due at once
    processed                           due after the interval
    failed                              due after the retry interval, doubled with each failure in a row, give or
                                        take the jitter, up to a maximum
    topic gone, or tiering turned off   removed from the list

The list is only a hint. A forgotten partition is due immediately, which costs one listing. The end of a remote log
in the list is used only if the remote log cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.numbers import Int64

_MOST_TEXT = 500
"""The maximum number of characters of a message to keep."""


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition on the list; defaults mean unknown."""

    leader_epoch: Int64
    due_ms: Int64 = 0
    """The scheduled processing time; 0: immediately."""
    attempts: Int64 = 0
    """Consecutive failures; 0 after a success."""
    failing_since_ms: Int64 = 0
    """The time of the first of these failures."""
    code: str = ""
    """The error code of the last failure."""
    remote_end: Int64 | None = None
    """The end of the remote log when it was last readable."""
    seen: str = ""
    """A digest of the inputs when nothing was due; empty if something was due."""
    quiet_until_ms: Int64 = 0
    """Nothing is due before this time, while the inputs of ``seen`` stay the same."""
    pending_bytes: Int64 = 0
    """Bytes of the log that were not due at that time."""
    message: str = ""
    """The message of the last failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The remote.log.manager.task.* settings."""

    interval_ms: int
    retry_ms: int
    retry_max_ms: int
    jitter: float

    def after_failure(self, attempts: int, draw: float) -> int:
        """The wait after ``attempts`` consecutive failures (at least 1); ``draw`` is from [0, 1)."""
        doubled = self.retry_ms * 2.0 ** min(attempts - 1, 62)
        factor = 1 - self.jitter + 2 * self.jitter * draw
        return round(min(doubled * factor, self.retry_max_ms))

    @property
    def longest_ms(self) -> int:
        """The longest time from a run of a partition to its next one."""
        return max(self.interval_ms, self.retry_max_ms)


@dataclass(frozen=True, slots=True)
class Schedule:
    """All partitions of all tiered topics."""

    entries: Mapping[TopicIdPartition, Entry] = field(default_factory=dict)

    def assigned(self, leader_epochs: Mapping[TopicIdPartition, int]) -> Schedule:
        """The list of exactly these partitions. New partitions, and partitions with a new leader, are due
        immediately. Partitions with a new leader keep their failures.
        """
        entries: dict[TopicIdPartition, Entry] = {}
        for key, epoch in leader_epochs.items():
            entry = self.entries.get(key, Entry(epoch))
            if entry.leader_epoch != epoch:
                entry = msgspec.structs.replace(entry, leader_epoch=epoch, due_ms=0, seen="", quiet_until_ms=0)
            entries[key] = entry
        return Schedule(entries)

    def due(self, now_ms: int, longest_ms: int) -> list[TopicIdPartition]:
        """The partitions that are due, the longest overdue first. A due time further ahead than ``longest_ms`` was
        set before the clock jumped back, so the partition is due.
        """
        found = [
            (entry.due_ms if entry.due_ms <= now_ms else 0, key)
            for key, entry in self.entries.items()
            if not now_ms < entry.due_ms <= now_ms + longest_ms
        ]
        return [key for _, key in sorted(found)]

    def next_due_ms(self, topic_ids: Collection[str]) -> int | None:
        """The time at which the next partition of these topics is due; None if the list has no partition of these
        topics."""
        return min((entry.due_ms for key, entry in self.entries.items() if key[0] in topic_ids), default=None)

    def updated(self, changes: Mapping[TopicIdPartition, Entry]) -> Schedule:
        """The list with the entries of these partitions replaced. An entry is ignored if its partition is no
        longer on the list, or if the entry has an earlier leader epoch.
        """
        entries = dict(self.entries)
        for key, entry in changes.items():
            known = entries.get(key)
            if known is not None and known.leader_epoch <= entry.leader_epoch:
                entries[key] = entry
        return Schedule(entries)


def succeeded(
    entry: Entry,
    now_ms: int,
    intervals: Intervals,
    *,
    remote_end: int | None,
    seen: str = "",
    quiet_until_ms: int = 0,
    pending_bytes: int = 0,
) -> Entry:
    """The entry of a partition that was just processed."""
    return Entry(
        entry.leader_epoch,
        now_ms + intervals.interval_ms,
        remote_end=remote_end,
        seen=seen,
        quiet_until_ms=quiet_until_ms,
        pending_bytes=pending_bytes,
    )


def failed(
    entry: Entry,
    now_ms: int,
    intervals: Intervals,
    *,
    code: str,
    message: str = "",
    draw: float,
    remote_end: int | None,
) -> Entry:
    """The entry of a partition that could not be processed; ``draw`` is from [0, 1)."""
    attempts = entry.attempts + 1
    since_ms = entry.failing_since_ms if entry.attempts else now_ms
    return Entry(
        entry.leader_epoch,
        now_ms + intervals.after_failure(attempts, draw),
        attempts,
        min(since_ms, now_ms),
        code,
        entry.remote_end if remote_end is None else remote_end,
        message=message[:_MOST_TEXT],
    )


class _DueFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The file's content: partitions and entries by topic id."""

    version: Literal[1]
    topics: dict[str, list[tuple[Int64, Entry]]]


def encode(schedule: Schedule) -> bytes:
    """A line of JSON."""
    topics: dict[str, list[tuple[int, Entry]]] = {}
    for (topic_id, partition), entry in sorted(schedule.entries.items()):
        topics.setdefault(topic_id, []).append((partition, entry))
    return msgspec.json.encode(_DueFile(1, topics))


def decode(line: bytes) -> Schedule:
    """The inverse of ``encode``; an empty schedule for an empty line, or for a line of another version."""
    try:
        file = parse_json(line, _DueFile)
    except ValueError:
        return Schedule()
    return Schedule(
        {
            TopicIdPartition(topic_id, partition): entry
            for topic_id, entries in file.topics.items()
            for partition, entry in entries
        }
    )
