"""The tasks of a tier run: planning the uploads of a partition, and copying one segment to the remote tier."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.engine.replication.leader import check_agreed, compare_with_remote, leader_log, look_at_leader
from stratalog.engine.replication.partition import PartitionWork
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.clock import Clock
from stratalog.partitions.erasure import Erasure, to_erase
from stratalog.partitions.errors import StoreTimeoutError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Link, Listing, ReplicaLog, parse
from stratalog.partitions.paths import DataName
from stratalog.partitions.probing import NoAnswerError, Prober
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.merge import MergePolicy, Run, oldest_by
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store
from stratalog.partitions.transactions import transactions_of
from stratalog.tiering.copier import upload
from stratalog.tiering.divergence import agreeing
from stratalog.tiering.plan import (
    CopyLag,
    UploadPlan,
    changes_at_ms,
    earliest_pending_upload,
    plan_uploads,
    waiting_as_before,
    why_not_due,
)
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.schedule import Entry


@dataclass(frozen=True, slots=True)
class PlanWork(PartitionWork):
    """The work: plan the due uploads of one partition."""

    entry: Entry
    """The partition's entry in the list of due partitions."""
    segments: tuple[RemoteSegment, ...] | None
    """The last segment of the remote log, or all segments if the last segment does not belong to the leader's
    history. None if the remote log cannot be read. In that case, the backlog is computed from the last known end
    in the list.
    """
    policy: MergePolicy
    lag: CopyLag
    expires_ms: int
    """The time for which brokers keep records; -1: as long as the remote tier keeps them."""
    clock: Clock
    rule: Rule | None = None
    """The removal rule that uploads below its bound must follow."""
    dry_run: bool = False
    """Plan without taking over the leader's epoch."""


@dataclass(frozen=True, slots=True)
class PlannedUploads:
    """The uploads that are due, and the size of the rest."""

    plan: UploadPlan
    pending_bytes: int
    """The bytes of the log after the plan. They are not sealed yet, held back, or not committed."""
    lineage: Lineage = Lineage()  # noqa: RUF009 - immutable
    """The leader's lineage as listed; empty if it was not needed because nothing is due."""
    foreign: bool = False
    """Whether the last segments of the remote log belong to another history, which an unclean election has
    abandoned.
    """
    seen: str = ""
    quiet_until_ms: int = 0
    """For this field and the next, see ``Entry``."""
    why: str | None = None


