"""The remote part of a topic's logs: the fold of its Delta table at one version. Pure.

``RemoteLog.of`` builds the log from the live files. ``after`` applies the adds and removes of a commit to a log,
which checks the commit before it is made. Both use one constructor, which refuses gaps and overlaps. So every
remote log contains each offset once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.removal import Rule
from stratalog.tiering.divergence import agreeing
from stratalog.tiering.foreign_commits import Rewrite
from stratalog.tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """Segments per partition in offset order, contiguous and disjoint; partitions without segments are absent."""

    what: str
    """The name of the table in messages."""
    version: int
    """The version of the table; -1 before the first one."""
    segments: Mapping[int, tuple[RemoteSegment, ...]] = field(default_factory=dict)
    rewrite: Rewrite | None = None
    """Files with which other writers replaced some segments; None if the table lists exactly the segments."""
    rules: Mapping[int, Rule] = field(default_factory=dict)
    """By partition: the last removal rule that all segments follow, if there is one (``tiering.removal``).
    """
    erased: Mapping[int, int] = field(default_factory=dict)
    """By partition: the generation of the last erasure that all segments follow, if there is one
    (``tiering.erasure``).
    """

    @classmethod
    def of(
        cls,
        what: str,
        version: int,
        segments: Iterable[RemoteSegment],
        rewrite: Rewrite | None = None,
        rules: Mapping[int, Rule] | None = None,
        erased: Mapping[int, int] | None = None,
    ) -> RemoteLog:
        """Build the log from these segments, given in any order.

        Raises: LogGapError for missing offsets, CorruptionError for duplicate offsets.
        """
        by_partition: dict[int, list[RemoteSegment]] = {}
        for segment in segments:
            by_partition.setdefault(segment.partition, []).append(segment)
        return cls(
            what,
            version,
            {partition: _chained(what, found) for partition, found in sorted(by_partition.items())},
            rewrite,
            rules or {},
            erased or {},
        )

    @classmethod
    def empty(cls, what: str) -> RemoteLog:
        """The remote log of a topic that was never tiered."""
        return cls(what, -1)

    @property
    def memory_bytes(self) -> int:
        """The approximate size in memory, without the rewrite: a segment takes two objects plus numbers."""
        return 1024 + 500 * sum(map(len, self.segments.values()))

    def of_partition(self, partition: int) -> tuple[RemoteSegment, ...]:
        """The segments of one partition in offset order."""
        return self.segments.get(partition, ())

    def start(self, partition: int) -> int | None:
        """The remote log start offset, None when nothing is tiered."""
        found = self.of_partition(partition)
        return found[0].base_offset if found else None

    def end(self, partition: int) -> int | None:
        """The offset after the last tiered offset: the earliest pending upload offset that the remote log shows
        (KIP-1023, "ListOffsets API"); None when nothing is tiered.
        """
        found = self.of_partition(partition)
        return found[-1].next_offset if found else None

    def generation(self, partition: int) -> int:
        """The generation of the last rule or erasure that all segments of the partition follow; 0: none."""
        rule = self.rules.get(partition)
        return max(0 if rule is None else rule.generation, self.erased_to(partition))

    def erased_to(self, partition: int) -> int:
        """The generation of the last erasure that all segments of the partition follow; 0: none."""
        return self.erased.get(partition, 0)

    def lacks_erasure(self, partition: int, generation: int) -> bool:
        """Whether this log may list records that the partition's last erasure names; ``generation`` is that of the
        erasure. The table records an erasure before the erasure is reported.
        """
        return self.erased_to(partition) < generation

    def generation_at(self, segment: RemoteSegment) -> int:
        """The generation of the last rule that a (formerly) listed segment with these offsets follows."""
        rule = self.rules.get(segment.partition)
        below = rule is not None and segment.base_offset < rule.bound
        return max(segment.generation, rule.generation if below and rule is not None else 0)

    def is_outdated(self, partition: int, generation: int) -> bool:
        """Whether this log lacks a rule that the current remote log certainly follows. ``generation`` is that of
        the partition's last rule in the metadata. (A rule is committed only if the remote log follows the previous
        rule.)
        """
        return self.generation(partition) < generation - 1

    def stale(self, adds: Iterable[RemoteSegment]) -> list[RemoteSegment]:
        """The adds beyond the end of this log that must be refused: adds that follow an older rule than the log
        does at their offsets, and all later adds of the same partitions.
        """
        found: list[RemoteSegment] = []
        partitions: set[int] = set()
        for add in sorted(adds, key=lambda segment: (segment.partition, segment.base_offset)):
            new = add.base_offset >= (self.end(add.partition) or 0)
            if add.partition in partitions or (new and add.generation < self.generation_at(add)):
                partitions.add(add.partition)
                found.append(add)
        return found

    def covering(self, partition: int, start: int, end: int) -> tuple[RemoteSegment, ...]:
        """The segments that contain any of the offsets ``[start, end)``."""
        found = self.of_partition(partition)
        if end <= start:
            return ()
        first = max(bisect_right(found, start, key=lambda segment: segment.base_offset) - 1, 0)
        return tuple(
            segment for segment in found[first:] if segment.base_offset < end and segment.next_offset > start
        )

    def all_segments(self) -> tuple[RemoteSegment, ...]:
        """Every segment, by partition and offset."""
        return tuple(segment for found in self.segments.values() for segment in found)

    def bytes_of(self, partition: int) -> int:
        """Bytes of the segments of one partition."""
        return sum(segment.size_bytes for segment in self.of_partition(partition))

    def after(self, adds: Iterable[RemoteSegment], removes: Iterable[RemoteSegment], version: int) -> RemoteLog:
        """Return this log with a commit applied.

        Raises: LogGapError, CorruptionError if the result would not be a valid remote log.
        """
        removes = tuple(removes)
        gone = {segment.path for segment in removes}
        added: dict[int, list[RemoteSegment]] = {}
        for add in adds:
            added.setdefault(add.partition, []).append(add)
        touched = {*added, *(segment.partition for segment in removes)}
        segments = dict(self.segments)
        for partition in sorted(touched):
            kept = [segment for segment in self.of_partition(partition) if segment.path not in gone]
            segments[partition] = _chained(self.what, [*kept, *added.get(partition, [])])
        kept_segments = {p: found for p, found in sorted(segments.items()) if found}
        return RemoteLog(self.what, version, kept_segments, rules=self.rules, erased=self.erased)

    def foreign(self, lineages: Mapping[int, Lineage]) -> list[RemoteSegment]:
        """The segments of these partitions, each from the first segment outside its leader's history on."""
        return [
            segment
            for partition, lineage in sorted(lineages.items())
            for segment in self.of_partition(partition)[len(self.agreeing(partition, lineage)) :]
        ]

    def agreeing(self, partition: int, lineage: Lineage) -> tuple[RemoteSegment, ...]:
        """The segments of one partition that belong to this history; see ``stratalog.tiering.divergence``."""
        return agreeing(self.of_partition(partition), lineage)

    def needed(self, adds: Iterable[RemoteSegment], removes: Iterable[RemoteSegment]) -> list[RemoteSegment]:
        """The adds that this log still lacks, in order, after ``removes``. The other adds have been superseded
        since the caller planned: another driver has committed the same file, or files with other boundaries.

        Raises: CorruptionError when a file is listed with another size; LogGapError when an add leaves a gap that
        no superseded add explains.
        """
        gone = {segment.path for segment in removes}
        adds = sorted(adds, key=lambda segment: (segment.partition, segment.base_offset))
        there = [s for partition in {add.partition for add in adds} for s in self.of_partition(partition)]
        listed = {segment.path: segment for segment in there}
        ends: dict[int, int] = {}
        for segment in there:
            if segment.path not in gone:
                ends[segment.partition] = segment.next_offset
        found: list[RemoteSegment] = []
        overtaken: set[int] = set()
        for add in adds:
            known = listed.get(add.path)
            if known is not None and known.size_bytes != add.size_bytes:
                raise CorruptionError(
                    f"{self.what} lists {add.path} with {known.size_bytes} bytes, but the upload "
                    f"had {add.size_bytes}"
                )
            if known is not None and add.path not in gone:
                continue
            end = ends.get(add.partition, add.base_offset)
            if add.base_offset < end or add.partition in overtaken:
                overtaken.add(add.partition)
            elif add.base_offset > end:
                raise LogGapError(
                    f"{self.what}: partition {add.partition} ends at offset {end} in the remote log, so "
                    f"{add.path} cannot be added: offsets between them are missing"
                )
            else:
                found.append(add)
                ends[add.partition] = add.next_offset
        return found


def _chained(what: str, found: list[RemoteSegment]) -> tuple[RemoteSegment, ...]:
    found.sort(key=lambda segment: (segment.base_offset, segment.next_offset))
    for one, two in pairwise(found):
        if two.base_offset > one.next_offset:
            raise LogGapError(
                f"{what}: partition {one.partition} lacks offsets [{one.next_offset}, {two.base_offset}) "
                f"between {one.path} and {two.path}"
            )
        if two.base_offset < one.next_offset:
            raise CorruptionError(
                f"{what}: partition {one.partition} holds offsets [{two.base_offset}, "
                f"{min(one.next_offset, two.next_offset)}) twice, in {one.path} and {two.path}"
            )
    return tuple(found)
