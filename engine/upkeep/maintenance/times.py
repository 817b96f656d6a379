"""When a step of the maintenance was last done, and when the bytes of a partition were last read. Pure.

A hint, never truth: a time that is forgotten makes its work due at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.numbers import Int64


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms since the epoch."""

    steps: Mapping[str, int] = field(default_factory=dict)
    """By the name of a step."""
    scrubbed: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    def updated(self, later: Times, present: Iterable[TopicIdPartition]) -> Times:
        """These times with the ``later`` ones in their places, of the partitions that are ``present`` alone."""
        scrubbed = {**self.scrubbed, **later.scrubbed}
        kept = {key: scrubbed[key] for key in present if key in scrubbed}
        return Times({**self.steps, **later.steps}, kept)


def wait_ms(last_ms: int | None, interval_ms: int, now_ms: int) -> int:
    """How long until something is due again that was last done then; 0: it is due. A time in the future was set by
    a clock that has jumped back since: it is due, too.
    """
    if last_ms is None or last_ms > now_ms:
        return 0
    return max(0, last_ms + interval_ms - now_ms)


class _File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    steps: dict[str, Int64]
    scrubbed: dict[str, list[tuple[Int64, Int64]]]
    """Partitions and times by topic id."""


def encode(times: Times) -> bytes:
    """A line of JSON."""
    scrubbed: dict[str, list[tuple[int, int]]] = {}
    for (topic_id, partition), last_ms in sorted(times.scrubbed.items()):
        scrubbed.setdefault(topic_id, []).append((partition, last_ms))
    return msgspec.json.encode(_File(1, dict(times.steps), scrubbed))


def decode(line: bytes) -> Times:
    """The inverse of ``encode``; no times from an empty line, or another version's."""
    try:
        file = parse_json(line, _File)
    except ValueError:
        return Times()
    if file.version != 1:
        return Times()
    return Times(
        file.steps,
        {
            TopicIdPartition(topic_id, partition): last_ms
            for topic_id, partitions in file.scrubbed.items()
            for partition, last_ms in partitions
        },
    )
