"""The cluster's metadata as a state machine of ``snapshots``: apply, dump, load. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.metadata.dump import SnapshotRecord, decode, dump, encode, load
from engine.metadata.fold import apply
from engine.metadata.image import ClusterImage
from engine.metadata.records import MetadataRecord
from partitions.errors import CorruptionError
from snapshots.state_machine import Codec


@dataclass(frozen=True, slots=True)
class MetadataMachine:
    """An image that knows how it goes on. See ``snapshots.state_machine.StateMachine``."""

    image: ClusterImage = ClusterImage()  # noqa: RUF009 - immutable

    @property
    def next_offset(self) -> int:
        """The metadata offset of the record that it waits for."""
        return self.image.next_offset

    def apply(self, offset: int, records: Iterable[MetadataRecord]) -> MetadataMachine:
        """Raises: as ``engine.metadata.fold.apply``."""
        return MetadataMachine(apply(self.image, offset, tuple(records)))

    def dump(self) -> Iterator[SnapshotRecord]:
        """The records of a snapshot of the image."""
        return dump(self.image)


def load_machine(records: Iterable[SnapshotRecord], offset: int) -> MetadataMachine:
    """The machine of a dump. Raises: CorruptionError."""
    return MetadataMachine(load(records, offset))


def _decode(key: bytes | None, value: bytes | None) -> SnapshotRecord:
    if key is not None or value is None:
        raise CorruptionError(f"a record of a metadata snapshot is a value without a key, not {key!r}: {value!r}")
    return decode(value)


CODEC: Codec[SnapshotRecord] = Codec(encode=lambda record: (None, encode(record)), decode=_decode)
"""Records of metadata snapshots are values without keys."""
