"""The log of a replica, from the listing of its folder (protocol section 1, "A replica is a listing").

``parse`` sorts names into kinds. ``resolve`` finds, for a lineage, the live files, the chain that they form, the
log end offset and the high watermark. Pure: the contents that it needs (the lineage, the end of the last append)
are arguments.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import (
    CheckpointName,
    ChunkName,
    DataName,
    EpochName,
    LocalStartName,
    WatermarkName,
    name_in,
    parse_name,
)
from stratalog.partitions.store.protocol import LEFT_ALONE, StoredObject

_PLACE = attrgetter("name")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file in a listing."""

    name: DataName
    object: StoredObject


@dataclass(frozen=True)
class Listing:
    """The names of a folder by kind. Foreign names, and everything in subfolders, are ``foreign``."""

    data: tuple[DataFile, ...]
    epochs: tuple[tuple[EpochName, StoredObject], ...]
    watermarks: tuple[WatermarkName, ...]
    local_starts: tuple[tuple[LocalStartName, StoredObject], ...]
    foreign: tuple[StoredObject, ...]
    checkpoints: tuple[tuple[CheckpointName, StoredObject], ...] = ()
    """Snapshots, by end offset."""
    chunks: tuple[tuple[ChunkName, StoredObject], ...] = ()
    """Pieces of snapshots whose fetch is in progress, or was interrupted."""
    other_snapshots: tuple[StoredObject, ...] = ()
    """Snapshots, and pieces of snapshots, of another generation than the partition's last erasure, by name."""
    late: frozenset[WatermarkName] = frozenset()
    """High watermarks that were written during the listing. They may be above the listed log. If so, the listing
    lacks committed records, but nothing is lost (``StoredObject.late``).
    """

    @property
    def joined_epoch(self) -> int:
        """The greatest leader epoch that this replica has joined; 0 if none."""
        return max((name.epoch for name, _ in self.epochs), default=0)

    @property
    def joined_ms(self) -> int:
        """The time when the replica joined that epoch, by the clock of the storage; 0 if it has joined none."""
        return max(((name.epoch, stored.modified_ms) for name, stored in self.epochs), default=(0, 0))[1]

    @cached_property
    def latest_epoch(self) -> int:
        """The greatest epoch of its data files and high watermarks; 0 without any."""
        return max(
            max((file.name.epoch for file in self.data), default=0),
            max((mark.epoch for mark in self.watermarks), default=0),
        )

    @property
    def local_start(self) -> int:
        """The local log start offset: the greatest ``.local``; 0 if there is no such file."""
        return max((name.offset for name, _ in self.local_starts), default=0)


def parse(
    folder: str, objects: Iterable[StoredObject], uri_of: Callable[[str], str] = str, *, generation: int = 0
) -> Listing:
    """The objects of a replica's folder, sorted by kind; ``folder`` is the path below the root, and ``uri_of``
    gives the address for errors. ``generation`` is the number of the partition's last removal rule (0: none). A
    data file of a later generation is foreign, because no rule has made it. A snapshot counts if it has exactly
    this generation.

    Raises: CorruptionError if a name of the log is not a regular file, because a reader by path, such as Spark,
    would follow a link.
    """
    data: list[DataFile] = []
    epochs: list[tuple[EpochName, StoredObject]] = []
    watermarks: list[WatermarkName] = []
    late: list[WatermarkName] = []
    local_starts: list[tuple[LocalStartName, StoredObject]] = []
    foreign: list[StoredObject] = []
    checkpoints: list[tuple[CheckpointName, StoredObject]] = []
    chunks: list[tuple[ChunkName, StoredObject]] = []
    others: list[StoredObject] = []
    for stored in objects:
        parsed = parse_name(name_in(folder, stored.name))
        if stored.special and parsed is not None:
            raise CorruptionError(f"{uri_of(stored.name)} is {stored.special}: {LEFT_ALONE}")
        match parsed:
            case DataName() as name if name.generation <= generation:
                data.append(DataFile(name, stored))
            case EpochName() as name:
                epochs.append((name, stored))
            case WatermarkName() as name:
                watermarks.append(name)
                if stored.late:
                    late.append(name)
            case LocalStartName() as name:
                local_starts.append((name, stored))
            case CheckpointName() as name if name.generation == generation:
                checkpoints.append((name, stored))
            case ChunkName() as name if name.generation == generation:
                chunks.append((name, stored))
            case CheckpointName() | ChunkName():
                others.append(stored)
            case _:
                foreign.append(stored)
    return Listing(
        tuple(data),
        tuple(epochs),
        tuple(watermarks),
        tuple(local_starts),
        tuple(foreign),
        tuple(sorted(checkpoints, key=lambda found: found[0])),
        tuple(sorted(chunks, key=lambda found: found[0])),
        tuple(sorted(others, key=_PLACE)),
        frozenset(late),
    )


