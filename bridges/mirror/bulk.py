"""Bulk: if there are many new records, executors read the source and append, partitions in parallel.

A task has a share of the partitions, and a separate connection to the source. Like the driver, a task reads from
the log end and appends piece by piece. Each piece is appended at its offset or not at all (steps 1 to 5 of an
append). After a while the tasks end, and the driver acknowledges the appends (steps 6 and 7). Only one task at a
time has a partition, because pieces are appended only at the log's end. A task that Spark runs twice is one more
mirror, which does no harm.

Only the driver handles a piece that was not appended, or a source that cannot continue. A task leaves such a
partition to the driver, which also does the rest of a run with few new records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.mirror.partitions import MIRROR, MirroredPartition, Piece, deal, new_offsets
from stratalog.bridges.mirror.progress import OffsetSteps
from stratalog.bridges.mirror.rows import batches_of, undecoded_of
from stratalog.bridges.mirror.source import MirrorSource
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_options, end_appends
from stratalog.engine.replication.append import Appended, NotAppended, append
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.runner import Done, Failed, Outcome, Runner
from stratalog.partitions.store import Store

W = TypeVar("W")

LEAST_OFFSETS = 500_000
"""The minimum number of new offsets for a Spark job: starting a job takes as long as the driver needs to copy that
many.
"""
_TASK_S = 30.0
"""The duration of a task in seconds; its records become visible after it."""
MIRROR_APPENDS = ProducerAppend(MIRROR, 0, 0, base_offset=0)
"""Identifies the appends of a mirror, at any offset."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A partition of a task, and how its pieces are appended."""

    part: MirroredPartition
    replicas: PartitionReplicas
    options: AppendOptions
    throttle: Throttle | None
    """The task's part of the limit."""
    clock: Clock
    copies: Runner
    values: TypedValues | None

    def append(
        self, one: Stretched, pieces: Iterable[Piece], turn: Callable[[Piece], LogEnd] | None = None
    ) -> None:
        """Append pieces up to the first one that fails, and record the results in ``one``. The first append of the
        task waits for its ``turn``.
        """
        for piece in pieces:
            if self.throttle is not None:
                self.throttle.spend(piece.size_bytes)
            rows = list(batches_of(piece.batches, piece.start, piece.end, self.values))
            outcome = append(
                self.replicas,
                piece.producer,
                iter(rows),
                self.options,
                clock=self.clock,
                copies=self.copies,
                known=one.known,
                turn=None if turn is None or one.last is not None else partial(turn, piece),
            )
            if not isinstance(outcome, Appended) or outcome.next_offset != piece.end:
                one.trouble, one.why = True, outcome.error if isinstance(outcome, NotAppended) else None
                return
            one.part.appended(piece, undecoded_of(rows))
            one.last, one.known = outcome, outcome.end


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of one task."""

    source: MirrorSource
    stretches: tuple[Stretch, ...]
    seconds: float
    clock: Clock

    def stores_used(self) -> Iterable[Store]:
        """See ``stratalog.engine.driver.tasks.Work``."""
        return [store for one in self.stretches for store in one.replicas.stores.values()]

    def __str__(self) -> str:
        return ", ".join(str(one.part) for one in self.stretches)


@dataclass(slots=True)
class Stretched:
    """The state of a partition when its task ends; none of its appends is acknowledged."""

    part: MirroredPartition
    view: PartitionView
    begin: int
    """The log end when the task began."""
    last: Appended | None = None
    """The last appended piece; None without appends."""
    known: LogEnd | None = None
    trouble: bool = False
    """Whether the driver must continue this partition."""
    why: StratalogError | None = None
    """The error of an append, or of reading the source."""


def mirror_share(share: Share) -> list[Stretched]:
    """Read and append until the end of the run, or until the time is over. Runs in a task. Raises: errors of the
    source; earlier pieces are in the log, but not acknowledged.
    """
    began_s = share.clock.monotonic_s()
    found = [Stretched(stretch.part, stretch.replicas.view, stretch.part.log_end) for stretch in share.stretches]
    left = {one.part.key: (one, stretch) for one, stretch in zip(found, share.stretches, strict=True)}
    reads = share.source.read({key: one.part.range() for key, (one, _) in left.items()})
    with closing(reads):
        for read in reads:
            if read.key not in left:
                continue
            one, stretch = left[read.key]
            if read.error is not None:
                stretch.append(one, one.part.rest())
                one.trouble, one.why = True, read.error
            else:
                stretch.append(one, one.part.pieces(read))
            one.trouble = one.trouble or one.part.error is not None
            if one.trouble or one.part.done:
                del left[read.key]
            if not left:
                break
            if share.clock.monotonic_s() - began_s >= share.seconds:
                for one, stretch in left.values():
                    stretch.append(one, one.part.rest())
                break
    for one in found:
        one.part.begin_at(one.part.log_end, one.part.leader_epoch)  # waiting records are not sent back
    return found


def error_of(outcome: Outcome[W, list[Stretched]], key: TopicPartition) -> str | None:
    """The error of a task, or the task's error in a partition."""
    if isinstance(outcome, Failed):
        found: StratalogError | None = outcome.error
    else:
        found = next((one.why for one in outcome.value if one.part.key == key), None)
    return None if found is None else f"{found.code}: {found}"


