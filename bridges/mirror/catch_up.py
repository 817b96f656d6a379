"""Reads partitions of the source from their log ends, and appends piece by piece. Each piece is appended at its
offset or not at all. If another mirror was faster, the next round reads the log end again and continues there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from stratalog.bridges.mirror.bulk import mirror_in_bulk
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.partitions import MIRROR, MirroredPartition, Piece, deal, new_offsets
from stratalog.bridges.mirror.progress import OffsetSteps
from stratalog.bridges.mirror.rows import batches_of, undecoded_of
from stratalog.bridges.mirror.side_by_side import mirror_side_by_side
from stratalog.bridges.mirror.source import MirrorSource, SourceBounds
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import ReadQuery
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.records.append import append_mirrored
from stratalog.engine.records.remote_end import replicas_to_append_to
from stratalog.engine.replication.leader import compare_with_remote, leader_log
from stratalog.engine.replication.replica_selector import NOWHERE
from stratalog.engine.replication.throttle import Throttle
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    NotEnoughReplicasAfterAppendError,
    OffsetOutOfRangeError,
    RetriableError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition, TopicPartition
from stratalog.partitions.runner import Done, Failed, values

_ROUNDS = 20
_READERS = 4
"""The number of threads, each with a connection to the source: one thread encodes a piece, or waits for the disk,
while another reads. More threads were not faster on two cores.
"""
_READER_OFFSETS = 50_000
"""New offsets per additional thread."""
_FASTER = frozenset({"OFFSET_OUT_OF_RANGE", "DUPLICATE_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH"})
"""The error codes of an append at an offset where another mirror has already appended."""


def partitions_here(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    run: OperationRun,
    names: Iterable[str],
    bounds: Mapping[TopicPartition, SourceBounds],
) -> list[MirroredPartition]:
    """The current state of the topics' partitions here; a partition that cannot be read is a failure of the
    run.
    """

    def look(key: TopicPartition) -> MirroredPartition:
        log_end, epoch, acknowledged = _look_and_acknowledge(metadata, storage, execution, memory, key)
        return MirroredPartition(key, log_end, epoch, bounds[key], acknowledged=acknowledged)

    wanted = set(names)
    found: list[MirroredPartition] = []
    for outcome in storage.threads.run(look, [key for key in bounds if key[0] in wanted]):
        match outcome:
            case Done(_, part):
                found.append(part)
                if part.lost:
                    run.notes.append(
                        f"{part}: offsets [{part.log_end}, {part.bounds.log_start}) were deleted in the source "
                        "before they were mirrored, and are gaps here"
                    )
            case Failed((topic, partition), error):
                run.fail(f"{topic}-{partition}", error)
    for part in found:
        part.share(len(found))
    return sorted(found, key=lambda part: part.key)


def _look_and_acknowledge(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, key: TopicPartition
) -> tuple[int, int | None, bool]:
    """Like ``look_here``; acknowledges the whole log if possible."""
    found = look_here(metadata, storage, execution.clock, memory, key)
    _, _, acknowledged = found
    if acknowledged:
        return found
    # a mirror has died before the end of its last append
    only = TopicIdPartition(metadata.image().topic(key[0]).topic_id, key[1])
    replicate(metadata, storage, execution, memory, [key[0]], only=[only])
    return look_here(metadata, storage, execution.clock, memory, key)


def check_acknowledged(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    parts: Iterable[MirroredPartition],
) -> None:
    """Set the error of each partition whose log is not acknowledged up to its end: readers do not get its last
    records. An append of this run acknowledges the records before it, too.
    """
    for part in parts:
        if part.acknowledged or part.error is not None:
            continue
        try:
            *_, part.acknowledged = _look_and_acknowledge(metadata, storage, execution, memory, part.key)
        except StratalogError as error:
            part.error = error
        if not part.acknowledged and part.error is None:
            part.error = NotEnoughReplicasAfterAppendError(
                f"{part}: its last records, before offset {part.log_end}, are in the log but not acknowledged, so "
                "readers do not get them: too few replicas are in the ISR (min.insync.replicas), or one does not "
                "answer: see stratalog health; a later run acknowledges them"
            )


def look_here(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, key: TopicPartition
) -> tuple[int, int | None, bool]:
    """The log end, the source's leader epoch of the last record, and whether the whole log is acknowledged."""

    def once() -> tuple[int, int | None, bool]:
        image = metadata.image()
        view = image.view(image.topic(key[0]).topic_id, key[1])
        replicas = replicas_to_append_to(storage, clock, memory, image, [view], [])[key[1]]
        log = leader_log(replicas)
        compare_with_remote(replicas, log)
        last = replicas.leader.producers(log).get(MIRROR)
        return log.log_end, None if last is None else last.epoch, log.high_watermark == log.log_end

    return while_it_changes(once)