@dataclass(frozen=True, slots=True)
class Link:
    """The part ``[start, end)`` of the log in one file. ``start`` is above the file's base offset if the file
    overlaps the previous file, or the local log start. ``end`` is below the file's end if a file of a greater
    generation begins at ``end``.
    """

    start: int
    end: int
    file: DataFile

    @property
    def name(self) -> DataName:
        return self.file.name


_START, _END = attrgetter("start"), attrgetter("end")


@dataclass(frozen=True, eq=False)
class ReplicaLog:
    """The log of one replica for a lineage, from one listing. Equality is identity.

    ``local_start <= high_watermark <= log_end``; ``chain`` is contiguous over
    ``[local_start, log_end)``.
    """

    listing: Listing
    lineage: Lineage
    chain: tuple[Link, ...]
    local_start: int
    log_end: int
    high_watermark: int
    claimed_high_watermark: int
    """The high watermark according to the files of the lineage's epochs, not bounded by the log end."""
    dead: tuple[DataFile, ...]
    """Files of other histories, or below the local start."""
    hidden: tuple[DataFile, ...]
    """Live files that the chain skips because a merged segment, or a file of a greater generation, covers them."""
    stranded: tuple[DataFile, ...]
    """Live files after a gap."""

    @cached_property
    def removed_to(self) -> int:
        """The end of the last file from which a rule has removed records; 0 without any."""
        return max((link.end for link in self.chain if link.name.generation), default=0)

    @cached_property
    def unmerged(self) -> tuple[Link, ...]:
        """The appends of the chain."""
        return tuple(link for link in self.chain if link.file.name.next_offset is None)

    def over(self, start: int, end: int) -> tuple[Link, ...]:
        """The links that hold offsets of ``[start, end)``."""
        first = bisect_right(self.chain, start, key=_END)
        return self.chain[first : max(first, bisect_left(self.chain, end, key=_START))]

    @property
    def joined_epoch(self) -> int:
        """The greatest leader epoch that this replica has joined."""
        return self.listing.joined_epoch

    @property
    def lost_committed(self) -> bool:
        """Whether storage has lost data below the high watermark; such a replica is corrupt, not merely
        shorter."""
        return self.claimed_high_watermark > self.log_end

    def holds(self, name: DataName) -> bool:
        """Whether the chain of the log includes the file."""
        return any(link.name == name for link in self.chain)

    def names(self) -> frozenset[DataName]:
        """All data files of the folder, live or not."""
        return frozenset(file.name for file in self.listing.data)


def is_live(name: DataName, lineage: Lineage, local_start: int) -> bool:
    """Whether a file of this name belongs to the history of ``lineage``, and is not wholly below the local
    start."""
    return name.least_end > local_start and lineage.epoch_at(name.least_end - 1) == name.epoch


def resolve(listing: Listing, lineage: Lineage, end_of_append: Callable[[DataFile], int]) -> ReplicaLog:
    """The log of a listing for ``lineage``.

    ``end_of_append`` reads the next offset of an append from its footer. ``end_of_append`` is called at most for
    the last file of the chain: base offsets of one epoch are true boundaries, so every other append ends at the
    next base.
    """
    local_start = listing.local_start
    live: list[DataFile] = []
    dead: list[DataFile] = []
    for file in listing.data:
        (live if is_live(file.name, lineage, local_start) else dead).append(file)
    return log_of_chain(listing, lineage, chain_of(live, local_start, end_of_append), live, dead)


