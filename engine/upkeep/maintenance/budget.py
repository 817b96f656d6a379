"""The budget of a run: seconds, bytes and requests. The budget is checked between pieces of work, and during long
pieces. Pieces grow as far as the budget permits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stratalog.engine.driver.storage import Storage
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError

T = TypeVar("T")

_FASTER = 4
"""The factor by which a piece may be larger than the previous piece."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run; None: unlimited. ``bytes`` limits the bytes that the run's processes read and write.
    Raises: InvalidCallError for 0 or less.
    """

    seconds: float | None = None
    bytes: int | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        for what, given in (("s", self.seconds), ("bytes", self.bytes), ("requests", self.requests)):
            if given is not None and given <= 0:
                raise InvalidCallError(f"a budget must be more than 0 {what}, not {given:g}")


class Spending:
    """Measures how much of a budget has been spent since this object was created."""

    def __init__(self, storage: Storage, clock: Clock, budget: Budget, within: Spending | None = None) -> None:
        """``within``: another budget that also applies."""
        self._storage = storage
        self._clock = clock
        self._limits = (budget.seconds, budget.bytes, budget.requests)
        self._within = within
        self._began = self._now()

    @property
    def limited(self) -> bool:
        return bool(self._left())

    def over(self) -> bool:
        return any(left <= 0 for left in self._left())

    def pieces(self, items: Sequence[T], most: int | None = None) -> Iterator[Sequence[T]]:
        """Yield the items in order, in pieces, until a limit is reached; at least one piece. If there is a limit,
        the first piece has one item; otherwise it has all items. ``most`` is the maximum number of items per
        piece.
        """
        position, size, dearest = 0, 1 if self.limited else len(items), [0.0, 0.0, 0.0]
        while position < len(items) and not (position and self.over()):
            piece = items[position : position + min(size, most or size)]
            before = self._now()
            yield piece
            position += len(piece)
            each = [(after - was) / len(piece) for after, was in zip(self._now(), before, strict=True)]
            dearest = [*map(max, dearest, each)]
            size = max(1, min(size * _FASTER, *self._fitting(dearest)))

    def _fitting(self, each: Sequence[float]) -> list[int]:
        """The number of items that each limit permits; an item uses at most ``each``."""
        found = [
            int(left / one)
            for left, one in zip(self._left_of_each(), each, strict=True)
            if left is not None and one > 0
        ]
        return [*found, *(self._within._fitting(each) if self._within else [2**62])]

    def _left(self) -> list[float]:
        own = [left for left in self._left_of_each() if left is not None]
        return [*own, *(self._within._left() if self._within else ())]

    def _left_of_each(self) -> list[float | None]:
        used = [now - began for now, began in zip(self._now(), self._began, strict=True)]
        return [None if limit is None else limit - one for limit, one in zip(self._limits, used, strict=True)]

    def _now(self) -> tuple[float, float, float]:
        counts = self._storage.counts()
        return self._clock.monotonic_s(), counts.read_bytes + counts.written_bytes, counts.requests
