"""Finds where a partition's remote log and its leader diverge after an unclean election. Pure.

Kafka keeps segments of a lost history in the metadata of the remote log, looks up each by leader epoch, and
uploads again from the end of the leader's epoch (``RemoteLogManager``). Here the remote log holds every offset
once, so segments of another history are removed from the table (``DeltaTopicTable.commit``). Until these segments
are removed, readers stop at ``agreed_end``. The removal loses no record that the leader lacks. An unclean election
never lets a leader begin before the end of the remote log, so a segment of a lost history was uploaded after the
election, by a driver with an outdated leader. From the start of that segment on, the current leader has its own
records.

A leader epoch has one leader, which took over at one offset and never changes a record. So two histories with a
common epoch agree on every record below that epoch. Two such histories also agree on the records of the common
epoch, up to the lower of the epoch's two ends (KIP-101).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class Present:
    """The current metadata of a partition."""

    leader_epoch: int
    log_start: int = 0
    erasure: int = 0
    """The generation of the partition's last erasure; 0: none."""


def no_replicas() -> Mapping[int, Present]:
    """The metadata of no partition."""
    return {}


@dataclass(frozen=True, slots=True)
class Histories:
    """The leaders' histories that a commit of remote segments follows."""

    lineages: Mapping[int, Lineage] = field(default_factory=dict)
    """By partition, the lineage of the leader, as listed for this batch. The latest epoch of a lineage is the
    leader epoch of the listing."""
    now: Callable[[], Mapping[int, Present]] = no_replicas
    """Reads the metadata of every partition of the topic, in a linearizable read that starts with the call."""
    erasures: Mapping[int, int] = field(default_factory=dict)
    """The generation of each partition's last erasure, as the view of this batch records it. A partition without
    an entry has generation 0."""

    def check(self, add: RemoteSegment) -> None:
        """Check that a segment to add belongs to the lineage of its partition's leader. Raises:
        InvalidCallError."""
        lineage = self.lineages.get(add.partition)
        if lineage is None or not add.is_of(lineage):
            raise InvalidCallError(f"remote segment {add.path} is not part of its leader's history: {lineage}")

    def present(self) -> dict[int, Present]:
        """The current metadata of the partitions whose leader epoch is still the same."""
        now = self.now()
        return {
            partition: now[partition]
            for partition, lineage in self.lineages.items()
            if partition in now and now[partition].leader_epoch == lineage.latest_epoch
        }

    def knows(self, partition: int, present: Present) -> bool:
        """Whether the batch was planned with the partition's last erasure. A copy from before that erasure may
        contain erased records (``tiering.erasure``).
        """
        return present.erasure <= self.erasures.get(partition, 0)


def agreed_end(segment: RemoteSegment, lineage: Lineage) -> int:
    """The offset below which all of the segment's records certainly belong to this history. Returns the segment's
    base offset if no record does. Also returns the base offset if the history lacks the segment's last epoch,
    because in that case only the footer could prove that some records belong to the history.
    """
    if segment.is_of(lineage):
        return segment.next_offset
    if all(entry.epoch != segment.epoch for entry in lineage):
        return segment.base_offset
    end = lineage.end_of(segment.epoch)
    return segment.next_offset if end is None else max(segment.base_offset, min(end, segment.next_offset))


def agreeing(segments: Sequence[RemoteSegment], lineage: Lineage) -> tuple[RemoteSegment, ...]:
    """The segments of a partition, in order, up to the first segment that does not belong completely to this
    history.
    """
    return tuple(takewhile(lambda segment: segment.is_of(lineage), segments))


def readable(segments: Iterable[RemoteSegment], lineage: Lineage) -> Iterator[tuple[RemoteSegment, int]]:
    """The segments that readers of this history may read, in order, each with the offset up to which it belongs to
    the history. That offset may be inside the last segment.
    """
    for segment in segments:
        end = agreed_end(segment, lineage)
        if end > segment.base_offset:
            yield segment, end
        if end < segment.next_offset:
            return
