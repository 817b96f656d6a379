"""A remote segment as Kafka's ``__remote_log_metadata`` describes it (KIP-405, RemoteLogSegmentMetadata). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from stratalog.partitions.errors import CorruptionError

MOST_SEGMENT_BYTES = (1 << 31) - 1
"""Kafka's positions in a segment are signed 32-bit integers."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z")
_MOST_OFFSET = (1 << 63) - 1


class SegmentState(IntEnum):
    """Kafka's RemoteLogSegmentState, with its numbers."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


@dataclass(frozen=True, slots=True)
class RemoteLogSegment:
    """One upload of a segment. Offsets are Kafka's: ``end_offset`` is inclusive. Raises: CorruptionError for
    values that no broker writes. Names are also checked, because they become parts of paths.
    """

    topic_id: str
    topic: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    size_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    """Each leader epoch with its first offset in this segment, ascending."""
    broker_id: int = -1
    event_timestamp_ms: int = -1
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: bool = False
    """Whether the broker says that the segment has no transaction index; False for old brokers, which do not say
    so.
    """
    custom_metadata: bytes | None = None
    """The plugin's custom metadata."""

    def __post_init__(self) -> None:
        named = f"the metadata of remote segment {self.segment_id!r} of {self.topic!r}-{self.partition}"
        if not _TOPIC.match(self.topic) or self.topic in (".", ".."):
            raise CorruptionError(f"{named} names a topic that Kafka does not allow")
        if not _ID.match(self.topic_id) or not _ID.match(self.segment_id):
            raise CorruptionError(f"{named} has an id that is not a UUID in URL-safe base64")
        if not 0 <= self.start_offset <= self.end_offset < _MOST_OFFSET or not 0 <= self.partition < 1 << 31:
            raise CorruptionError(f"{named} has invalid offsets: {self.start_offset} to {self.end_offset}")
        if not 0 <= self.size_bytes <= MOST_SEGMENT_BYTES:
            raise CorruptionError(f"{named} has an invalid size: {self.size_bytes} bytes")
        epochs = self.leader_epochs
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(epochs)):
            raise CorruptionError(f"{named} has leader epochs that are not in ascending order: {epochs[:4]}")
        if not epochs or not epochs[0][1] <= self.start_offset or epochs[-1][1] > self.end_offset + 1:
            raise CorruptionError(f"{named} has leader epochs that do not cover its offsets: {epochs[:4]}")

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start_offset}, {self.next_offset}) ({self.segment_id})"

    @property
    def next_offset(self) -> int:
        """The offset after the segment's last offset."""
        return self.end_offset + 1