def plan_partition(work: PlanWork) -> PlannedUploads:
    """Plan one partition. If the partition is unchanged since nothing was due, planning costs one listing, without
    a check of the root. Skipping this check is safe, because such a plan does nothing, even if the root is an
    older copy with exactly the same files.

    Raises: see ``leader_log``, ``check_reaches_remote``, ``check_agreed`` and ``earliest_pending_upload``.
    """
    now_ms = work.clock.now_ms()
    leader = work.replicas.leader
    if work.entry.seen and now_ms < work.entry.quiet_until_ms and work.segments is not None:
        objects = leader.store.list(leader.folder)
        listing = parse(leader.folder, objects, generation=leader.generation)
        if _seen(work, listing) == work.entry.seen:
            start = work.segments[-1].next_offset if work.segments else work.replicas.view.log_start_offset
            entry = work.entry
            plan = UploadPlan(start, ())
            why = waiting_as_before(entry.pending_bytes, start, work.policy)
            return PlannedUploads(
                plan, entry.pending_bytes, seen=entry.seen, quiet_until_ms=entry.quiet_until_ms, why=why
            )
    log = look_at_leader(work.replicas) if work.dry_run else leader_log(work.replicas)
    compare_with_remote(work.replicas, log)

    def latest_ms(link: Link) -> int:
        return leader.footer(link.file).latest_ms

    log_start, foreign = work.replicas.view.log_start_offset, False
    if work.segments is None:
        start = max(work.entry.remote_end or 0, log_start, log.local_start)
    else:
        segments = agreeing(work.segments, log.lineage) if len(work.segments) > 1 else work.segments
        foreign = len(segments) < len(work.segments)
        if foreign:
            check_agreed(work.replicas, log)
        start = earliest_pending_upload(log, segments, log_start, str(work.replicas))
    transactions = transactions_of(log, leader.footer, start)
    unerased = _unerased(log, work.replicas.view.erasures)
    plan = plan_uploads(
        log,
        start,
        policy=work.policy,
        now_ms=now_ms,
        lag=work.lag,
        expires_ms=work.expires_ms,
        latest_ms=latest_ms,
        oldest_ms=oldest_by(leader.footer),
        transactions=transactions,
        rule=work.rule,
        unerased=unerased,
    )
    pending = sum(link.file.object.size_bytes for link in log.chain if link.start >= plan.end)
    if plan.runs or foreign or work.segments is None:
        return PlannedUploads(plan, pending, log.lineage, foreign)
    until_ms = changes_at_ms(
        log,
        plan,
        policy=work.policy,
        lag=work.lag,
        now_ms=now_ms,
        expires_ms=work.expires_ms,
        latest_ms=latest_ms,
        oldest_ms=oldest_by(leader.footer),
    )
    why = why_not_due(
        log,
        plan,
        policy=work.policy,
        lag=work.lag,
        now_ms=now_ms,
        oldest_ms=oldest_by(leader.footer),
        transactions=transactions,
        rule=work.rule,
        unerased=unerased,
    )
    return PlannedUploads(
        plan, pending, log.lineage, seen=_seen(work, log.listing), quiet_until_ms=until_ms, why=why
    )


def _unerased(log: ReplicaLog, erasures: Sequence[Erasure]) -> frozenset[DataName]:
    """The files that may have records that an erasure names."""
    if not any(one.offsets for one in erasures):
        return frozenset()
    return frozenset(link.name for link, _ in to_erase(log, erasures))


def _seen(work: PlanWork, listing: Listing) -> str:
    """A digest of everything that a plan depends on, except the time."""
    last = [segment.path for segment in (work.segments or ())[-1:]]
    view = work.replicas.view
    rests_on = (
        (view.leader, view.leader_epoch, view.log_start_offset, last, work.policy, work.lag, work.expires_ms),
        work.rule,
        [one.generation for one in view.erasures if one.offsets],
        sorted((str(file.name), file.object.version) for file in listing.data),
        sorted(map(str, listing.watermarks)),
        sorted((str(name), stored.version) for name, stored in (*listing.epochs, *listing.local_starts)),
    )
    return hashlib.blake2b(repr(rests_on).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class UploadWork(PartitionWork):
    """The work: copy one run of one partition to the remote tier."""

    run: Run
    remote: Store
    folder: str
    compression: str
    deadline_s: float
    throttle: Throttle | None
    prober: Prober


def upload_run(work: UploadWork) -> Uploaded:
    """Upload one run. The deadline begins after the wait for the quota. An upload that does not answer in time is
    abandoned. The upload may still create the object; the next run then finds the object and checks it.

    Raises: StoreTimeoutError; see ``upload``.
    """
    if work.throttle is not None:
        work.throttle.spend(work.run.size_bytes)

    def bring(run: Run) -> Uploaded:
        return upload(work.replicas.leader, run, work.remote, work.folder, compression=work.compression)

    (outcome,) = work.prober.probe(bring, [work.run], work.deadline_s)
    match outcome:
        case Done(_, uploaded):
            return uploaded
        case Failed(_, error):
            raise _named(work, error)


def _named(work: UploadWork, error: StratalogError) -> StratalogError:
    if isinstance(error, NoAnswerError):
        return StoreTimeoutError(
            f"{work.run.segment_name} was not copied to {work.remote.uri} within {work.deadline_s:g} s "
            "(remote.log.manager.copy.timeout.ms): the remote tier hangs, or is too slow"
        )
    return error
