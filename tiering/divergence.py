"""Where a partition's remote log and its leader part ways: after an unclean election. Pure.

Kafka keeps segments of a lost history among the metadata of the remote log, looks each of them up by leader
epoch, and goes on uploading where the leader's epoch ends (``RemoteLogManager``). Here the remote holds every
offset once, so segments of another history leave the table (``DeltaTopicTable.commit``); no read
serves it meanwhile, for readers look no further than ``agreed_end``. Nothing that the leader lacks goes with them:
an unclean election never lets a leader begin before the end of the remote log, so a segment of a lost history
was put there afterwards, by a driver that had asked who leads before, and the leader has its own records from
where that segment begins.

A leader epoch has one leader, which took over at one offset and never changes a record. So histories that
have an epoch in common have everything below in common, and that epoch's records up to where it ends in one of
them (KIP-101).
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
    """The present metadata of a partition."""

    leader_epoch: int
    log_start: int = 0


def nobody() -> Mapping[int, Present]:
    """Nobody leads anything."""
    return {}


@dataclass(frozen=True, slots=True)
class Histories:
    """Whose history a commit of remote segments follows."""

    lineages: Mapping[int, Lineage] = field(default_factory=dict)
    """By partition, the lineage of its leader, as the leader was listed for this batch. Its latest epoch is
    the leader epoch under which that was."""
    now: Callable[[], Mapping[int, Present]] = nobody
    """Every partition of the topic, by a linearizable read that begins when this is called."""

    def check(self, add: RemoteSegment) -> None:
        """Raises: InvalidCallError when nothing says that a segment to be added is of its leader's history."""
        lineage = self.lineages.get(add.partition)
        if lineage is None or not add.is_of(lineage):
            raise InvalidCallError(f"remote segment {add.path} is not part of its leader's history: {lineage}")

    def log_starts(self) -> dict[int, int]:
        """The present log start offset of the partitions that still have their leader and its epoch."""
        now = self.now()
        return {
            partition: now[partition].log_start
            for partition, lineage in self.lineages.items()
            if partition in now and now[partition].leader_epoch == lineage.latest_epoch
        }


def agreed_end(segment: RemoteSegment, lineage: Lineage) -> int:
    """Up to which offset the segment's records are certainly of this history; its base offset when none is
    (or only its footer could tell: a segment of several epochs, the last of which the history lacks).
    """
    if segment.is_of(lineage):
        return segment.next_offset
    if all(entry.epoch != segment.epoch for entry in lineage):
        return segment.base_offset
    end = lineage.end_of(segment.epoch)
    return segment.next_offset if end is None else max(segment.base_offset, min(end, segment.next_offset))


def agreeing(segments: Sequence[RemoteSegment], lineage: Lineage) -> tuple[RemoteSegment, ...]:
    """The segments of a partition, in order, up to the first that is not wholly of this history."""
    return tuple(takewhile(lambda segment: segment.is_of(lineage), segments))


def readable(segments: Iterable[RemoteSegment], lineage: Lineage) -> Iterator[tuple[RemoteSegment, int]]:
    """The segments, of those in order, that readers of this history may have: each with the offset up to which it
    is of it, the last one maybe not up to its end.
    """
    for segment in segments:
        end = agreed_end(segment, lineage)
        if end > segment.base_offset:
            yield segment, end
        if end < segment.next_offset:
            return
