"""The log of a replica, updated from an earlier listing: only new files are parsed and resolved. Pure.

A file in both listings is the same object in both. A file of the log always holds the same records under one
lineage: the chain changes only from the first new file on, or if one of its files is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TypeVar

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import (
    DataFile,
    Listing,
    ReplicaLog,
    chain_of,
    is_live,
    log_of_chain,
    parse,
    resolve,
)
from stratalog.partitions.store.protocol import StoredObject

_NAME = attrgetter("object.name")

N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class KnownLog:
    """The folder of a replica, as a process has cached it."""

    answer: Sequence[StoredObject]
    """The store's latest answer to a listing."""
    objects: Sequence[StoredObject]
    """The objects of that listing."""
    listing: Listing
    log: ReplicaLog | None = None
    """The log that was resolved last, from this listing or an earlier listing."""
    looked: int = 0
    """The number of the listing of the folder; see ``replica.LookMark``."""

    @property
    def memory_bytes(self) -> int:
        """The approximate size in memory."""
        return 2048 + 1024 * len(self.objects)

    @property
    def resolved(self) -> ReplicaLog | None:
        """The log of exactly this listing, if it was resolved."""
        return self.log if self.log is not None and self.log.listing is self.listing else None


def known_again(
    before: KnownLog | None,
    answer: Sequence[StoredObject],
    folder: str,
    uri_of: Callable[[str], str],
    generation: int = 0,
) -> KnownLog:
    """The known log after a new listing ``answer`` of the folder. ``generation`` (see ``parse``) must also be that
    of ``before``. Raises: see ``parse``.
    """
    if before is None:
        return KnownLog(answer, answer, parse(folder, answer, uri_of, generation=generation))
    if answer is before.answer:
        return before
    held = {stored.name: stored for stored in before.objects}
    objects: list[StoredObject] = []
    added: list[StoredObject] = []
    for stored in answer:
        same = held.get(stored.name)
        if same is not None and (same is stored or same == stored):
            objects.append(same)
            del held[stored.name]
        else:
            objects.append(stored)
            added.append(stored)
    if not added and not held:
        return KnownLog(answer, before.objects, before.listing, before.log, before.looked)
    listing = _listing(before.listing, added, [*held.values()], folder, uri_of, generation)
    return KnownLog(answer, objects, listing, before.log)


def _listing(
    before: Listing,
    added: Sequence[StoredObject],
    gone: Sequence[StoredObject],
    folder: str,
    uri_of: Callable[[str], str],
    generation: int,
) -> Listing:
    new, old = (parse(folder, some, uri_of, generation=generation) for some in (added, gone))
    left = {id(stored) for stored in gone}

    def registers(
        held: tuple[tuple[N, StoredObject], ...], new: tuple[tuple[N, StoredObject], ...]
    ) -> tuple[tuple[N, StoredObject], ...]:
        kept = [each for each in held if id(each[1]) not in left]
        return tuple(sorted([*kept, *new], key=itemgetter(0)))

    data, marks, late = before.data, before.watermarks, before.late
    if old.data:
        data = tuple(file for file in data if id(file.object) not in left)
    if new.data:
        data = tuple(sorted([*data, *new.data], key=_NAME))
    if old.watermarks or new.watermarks:
        marks_gone = {*old.watermarks}
        marks = tuple(sorted([*(mark for mark in marks if mark not in marks_gone), *new.watermarks]))
        late = (late - marks_gone) | new.late
    foreign, others = (
        tuple(sorted([*(stored for stored in held if id(stored) not in left), *added], key=attrgetter("name")))
        for held, added in ((before.foreign, new.foreign), (before.other_snapshots, new.other_snapshots))
    )
    return Listing(
        data=data,
        epochs=registers(before.epochs, new.epochs),
        watermarks=marks,
        local_starts=registers(before.local_starts, new.local_starts),
        foreign=foreign,
        checkpoints=registers(before.checkpoints, new.checkpoints),
        chunks=registers(before.chunks, new.chunks),
        other_snapshots=others,
        late=late,
    )


def log_again(
    before: ReplicaLog | None, listing: Listing, lineage: Lineage, end_of_append: Callable[[DataFile], int]
) -> ReplicaLog:
    """Like ``resolve``; ``before`` is the log of an earlier listing of the folder."""
    if (
        before is None
        or not before.chain
        or before.lineage != lineage
        or before.local_start != listing.local_start
    ):
        return resolve(listing, lineage, end_of_append)
    was = {id(file) for file in before.listing.data}
    now = {id(file) for file in listing.data}
    chain = before.chain
    added = [file for file in listing.data if id(file) not in was]
    live = [file for file in added if is_live(file.name, lineage, listing.local_start)]
    first = min((file.name.base_offset for file in live), default=before.log_end)
    if first < chain[0].start or not all(id(link.file) in now for link in chain):
        return resolve(listing, lineage, end_of_append)
    unused = [file for file in (*before.hidden, *before.stranded) if id(file) in now]
    kept = chain
    if live:
        # Redo from the link in which the first new file begins: the end of that link may change.
        index = min(bisect_right(chain, first, key=lambda link: link.start) - 1, len(chain) - 1)
        start = chain[index].start
        kept, redone = chain[:index], [link.file for link in chain[index:]]
        reaching = [file for file in unused if (file.name.next_offset or file.name.base_offset) >= start]
        chain = (*kept, *chain_of([*redone, *reaching, *live], start, end_of_append))
        unused = [*unused, *redone]
    is_new = {id(file) for file in live}
    dead = [file for file in before.dead if id(file) in now]
    dead += [file for file in added if id(file) not in is_new]
    return log_of_chain(listing, lineage, chain, sorted([*unused, *live], key=_NAME), sorted(dead, key=_NAME))
