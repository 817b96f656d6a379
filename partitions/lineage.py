"""Which leader epoch wrote which offsets: ``[[epoch, start_offset], ...]``, ascending in both.

This is Kafka's leader epoch checkpoint (KIP-101, KIP-279). Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.numbers import Epoch, Natural
from stratalog.partitions.register import EPOCH_BYTES, sealed, unsealed


class EpochStart(NamedTuple):
    """Leader epoch ``epoch`` begins at ``start_offset``."""

    epoch: int
    start_offset: int


class Lineage:
    """The epochs of one history; immutable."""

    __slots__ = ("_starts", "entries")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Raises: CorruptionError unless epochs strictly ascend and starts ascend."""
        self.entries = tuple(EpochStart(epoch, start) for epoch, start in entries)
        self._starts = [entry.start_offset for entry in self.entries]
        for one, two in zip(self.entries, self.entries[1:], strict=False):
            if one.epoch >= two.epoch or one.start_offset > two.start_offset:
                raise CorruptionError(
                    f"the entries of a lineage are not in ascending order: {list(map(list, self.entries))}"
                )

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lineage) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"Lineage({[tuple(entry) for entry in self.entries]})"

    @property
    def memory_bytes(self) -> int:
        """The approximate size in memory: an entry is a tuple of two numbers, and is part of two sequences."""
        return 256 + 160 * len(self.entries)

    @property
    def latest_epoch(self) -> int:
        """The greatest epoch; 0 for an empty lineage."""
        return self.entries[-1].epoch if self.entries else 0

    def epoch_at(self, offset: int) -> int | None:
        """The epoch that wrote ``offset`` (the last entry that starts at or below it)."""
        index = bisect_right(self._starts, offset)
        return self.entries[index - 1].epoch if index else None

    def end_of(self, epoch: int) -> int | None:
        """The end offset of ``epoch``: the start of the first entry with a greater epoch. ``epoch`` itself need
        not be an entry. None if no greater epoch follows, because ``epoch`` then ends at the log end.
        """
        index = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        return self.entries[index].start_offset if index < len(self.entries) else None

    def below(self, offset: int) -> Lineage:
        """The lineage without the entries that start at or above ``offset``. It is equal for two histories that
        are the same below ``offset``.
        """
        return Lineage(self.entries[: bisect_left(self._starts, offset)])

    def parts_from(self, other: Lineage, start: int, end: int) -> int | None:
        """The first offset of ``[start, end)`` at which another history differs; None if it does not."""
        edges = {entry.start_offset for lineage in (self, other) for entry in lineage}
        offsets = sorted({start, *(edge for edge in edges if start < edge < end)}) if start < end else []
        return next((offset for offset in offsets if self.epoch_at(offset) != other.epoch_at(offset)), None)

    def continued_by(self, epoch: int, log_end_offset: int) -> Lineage:
        """The lineage of a leader that takes over as ``epoch`` at its log end: entries that start at or above the
        log end have no records, and are removed.
        """
        return Lineage([*self.below(log_end_offset), EpochStart(epoch, log_end_offset)])

    def truncated_from_start(self, log_start_offset: int) -> Lineage:
        """The lineage without the entries that are wholly below the log start; the entry that covers the log start
        is kept unchanged. (Kafka's epoch cache moves the start of that entry to the log start.) The epochs of
        offsets below the first entry are unknown.
        """
        return Lineage(self.entries[max(bisect_right(self._starts, log_start_offset) - 1, 0) :])

    def to_json(self, most: int = EPOCH_BYTES) -> bytes:
        """The content of an ``.epoch`` file, with its checksum.

        Raises: InvalidCallError if it has more than ``most`` bytes.
        """
        return sealed(msgspec.json.encode(self.entries), most)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Lineage:
        """Read the content of an ``.epoch`` file; ``what`` names it in errors.

        Raises: CorruptionError.
        """
        if len(data) > EPOCH_BYTES:
            raise CorruptionError(f"{what} is not a lineage: it has {len(data)} bytes, more than {EPOCH_BYTES}")
        try:
            return cls(parse_json(unsealed(data), list[tuple[Epoch, Natural]]))
        except (ValueError, CorruptionError) as error:
            raise CorruptionError(f"{what} is not a lineage: {data[:80]!r}") from error
