"""Erases keys from partitions with snapshots: the steps of a run up to the commit
(``stratalog.snapshots.erasure``). The steps after it are those of every erasure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

from stratalog.engine.metadata.partition_commands import RefusedPartition
from stratalog.engine.metadata.snapshot_erasure_commands import (
    AddSnapshotErasures,
    NumberSnapshotErasures,
    SnapshotErasure,
)
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.erasing.partition import ErasingPartition
from stratalog.engine.upkeep.erasing.published import PublishedErasing
from stratalog.engine.upkeep.erasing.snapshot_tasks import (
    NO_SNAPSHOT,
    FoundKeys,
    RewriteWork,
    RewrittenSnapshot,
    find_keys,
    rewrite_snapshot,
)
from stratalog.engine.upkeep.erasing.tasks import EraseWork
from stratalog.engine.upkeep.snapshots.partition import (
    PartitionSnapshot,
    SnapshotPlan,
    SnapshotWork,
    make_snapshot,
)
from stratalog.partitions.errors import (
    InvalidUpdateVersionError,
    LogGapError,
    RetriableError,
    SourceChangedError,
    StaleMetadataError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.snapshots.erasure import next_generation
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId

_ATTEMPTS = 5
R = TypeVar("R")
ReduceLarge = Callable[[SnapshotWork], tuple[SnapshotPlan, PartitionSnapshot | None]]
"""See ``stratalog.engine.upkeep.snapshots.snapshot``."""


class ErasingRun(Protocol):
    """The run to which the steps belong."""

    def refresh(self) -> None:
        """Give each partition its current view."""

    def each(
        self, task: Callable[[EraseWork], R], keys: Iterable[TopicIdPartition]
    ) -> Iterator[tuple[EraseWork, R]]:
        """Run the task on partitions that have not failed."""

    def work_of(self, key: TopicIdPartition) -> EraseWork:
        """The work on a partition under its view."""

    def is_present(self, key: TopicIdPartition) -> bool:
        """Whether the partition exists, and has not failed."""

    def fail(self, key: TopicIdPartition, error: StratalogError) -> None:
        """End the work on a partition."""

    def shrink(
        self,
        missed: dict[TopicIdPartition, dict[int, StratalogError]],
        erased_under: dict[TopicIdPartition, int],
    ) -> dict[TopicIdPartition, StratalogError]:
        """Remove members from ISRs; returns the refusals."""

    def carry_out(self, keys: Iterable[TopicIdPartition]) -> None:
        """Carry out the erasures of the metadata."""


@dataclass(frozen=True, slots=True)
class SnapshotErasing:
    """The work on the partitions with snapshots of one run."""

    run: ErasingRun
    metadata: MetadataClient
    reduce_large: ReduceLarge
    parts: Mapping[TopicIdPartition, ErasingPartition]
    published: PublishedErasing
    """The topics whose tables of snapshots the run erases from, too."""

    def remove(self, keys: Iterable[TopicIdPartition]) -> None:
        """Erase the keys from these partitions. A partition that changes meanwhile is searched again."""
        waiting = [*keys]
        error: dict[TopicIdPartition, StratalogError] = {}
        for _ in range(_ATTEMPTS):
            if not waiting:
                return
            self.run.refresh()
            error = self._attempt(waiting)
            waiting = [key for key in error if self.run.is_present(key)]
        for key in waiting:
            self.run.fail(key, error[key])

    def _attempt(self, keys: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, StratalogError]:
        """Returns the partitions to try again, with the reasons."""
        again: dict[TopicIdPartition, StratalogError] = {}
        holding: dict[TopicIdPartition, int] = {}
        for work, found in self.run.each(find_keys, keys):
            key = work.replicas.view.key
            if found.before is not None:
                again[key] = found.before
            elif found.any and not found.looked_to:
                self.run.fail(key, LogGapError(f"{self.parts[key]}: {NO_SNAPSHOT}"))
            else:
                self._take(self.parts[key], found)
                if found.any:
                    holding[key] = found.last_end
        sources = self._snapshots(holding, again)
        for key in [key for key, one in sources.items() if one.end_offset < holding[key]]:
            again[key] = SourceChangedError(
                f"{self.parts[key]}: its latest snapshot ends at offset {sources.pop(key).end_offset}, but its "
                f"log has the keys up to offset {holding[key]}: run `stratalog replicate`, then erase again"
            )
        wanted = {key: self._request(key, one.end_offset) for key, one in sources.items()}
        numbered = self._submit(NumberSnapshotErasures, wanted.values(), again)
        for key in [key for key, epoch in numbered.items() if self._is_taken(key, next_generation(epoch))]:
            again[key] = InvalidUpdateVersionError(
                f"{self.parts[key]}: the table has an object of a former cluster with the generation "
                f"{next_generation(numbered.pop(key))}: erase again, which uses the next generation"
            )
        self.run.refresh()
        rewritten = self._rewrite(sources, numbered, again)
        # The partition epoch gave the snapshot its generation, so a later view must not replace it.
        added = [replace(wanted[key], partition_epoch=numbered[key]) for key in rewritten]
        committed = self._submit(AddSnapshotErasures, added, again)
        for key in committed:
            part, one = self.parts[key], rewritten[key]
            part.offsets.append((0, one.bound))
            part.looked_to = max(part.looked_to, one.bound)
            part.files += 1
            part.read_bytes += one.read_bytes
            part.written_bytes += one.written_bytes
        self.run.refresh()
        behind = [key for key, why in again.items() if isinstance(why, RetriableError)]
        self.run.carry_out([*committed, *behind])
        return again

    def _request(self, key: TopicIdPartition, bound: int) -> SnapshotErasure:
        view = self.parts[key].view
        published = key.topic_id in self.published.tables
        return SnapshotErasure(*key, view.leader_epoch, view.partition_epoch, bound, published)

    def _is_taken(self, key: TopicIdPartition, generation: int) -> bool:
        return generation in self.published.taken.get(key, ())

    @staticmethod
    def _take(part: ErasingPartition, found: FoundKeys) -> None:
        part.records, part.above = found.records, found.above
        part.looked_to, part.leader_epoch = found.looked_to, found.epoch
        part.searched = not found.above

    def _snapshots(
        self, keys: Iterable[TopicIdPartition], again: dict[TopicIdPartition, StratalogError]
    ) -> dict[TopicIdPartition, SnapshotId]:
        """Step 2: the latest snapshot of each partition, with all stable records."""
        found: dict[TopicIdPartition, SnapshotId] = {}
        large: list[TopicIdPartition] = []
        for work, (planned, made) in self.run.each(_make, keys):
            key = work.replicas.view.key
            if planned.large:
                large.append(key)
            else:
                found[key] = planned.latest if made is None else made.snapshot_id
        for key in large:
            work = self.run.work_of(key)
            assert work.snapshots is not None
            try:
                planned, made = self.reduce_large(work.snapshots)
            except StratalogError as error:
                self.run.fail(key, error)
                continue
            found[key] = planned.latest if made is None else made.snapshot_id
        for key in [key for key, one in found.items() if one == EMPTY]:
            del found[key]
            again[key] = SourceChangedError(f"{self.parts[key]} has no snapshot yet: erase again")
        return found

    def _submit(
        self,
        command: type[NumberSnapshotErasures] | type[AddSnapshotErasures],
        wanted: Iterable[SnapshotErasure],
        again: dict[TopicIdPartition, StratalogError],
    ) -> dict[TopicIdPartition, int]:
        """The new partition epochs of the partitions that were not refused."""
        done: dict[TopicIdPartition, int] = {}
        requests = tuple(wanted)
        for answer in self.metadata.submit(command(requests)) if requests else ():
            if not isinstance(answer, RefusedPartition):
                done[answer.key] = answer.partition_epoch
            elif isinstance(answer.error, StaleMetadataError):
                again[answer.key] = answer.error
            else:
                self.run.fail(answer.key, answer.error)
        return done

    def _rewrite(
        self,
        sources: Mapping[TopicIdPartition, SnapshotId],
        numbered: Mapping[TopicIdPartition, int],
        again: dict[TopicIdPartition, StratalogError],
    ) -> dict[TopicIdPartition, RewrittenSnapshot]:
        """Step 4, for the partitions that have not changed since step 3."""
        current = [key for key, epoch in numbered.items() if self.parts[key].view.partition_epoch == epoch]
        for key in numbered:
            if key not in current:
                again[key] = InvalidUpdateVersionError(f"{self.parts[key]} keeps changing: erase again")
        rewritten: dict[TopicIdPartition, RewrittenSnapshot] = {}
        missed: dict[TopicIdPartition, dict[int, StratalogError]] = {}
        rewrite = _Rewrite({key: (sources[key], next_generation(numbered[key])) for key in current})
        for work, one in self.run.each(rewrite, current):
            key = work.replicas.view.key
            if isinstance(one, SourceChangedError):
                again[key] = one
            elif one.missed:
                missed[key] = one.missed
                again[key] = next(iter(one.missed.values()))
            else:
                rewritten[key] = one
        for key, error in self.run.shrink(missed, {}).items():
            if not isinstance(error, StaleMetadataError):
                self.run.fail(key, error)
        return rewritten


def _make(work: EraseWork) -> tuple[SnapshotPlan, PartitionSnapshot | None]:
    """The task of step 2."""
    assert work.snapshots is not None
    return make_snapshot(work.snapshots)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """The task of step 4. The snapshot and the generation of each partition are fixed, whatever the view of a
    second try."""

    wanted: Mapping[TopicIdPartition, tuple[SnapshotId, int]]

    def __call__(self, work: EraseWork) -> RewrittenSnapshot | SourceChangedError:
        source, target = self.wanted[work.replicas.view.key]
        same = {each.name: getattr(work, each.name) for each in fields(work)}
        return rewrite_snapshot(RewriteWork(**same, source=source, target=target))
