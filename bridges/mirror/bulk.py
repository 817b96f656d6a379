"""Bulk: where much is new, executors read the source and append, partitions side by side.

A task has a share of the partitions, and a connection to the source of its own. It does what the driver does with
a partition: it reads on from the log's end, and appends piece by piece, each at its place or nowhere (steps 1 to 5
of an append). After a while the tasks end, and the driver acknowledges what they have appended (steps 6 and 7).
A partition is one task's at a time: its log has one end, and what comes next is appended there. A task that Spark
runs twice is one mirror more, and as harmless.

The driver alone knows what to do about a piece that was not appended, or a source that cannot read on. Such a
partition is left to it, and so is the rest of a run in which little is new.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.mirror.partitions import MIRROR, MirroredPartition, Piece, deal, new_offsets
from stratalog.bridges.mirror.progress import OffsetSteps
from stratalog.bridges.mirror.rows import batches_of, undecoded_of
from stratalog.bridges.mirror.source import MirrorSource
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_options, end_appends
from stratalog.engine.replication.append import Appended, AppendOptions, append
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.runner import Done, Runner
from stratalog.partitions.store import Store

LEAST_OFFSETS = 500_000
"""That are new: a Spark job that begins takes about as long as the driver takes for these."""
_TASK_S = 30.0
"""How long a task reads and appends: readers see its records after that."""
_MIRROR = ProducerAppend(MIRROR, 0, 0, base_offset=0)
"""Whatever it appends."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A partition that a task mirrors on."""

    part: MirroredPartition
    replicas: PartitionReplicas
    options: AppendOptions


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of one task. ``throttle`` is the task's part of the limit."""

    source: MirrorSource
    stretches: tuple[Stretch, ...]
    throttle: Throttle | None
    seconds: float
    clock: Clock
    copies: Runner
    values: TypedValues | None

    def stores_used(self) -> Iterable[Store]:
        """See ``stratalog.engine.driver.tasks.Work``."""
        return [store for one in self.stretches for store in one.replicas.stores.values()]

    def __str__(self) -> str:
        return ", ".join(str(one.part) for one in self.stretches)


@dataclass(slots=True)
class Stretched:
    """A stretch when its task ends: ``part`` is as it is then, with nothing of it acknowledged."""

    part: MirroredPartition
    view: PartitionView
    last: Appended | None = None
    """Of the last piece; None where nothing was appended."""
    known: LogEnd | None = None
    trouble: bool = False
    """The driver is to look at it."""


def mirror_share(share: Share) -> list[Stretched]:
    """Read and append until all is here, or the time is over. Runs in a task.

    Raises: errors of the source; pieces that were appended before are in the log, and not acknowledged.
    """
    began_s = share.clock.monotonic_s()
    found = [Stretched(stretch.part, stretch.replicas.view) for stretch in share.stretches]
    left = {one.part.key: (one, stretch) for one, stretch in zip(found, share.stretches, strict=True)}
    reads = share.source.read({key: one.part.range() for key, (one, _) in left.items()})
    with closing(reads):
        for read in reads:
            if read.key not in left:
                continue
            one, stretch = left[read.key]
            if read.error is not None:
                _append(share, stretch, one, one.part.rest())
                one.trouble = True
            else:
                _append(share, stretch, one, one.part.pieces(read))
            one.trouble = one.trouble or one.part.error is not None
            if one.trouble or one.part.done:
                del left[read.key]
            if not left:
                break
            if share.clock.monotonic_s() - began_s >= share.seconds:
                for one, stretch in left.values():
                    _append(share, stretch, one, one.part.rest())
                break
    for one in found:
        one.part.begin_at(one.part.log_end, one.part.leader_epoch)  # records that wait do not travel
    return found


def _append(share: Share, stretch: Stretch, one: Stretched, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        if share.throttle is not None:
            share.throttle.spend(piece.size_bytes)
        rows = list(batches_of(piece.batches, piece.start, piece.end, share.values))
        outcome = append(
            stretch.replicas,
            piece.producer,
            iter(rows),
            stretch.options,
            clock=share.clock,
            copies=share.copies,
            known=one.known,
        )
        if not isinstance(outcome, Appended) or outcome.next_offset != piece.end:
            one.trouble = True
            return
        one.part.appended(piece, undecoded_of(rows))
        one.last, one.known = outcome, outcome.end


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
    """Mirror the partitions on by tasks, for as long as at least ``least_offsets`` offsets are new. How many tasks
    there were, and the partitions whose logs' ends are to be looked at again before they go on. ``None``:
    ``LEAST_OFFSETS`` where tasks are faster than threads of this process, else never. ``left_s``: the time that
    the run has left, if it is bounded.

    Raises: errors of reading the metadata.
    """
    if least_offsets is None:
        # One thread at a time decodes values by Python; all else is done by the cores that are here.
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
            good = (
                _acknowledged(metadata, storage, execution.clock, memory, outcome.value)
                if isinstance(outcome, Done)
                else {}
            )
            for key in keys:
                part = of_key[key]
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
    """About as much for each of the processes; and partitions of topics that are mirrors no more."""
    image = metadata.image()  # after the log ends were looked at: the topics are mirrors still
    stretches: dict[TopicPartition, Stretch] = {}
    for part in parts:
        with suppress(StratalogError):
            topic = image.topic(part.key[0])
            options = append_options(topic, topic_config_of(image, topic), "all", _MIRROR)
            replicas = storage.replicas(image.view(topic.topic_id, part.key[1]))
            stretches[part.key] = Stretch(part.apart(), replicas, options)
    dealt = deal([part for part in parts if part.key in stretches], execution.tasks.processes)
    bucket = None if throttle is None else Throttle(throttle, execution.clock).shared_by(len(dealt))
    shares = []
    for some in dealt:
        mine = tuple(stretches[part.key] for part in some)
        for stretch in mine:
            stretch.part.share(len(mine))
        shares.append(Share(source, mine, bucket, seconds, execution.clock, storage.copies, values))
    return shares, [part for part in parts if part.key not in stretches]


def _acknowledged(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, found: Sequence[Stretched]
) -> Mapping[TopicPartition, Stretched]:
    """Those of which all that was appended is acknowledged now."""
    good = {one.part.key: one for one in found}
    for name in {one.part.key[0] for one in found if one.last is not None}:
        ended = {
            one.part.key[1]: (one.view, one.last)
            for one in found
            if one.part.key[0] == name and one.last is not None
        }
        try:
            report = end_appends(metadata, storage, clock, memory, name, _MIRROR, ended)
            here = ("acknowledged", "duplicate")
            failed = {int(row["partition"] or 0) for row in report.rows if row["outcome"] not in here}
        except StratalogError:  # the driver finds it again, and says so
            failed = set(ended)
        for partition in failed:
            del good[name, partition]
    return good