# ---------------------------------------------------------------------------------------- the driver


def mirror_in_bulk(
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
    """Mirror the partitions by tasks, as long as at least ``least_offsets`` offsets are new. Returns the number of
    tasks, and the partitions that must read their log end again before they continue. ``least_offsets`` None:
    ``LEAST_OFFSETS`` if tasks are faster than threads of this process, otherwise never. ``left_s``: the remaining
    time of the run, if it is limited.

    Raises: errors from reading the metadata.
    """
    if least_offsets is None:
        # Only one thread at a time can decode values in Python; other work uses all cores of this machine.
        faster = values is not None or execution.tasks.processes > (os.cpu_count() or 1)
        least_offsets = LEAST_OFFSETS if faster else sys.maxsize
    tasks, troubled = 0, []
    left = [part for part in parts if not part.done]
    while new_offsets(left) >= least_offsets and execution.tasks.processes > 1:
        seconds = _TASK_S if (bound := left_s()) is None else min(_TASK_S, bound)
        if seconds <= 0:
            break
        shares, refused = _shares(metadata, storage, execution, source, left, throttle, values, seconds)
        tasks += len(shares)
        troubled += refused
        of_key = {part.key: part for part in left}
        left = []
        for outcome in execution.tasks.run(mirror_share, shares):
            keys = [one.part.key for one in outcome.item.stretches]
            done = outcome.value if isinstance(outcome, Done) else ()
            good = acknowledged(metadata, storage, execution.clock, memory, done)
            for key in keys:
                part = of_key[key]
                part.task_error = error_of(outcome, key)
                if key not in good:
                    troubled.append(part)
                    continue
                steps.passed(good[key].part.log_end - part.log_end, good[key].part.mirrored_bytes)
                part.came_on(good[key].part)
                if good[key].trouble:
                    troubled.append(part)
                elif not part.done:
                    left.append(part)
    return tasks, troubled


def _shares(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    source: MirrorSource,
    parts: Sequence[MirroredPartition],
    throttle: float | None,
    values: TypedValues | None,
    seconds: float,
) -> tuple[list[Share], list[MirroredPartition]]:
    """Equal shares for the processes, and the partitions of topics that are no longer mirrors."""
    # The log ends were read before this check that the topics are still mirrors.
    image = metadata.image()
    found: dict[TopicPartition, tuple[PartitionReplicas, AppendOptions]] = {}
    for part in parts:
        with suppress(StratalogError):
            found[part.key] = appends_to(storage, image, part.key)
    dealt = deal([part for part in parts if part.key in found], execution.tasks.processes)
    bucket = None if throttle is None else Throttle(throttle, execution.clock).shared_by(len(dealt))
    shares = []
    for some in dealt:
        mine = tuple(
            Stretch(part.apart(), *found[part.key], bucket, execution.clock, storage.copies, values)
            for part in some
        )
        for stretch in mine:
            stretch.part.share(len(mine))
        shares.append(Share(source, mine, seconds, execution.clock))
    return shares, [part for part in parts if part.key not in found]


def appends_to(
    storage: Storage, image: ClusterImage, key: TopicPartition
) -> tuple[PartitionReplicas, AppendOptions]:
    """The replicas of a partition, and the options of a mirror's appends. Raises: StratalogError kinds if the
    topic is no longer a mirror.
    """
    topic = image.topic(key[0])
    options = append_options(topic, topic_config_of(image, topic), "all", MIRROR_APPENDS)
    return storage.replicas(image.view(topic.topic_id, key[1])), options


def acknowledged(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, found: Sequence[Stretched]
) -> Mapping[TopicPartition, Stretched]:
    """The partitions whose appends are now all acknowledged."""
    good = {one.part.key: one for one in found}
    for name in {one.part.key[0] for one in found if one.last is not None}:
        ended = {
            one.part.key[1]: (one.view, one.last)
            for one in found
            if one.part.key[0] == name and one.last is not None
        }
        try:
            report = end_appends(metadata, storage, clock, memory, name, MIRROR_APPENDS, ended)
            here = ("acknowledged", "duplicate")
            failed = {int(row["partition"] or 0) for row in report.rows if row["outcome"] not in here}
        except StratalogError:  # the driver will get the same error, and report it
            failed = set(ended)
        for partition in failed:
            del good[name, partition]
    return good