def chain_of(live: Iterable[DataFile], position: int, end_of_append: Callable[[DataFile], int]) -> list[Link]:
    """The chain that live files form from a position at which a file of the log starts or continues.

    Where files of several generations overlap, the files of the greatest generation apply, even if others extend
    farther. So a late merge of files that a rule has already rewritten does not bring back a removed record.
    """
    live = list(live)
    plain = [file for file in live if not file.name.generation]
    if len(plain) == len(live):
        return _chain_of_one_generation(plain, position, None, end_of_append)
    chain: list[Link] = []
    for piece in [*_greatest_generations([f for f in live if f.name.generation], position), None]:
        if piece is None or position < piece.start:
            until = None if piece is None else piece.start
            chain += _chain_of_one_generation(plain, position, until, end_of_append)
            position = chain[-1].end if chain else position
            if piece is None or position < piece.start:
                break
        chain.append(piece)
        position = piece.end
    return chain


def _greatest_generations(rewritten: list[DataFile], position: int) -> Iterator[Link]:
    """The parts of rewritten segments from a position on, ascending and without overlaps. At each offset, the
    segment of the greatest generation applies; among several such segments, the one with the greatest end.
    """
    rewritten.sort(key=lambda file: file.name.base_offset)
    reaching: list[tuple[int, int, int]] = []  # the generation and the end, both negated, and the file's number
    upcoming = 0

    def reach(until: int, generation: float) -> int:
        """Take the segments that begin up to ``until``, but stop at the first segment of a greater generation.
        Returns the offset at which that segment begins, or ``until``.
        """
        nonlocal upcoming
        while upcoming < len(rewritten) and (name := rewritten[upcoming].name).base_offset <= until:
            if name.generation > generation:
                return name.base_offset
            heapq.heappush(reaching, (-name.generation, -name.least_end, upcoming))
            upcoming += 1
        return until

    while True:
        reach(position, math.inf)
        while reaching and -reaching[0][1] <= position:
            heapq.heappop(reaching)
        if reaching:
            generation, end, number = -reaching[0][0], -reaching[0][1], reaching[0][2]
            end = reach(end, generation)
            yield Link(position, end, rewritten[number])
            position = end
        elif upcoming < len(rewritten):
            position = rewritten[upcoming].name.base_offset
        else:
            return


def _chain_of_one_generation(
    live: list[DataFile], position: int, until: int | None, end_of_append: Callable[[DataFile], int]
) -> list[Link]:
    """The chain of files that no rule has rewritten, starting at a position, cut at ``until``."""
    merged = sorted((f for f in live if f.name.merged), key=lambda f: f.name.base_offset)
    covered = _coverage(merged)
    # A merged segment holds the records of the appends inside it, so the chain uses only the segment.
    appends = {f.name.base_offset: f for f in live if not f.name.merged and not covered(f.name.base_offset)}
    bases = sorted({*appends, *(f.name.base_offset for f in merged), *(() if until is None else (until,))})

    chain: list[Link] = []
    reaching: list[tuple[int, int, DataFile]] = []  # merged segments that start at or below the position
    upcoming = 0
    # In each round, ``chain`` covers everything up to the position without a gap or an overlap.
    while until is None or position < until:
        while upcoming < len(merged) and merged[upcoming].name.base_offset <= position:
            file = merged[upcoming]
            heapq.heappush(reaching, (-(file.name.next_offset or 0), upcoming, file))
            upcoming += 1
        best: Link | None = None
        if position in appends:
            file = appends[position]
            after = bisect_right(bases, position)
            end = bases[after] if after < len(bases) else end_of_append(file)
            if end <= position:
                raise CorruptionError(f"{file.object.name} claims to end at {end}, which is not after its start")
            best = Link(position, end, file)
        if reaching and -reaching[0][0] > position and (best is None or -reaching[0][0] >= best.end):
            best = Link(position, -reaching[0][0], reaching[0][2])
        if best is None:  # a gap: files after it are stranded and never read, because offsets are contiguous (I5)
            return chain
        if until is not None and best.end > until:
            best = Link(best.start, until, best.file)
        chain.append(best)
        position = best.end
    return chain


