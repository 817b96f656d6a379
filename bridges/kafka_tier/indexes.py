"""Parses Kafka's indexes of a segment, and checks each entry against the segment. Pure."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stratalog.bridges.kafka_tier.checksum import crc32c
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.partitions.errors import CorruptionError, InvalidCallError

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED = struct.Struct(">hqqqq")
_PRODUCER = struct.Struct(">qhiqiqiq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_EPOCH_LINE = re.compile(rb"(\d{1,10}) (\d{1,19})\Z")
_MOST_EPOCHS = 1_000_000


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Offsets, each with the position of its batch or of an earlier batch."""

    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    def before(self, offset: int) -> tuple[int, int] | None:
        """The offset and position of the last entry at or below ``offset``; None before the first entry."""
        at = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return None if at < 0 else (int(self.offsets[at]), int(self.positions[at]))


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Timestamps and offsets: no record up to the offset has a later timestamp."""

    timestamps_ms: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def first_at(self, timestamp_ms: int) -> int | None:
        """An offset before which every record is older than ``timestamp_ms``; None if the index has no such
        offset.
        """
        at = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="left")) - 1
        return None if at < 0 else int(self.offsets[at]) + 1


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """The offsets of an aborted transaction, from its first record to its marker, inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int


def parse_offset_index(data: bytes, segment: RemoteLogSegment) -> OffsetIndex:
    """Parse an offset index. Raises: CorruptionError for entries that are not in ascending order, or point
    outside the segment.
    """
    entries = _entries(data, _OFFSET_ENTRY, segment, "offset index")
    offsets = entries["offset"].astype(np.int64) + segment.start_offset
    positions = entries["position"].astype(np.int64)
    inside = (offsets >= segment.start_offset) & (offsets <= segment.end_offset)
    if not (inside & (positions >= 0) & (positions < segment.size_bytes)).all():
        raise _contradicts(segment, "offset index", "points outside the segment")
    if (np.diff(offsets) <= 0).any() or (np.diff(positions) <= 0).any():
        raise _contradicts(segment, "offset index", "has entries that are not in ascending order")
    return OffsetIndex(offsets, positions)


def parse_time_index(data: bytes, segment: RemoteLogSegment) -> TimeIndex:
    """Parse a time index. Raises: CorruptionError as ``parse_offset_index`` does, and for a time after the
    segment's latest.
    """
    entries = _entries(data, _TIME_ENTRY, segment, "time index")
    times = entries["timestamp"].astype(np.int64)
    offsets = entries["offset"].astype(np.int64) + segment.start_offset
    if not ((offsets >= segment.start_offset) & (offsets <= segment.end_offset)).all():
        raise _contradicts(segment, "time index", "points outside the segment")
    if (np.diff(offsets) < 0).any() or (np.diff(times) < 0).any():
        raise _contradicts(segment, "time index", "has entries that are not in ascending order")
    if len(times) and times[-1] > segment.max_timestamp_ms:
        raise _contradicts(segment, "time index", "has a time above the segment's latest")
    return TimeIndex(times, offsets)


def parse_transaction_index(data: bytes, segment: RemoteLogSegment) -> tuple[AbortedTransaction, ...]:
    """The transactions whose abort marker is in the segment.

    Raises: CorruptionError as ``parse_offset_index`` does; InvalidCallError for a newer version.
    """
    if len(data) % _ABORTED.size:
        raise _contradicts(
            segment, "transaction index", f"has {len(data)} bytes, which is not a multiple of {_ABORTED.size}"
        )
    found = []
    for version, producer, first, last, _ in _ABORTED.iter_unpack(data):
        if version != 0:
            raise InvalidCallError(
                f"{segment}: its transaction index has version {version}, which is not supported"
            )
        if not 0 <= first <= last or not segment.start_offset <= last <= segment.end_offset:
            raise _contradicts(segment, "transaction index", f"has a transaction from {first} to {last}")
        found.append(AbortedTransaction(producer, first, last))
    return tuple(found)


def parse_leader_epochs(data: bytes, segment: RemoteLogSegment) -> tuple[tuple[int, int], ...]:
    """The leader epochs of the log up to the segment's end, each with its first offset, ascending.

    Raises: CorruptionError; InvalidCallError for a newer version.
    """
    return parse_checkpoint(data, f"{segment}: its leader epochs")


def parse_checkpoint(data: bytes, what: str) -> tuple[tuple[int, int], ...]:
    """Like ``parse_leader_epochs``, from a broker's file ``leader-epoch-checkpoint``."""
    version, _, rest = data.partition(b"\n")
    if version != b"0":
        raise InvalidCallError(f"{what} have version {version[:8]!r}, but only 0 is supported")
    lines = rest.split(b"\n", _MOST_EPOCHS)
    count, *entries = [line for line in lines if line]
    parsed = [_EPOCH_LINE.match(line) for line in entries]
    if not count.isdigit() or len(count) > 9 or int(count) != len(entries) or None in parsed:
        raise CorruptionError(f"{what} are damaged")
    epochs = tuple((int(one[1]), int(one[2])) for one in parsed if one is not None)
    check_epochs(epochs, what)
    return epochs


def check_epochs(epochs: tuple[tuple[int, int], ...], what: str) -> None:
    """Check that the list is not empty and epochs are in ascending order. Raises: CorruptionError."""
    ascend = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(epochs))
    if not epochs or not ascend or min(epochs[0]) < 0:
        raise CorruptionError(f"{what} are not in ascending order: {epochs[:4]}")


def parse_open_transactions(data: bytes, segment: RemoteLogSegment) -> dict[int, int]:
    """The transactions open at the segment's end: first offsets by producer id, from the producer snapshot.

    Raises: CorruptionError; InvalidCallError for a newer version.
    """
    if len(data) < _SNAPSHOT_HEAD.size:
        raise _contradicts(segment, "producer snapshot", "is cut off")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        raise InvalidCallError(f"{segment}: its producer snapshot has version {version}, which is not supported")
    if crc32c(data[6:]) != crc or count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _PRODUCER.size:
        raise _contradicts(segment, "producer snapshot", "is damaged")
    found = {}
    for producer, *_, first in _PRODUCER.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
        if first > segment.end_offset:
            raise _contradicts(segment, "producer snapshot", f"has a transaction from {first}")
        if first >= 0:
            found[producer] = first
    return found


def _entries(data: bytes, kind: np.dtype[np.void], segment: RemoteLogSegment, what: str) -> npt.NDArray[np.void]:
    if len(data) % kind.itemsize:
        raise _contradicts(segment, what, f"has {len(data)} bytes, which is not a multiple of {kind.itemsize}")
    return np.frombuffer(data, kind)


def _contradicts(segment: RemoteLogSegment, what: str, why: str) -> CorruptionError:
    return CorruptionError(f"{segment}: its {what} {why}")
