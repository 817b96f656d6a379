"""The work of a compaction and its requests, for a dry run. The numbers were counted with stores in memory."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.driver.planned import Planned, copies, reads_to_rewrite, uploads
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.rewrites.removing import runs_by
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removal import to_rewrite as to_rewrite_remotely

_KEY_COLUMNS = 3
"""The number of columns that are read for keys: offset, key and control."""
_COMMITS_OF_TABLE = 4
"""The number of listings of a table's log by the two commits of a compaction."""


@dataclass(frozen=True, slots=True)
class PlannedRemoval:
    """The work of a removal rule on one partition."""

    sizes: tuple[int, ...]
    """The bytes of the files that each new segment replaces."""
    files: int
    """The number of files that the new segments replace."""
    covered: int
    """The number of the leader's files below the rule's bound; the keys of these files are read."""
    remote: tuple[int, ...]
    """The bytes of each remote segment that is rewritten."""


def plan_removal(
    replicas: PartitionReplicas, segment_bytes: int, segments: tuple[RemoteSegment, ...]
) -> PlannedRemoval:
    """Plan the last rule of the view. Raises: errors from listing the leader."""
    rule = replicas.view.rules[-1].rule
    log = look_at_leader(replicas)
    runs = runs_by(rule, log, segment_bytes)
    return PlannedRemoval(
        sizes=tuple(run.size_bytes for run in runs),
        files=sum(len(run.links) for run in runs),
        covered=len(log.over(log.local_start, rule.bound)),
        remote=tuple(segment.size_bytes for segment in to_rewrite_remotely(segments, rule)),
    )


def send_removal(
    sends: Planned, topic: TopicImage, replicas: PartitionReplicas, planned: PlannedRemoval, *, tiered: bool
) -> None:
    """Add the removal on one partition: the footers and keys of all files are read, and then all bytes of the
    files to rewrite. A new segment is at most as large as the files that it replaces; the members of the ISR copy
    the new segment.
    """
    leader, keys, size = replicas.leader.store, planned.covered * _KEY_COLUMNS, sum(planned.sizes)
    reads = planned.files * reads_to_rewrite(topic, size // planned.files) if planned.files else 0
    sends.send(leader, puts=1, gets=1 + planned.covered + keys + reads, moved_bytes=2 * size)
    for broker in replicas.acknowledging:
        sends.send(replicas.stores.get(broker), puts=1, gets=1)
    for made in planned.sizes:
        puts, gets = copies(made)
        sends.send(leader, puts=1 + uploads(made), gets=2, moved_bytes=made)
        for broker in replicas.acknowledging:
            sends.send(leader, gets=gets, moved_bytes=made)
            sends.send(replicas.stores.get(broker), puts=puts, moved_bytes=made)
    if tiered:
        sends.send(leader, puts=1, gets=1 + keys)
    for made in planned.remote:
        reads = 1 + _KEY_COLUMNS + reads_to_rewrite(topic, made)
        sends.send(sends.storage.remote, puts=uploads(made), gets=reads, moved_bytes=3 * made)


def send_commits_of_table(sends: Planned) -> None:
    """Add the commits of one topic's table."""
    sends.send(sends.storage.remote, puts=_COMMITS_OF_TABLE)
