"""Applies a removal rule to one replica: finds the records that the rule removes, and rewrites the files in
ascending order.

If a run is interrupted, the log stays intact (``partitions.removal``), and the next run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import booleans, constant, integers_of, valid_of
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.growth import fitted, widest
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.records import ABORTED, GAP
from stratalog.partitions.removal import Rule, to_rewrite
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.erasing import marks, runs_of
from stratalog.partitions.rewrites.merge import Run, with_outcomes
from stratalog.partitions.rewrites.rewrite import Removal, remove_from_run
from stratalog.partitions.rewrites.superseded import Superseded
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store.protocol import Store
from stratalog.partitions.transactions import Fate, LogTransactions


@dataclass(frozen=True, slots=True)
class Removed:
    """The segments that a removal made, the files that they replace, the gaps in the segments, and the bytes read
    and written.
    """

    segments: int = 0
    files: int = 0
    gaps: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    keyless: int = 0
    """The number of records without a key below the bound, in all files that still had to be rewritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovingOptions:
    """Options of a removal."""

    segment_bytes: int
    compression: str
    memory_bytes: int
    """The memory bound of a table of keys."""
    folder: Path | None = None
    """The folder for keys that exceed the bound; None: the system's folder for temporary files."""
    most: int | None = None
    """The maximum number of segments to make; None: all."""
    erasures: Sequence[Erasure] = ()
    """The erasures of the partition whose offsets are known. The records that the erasures before the rule name
    are removed, too: a file may have come from a replica that was not reachable before (heal).
    """


def carry_out(
    replica: Replica, log: ReplicaLog, transactions: LogTransactions, rule: Rule, options: RemovingOptions
) -> Removed:
    """Apply ``rule`` to the replica, which has this log and these transactions.

    Raises: RetriableError if the rule extends above the last stable offset, because a newly elected leader may not
        know that offset yet; SourceChangedError if files left the log meanwhile; CorruptSegmentError; StorageError
        when the folder cannot be written.
    """
    check_stable(rule, transactions, str(replica))
    runs = runs_by(rule, log, options.segment_bytes)
    if not runs:
        return Removed()
    done = Removed()
    with Superseded(log.local_start, rule, options.memory_bytes, options.folder) as found:
        erased = erased_before(rule, options.erasures)
        found.find(_keys(replica, log, transactions, rule, erased))
        removal = Removal(rule, removed_by(erased, found.removed))
        for run in runs[: options.most]:
            run = with_outcomes(run, transactions)
            made = remove_from_run(
                replica, run, run.name_in(log, rule.generation), removal, compression=options.compression
            )
            done = Removed(
                segments=done.segments + 1,
                files=done.files + len(run.links),
                gaps=done.gaps + made.gaps,
                read_bytes=done.read_bytes + run.size_bytes,
                written_bytes=done.written_bytes + made.size_bytes,
                keyless=found.keyless,
            )
    return done


def erased_before(rule: Rule, erasures: Iterable[Erasure]) -> list[Erasure]:
    """The erasures of a partition before ``rule``: each file that follows the rule also follows these erasures."""
    return [one for one in erasures if one.generation < rule.generation]


def removed_by(
    erased: Sequence[Erasure], by_rule: Callable[[int, int], npt.NDArray[np.bool_]]
) -> Callable[[int, int], npt.NDArray[np.bool_]]:
    """For each record of a range, whether a file that follows a rule lacks the record, because of the rule itself,
    or because of ``erased``, the erasures before the rule.
    """
    return lambda start, end: by_rule(start, end) | marks(erased, start, end)


def runs_by(rule: Rule, log: ReplicaLog, segment_bytes: int) -> list[Run]:
    """The runs of the log that the rule rewrites; see ``erasing.runs_of``."""
    found = ((link, rule.generation) for link in to_rewrite(log, rule))
    return [run for run, _ in runs_of(found, segment_bytes)]


def check_stable(rule: Rule, transactions: LogTransactions, what: str) -> None:
    """Raises: RetriableError if the rule extends above the last stable offset, because a newly elected leader
    may not know that offset yet.
    """
    if rule.bound > transactions.last_stable_offset:
        raise RetriableError(
            f"{what}: {rule}, extends above the last stable offset {transactions.last_stable_offset} known to "
            "this replica; a newly elected leader may not know the current offset yet: run `stratalog "
            "replicate`, and compact again"
        )


def _keys(
    replica: Replica, log: ReplicaLog, transactions: LogTransactions, rule: Rule, erased: Sequence[Erasure]
) -> Iterator[pa.RecordBatch]:
    """The keys of all records below the bound, in the form that ``Superseded.find`` accepts."""
    links = log.over(log.local_start, rule.bound)
    key = key_field((replica.segment(link.file).schema for link in links), str(replica))
    return keys_of_log(replica, links, transactions, rule, erased, key)


def keys_of_log(
    replica: Replica,
    links: Iterable[Link],
    transactions: LogTransactions,
    rule: Rule,
    erased: Sequence[Erasure],
    key: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """``keys_of`` these links of the replica's log, which has these transactions."""
    for link in links:
        aborted = transactions.fates.get(link.name) is Fate.ABORTED
        yield from keys_of(replica.store, link, rule, erased, key, str(replica), aborted=aborted)


def key_field(schemas: Iterable[pa.Schema], what: str) -> pa.Schema:
    """A schema whose only column is the widest key of these schemas. Raises: see ``widest``."""
    return pa.schema([widest(schemas, what).field("key")])


def keys_of(
    store: Store,
    link: Link,
    rule: Rule,
    erased: Sequence[Erasure],
    key: pa.Schema,
    what: str,
    *,
    aborted: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The keys of the records of a link below the bound, in the form that ``Superseded.find`` accepts. Values are
    read only if a tombstone may be removed. Records named by ``erased``, the erasures before the rule, are gaps:
    the file may still contain them, but an erased record supersedes no other record. ``key``: see
    ``key_field``; ``aborted``: the file's transaction was aborted.

    Raises: CorruptSegmentError; SourceChangedError.
    """
    has_values = link.start < rule.tombstones_before
    columns = ["offset", "key", "control", *(["value"] if has_values else [])]
    for batch in read_batches(store, link.file, link.start, min(link.end, rule.bound), columns):
        rows = batch.num_rows
        control = batch.column("control")
        if aborted:
            control = constant(ABORTED, control.type, rows)
        control = _with_gaps(control, integers_of(batch.column("offset")), erased)
        tombstone = booleans(~valid_of(batch.column("value"))) if has_values else pa.repeat(False, rows)
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("offset"),
                fitted(batch.select(["key"]), key, what).column(0),
                control,
                tombstone,
            ],
            names=["offset", "key", "control", "tombstone"],
        )


def _with_gaps(control: pa.Array, offsets: npt.NDArray[np.int64], erased: Sequence[Erasure]) -> pa.Array:
    """The column ``control`` of the records at these ascending offsets, with a gap for each erased record."""
    if not len(offsets):
        return control
    start = int(offsets[0])
    gone = marks(erased, start, int(offsets[-1]) + 1)[offsets - start]
    return pc.if_else(booleans(gone), pa.scalar(GAP, control.type), control) if gone.any() else control
