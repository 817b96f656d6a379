"""Admission: the end of each partition in one batch of a stream, under a limit of rows or bytes. Pure.

Every partition gets an equal share. If a partition does not need all of its share, the other partitions divide the
rest. So a partition with few records never waits for a partition with many. If the limit is below the number of
partitions, the partitions take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", int, tuple[str, int])
"""A partition, or a topic and a partition."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The records ``[start, end)`` in one file, and their approximate number of bytes."""

    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of a partition, ``[start, end)``; its extents are in order and do not overlap. Records outside
    of all extents have zero bytes.
    """

    start: int
    end: int
    extents: Sequence[Extent] = ()

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.end - self.start

    def bytes_until(self, offset: int) -> int:
        """The approximate bytes of the records below ``offset``."""
        return sum(_part_bytes(extent, self.start, min(offset, self.end)) for extent in self.extents)

    def offset_within(self, budget_bytes: int) -> int:
        """The end of the records that fit into ``budget_bytes``. At least one record is taken, if there is one."""
        reached, left = self.start, budget_bytes
        for extent in self.extents:
            size = _part_bytes(extent, reached, self.end)
            low, high = max(extent.start, reached), min(extent.end, self.end)
            if low >= high:
                continue
            if size > left:
                reached = low + (high - low) * left // size
                return max(reached, min(self.start + 1, self.end))
            reached, left = high, left - size
        return self.end


def _part_bytes(extent: Extent, start: int, end: int) -> int:
    """Bytes of the records ``[start, end)``, as if all records of the extent had the same size."""
    rows = min(extent.end, end) - max(extent.start, start)
    return extent.size_bytes * rows // (extent.end - extent.start) if rows > 0 else 0


def admit(
    backlogs: Mapping[K, Backlog], *, max_rows: int | None = None, max_bytes: int | None = None
) -> dict[K, int]:
    """The end of each partition in this batch. ``max_rows`` is never exceeded; ``max_bytes`` is an estimate, and
    each batch takes at least one record, even if the record is larger.
    """
    turn = sum(
        backlog.start for backlog in backlogs.values()
    )  # this sum grows with every batch, and is the same after a restart
    ends = {partition: backlog.end for partition, backlog in backlogs.items()}
    if max_rows is not None:
        rows = fair_shares({p: backlog.rows for p, backlog in backlogs.items()}, max_rows, turn)
        ends = {p: backlog.start + rows[p] for p, backlog in backlogs.items()}
    if max_bytes is not None:
        wanted = {p: max(backlog.bytes_until(ends[p]), ends[p] > backlog.start) for p, backlog in backlogs.items()}
        if sum(wanted.values()) > max_bytes:
            sizes = fair_shares(wanted, max_bytes, turn)
            ends = {
                p: min(ends[p], backlog.offset_within(sizes[p])) if sizes[p] else backlog.start
                for p, backlog in backlogs.items()
            }
    return ends


def fair_shares(wanted: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Divide ``limit`` fairly. No partition gets more than it wants; partitions that want more than their share
    get equal shares, up to a remainder. If there are more partitions than units, consecutive partitions from
    number ``turn`` on get one unit each.
    """
    takers = sorted(key for key, want in wanted.items() if want > 0)
    shares = dict.fromkeys(wanted, 0)
    if limit < len(takers):
        for index in range(limit):
            shares[takers[(turn + index) % len(takers)]] = 1
        return shares
    left = limit
    for index, key in enumerate(sorted(takers, key=lambda key: (wanted[key], key))):
        shares[key] = min(wanted[key], left // (len(takers) - index))
        left -= shares[key]
    return shares
