"""The good files of a partition, and the choice of files that covers a range of offsets. Pure.

A file is good if this run has read every byte of it, and it belongs to the leader's history. A good file may also
be one that a merge has replaced, or that is below the log start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stratalog.engine.replicas.repair import Copy, HeldFile, Place
from stratalog.engine.upkeep.verification.audit import Audited
from stratalog.partitions.erasure import named
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import is_live

Offsets = tuple[int, int]
"""``[start, end)``."""


class GoodFiles:
    """The good files of a partition whose leader is ``leader``."""

    def __init__(self, each: Audited, lineage: Lineage, leader: int | None) -> None:
        view = each.replicas.view

        def usable(copy: Copy) -> bool:
            """Whether the copy may be used. A replica outside the ISR may still have records that an erasure
            names; these must not come back.
            """
            stale = copy.place is not None and copy.place not in view.isr and copy.place != leader
            return is_live(copy.held.name, lineage, 0) and not (
                stale and named(copy.held.name, copy.held.end, view.erasures)
            )

        self._rule = view.compaction
        self.log = [copy for copy in each.good if usable(copy)]
        self.hidden = [copy for copy in each.spare if usable(copy)]
        self._ranks: dict[Place, int] = {None: 3}
        for broker in view.replicas:
            self._ranks[broker] = 0 if broker == leader else 1 if broker in view.isr else 2

    def is_compacted(self, copy: Copy) -> bool:
        """Whether a copy follows the partition's last compaction, or is above its bound. Any other copy may have
        records that the compaction removed.
        """
        rule = self._rule
        return rule is None or copy.held.name.generation >= rule.generation or copy.held.start >= rule.bound

    def rank(self, place: Place) -> int:
        """The rank of a source; the best rank is the leader's, then come the ISR, other replicas, and the remote
        tier.
        """
        return self._ranks[place]

    @property
    def by_broker(self) -> dict[int, list[HeldFile]]:
        """The files of each replica, in the order of ``rank``."""
        brokers = sorted((broker for broker in self._ranks if broker is not None), key=self.rank)
        copies = [*self.log, *self.hidden]
        return {broker: [copy.held for copy in copies if copy.place == broker] for broker in brokers}


def cover(
    copies: Iterable[Copy], start: int, end: int, preference: Callable[[Copy], Any]
) -> tuple[list[Copy], list[Offsets]]:
    """Select copies that together have ``[start, end)``, and return them with the offsets that no copy has. At
    each offset, the copy with the least ``preference`` is used up to its end.
    """
    candidates = list(copies)
    found: list[Copy] = []
    holes: list[Offsets] = []
    position = start
    while position < end:
        if there := [copy for copy in candidates if copy.held.start <= position < copy.held.end]:
            found.append(min(there, key=preference))
            position = found[-1].held.end
        else:
            following = min((copy.held.start for copy in candidates if copy.held.start > position), default=end)
            holes.append((position, min(following, end)))
            position = following
    return found, holes
