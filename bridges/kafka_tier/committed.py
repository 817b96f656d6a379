"""Finds the transactions that readers of committed records must not read: those aborted, and those still open at
the end of a run of segments. A run ends at a gap, or at the end of the tier.

The transaction index of a segment names the aborted transactions whose marker is in it. The snapshot of producers
names the transactions open at the segment's end. A record that may belong to an open transaction is unclear,
because the tier does not have its marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stratalog.bridges.kafka_tier.indexes import (
    AbortedTransaction,
    parse_open_transactions,
    parse_transaction_index,
)
from stratalog.bridges.kafka_tier.layout import IndexKind, OpenSegment
from stratalog.bridges.kafka_tier.plan import SegmentRange, TierPartition, Unclear, within
from stratalog.bridges.kafka_tier.reading import Ahead, KnownTransactions
from stratalog.partitions.errors import RetriableError, StratalogError

Opener = Callable[[SegmentRange], OpenSegment]


@dataclass(frozen=True, slots=True)
class CommittedPlan:
    """A plan in which each run ends at an offset without open transactions."""

    plan: TierPartition
    transactions: dict[str, KnownTransactions]
    """Aborted transactions by segment id."""


def committed(plan: TierPartition, opened: Opener, start: int | None, end: int | None) -> CommittedPlan:
    """The plan for readers of committed records at the offsets ``[start, end)``; None means no bound.

    Raises: StorageError kinds. A damaged index makes offsets unclear, and raises nothing.
    """
    pieces: list[SegmentRange] = []
    unclear = list(plan.unclear)
    transactions: dict[str, KnownTransactions] = {}
    for run in plan.runs():
        if not within(run, start, end):
            if start is not None and run[-1].end <= start:
                pieces += run  # these pieces are not read, but open transactions may begin in them
            continue
        ends = _Ends(run, opened)
        certain, why = ends.certain()
        if certain < run[-1].end:
            unclear.append(Unclear(plan.topic, plan.partition, certain, run[-1].end, why))
        kept = [replace(piece, end=min(piece.end, certain)) for piece in run if piece.start < certain]
        aborted, damaged = _aborted(run[: ends.needed(end)], start, opened)
        if damaged is not None:
            unclear.append(Unclear(plan.topic, plan.partition, run[0].start, certain, damaged))
            continue
        for at, piece in enumerate(kept):
            if not within([piece], start, end):
                continue
            segment = piece.segment
            before = ends.at(at - 1) if at and piece.start == segment.start_offset else None
            mine = [one for one in aborted if one.last_offset >= segment.start_offset]
            transactions.setdefault(
                segment.segment_id,
                KnownTransactions(
                    tuple(one for one in mine if one.first_offset <= segment.end_offset),
                    before if isinstance(before, dict) else None,
                    tuple(ends.ahead(at)),
                ),
            )
        pieces += kept
    ordered = tuple(sorted(unclear, key=lambda one: one.start))
    return CommittedPlan(replace(plan, pieces=tuple(pieces), unclear=ordered), transactions)


class _Ends:
    """The transactions that are open at the end of each piece of a run."""

    def __init__(self, run: Sequence[SegmentRange], opened: Opener) -> None:
        self._run, self._opened = run, opened
        self._known: dict[int, dict[int, int] | str] = {}

    def at(self, number: int) -> dict[int, int] | str:
        """The transactions open at the end of a piece, or the reason why they are unknown."""
        if number not in self._known:
            self._known[number] = _open_at_end(self._run[number], self._opened)
        return self._known[number]

    def certain(self) -> tuple[int, str]:
        """The offset before which all transactions of the run have ended, and the reason why it is not later. If
        a snapshot cannot be used, its segment is left out, and the previous snapshot is tried.
        """
        why = ""
        for number in reversed(range(len(self._run))):
            piece, found = self._run[number], self.at(number)
            if isinstance(found, dict):
                if not found:
                    return piece.end, why
                producer, first = min(found.items(), key=lambda one: one[1])
                opened_by = (
                    f"the transaction of producer {producer} from offset {first} on has not ended in the tier"
                )
                reason = "; ".join(filter(None, (opened_by, why)))
                return max(self._run[0].start, min(first, piece.end)), reason
            why = found
        return self._run[0].start, why

    def needed(self, end: int | None) -> int:
        """The number of pieces in which transactions with records before ``end`` may end."""
        numbers = [n for n, piece in enumerate(self._run) if end is None or piece.start < end]
        return len(self._run) if end is None else numbers[-1] + len(list(self.ahead(numbers[-1], end)))

    def ahead(self, number: int, end: int | None = None) -> Iterator[Ahead]:
        """The piece and the pieces after it, until all of its transactions with records before ``end`` have
        ended.
        """
        end = self._run[number].end if end is None else end
        for later in range(number, len(self._run)):
            still = self.at(later)
            yield Ahead(
                self._opened(self._run[later]), self._run[later], still if isinstance(still, dict) else None
            )
            if isinstance(still, dict) and all(first >= end for first in still.values()):
                return


def _open_at_end(piece: SegmentRange, opened: Opener) -> dict[int, int] | str:
    """The transactions open at the end of a piece, or the reason why they are unknown."""
    if piece.end != piece.segment.next_offset:
        return (
            f"segment {piece.segment.segment_id} is read only up to offset {piece.end}, for which there is no "
            "snapshot"
        )
    try:
        return parse_open_transactions(opened(piece).index(IndexKind.PRODUCER_SNAPSHOT), piece.segment)
    except RetriableError:
        raise
    except StratalogError as error:
        return str(error)


def _aborted(
    run: Sequence[SegmentRange], start: int | None, opened: Opener
) -> tuple[list[AbortedTransaction], str | None]:
    """The aborted transactions whose markers are in the run from ``start`` on, and the error of an unreadable
    index.
    """
    found: list[AbortedTransaction] = []
    for piece in run:
        if piece.segment.txn_index_empty or (start is not None and piece.end <= start):
            continue
        try:
            its = parse_transaction_index(opened(piece).index(IndexKind.TRANSACTION), piece.segment)
        except RetriableError:
            raise
        except StratalogError as error:
            return [], str(error)
        found += [one for one in its if piece.start <= one.last_offset < piece.end]
    return found, None
