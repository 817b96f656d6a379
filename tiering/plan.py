"""The plan of copies to the remote tier and of expiry from it (KIP-405, the RLM task). Pure.

Uploads are sealed runs below the high watermark, contiguous from the end of the remote log, as far as the copy lag
allows (KIP-1241). A run of one complete file is copied unchanged, under the file's name. A run of several files,
or one that begins inside a file (a zombie's late merge straddles the end of the remote log), is rewritten. Appends
in transactions are also rewritten: the remote tier stops at the last stable offset, and every segment there marks
its committed records (``control IS NULL``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.partitions.amounts import bytes_text, span_text
from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import Rule
from stratalog.partitions.retention import UNLIMITED, LogFile
from stratalog.partitions.rewrites.merge import MergePolicy, Run, made_ms, oldest_of, sealed_runs, sealing
from stratalog.partitions.transactions import LogTransactions
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

LatestMs = Callable[[Link], int]
"""The largest timestamp of a file's records, in milliseconds, from its footer."""


@dataclass(frozen=True, slots=True)
class CopyLag:
    """The lag of the remote tier behind the log (remote.copy.lag.ms, remote.copy.lag.bytes; KIP-1241). A sealed
    run is uploaded when either limit allows it: a limit of 0 always does, a limit of -1 never.
    """

    ms: int
    size_bytes: int

    def eligible(self, run: Run, newer_bytes: int, now_ms: int, latest_ms: LatestMs) -> bool:
        """Whether a sealed run may be uploaded if ``newer_bytes`` bytes of the log come after it. A run with a
        timestamp in the future is uploaded immediately. Without this exception, it would have to wait until that
        time.
        """
        if self.ms == 0 or (self.size_bytes != UNLIMITED and newer_bytes >= self.size_bytes):
            return True
        if self.ms == UNLIMITED:
            return False
        latest = max(map(latest_ms, run.links))
        return latest > now_ms or now_ms - latest >= self.ms


