"""Chooses the files of a log that become one segment: Kafka's segment rolling, after the fact. Pure.

Each append is its own file, however small. Two kinds of neighboring files below the high watermark are merged:

- *sealed* runs of files that have about ``segment.bytes`` together, or are older than ``segment.ms``. A sealed run
  becomes one segment, which is never merged again, and which may move to the remote tier. A run that will soon
  move to the remote tier is not merged first: the upload writes the segment from the run's files, and retention
  deletes these files.
- ``segment.merge.min.files`` neighbors in the *active* tail, if the merged file belongs to a higher tier of sizes
  than each neighbor, and each neighbor has less than 1/64 of ``segment.bytes``. These conditions keep a folder of
  small appends short, and every byte is rewritten only a logarithmic number of times.

Merges never cross the end of the remote log, so the remote table contains every offset once.

A merged segment has no open transaction, because merges stop at the last stable offset. Each merged record is
marked if its transaction was aborted. So an append in a transaction, even a single large append, must be rewritten
before it is sealed. All tiered records therefore have a known outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from stratalog.partitions.amounts import bytes_text, span_text
from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.transactions import Fate, FooterOf, LogTransactions

_SMALLEST_TIER_BYTES = 64 * 1024
FEW = 64
"""A file of at least 1/64 of ``segment.bytes`` is not merged before its segment is sealed. A segment has at most
64 files of this size, and an earlier merge would write their bytes once more. ``merge`` leaves runs of at most 64
files to the upload.
"""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The settings for merging (segment.bytes, segment.ms, segment.merge.min.files)."""

    segment_bytes: int
    segment_ms: int
    min_files: int
    leaves_sealed: bool = False
    """Whether sealed runs of at most ``FEW`` files are not merged, because ``tier`` uploads each run as one
    segment, written directly from the files. A run with transactions is merged nevertheless. Without this merge,
    readers of the run would have to find the markers.
    """


@dataclass(frozen=True, slots=True)
class Run:
    """Neighboring links ``[start, end)`` of one log."""

    links: tuple[Link, ...]
    transactional: bool = False
    """Whether some of the files are appends in transactions, or markers."""
    aborted: frozenset[DataName] = frozenset()
    """The files whose transaction was aborted."""
    partial_state: bool = False
    """Whether the run is one file that will leave the log, but lacks the state of some producers."""

    @property
    def start(self) -> int:
        """First offset."""
        return self.links[0].start

    @property
    def end(self) -> int:
        """Offset after the last."""
        return self.links[-1].end

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        return sum(map(_size, self.links))

    def name_in(self, log: ReplicaLog, generation: int) -> DataName:
        """The name of the segment of this generation that replaces the run. The segment's epoch is the epoch of
        its last record, even if a rewritten segment has cut the last file.
        """
        epoch = log.lineage.epoch_at(self.end - 1)
        assert epoch is not None  # the last file of the run is live
        return DataName(self.start, self.end, epoch, generation)

    @property
    def is_segment(self) -> bool:
        """Whether the run is already one complete file. For such a run, nothing has to be merged or cut, and no
        outcome of a transaction is missing.
        """
        return (
            len(self.links) == 1
            and self.links[0].start == self.links[0].name.base_offset
            and self.links[0].name.next_offset in (None, self.links[0].end)
            and not self.transactional
            and not self.partial_state
        )

    @property
    def segment_name(self) -> DataName:
        """The name of the segment that holds exactly this run."""
        if self.is_segment:
            return self.links[0].name
        return DataName(self.start, self.end, self.links[-1].name.epoch, self.generation)

    @property
    def generation(self) -> int:
        """The generation of the segment. All files of a run have the same generation (``sealed_runs``)."""
        return min(link.name.generation for link in self.links)


def made_ms(link: Link) -> int:
    """The creation time of a link's file, in ms."""
    return link.file.object.modified_ms


def oldest_by(footer: FooterOf) -> Callable[[Link], int]:
    """A function that returns the time (ms) of a link's first append. For merged files it reads the ``footer``."""

    def oldest_ms(link: Link) -> int:
        return min(made_ms(link), footer(link.file).oldest_ms) if link.name.merged else made_ms(link)

    return oldest_ms


