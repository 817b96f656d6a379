"""Expiry of the remote tier: segments below the log start offset leave it (KIP-405, RLM task, step 1). Pure.

Removal is two-step. ``DeltaTopicTable.commit`` takes the segments out of the table, so that no new read
plans them; ``DeltaTopicTable.vacuum`` deletes their objects after a delay that no planned read outlives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratalog.partitions.retention import LogFile
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment


def expired_segments(remote: RemoteLog, log_starts: Mapping[int, int]) -> list[RemoteSegment]:
    """The segments that lie wholly below the log start offset of their partition, in order. One that only
    begins below it stays, readers skip its first records: files are never cut for retention.
    """
    return [
        segment
        for partition, log_start in sorted(log_starts.items())
        for segment in remote.of_partition(partition)
        if segment.next_offset <= log_start
    ]


def both_tiers(remote: Sequence[RemoteSegment], local: Sequence[LogFile]) -> list[LogFile]:
    """A partition's whole log as total retention looks at it: every offset once, the remote part first.

    ``local`` are the leader's files in order. Those that the remote holds are left out, one that straddles
    its end is counted whole from there on.
    """
    end = remote[-1].next_offset if remote else 0
    rest = [replace(extent, start=max(extent.start, end)) for extent in local if extent.end > end]
    return [*(segment.extent for segment in remote), *rest]
