"""Carries out the erasures of a partition on one replica, in ascending order (``stratalog.partitions.erasure``).

If a run is interrupted, the log stays intact, and the next run continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from stratalog.partitions.erasure import Erasure, to_erase, within
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.removal import Rule
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import Run, with_outcomes
from stratalog.partitions.rewrites.rewrite import Removal, remove_from_run
from stratalog.partitions.transactions import LogTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasingOptions:
    """Options of an erasure."""

    segment_bytes: int
    """Neighboring files with erased records become segments of at most this size."""
    compression: str
    compacted: Rule
    """The last compaction of the partition. The footers of the segments repeat its bounds. (0, 0) without a
    compaction.
    """
    most: int | None = None
    """The maximum number of segments to make; None: all."""


@dataclass(frozen=True, slots=True)
class ErasedFrom:
    """The segments made, the files that they replace, and the bytes of both."""

    segments: int = 0
    files: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


def erase_from(
    replica: Replica,
    log: ReplicaLog,
    transactions: LogTransactions,
    erasures: Sequence[Erasure],
    options: ErasingOptions,
) -> ErasedFrom:
    """Carry out ``erasures``, all erasures of the partition, on the replica with this log and these transactions.

    Raises: RetriableError if a file extends above the last stable offset, because a newly elected leader may not
        know it yet, or if the last compaction has not been applied to a file, such as one from a replica that was
        away (heal);
        SourceChangedError if files left the log meanwhile; CorruptSegmentError; StorageError when the folder
        cannot be written.
    """
    found = to_erase(log, erasures)
    if found and found[-1][0].end > transactions.last_stable_offset:
        raise RetriableError(
            f"{replica}: {found[-1][0].name} extends above the last stable offset "
            f"{transactions.last_stable_offset} known to this replica; a newly elected leader can be late to "
            "learn it: run `stratalog replicate`, and erase again"
        )
    compacted = options.compacted
    for link, _ in found:
        if link.name.generation < compacted.generation and link.end <= compacted.bound:
            raise RetriableError(
                f"{replica}: the last compaction has not been applied to {link.name}, and must come first: run "
                "`stratalog compact`, and erase again"
            )
    done = ErasedFrom()
    for number, (run, generation) in enumerate(runs_of(found, options.segment_bytes)):
        if number == options.most:
            break
        run = with_outcomes(run, transactions)
        rule = Rule(generation, options.compacted.bound, options.compacted.tombstones_before)
        named = [one for one in erasures if one.generation <= generation]
        made = remove_from_run(
            replica,
            run,
            run.name_in(log, generation),
            Removal(rule, partial(marks, named)),
            compression=options.compression,
        )
        done = ErasedFrom(
            segments=done.segments + 1,
            files=done.files + len(run.links),
            read_bytes=done.read_bytes + run.size_bytes,
            written_bytes=done.written_bytes + made.size_bytes,
        )
    return done


def marks(erasures: Iterable[Erasure], start: int, end: int) -> npt.NDArray[np.bool_]:
    """A boolean for each offset in ``[start, end)``: whether one of the erasures names it."""
    found = np.zeros(end - start, np.bool_)
    for erasure in erasures:
        for first, last in within(erasure.offsets, start, end):
            found[max(first - start, 0) : last - start] = True
    return found


def runs_of(found: Iterable[tuple[Link, int]], segment_bytes: int) -> Iterator[tuple[Run, int]]:
    """Runs of neighboring links of one generation, of at most ``segment_bytes`` in total, or single links; each
    with its generation, ascending.
    """
    run: list[Link] = []
    size = present = 0
    for link, generation in found:
        size += link.file.object.size_bytes
        joins = run and run[-1].end == link.start and generation == present and size <= segment_bytes
        if run and not joins:
            yield Run(tuple(run)), present
            run, size = [], link.file.object.size_bytes
        run.append(link)
        present = generation
    if run:
        yield Run(tuple(run)), present