def oldest_of(links: Sequence[Link], oldest_ms: Callable[[Link], int]) -> int:
    """The time (ms) of the first append of these links; ``oldest_ms`` is called for the first link only."""
    return min([oldest_ms(links[0]), *map(made_ms, links)])


def sealed_runs(
    log: ReplicaLog,
    policy: MergePolicy,
    from_offset: int,
    now_ms: int,
    transactions: LogTransactions | None = None,
    has_expired: Callable[[Link], bool] = lambda _: False,
    oldest_ms: Callable[[Link], int] = made_ms,
) -> list[Run]:
    """The sealed runs at or above ``from_offset``, in order. ``from_offset`` is the end of the remote log; a link
    that straddles it is cut there. ``transactions`` are the log's transactions from there on; None if the log has
    none. An active tail that ``has_expired`` completely is sealed, just as Kafka rolls it. ``oldest_ms`` returns
    the time of a link's first append (``oldest_by``). Merges use the time of the file instead. If merges used the
    first append, an old tail would be rewritten each time that a few appends join it.
    """
    sealed, _ = _sealed(_mergeable(log, from_offset, transactions), policy, now_ms, has_expired, oldest_ms)
    return [with_outcomes(run, transactions) for run in sealed]


def _sealed(
    links: Sequence[Link],
    policy: MergePolicy,
    now_ms: int,
    has_expired: Callable[[Link], bool] = lambda _: False,
    oldest_ms: Callable[[Link], int] = made_ms,
) -> tuple[list[Run], list[Link]]:
    """The sealed runs, and the links of the active tail; see ``sealed_runs``."""
    sealed, active = _roll(links, policy)
    while active and (
        now_ms - oldest_of(active, oldest_ms) >= policy.segment_ms or all(map(has_expired, reversed(active)))
    ):
        first, rest = active[0], active[1:]
        # The first file may be as large as all later files together. Rewriting it every segment.ms would make the
        # cost quadratic.
        dwarfs = first.name.merged and _size(first) >= sum(map(_size, rest))
        sealed.append(Run((first,) if dwarfs else tuple(active)))
        active = rest if dwarfs else []
    return sealed, active


def plan_merges(
    log: ReplicaLog,
    policy: MergePolicy,
    from_offset: int,
    now_ms: int,
    transactions: LogTransactions | None = None,
    *,
    compacted_to: int = 0,
) -> list[Run]:
    """The runs to merge now: sealed runs of several files or with transactions, and crowded runs of the active
    tail. Merges skip the files that a removal rule has rewritten. ``compacted_to`` is the bound of the last
    compaction. Merges also skip the files before a segment below that bound, because the next compaction rewrites
    these files.
    """
    merges: list[Run] = []
    for rewritten, links in groupby(_unruled(log, from_offset, transactions, compacted_to), key=_is_rewritten):
        if not rewritten:
            sealed, active = _sealed([*links], policy, now_ms)
            runs = [with_outcomes(run, transactions) for run in sealed]
            most = FEW if policy.leaves_sealed else 1
            merges += [run for run in runs if run.transactional or len(run.links) > most]
            merges += [with_outcomes(run, transactions) for run in _crowds(active, policy)]
    return merges


def _is_rewritten(link: Link) -> bool:
    return link.name.generation > 0


def _unruled(
    log: ReplicaLog, from_offset: int, transactions: LogTransactions | None, compacted_to: int
) -> list[Link]:
    return _mergeable(log, max(from_offset, min(log.removed_to, compacted_to)), transactions)


def why_not_merged(
    log: ReplicaLog,
    policy: MergePolicy,
    from_offset: int,
    now_ms: int,
    transactions: LogTransactions | None = None,
    *,
    compacted_to: int = 0,
) -> str:
    """A readable reason why ``plan_merges`` finds nothing in this log."""
    if not any(link.end > from_offset for link in log.chain):
        return "no records" if from_offset == 0 else "no records that are not in the remote tier"
    links = _unruled(log, from_offset, transactions, compacted_to)
    rewritten = [index for index, link in enumerate(links) if _is_rewritten(link)]
    sealed, active = _sealed(links[rewritten[-1] + 1 if rewritten else 0 :], policy, now_ms)
    size = bytes_text(sum(map(_size, active)))
    if len(active) > 1:
        crowd = f"{policy.min_files} of similar size are merged, or all files once {sealing(policy)}"
        return f"{len(active)} files, {size}: {crowd}"
    if active:
        return f"1 file, {size}: it has no neighbor to merge with"
    if sealed and policy.leaves_sealed:
        return f"{len(sealed)} sealed segments, which move to the remote tier without a merge"
    if sealed:
        return f"{len(sealed)} sealed segments, which are not merged again"
    return "its records are above the high watermark, or in open transactions"


