"""What of a leader's log is due for the remote tier (KIP-405, RLM task, step 2). Pure.

Sealed runs below the high watermark, from the earliest on, one after the other without a gap, from the end
of the remote log on. A run that is one whole file is copied as it is, under its own name; one that is
several files, or begins inside one (a late zombie's merge straddles the end of the remote), is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitions.errors import CorruptionError, LogGapError
from partitions.listing import ReplicaLog
from partitions.merge import MergePolicy, Run, sealed_runs
from tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """The uploads of one partition, in order; ``runs`` are contiguous from ``start`` on."""

    start: int
    """The earliest pending upload offset; where nothing of the log is tiered, the first one to upload."""
    runs: tuple[Run, ...]

    @property
    def end(self) -> int:
        """The end of the remote log once all is committed."""
        return self.runs[-1].end if self.runs else self.start

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def rewrites(self) -> int:
        """How many of the runs cannot be copied as they are."""
        return sum(not run.is_segment for run in self.runs)


def earliest_pending_upload(log: ReplicaLog, remote: Sequence[RemoteSegment], log_start: int, what: str) -> int:
    """The offset on the leader that is the next to be uploaded (KIP-1023, "ListOffsets API").

    It is the end of the remote log, unless that is none of the log any more: nothing was ever tiered, or
    tiering was off for so long that "the leader's Log-Start-Offset is much ahead of the highest offset on
    the remote storage" (KIP-1023, "ReplicaFetcher Changes"); then it is the first offset that the leader
    has, and the old remote segments must go in the same commit (``expiry.expired_segments``).

    Raises: CorruptionError when the remote holds another history than the leader (an unclean election);
        LogGapError when the leader has deleted what the remote lacks: its store is another one than before, or
        not mounted, and an upload would begin a table that hides what is there.
    """
    if not remote or remote[-1].next_offset <= log_start:
        if log.local_start > log_start:
            raise LogGapError(
                f"{what}: the leader has dropped offsets [{log_start}, {log.local_start}), which were tiered, and "
                "the remote log does not hold them: is the remote mounted, and the one that it was?"
            )
        return log_start
    last = remote[-1]
    if not last.is_of(log.lineage):
        raise CorruptionError(
            f"{what}: remote segment {last.path} is of leader epoch {last.epoch}, the leader's history has "
            f"epoch {log.lineage.epoch_at(last.next_offset - 1)} at offset {last.next_offset - 1}"
        )
    if last.next_offset < log.local_start:
        raise LogGapError(
            f"{what}: the remote log ends at offset {last.next_offset}, the leader's begins at "
            f"{log.local_start}: the offsets between are nowhere"
        )
    return last.next_offset


def plan_uploads(
    log: ReplicaLog,
    remote: Sequence[RemoteSegment],
    *,
    log_start: int,
    policy: MergePolicy,
    now_ms: int,
    what: str,
) -> UploadPlan:
    """The uploads that are due. ``log`` is the leader's, ``remote`` its partition's segments, read after
    the leader was listed; ``what`` names the partition in errors.

    Raises: as ``earliest_pending_upload``.
    """
    start = earliest_pending_upload(log, remote, log_start, what)
    runs: list[Run] = []
    position = start
    for run in sealed_runs(log, policy, start, now_ms):
        if run.start != position or run.end > log.high_watermark:
            break  # only what follows directly, and only what is committed
        runs.append(run)
        position = run.end
    return UploadPlan(start, tuple(runs))
