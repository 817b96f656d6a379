"""The layout of Kafka's ``LocalTieredStorage``: a folder for each partition, a file for each part of a segment.

Source: LocalTieredStorage and RemoteLogSegmentFileset of kafka-storage's test jar, 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.bridges.kafka_tier.layout import MOST_INDEX_BYTES, IndexKind, LayoutOptions
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError, InvalidCallError, SourceChangedError
from stratalog.partitions.store import Store

_SUFFIXES = {
    IndexKind.OFFSET: "index",
    IndexKind.TIMESTAMP: "timeindex",
    IndexKind.PRODUCER_SNAPSHOT: "snapshot",
    IndexKind.LEADER_EPOCH: "leader_epoch_checkpoint",
    IndexKind.TRANSACTION: "txnindex",
}


def gone(segment: object, what: str) -> SourceChangedError:
    """The error for a missing object of a segment."""
    return SourceChangedError(
        f"{segment}: its {what} is not in the storage: it has been deleted, or the address, the prefix or "
        "the layout is wrong"
    )


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment as files."""

    store: Store
    named: str
    names: Mapping[str, str]
    size_bytes: int

    def read(self, start: int, end: int) -> bytes:
        """See ``OpenSegment``."""
        try:
            return self.store.read(self.names["log"], start, min(end, self.size_bytes))
        except FileNotFoundError as error:
            raise gone(self.named, "log") from error

    def index(self, kind: IndexKind) -> bytes:
        """See ``OpenSegment``."""
        try:
            return read_bounded(self.store, self.names[kind], MOST_INDEX_BYTES)
        except FileNotFoundError as error:
            if kind is IndexKind.TRANSACTION:
                return b""
            raise gone(self.named, f"{kind} index") from error


class LocalTieredStorageLayout:
    """``TOPIC-P-TOPICID/OFFSET20-SEGMENTID.SUFFIX``, below the folder ``kafka-tiered-storage``."""

    name = "local"

    def __init__(self, options: LayoutOptions) -> None:
        """Raises: InvalidCallError if keys are given, because this storage has no encryption."""
        if options.keys:
            raise InvalidCallError("the layout local has no encryption: omit the keys")
        self._prefix = options.prefix

    def objects(self, segment: RemoteLogSegment) -> Mapping[str, str]:
        """See ``RemoteSegmentLayout``."""
        folder = f"{self._prefix}{segment.topic}-{segment.partition}-{segment.topic_id}"
        stem = f"{folder}/{segment.start_offset:020d}-{segment.segment_id}"
        return {"log": f"{stem}.log", **{str(kind): f"{stem}.{suffix}" for kind, suffix in _SUFFIXES.items()}}

    def open(self, store: Store, segment: RemoteLogSegment) -> LocalSegment:
        """See ``RemoteSegmentLayout``."""
        names = self.objects(segment)
        try:
            found = store.stat(names["log"])
        except FileNotFoundError as error:
            raise gone(segment, "log") from error
        if found.size_bytes != segment.size_bytes:
            raise CorruptionError(
                f"{segment}: its log has {found.size_bytes} bytes, but its metadata says {segment.size_bytes}"
            )
        return LocalSegment(store, str(segment), names, segment.size_bytes)