def sealing(policy: MergePolicy) -> str:
    """A readable text that says when the end of a log becomes a segment."""
    return f"sealed at {bytes_text(policy.segment_bytes)} or {span_text(policy.segment_ms)}"


def next_merge_ms(log: ReplicaLog, policy: MergePolicy, now_ms: int) -> int:
    """The time before which the plans for this log do not change. Only a file that becomes older than
    ``segment.ms`` changes them.
    """
    ages = (link.file.object.modified_ms + policy.segment_ms for link in log.chain)
    return min((at_ms for at_ms in ages if at_ms > now_ms), default=FOREVER_MS)


def _mergeable(log: ReplicaLog, from_offset: int, transactions: LogTransactions | None) -> list[Link]:
    """Links wholly below the last stable offset and at or above ``from_offset``, the first one cut there."""
    until = log.high_watermark if transactions is None else transactions.last_stable_offset
    return [
        Link(max(link.start, from_offset), link.end, link.file)
        for link in log.chain
        if link.end > from_offset and link.end <= until
    ]


def with_outcomes(run: Run, transactions: LogTransactions | None) -> Run:
    """The run with the outcomes of its transactions. ``transactions`` is None for a log without transactions."""
    if transactions is None or not transactions.fates:
        return run
    fates = {link.name: fate for link in run.links if (fate := transactions.fates.get(link.name)) is not None}
    aborted = frozenset(name for name, fate in fates.items() if fate is Fate.ABORTED)
    return replace(run, transactional=bool(fates), aborted=aborted)


def _roll(links: Sequence[Link], policy: MergePolicy) -> tuple[list[Run], list[Link]]:
    """Sealed runs, each of one generation, and the links of the active tail."""
    sealed: list[Run] = []
    run: list[Link] = []
    run_bytes = 0

    def close() -> None:
        nonlocal run, run_bytes
        if run:
            sealed.append(Run(tuple(run)))
        run, run_bytes = [], 0

    for link in links:
        size = _size(link)
        large = size * 2 >= policy.segment_bytes  # a separate segment, so that merging ends
        other_rule = run and run[-1].name.generation != link.name.generation
        if large or other_rule or run_bytes + size > policy.segment_bytes:
            close()
        run.append(link)
        run_bytes += size
        if large:
            close()
    return sealed, run


def _crowds(links: Sequence[Link], policy: MergePolicy) -> list[Run]:
    """Disjoint runs of at least ``min_files`` small neighbors whose total size belongs to a higher tier of sizes
    than the size of each neighbor.
    """
    crowds: list[Run] = []
    for small, group in groupby(links, key=lambda link: _size(link) * FEW < policy.segment_bytes):
        if small:
            few = [*group]
            crowds += _crowds_up_to(max(_tier(_size(link), policy) for link in few), few, policy)
    return crowds


def _crowds_up_to(tier: int, links: Sequence[Link], policy: MergePolicy) -> list[Run]:
    crowds: list[Run] = []
    for fits, group in groupby(links, key=lambda link: _tier(_size(link), policy) <= tier):
        run = Run(tuple(group))
        if not fits or len(run.links) < policy.min_files:
            continue
        if tier == 0 or _tier(run.size_bytes, policy) > tier:
            crowds.append(run)
        else:
            crowds += _crowds_up_to(tier - 1, run.links, policy)
    return crowds


def _size(link: Link) -> int:
    return link.file.object.size_bytes


def _tier(size: int, policy: MergePolicy) -> int:
    tier = 0
    while size > _SMALLEST_TIER_BYTES:
        size //= max(policy.min_files, 2)
        tier += 1
    return tier
