"""Shorten: merge the small appends of one partition, and delete what merged segments have replaced.

A bounded piece of work, which a driver does behind its appends (``keep_short``): the segments that it makes are of
``segment.merge.inline.bytes`` at most. Larger ones are left to ``merge``, and all that needs a look at the remote
tier to ``retain``.

    1. on each replica delete the appends that a segment has hidden ``file.delete.delay.ms`` ago, once all bytes of
       that segment were read there; and the high watermarks that say nothing any more. First of all: a merge
       that hides them anew would begin their delay again
    2. merge on the leader, below the high watermark
    3. sync the members of the ISR: they copy the segments
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
    """The result."""

    segments: int = 0
    """Segments made."""
    deleted: int = 0
    """Names deleted."""
    names: int = 0
    """Names of records and of high watermarks that the leader's folder still has."""
    failed: tuple[StratalogError, ...] = ()
    """Of followers, and of damaged segments, which keep what they have hidden."""


def shorten(work: ShortenWork) -> Shortened:
    """The work on one partition. A follower that cannot be reached, or is damaged, keeps no other from it.

    Raises: as ``merge_partition``; errors of the leader.
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
        # A member that it does not reach is not named: this view may be old, and the next append finds out.
        replicate(replicas, SerialRunner())
    return done


def _delete(work: ShortenWork, replica: Replica, done: Shortened) -> int:
    """Step 1, on one replica; how many names stay in its folder."""
    log = replica.log()
    check_whole(replica, log)
    now_ms = agreed_ms(work.clock, replica.store)
    names, damaged = covered(replica, log, [] if now_ms is None else superseded(log, now_ms, work.delay_ms))
    if names:
        replica.store.delete([replica.path(name) for name in names])
    done.deleted += len(names)
    done.failed += tuple(damaged)
    return names_in(log.listing) - len(names)