AT_ONCE = CopyLag(0, UNLIMITED)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """The uploads of one partition, in order; ``runs`` are contiguous starting at ``start``."""

    start: int
    """The earliest pending upload offset; the first offset to upload if nothing of the log is tiered."""
    runs: tuple[Run, ...]
    held_bytes: int = 0
    """Bytes that are sealed and committed, but held back by the copy lag."""

    @property
    def end(self) -> int:
        """The end of the remote log once all uploads are committed."""
        return self.runs[-1].end if self.runs else self.start

    @property
    def size_bytes(self) -> int:
        """The number of bytes to read."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def since_ms(self) -> int | None:
        """The creation time of the oldest due file; None if no file is due."""
        return min((link.file.object.modified_ms for run in self.runs for link in run.links), default=None)


def earliest_pending_upload(log: ReplicaLog, remote: Sequence[RemoteSegment], log_start: int, what: str) -> int:
    """The next offset of the leader to upload (KIP-1023, "ListOffsets API").

    The start is the end of the remote log, if the leader's log still reaches back that far. If the leader's log
    begins later, the start is the leader's first offset, and the old remote segments must be removed in the same
    commit (``expired_segments``). The leader's log begins later if nothing was ever tiered, or if tiering was off
    for so long that "the leader's Log-Start-Offset is much ahead of the highest offset on the remote storage"
    (KIP-1023, "ReplicaFetcher Changes").

    Raises: CorruptionError if the remote log has a different history than the leader (after an unclean election);
        LogGapError if the leader has deleted records that the remote log lacks. (Then the remote store is a
        different one, or is not mounted. An upload would begin a table that hides the existing table.)
    """
    if not remote or remote[-1].next_offset <= log_start:
        if log.local_start > log_start:
            raise LogGapError(
                f"{what}: the leader has deleted the tiered offsets [{log_start}, {log.local_start}), but the "
                f"remote log lacks them: check that the right remote tier is mounted. {_way_out(log)}"
            )
        return log_start
    last = remote[-1]
    if not last.is_of(log.lineage):
        raise CorruptionError(
            f"{what}: remote segment {last.path} is of leader epoch {last.epoch}, but the "
            f"leader's history has epoch {log.lineage.epoch_at(last.next_offset - 1)} at "
            f"offset {last.next_offset - 1}"
        )
    if last.next_offset < log.local_start:
        raise LogGapError(
            f"{what}: the remote log ends at offset {last.next_offset}, but the leader's "
            f"log begins at {log.local_start}: is the remote tier an older copy? {_way_out(log)}"
        )
    return last.next_offset


def _way_out(log: ReplicaLog) -> str:
    """The advice to an operator if the former remote tier cannot be restored."""
    return (
        "If the remote tier cannot be restored, heal uploads to an older copy the "
        "records that a replica still has; delete the rest with delete_records before "
        f"offset {log.local_start}, then run tier"
    )


def plan_uploads(
    log: ReplicaLog,
    start: int,
    *,
    policy: MergePolicy,
    now_ms: int,
    lag: CopyLag = AT_ONCE,
    expires_ms: int = UNLIMITED,
    latest_ms: LatestMs = lambda _: 0,
    oldest_ms: Callable[[Link], int] = made_ms,
    transactions: LogTransactions | None = None,
    rule: Rule | None = None,
    unerased: Container[DataName] = (),
) -> UploadPlan:
    """The due uploads of the leader's log from ``start``, the ``earliest_pending_upload`` (of the remote log as
    read after listing the leader). An active tail older than ``expires_ms`` is sealed, because it must be in the
    remote tier before the brokers may delete it. ``latest_ms`` is called only if ``expires_ms`` or ``lag`` is a
    time; ``oldest_ms``: see ``sealed_runs``. ``transactions`` are the log's transactions from ``start`` on; None
    without transactions. Files that begin below the bound of ``rule`` wait until they follow the rule
    (``tiering.removal``), and ``unerased`` files until they no longer contain erased records
    (``tiering.erasure``).

    Raises: see ``latest_ms``.
    """

    def has_expired(link: Link) -> bool:
        if expires_ms == UNLIMITED:
            return False
        return now_ms - _age_from_ms(link, latest_ms, now_ms) > expires_ms

    runs: list[Run] = []
    position = start
    for run in sealed_runs(log, policy, start, now_ms, transactions, has_expired, oldest_ms):
        if run.start != position or run.end > log.high_watermark:
            break  # stop at the first run that does not follow directly, or is not committed
        if _waits_for(rule, run.links[0]) or any(link.name in unerased for link in run.links):
            break
        runs.append(run)
        position = run.end
    newer_bytes = sum(link.file.object.size_bytes for link in log.chain if link.start >= position)
    held_bytes = sum(run.size_bytes for run in runs)
    due: list[Run] = []
    for run in runs:
        if not lag.eligible(run, newer_bytes + held_bytes - run.size_bytes, now_ms, latest_ms):
            break  # later runs also wait: the remote log has no gaps
        due.append(run)
        held_bytes -= run.size_bytes
    return UploadPlan(start, tuple(due), held_bytes)


def _waits_for(rule: Rule | None, link: Link) -> bool:
    return rule is not None and link.start < rule.bound and link.name.generation < rule.generation


def why_not_due(
    log: ReplicaLog,
    plan: UploadPlan,
    *,
    policy: MergePolicy,
    lag: CopyLag,
    now_ms: int,
    oldest_ms: Callable[[Link], int],
    transactions: LogTransactions | None = None,
    rule: Rule | None = None,
    unerased: Container[DataName] = (),
) -> str:
    """A readable reason why a plan has no uploads. Raises: see ``oldest_ms``."""
    left = [link for link in log.chain if link.end > plan.end]
    size_bytes = sum(link.file.object.size_bytes for link in left)
    if not left:
        return waiting_as_before(0, plan.end, policy)
    if plan.held_bytes:
        limits = (("remote.copy.lag.ms", lag.ms), ("remote.copy.lag.bytes", lag.size_bytes))
        parts = " and ".join(f"{name} = {limit}" for name, limit in limits)
        return f"{bytes_text(plan.held_bytes)} is sealed, but held back by {parts}"
    if left[0].end > log.high_watermark:
        return f"{bytes_text(size_bytes)} is above the high watermark: not every member of the ISR has it yet"
    if transactions is not None and left[0].end > transactions.last_stable_offset:
        return f"{bytes_text(size_bytes)} is after the start of an open transaction"
    if _waits_for(rule, left[0]):
        return f"{bytes_text(size_bytes)} is being rewritten by compaction: run compact, then tier"
    if left[0].name in unerased:
        return f"records are being erased from {bytes_text(size_bytes)}: run erase again, then tier"
    age = span_text(now_ms - oldest_of(left, oldest_ms))
    return f"{bytes_text(size_bytes)}, {age}: a segment is {sealing(policy)}"


def waiting_as_before(pending_bytes: int, end: int, policy: MergePolicy) -> str:
    """The reason if the log has not changed since an earlier plan, which found that none of the ``pending_bytes``
    were due. The log is tiered up to ``end``.
    """
    if not pending_bytes:
        return "all of the log is in the remote tier" if end else "no records"
    return f"{bytes_text(pending_bytes)}, as in the previous run: a segment is {sealing(policy)}"


def changes_at_ms(
    log: ReplicaLog,
    plan: UploadPlan,
    *,
    policy: MergePolicy,
    lag: CopyLag,
    now_ms: int,
    expires_ms: int = UNLIMITED,
    latest_ms: LatestMs = lambda _: 0,
    oldest_ms: Callable[[Link], int] = made_ms,
) -> int:
    """The earliest time at which the plan may change only because time passes; ``now_ms`` if it may already have
    changed. Only for a plan without uploads. Raises: see ``latest_ms``."""
    left = [link for link in log.chain if link.end > plan.end]
    if not left:
        return 2**63 - 1
    if plan.held_bytes and lag.ms > 0:
        return now_ms  # the timestamps of the records decide, and these are read each time
    sealed_ms = oldest_of(left, oldest_ms) + policy.segment_ms
    if expires_ms != UNLIMITED:  # nothing changes before the last file has expired
        sealed_ms = min(sealed_ms, _age_from_ms(left[-1], latest_ms, now_ms) + expires_ms + 1)
    return max(now_ms, sealed_ms)


def _age_from_ms(link: Link, latest_ms: LatestMs, now_ms: int) -> int:
    """The time from which retention measures the age of a file."""
    return LogFile(link.start, link.end, 0, latest_ms(link), link.file.object.modified_ms).latest_ms(now_ms)


def waiting_since_ms(log: ReplicaLog, start: int, oldest_ms: Callable[[Link], int]) -> int | None:
    """The creation time of the first record at or above ``start``, the end of the remote log; None without a
    record. ``oldest_ms``: see ``sealed_runs``.

    Raises: see ``oldest_ms``.
    """
    waiting = [link for link in log.chain if link.end > start]
    return oldest_of(waiting, oldest_ms) if waiting else None


def expired_segments(remote: RemoteLog, log_starts: Mapping[int, int]) -> list[RemoteSegment]:
    """The segments that are completely below the log start offset of their partition, in order. A segment that
    only begins below the offset is kept, and readers skip its first records: files are never cut for retention.
    """
    return [
        segment
        for partition, log_start in sorted(log_starts.items())
        for segment in remote.of_partition(partition)
        if segment.next_offset <= log_start
    ]


def both_tiers(remote: Sequence[RemoteSegment], local: Sequence[LogFile]) -> list[LogFile]:
    """The complete log of a partition for total retention: every offset once, the remote part first.

    ``local`` are the leader's files in order. Files that the remote log contains are left out. A file that
    straddles the end of the remote log starts there, but has its full size.
    """
    end = remote[-1].next_offset if remote else 0
    rest = [replace(extent, start=max(extent.start, end)) for extent in local if extent.end > end]
    return [*(segment.extent for segment in remote), *rest]