def log_of_chain(
    listing: Listing, lineage: Lineage, chain: Sequence[Link], live: Iterable[DataFile], dead: Iterable[DataFile]
) -> ReplicaLog:
    """The log of a listing whose live files form ``chain`` from the local start."""
    local_start = listing.local_start
    log_end = chain[-1].end if chain else local_start
    used = {id(link.file) for link in chain}
    unused = [file for file in live if id(file) not in used]
    return ReplicaLog(
        listing=listing,
        lineage=lineage,
        chain=tuple(chain),
        local_start=local_start,
        log_end=log_end,
        high_watermark=_high_watermark(listing, lineage, local_start, log_end),
        claimed_high_watermark=claimed_high_watermark_of(listing, lineage),
        dead=tuple(dead),
        hidden=tuple(file for file in unused if file.name.base_offset < log_end),
        stranded=tuple(file for file in unused if file.name.base_offset >= log_end),
    )


# The end of an append is inferred from the next file. A listing alone cannot show that a file in between is lost,
# so readers compare the inferred end with the end in the footer (``segment.end_of_file``), and logs of one history
# are compared with each other.


def missing_file(what: str, end: int, start: int) -> LogGapError:
    """The error for an append ``what`` that ends at ``end`` according to its footer, before the next file at
    ``start``.
    """
    return LogGapError(
        f"{what} ends at offset {end}, but the next file starts at {start}: a file is missing between them; "
        "restore it from another replica"
    )


def check_same_ends(what: str, log: ReplicaLog, leader: ReplicaLog) -> None:
    """Check that appends end at the same offset as in the leader's log. ``what`` names the replica.

    Raises: LogGapError.
    """
    ends = {link.name: link.end for link in leader.chain}
    for link in log.unmerged:
        if ends.get(link.name, link.end) != link.end:
            raise LogGapError(f"{what}: {link.name} ends at offset {link.end}, which is before its start")


def check_boundaries(what: str, leader: ReplicaLog, log: ReplicaLog) -> None:
    """Check that no file of a follower begins inside an append of the leader. If one does, the leader has lost the
    append that began at that offset. ``what`` names the leader.

    Raises: LogGapError.
    """
    starts = [link.start for link in leader.chain]
    for own in log.chain:
        index = bisect_right(starts, own.start) - 1
        if own.name.merged or index < 0:
            continue
        link = leader.chain[index]
        if link.start < own.start < link.end and not link.name.merged:
            raise LogGapError(
                f"{what}: offset {own.start} is missing: {own.file.object.name} on a follower begins there; "
                "restore the append from that file"
            )


def _coverage(merged: list[DataFile]) -> Callable[[int], bool]:
    """Whether an offset is inside any of the merged segments (sorted by base)."""
    starts: list[int] = []
    ends: list[int] = []
    for file in merged:
        start, end = file.name.base_offset, file.name.next_offset or 0
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)

    def covered(offset: int) -> bool:
        index = bisect_right(starts, offset)
        return index > 0 and offset < ends[index - 1]

    return covered


def _bounded(name: WatermarkName, lineage: Lineage) -> int:
    end = lineage.end_of(name.epoch)
    return name.offset if end is None else min(name.offset, end)


def _high_watermark(listing: Listing, lineage: Lineage, local_start: int, log_end: int) -> int:
    marks = (_bounded(name, lineage) for name in listing.watermarks)
    return min(max([local_start, *marks]), log_end)


def claimed_high_watermark_of(listing: Listing, lineage: Lineage) -> int:
    """The offset up to which a history was committed, according to the high-watermark files of a folder; 0 if
    there are no such files. Late files are ignored: their records may also have been written after the listing.
    """
    known = {entry.epoch for entry in lineage}
    claims = (name for name in listing.watermarks if name.epoch in known and name not in listing.late)
    return max((_bounded(name, lineage) for name in claims), default=0)


def litter(listing: Listing) -> list[str]:
    """The names of superseded registers: a smaller ``.local``, or an ``.hw`` that is smaller or equal in both
    offset and epoch. (Never the greatest ``.epoch`` or ``.local``: V6.)
    """
    starts = [str(name) for name, _ in listing.local_starts if name.offset < listing.local_start]
    return [*starts, *map(str, old_watermarks(listing))]


def old_watermarks(listing: Listing) -> list[WatermarkName]:
    """The high watermarks that are superseded."""
    found: list[WatermarkName] = []
    greatest = -1
    for mark in sorted(listing.watermarks, key=lambda mark: (mark.epoch, mark.offset), reverse=True):
        if mark.offset <= greatest:
            found.append(mark)
        greatest = max(greatest, mark.offset)
    return found
