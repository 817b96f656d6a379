"""Transactions in a log: their outcomes, the last stable offset, and the records that readers get (KIP-98). Pure.

An append in a transaction is its own file, and so is the marker that ends the transaction in a partition; the
footers of both files say so. The footer of the last file contains the start of each open transaction. A merged
segment has no open transaction: its records contain their own outcome (``records``). So footers are read only if
something transactional was appended since the last merge.

    last stable offset    below this offset every transaction is decided, and its markers are committed: readers
                          of committed records stop there, and so do merges, the remote tier, and snapshots
    fate of an append     decided by the producer's next marker after the append. The marker
                          belongs to the append's transaction if its epoch is one higher, because the decision
                          raises the epoch by one. With any other epoch, the marker belongs to a later transaction,
                          and the append's own marker was lost (in an unclean election): the append is treated as
                          aborted
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.isolation import Isolation
from stratalog.partitions.listing import DataFile, Link, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import ABORTED, COMMIT
from stratalog.partitions.segments.footer import SegmentFooter, TransactionPart

FooterOf = Callable[[DataFile], SegmentFooter]
"""Returns the footer of a file of the log; this may cost a read."""


class Fate(Enum):
    """The outcome of an unmerged file."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class LogTransactions:
    """The transactions of a log whose outcome is not yet in merged segments."""

    last_stable_offset: int
    """The last stable offset: at least the local start, at most the high watermark."""
    fates: Mapping[DataName, Fate] = field(default_factory=dict)
    """The fates of unmerged appends in transactions, and of markers."""
    gaps: frozenset[DataName] = frozenset()
    """Unmerged appends with gaps (``records.GAP``), which their rows mark."""

    def hidden(self, isolation: Isolation) -> frozenset[DataName]:
        """The unmerged files that a reader of this isolation level skips completely; the reader gets every record
        of all other files.
        """
        unseen = {Fate.MARKER, Fate.ABORTED} if isolation is Isolation.READ_COMMITTED else {Fate.MARKER}
        return frozenset(name for name, fate in self.fates.items() if fate in unseen)

    def end(self, isolation: Isolation, log: ReplicaLog) -> int:
        """The offset at which a reader of this isolation level stops."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else log.high_watermark


def transactions_of(log: ReplicaLog, footer_of: FooterOf, start: int = 0) -> LogTransactions:
    """The transactions of a log from ``start`` to the high watermark of the log.

    For a log without transactions this reads one footer, the footer of the last unmerged file below the high
    watermark, which is usually cached. Raises: see ``footer_of``.
    """
    unmerged = [link for link in log.unmerged if start < link.end and link.start < log.high_watermark]
    if not unmerged:
        return LogTransactions(log.high_watermark)
    last = footer_of(unmerged[-1].file)
    stable = log.high_watermark
    committed = log.over(unmerged[0].start, log.high_watermark)
    # otherwise the file was merged, so all transactions below its end were decided
    if committed[-1] is unmerged[-1]:
        begun = (None if entry is None else entry.txn_first_offset for entry in last.producers.values())
        stable = min((offset for offset in begun if offset is not None), default=stable)
    latest = last.last_transactional_offset
    fates: dict[DataName, Fate] = {}
    gaps: set[DataName] = set()
    if latest is not None and latest >= unmerged[0].start:
        looked = [link for link in committed if link.name.merged or link.start <= latest]
        fates = _fates(looked, footer_of, gaps)
        still_open = (link.start for link in unmerged if fates.get(link.name) is Fate.OPEN)
        stable = min(stable, min(still_open, default=stable))
    return LogTransactions(max(log.local_start, min(stable, log.high_watermark)), fates, frozenset(gaps))


def _fates(links: Sequence[Link], footer_of: FooterOf, gaps: set[DataName]) -> dict[DataName, Fate]:
    """The fate of each file. The files are read from the end backwards, so that the next marker of each producer
    is known. ``gaps`` receives the unmerged files with gaps.
    """
    fates: dict[DataName, Fate] = {}
    behind: dict[str, TransactionPart] = {}
    for link in reversed(links):
        footer = footer_of(link.file)
        behind |= {part.producer_id: part for part in reversed(footer.markers)}
        part = footer.transaction
        if part is None:
            if not link.name.merged and footer.may_hold_control:
                gaps.add(link.name)
            continue
        if part.control is not None:
            behind[part.producer_id] = part
            fates[link.name] = Fate.MARKER
        else:
            fates[link.name] = _fate(part, behind.get(part.producer_id))
    return fates


def _fate(part: TransactionPart, marker: TransactionPart | None) -> Fate:
    if marker is None:
        return Fate.OPEN
    own = marker.producer_epoch == part.producer_epoch + 1
    return Fate.COMMITTED if own and marker.control == COMMIT else Fate.ABORTED


def visible(rows: pa.Table, isolation: Isolation) -> pa.Table:
    """The rows of a merged or remote segment (with their column ``control``) that a reader of this isolation level
    gets.
    """
    control = rows.column("control")
    if control.null_count == rows.num_rows:
        return rows
    seen = pc.is_null(control)
    if isolation is Isolation.READ_UNCOMMITTED:
        seen = pc.or_(seen, pc.equal(control, ABORTED).fill_null(False))
    return rows.filter(seen)
