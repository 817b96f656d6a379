"""Side by side: several tasks in one partition, if the source has parts that can be read separately.

Each task reads a part of the source, decodes and encodes it, and then waits until the log ends at the start of the
part. So the parts are appended in order, each at its offset or not at all. Reading, decoding and encoding, which
take nearly all the time, run concurrently. A round has a few parts for each process. After it the driver
acknowledges the appends.

If a part cannot be read, or its turn does not come, its task ends without an append. The driver then continues the
partition in another way (``bulk``, ``catch_up``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.mirror.bulk import (
    LEAST_OFFSETS,
    Stretch,
    Stretched,
    acknowledged,
    appends_to,
    error_of,
)
from stratalog.bridges.mirror.partitions import MirroredPartition
from stratalog.bridges.mirror.progress import OffsetSteps
from stratalog.bridges.mirror.source import MirrorSource, SourcePart
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.log_end import LogEnd, look_at_end
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.errors import RetriableError, StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.runner import Done
from stratalog.partitions.store import Store

_PARTS = 8
"""The number of parts of a round per process."""
_MOST_BYTES = 32 * 1024 * 1024
"""The memory for waiting records of a task, in bytes."""
_PAUSE_S, _PATIENCE_S = 0.05, 60.0
"""The pause between checks of the log end, and the time without a change after which a task stops waiting."""


@dataclass(frozen=True, slots=True)
class PartWork:
    """A part of the source for one task."""

    source: SourcePart
    stretch: Stretch
    """The partition as if its log ended at the start of the part, and the run ended at the end of the part."""

    def stores_used(self) -> Iterable[Store]:
        """See ``stratalog.engine.driver.tasks.Work``."""
        return self.stretch.replicas.stores.values()

    def __str__(self) -> str:
        return f"{self.stretch.part} [{self.source.start}, {self.source.end})"


def mirror_part(work: PartWork) -> list[Stretched]:
    """Read, encode and append a part when its turn comes. Runs in a task. The list has one item."""
    part = work.stretch.part
    one = Stretched(part, work.stretch.replicas.view, part.log_end)
    try:
        for read in work.source.read():
            work.stretch.append(one, part.pieces(read), lambda piece: _turn(work, piece.start))
            if one.trouble:
                break
    except StratalogError as error:  # the driver will get the same error, and read this part in another way
        one.trouble, one.why = True, error
    one.trouble = one.trouble or not part.done or part.error is not None
    part.begin_at(part.log_end, part.leader_epoch)  # waiting records are not sent back
    return [one]


def _turn(work: PartWork, start: int) -> LogEnd:
    """The log end, once it has reached ``start``. Raises: RetriableError if the log end stays below ``start``."""
    end: LogEnd | None = None
    clock = work.stretch.clock
    before, since_s = -1, clock.monotonic_s()
    while True:
        end, _ = look_at_end(work.stretch.replicas, end, clock, work.stretch.copies)
        if end.log_end >= start:
            return end
        if end.log_end > before:
            before, since_s = end.log_end, clock.monotonic_s()
        elif clock.monotonic_s() - since_s > _PATIENCE_S:
            raise RetriableError(
                f"{work}: the log still ends at {end.log_end}: the previous task has not appended"
            )
        clock.sleep(_PAUSE_S)


# ---------------------------------------------------------------------------------------- the driver


def mirror_side_by_side(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    source: MirrorSource,
    parts: Sequence[MirroredPartition],
    steps: OffsetSteps,
    *,
    least_offsets: int | None,
    throttle: float | None,
    values: TypedValues | None,
    left_s: Callable[[], float | None],
) -> tuple[int, list[MirroredPartition]]:
    """Mirror the source's parts by tasks, as long as the parts have ``least_offsets`` offsets or more (None:
    ``LEAST_OFFSETS``). Returns the number of tasks, and the partitions whose log end must be read again.
    ``left_s``: the remaining time of the run, if it is limited.

    Raises: errors from reading the metadata, and from planning the parts.
    """
    tasks, troubled = 0, list[MirroredPartition]()
    left = [part for part in parts if not part.done]
    least = LEAST_OFFSETS if least_offsets is None else least_offsets
    while left and execution.tasks.processes > 1 and left_s() != 0:
        found = {part.key: source.parts(part.key, part.range()) for part in left}
        left = [part for part in left if found[part.key]]
        if sum(one.end - one.start for part in left for one in found[part.key]) < max(1, least):
            break
        most = -(-_PARTS * execution.tasks.processes // len(left))
        works, refused = _works(metadata, storage, execution, left, found, most, throttle, values)
        tasks += len(works)
        done: dict[TopicPartition, list[Stretched]] = {part.key: [] for part in left}
        whole = {part.key for part in left} - {part.key for part in refused}
        errors: dict[TopicPartition, str | None] = {}
        for outcome in execution.tasks.run(mirror_part, works):
            key = outcome.item.stretch.part.key
            if isinstance(outcome, Done):
                done[key] += outcome.value
            if not isinstance(outcome, Done) or outcome.value[0].trouble:
                whole.discard(key)
                errors.setdefault(key, error_of(outcome, key))
        chains = {key: _chain(ones, start) for key, ones in done.items() if ones for start in [_start(left, key)]}
        ends = [chain[-1] for chain in chains.values() if chain]
        good = acknowledged(metadata, storage, execution.clock, memory, ends)
        for part in left:
            if part.key in good:
                for one in chains[part.key]:
                    steps.passed(one.part.log_end - part.log_end, one.part.mirrored_bytes)
                    part.came_on(one.part)
            if part.key not in good or part.key not in whole:
                part.task_error = errors.get(part.key)
                troubled.append(part)
        left = [part for part in left if part not in troubled and not part.done]
    return tasks, troubled


def _start(parts: Sequence[MirroredPartition], key: TopicPartition) -> int:
    return next(part.log_end for part in parts if part.key == key)


def _chain(found: Sequence[Stretched], start: int) -> list[Stretched]:
    """The results that follow one another starting at ``start``; only these results are known to be in the log."""
    chain: list[Stretched] = []
    for one in sorted(found, key=lambda one: one.begin):
        if one.begin != start or one.last is None:
            break
        chain.append(one)
        start = one.part.log_end
        if one.trouble:
            break
    return chain


def _works(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    parts: Sequence[MirroredPartition],
    found: dict[TopicPartition, Sequence[SourcePart]],
    most: int,
    throttle: float | None,
    values: TypedValues | None,
) -> tuple[list[PartWork], list[MirroredPartition]]:
    """The tasks of a round, in the order of their appends, and the partitions of topics that are no longer
    mirrors.
    """
    # The log ends were read before this check that the topics are still mirrors.
    image = metadata.image()
    by_partition: list[list[PartWork]] = []
    bucket = None if throttle is None else Throttle(throttle, execution.clock).shared_by(execution.tasks.processes)
    refused = []
    for part in parts:
        works: list[PartWork] = []
        with suppress(StratalogError):
            how = *appends_to(storage, image, part.key), bucket, execution.clock, storage.copies, values
            works = [
                PartWork(one, Stretch(_at(part, one, first=number == 0), *how))
                for number, one in enumerate(found[part.key][:most])
            ]
        if works:
            by_partition.append(works)
        else:
            refused.append(part)
    longest = max(map(len, by_partition), default=0)
    return [works[number] for number in range(longest) for works in by_partition if number < len(works)], refused


def _at(part: MirroredPartition, one: SourcePart, *, first: bool) -> MirroredPartition:
    bounds = replace(part.bounds, stable_end=min(one.end, part.bounds.stable_end))
    log_end, epoch = (part.log_end, part.leader_epoch) if first else (one.start, one.leader_epoch)
    return MirroredPartition(part.key, log_end, epoch, bounds, most_bytes=_MOST_BYTES)
