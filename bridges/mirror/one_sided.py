"""Records of a compared partition that one side has and a rule of removal has taken from the other.

A rule removes a record without a key, a tombstone that is old enough, and a record whose key has a later record.
It explains no other record that only one side has: the last record of a key, for example, whose tombstone left the
source before the mirror copied it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from stratalog.bridges.mirror.rows import offsets_of
from stratalog.partitions.columns import booleans, integers, valid_of
from stratalog.partitions.removal import Rule
from stratalog.partitions.superseded import Superseded

MEMORY_BYTES = 128 * 1024 * 1024
"""The memory of a comparison for keys; keys beyond it go to files."""

Sides = tuple[pa.RecordBatch, pa.RecordBatch]
"""The records of the source and of the log here between the same offsets."""


@dataclass(slots=True)
class OneSided:
    """The records on one side only, eight bytes for each."""

    there_compacts: bool
    """Whether the source compacts, so that it may lack records that are here."""
    rule: Rule | None
    """The last rule of the log here; None: nothing was removed here."""
    only_there: list[np.ndarray] = field(default_factory=list)
    only_here: list[np.ndarray] = field(default_factory=list)
    """Offsets, ascending."""

    @property
    def possible(self) -> bool:
        """Whether any side removes records by a rule."""
        return self.there_compacts or self.rule is not None

    @property
    def found(self) -> bool:
        """Whether a side lacks a record."""
        return bool(self.only_there or self.only_here)

    def explained(
        self, start: int, end: int, sides: Iterable[Sides], later: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, str | None]]:
        """The offsets on one side only, and how each differs; None if a rule explains it. ``sides`` are all
        records in ``[start, end)``; ``later`` are records of the source starting at ``end``, read after them.

        Raises: StorageError when the folder for temporary files cannot be written.
        """
        rule = Rule(1, end + 1, end + 1)
        with Superseded(start, rule, MEMORY_BYTES) as marks:
            marks.find(self._keys(end, sides, later))
            for offsets, side, bound in (
                (self.only_there, "in the source", 0 if self.rule is None else self.rule.bound),
                (self.only_here, "here", end if self.there_compacts else 0),
            ):
                for some in offsets:
                    low = int(some[0])
                    removed = marks.removed(low, int(some[-1]) + 1)[some - low]
                    for offset, explained in zip(some.tolist(), removed.tolist(), strict=True):
                        removes = offset < bound
                        yield offset, None if explained and removes else _how(side, removes)

    def _keys(self, end: int, sides: Iterable[Sides], later: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The keys of both sides, as ``Superseded.find`` takes them."""
        for there, here in sides:
            offsets, others = offsets_of(there), offsets_of(here)
            alone, other_alone = ~np.isin(offsets, others), ~np.isin(others, offsets)
            if alone.any():
                self.only_there.append(offsets[alone])
            if other_alone.any():
                self.only_here.append(others[other_alone])
            before = 0 if self.rule is None else self.rule.tombstones_before
            yield _marked(here, other_alone)
            yield _marked(there, alone & (offsets < before))
        if self.found:
            for records in later:
                yield _columns(records.column("key"), np.full(records.num_rows, end), None)


def _how(side: str, removes: bool) -> str:
    return f"is only {side}" + (", and no later record has its key" if removes else "")


def _marked(records: pa.RecordBatch, may_leave: np.ndarray) -> pa.RecordBatch:
    """``may_leave``: where a tombstone may have left the other side."""
    return _columns(records.column("key"), offsets_of(records), may_leave & ~valid_of(records.column("value")))


def _columns(keys: pa.Array, offsets: np.ndarray, tombstones: np.ndarray | None) -> pa.RecordBatch:
    rows = len(keys)
    no = pa.repeat(False, rows) if tombstones is None else booleans(tombstones)
    return pa.RecordBatch.from_arrays(
        [integers(offsets), keys, pa.nulls(rows, pa.int32()), no], names=["offset", "key", "control", "tombstone"]
    )