def catch_up(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    source: MirrorSource,
    run: OperationRun,
    parts: Sequence[MirroredPartition],
    options: MirrorOptions,
    began_s: float,
) -> None:
    """Read and append until the partitions reach their ``stable_end`` or have an ``error``, or until the budget,
    counted from ``began_s``, is used up. Tasks copy many new records; threads of this process copy the rest.
    """
    throttle = (
        None if options.throttle_bytes_per_s is None else Throttle(options.throttle_bytes_per_s, execution.clock)
    )
    steps = OffsetSteps(execution.progress, parts)
    work = _CatchUp(metadata, storage, execution, memory, source, options, throttle, steps, began_s)
    try:
        work.in_bulk(run, parts)
        for _ in range(_ROUNDS):
            left = [part for part in parts if not part.done]
            if not left or work.left_s() == 0:
                break
            shares = deal(left, min(_readers(options), 1 + new_offsets(left) // _READER_OFFSETS))
            values(storage.threads.run(work.round, shares))
        else:
            run.notes += [f"{part}: another mirror is copying it faster" for part in parts if not part.done]
    finally:
        execution.progress.finish()


def _readers(options: MirrorOptions) -> int:
    """The maximum number of threads. A reader of a tier decodes nearly all the time. More readers than cores would
    only take memory, and its new pages cost up to a third of the processor time (measured).
    """
    return min(_READERS, os.cpu_count() or 1) if options.tier else _READERS


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """The state of a run that its threads share."""

    metadata: MetadataClient
    storage: Storage
    execution: Execution
    memory: Memory
    source: MirrorSource
    options: MirrorOptions
    throttle: Throttle | None
    steps: OffsetSteps
    began_s: float

    @property
    def _for_records(self) -> tuple[MetadataClient, Storage, Clock, Memory]:
        return self.metadata, self.storage, self.execution.clock, self.memory

    def left_s(self) -> float | None:
        """The remaining budget in seconds; None: unlimited."""
        if self.options.budget_s is None:
            return None
        return max(0.0, self.options.budget_s - (self.execution.clock.monotonic_s() - self.began_s))

    def in_bulk(self, run: OperationRun, parts: Sequence[MirroredPartition]) -> None:
        """Mirror by tasks if that is faster; reads the state of partitions with problems again."""
        for by_tasks in (mirror_side_by_side, mirror_in_bulk):
            tasks, troubled = by_tasks(
                *(self.metadata, self.storage, self.execution, self.memory),
                *(self.source, parts, self.steps),
                least_offsets=self.options.bulk_offsets,
                throttle=self.options.throttle_bytes_per_s,
                values=self.options.values,
                left_s=self.left_s,
            )
            if tasks:
                run.totals["tasks"] = int(run.totals.get("tasks") or 0) + tasks
            for part in troubled:
                try:
                    part.found_at(
                        *_look_and_acknowledge(self.metadata, self.storage, self.execution, self.memory, part.key)
                    )
                except StratalogError as error:
                    part.error = error

    def round(self, share: Sequence[MirroredPartition]) -> None:
        """Read each partition from its position until all are done; a partition that another mirror has advanced
        waits for the next round. Runs in a thread.
        """
        left = {part.key: part for part in share}
        with closing(self.source.read({key: part.range() for key, part in left.items()})) as reads:
            for read in reads:
                part = left.get(read.key)
                if part is None:
                    continue
                if read.error is not None:
                    self._failed(part, read.error)
                    del left[read.key]
                elif not self._append_all(part, part.pieces(read)) or part.done:
                    del left[read.key]
                if not left or self.left_s() == 0:
                    return

    def _failed(self, part: MirroredPartition, error: StratalogError) -> None:
        """Handle a source that cannot continue: append waiting records, and look at the history again in the next
        round if the source denied it.
        """
        if not self._append_all(part, part.rest()):
            return
        try:
            now = self.source.bounds([part.key]).get(part.key)
            if now is not None and not isinstance(error, OffsetOutOfRangeError):
                raise error
            part.denied(now, partial(last_record, *self._for_records, part.key))
        except StratalogError as found:
            part.error = found

    def _append_all(self, part: MirroredPartition, pieces: Iterable[Piece]) -> bool:
        """Append pieces. Returns whether the pieces are in the log, so that this mirror continues after them."""
        for piece in pieces:
            if self.throttle is not None:
                self.throttle.spend(piece.size_bytes)
            if not self._append(part, piece):
                return False
            self.steps.passed(piece.end - piece.start, piece.size_bytes)
        return True

    def _append(self, part: MirroredPartition, piece: Piece) -> bool:
        topic, partition = part.key
        try:
            # The log end was read before this check that the topic is still a mirror.
            image = self.metadata.image()
            rows = list(batches_of(piece.batches, piece.start, piece.end, self.options.values))
            report = append_mirrored(
                *self._for_records, image, image.topic(topic), partition, rows, piece.producer
            )
            row = report.rows[0]
            if report.ok and row["next_offset"] == piece.end:
                part.appended(piece, undecoded_of(rows))
                return True
            if report.ok or report.failures[0].code in _FASTER:
                part.found_at(*look_here(*self._for_records, part.key))
            else:
                failure = report.failures[0]
                part.error = RetriableError(f"{topic}-{partition}: {failure.code}: {failure.message}")
        except StratalogError as error:
            part.error = error
        return False


def last_record(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, key: TopicPartition
) -> int | None:
    """The offset of the last record here that is not a gap; None if all are gaps.

    Raises: errors from reading.
    """
    query = ReadQuery(topics=(key[0],), partitions=(key[1],), last=1)
    (plan,) = plan_read(metadata, storage, clock, memory, query, NOWHERE).partitions
    records = fetch(metadata, storage, clock, memory, *key, plan.start).records
    return max(records.column("offset").to_pylist(), default=None)
