"""Shorten: merges the small appends of one partition, and deletes files that merged segments have replaced.

This is bounded work, which a driver does in the background of its appends (``keep_short``): it makes segments of
at most ``segment.merge.inline.bytes``. Larger ones are left to ``merge``, and everything that needs the remote
tier to ``retain``.

1. On each replica, delete the appends that a segment has hidden for ``file.delete.delay.ms``, after reading all
bytes of that segment there, and superseded high watermarks. This comes first, as a merge that hides them again
would restart their delay.
2. Merge on the leader, below the high watermark.
3. Sync the members of the ISR, which copy the segments.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.append import replicate
from stratalog.engine.replication.damage import check_whole, covered
from stratalog.engine.replication.log_end import names_in
from stratalog.engine.upkeep.replication.merge import MergeWork, merge_partition
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.replica import Replica
from stratalog.partitions.retention import superseded
from stratalog.partitions.runner import SerialRunner


@dataclass(frozen=True, slots=True)
class ShortenWork(MergeWork):
    """Shorten the log of one partition."""

    delay_ms: int = 0
    """file.delete.delay.ms."""


@dataclass(slots=True)
class Shortened:
    """The result of shortening one log."""

    segments: int = 0
    """The number of new segments."""
    deleted: int = 0
    """The number of deleted names."""
    names: int = 0
    """The number of names of records and high watermarks left in the leader's folder."""
    failed: tuple[StratalogError, ...] = ()
    """Errors of followers, and of damaged segments, whose replaced files stay."""


def shorten(work: ShortenWork) -> Shortened:
    """Shorten the log of one partition. An unreachable or damaged follower does not stop the others.

    Raises: see ``merge_partition``; errors of the leader.
    """
    replicas, done = work.replicas, Shortened()
    leader = replicas.leader
    for replica in (*(replicas.replica(broker) for broker in replicas.followers), leader):
        try:
            done.names = _delete(work, replica, done)
        except StratalogError as error:
            done.failed += (error,)
    done.segments = merge_partition(work).segments
    if done.segments:
        done.names += done.segments
        # Members that it does not reach are not reported: this view may be old, and the next append finds out.
        replicate(replicas, SerialRunner())
    return done


def _delete(work: ShortenWork, replica: Replica, done: Shortened) -> int:
    """Step 1, on one replica; returns the number of names left in its folder."""
    log = replica.log()
    check_whole(replica, log)
    now_ms = agreed_ms(work.clock, replica.store)
    names, damaged = covered(replica, log, [] if now_ms is None else superseded(log, now_ms, work.delay_ms))
    if names:
        replica.store.delete([replica.path(name) for name in names])
    done.deleted += len(names)
    done.failed += tuple(damaged)
    return names_in(log.listing) - len(names)
