"""Appends records at the end of the leader's log, then to every member of the maximal ISR.

A task does steps 1 to 5 of the protocol's Append (section 2) under one view. Steps 6 and 7 (the linearizable read,
the high watermark) follow once for all partitions (``stratalog.engine.records``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from stratalog.engine.replication.append_file import AppendFile, AppendOptions, ReplayableBatches
from stratalog.engine.replication.damage import is_damage_of
from stratalog.engine.replication.log_end import LogEnd, is_recent, look_at_end
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import SyncOptions, sync_followers
from stratalog.partitions.clock import Clock
from stratalog.partitions.digest import RecordsDigest
from stratalog.partitions.errors import (
    DuplicateSequenceNumberError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    RetriableError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName
from stratalog.partitions.producers import (
    EarlierAttempt,
    ProducerAppend,
    ProducerEntry,
    check_same_records,
    earlier_attempt,
)
from stratalog.partitions.replica import Replica, errors_of, writes_of
from stratalog.partitions.runner import Done, Failed, Runner
from stratalog.partitions.segments.check import SMALL_BYTES, check_copy, read_small
from stratalog.partitions.store import StagedWriter

_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Appended:
    """The leader's log has the records at ``[base_offset, next_offset)``. With ``acks=all`` every member of the
    view's maximal ISR also has them, except the members in ``missed``.

    The records are not acknowledged until the view is found unchanged.
    """

    base_offset: int | None
    """None if an earlier attempt appended the records so long ago that their offsets are unknown. In that case
    ``next_offset`` is an upper bound of the end of those records."""
    next_offset: int
    duplicate: bool
    """Whether an earlier attempt appended the records."""
    bytes: int
    missed: Mapping[int, StratalogError] = field(default_factory=dict)
    """The error of each member of the maximal ISR that does not have the records yet, by broker id."""
    end: LogEnd | None = None
    """The end of the log after these records; None if this attempt has not read it."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Another append took the offset, and this append is too large to be kept for a retry: the caller repeats it
    with the same sequence.
    """

    tried: bool
    """See ``NotAppended.tried``."""


@dataclass(frozen=True, slots=True)
class NotAppended:
    """The append failed before the records were known to be in the leader's log."""

    error: StratalogError
    tried: bool
    """Whether the leader's folder may nevertheless contain a file of this append that is part of the log, or may
    still become part of it.
    """
    ours: bool
    """Whether this call may have written that file; False for a duplicate that could not be synced."""


AppendOutcome = Appended | Raced | NotAppended


def append(
    replicas: PartitionReplicas,
    producer: ProducerAppend,
    batches: Iterator[pa.RecordBatch],
    options: AppendOptions,
    *,
    clock: Clock,
    copies: Runner,
    known: LogEnd | None = None,
    turn: Callable[[], LogEnd] | None = None,
) -> AppendOutcome:
    """Append all records of ``batches`` (at least one) as one file, and sync the ISR to it. ``known`` is the end
    that an earlier append left under this view, if any. For records at a given offset, ``turn`` is called after
    they are encoded. It waits until the log ends at the given offset, and returns the log end. So several tasks
    can encode pieces of one log concurrently.

    Returns NotAppended with one of: StaleMetadataError kinds when the view is stale; NotEnoughReplicasError before
    anything is written; DuplicateSequenceNumberError, OutOfOrderSequenceNumberError, InvalidProducerEpochError,
    InvalidRecordError; OffsetOutOfRangeError if the log does not end at the requested offset; CorruptionError
    kinds with the broker to blame; RetriableError kinds.
    """
    attempt = _Attempt()
    try:
        with writes_of(replicas.leader):
            appended = _append_to_leader(replicas, producer, batches, options, attempt, clock, copies, known, turn)
    except DuplicateSequenceNumberError as error:  # an earlier attempt may have appended it
        return NotAppended(error, tried=True, ours=attempt.tried)
    except StratalogError as error:
        return NotAppended(error, attempt.tried, ours=attempt.tried)
    finally:
        attempt.release()
    if isinstance(appended, Raced) or not options.acks_all:
        return appended
    try:
        end = appended.end
        if (
            end is not None
            and end.acknowledged_to == appended.base_offset
            and _copy_to_members(replicas, end, attempt.small, copies)
        ):
            return appended
        return replace(appended, missed=replicate(replicas, copies))
    except StratalogError as error:
        return NotAppended(error, tried=True, ours=attempt.tried)


def _copy_to_members(
    replicas: PartitionReplicas, end: LogEnd, small: tuple[DataFile, bytes] | None, copies: Runner
) -> bool:
    """Step 5 for members that have everything before the append: copy exactly the object that the leader has.
    ``small`` is a small file of the leader whose bytes were read and checked. Returns whether all members have the
    object.
    """
    file = end.last
    assert file is not None
    read = None if small is None or small[0] != file else small[1]

    def copy_to(broker_id: int) -> None:
        member = replicas.replica(broker_id)
        if read is None:
            created = _copy(replicas.leader, file, member)
        else:
            created = member.store.create(member.path(file.name), read)
        if not created:  # another sync may have copied the file: list the member again
            raise SourceChangedError(f"{member}: {file.name} already exists")
        member.check_root()

    return all(isinstance(outcome, Done) for outcome in copies.run(copy_to, replicas.acknowledging))


def _copy(leader: Replica, file: DataFile, member: Replica) -> bool:
    """Copy a file of the leader. The bytes are checked before they get their name. Returns False if the name is
    taken."""
    with errors_of(leader):
        segment = leader.segment(file)
    copy = member.store.stage_copy(leader.store, file.object, member.path(file.name))
    try:
        with errors_of(leader):
            check_copy(leader.store, segment, copy)
        return copy.commit()
    except BaseException:
        with suppress(Exception):
            copy.abort()
        raise


def replicate(replicas: PartitionReplicas, copies: Runner) -> dict[int, StratalogError]:
    """Step 5: sync every other replica of the ISR, and the replicas being added, to the leader. Returns the error
    of each broker that was not synced.

    Each copy is checked while it is made, so other members hold verified bytes. If the leader is the only member,
    the next copy is the first to check its bytes. The remote log is not read: the followers that an
    acknowledgement needs already hold the log.

    Raises: errors from listing the leader; CorruptionError kinds when the leader is damaged.
    """
    _, outcomes = sync_followers(replicas, replicas.acknowledging, SyncOptions(copies=copies))
    missed = {outcome.item: outcome.error for outcome in outcomes if isinstance(outcome, Failed)}
    for error in missed.values():
        if is_damage_of(replicas.view.leader, error):
            raise error
    return missed


@dataclass(slots=True)
class _Attempt:
    """The state of an append that is under way."""

    names: set[DataName] = field(default_factory=set)
    """Names of files that this attempt may have created, until the files are known not to exist."""
    written: int = 0
    """The size of the created file in bytes."""
    placed: tuple[DataName, int] | None = None
    """For records at a given offset, the created file and the end of its records."""
    begun: bool = False
    """Whether this attempt has read the log end, or was given it."""
    small: tuple[DataFile, bytes] | None = None
    """A small file that was found after the known end, with its checked bytes."""
    file: AppendFile | None = None
    """The file of records that are waiting for their turn."""

    def release(self) -> None:
        """Drop the staged file, unless it is part of the log."""
        if self.file is not None:
            self.file.abort()
            self.file = None

    @property
    def tried(self) -> bool:
        """See ``NotAppended.tried``."""
        return bool(self.names)


def _append_to_leader(
    replicas: PartitionReplicas,
    producer: ProducerAppend,
    batches: Iterator[pa.RecordBatch],
    options: AppendOptions,
    attempt: _Attempt,
    clock: Clock,
    copies: Runner,
    end: LogEnd | None = None,
    turn: Callable[[], LogEnd] | None = None,
) -> Appended | Raced:
    """Steps 1 to 4: write the file into the leader's log. Raises: the errors of ``NotAppended``."""
    digest = None
    if producer.on_changed_replay == "refuse":
        digest = RecordsDigest(options.schema, timestamps=not options.log_append_time)
    source = ReplayableBatches(batches, digest)
    leader = replicas.leader

    def read(file: DataFile) -> None:
        """Read a file once, for its footer and for all copies of the file."""
        if options.acks_all and replicas.acknowledging and file.object.size_bytes <= SMALL_BYTES:
            attempt.small = file, read_small(leader.store, file)

    if turn is not None:
        assert producer.base_offset is not None
        staged = _staged(replicas, producer.base_offset)
        attempt.file = AppendFile(staged, replicas, producer.base_offset, producer, source, options, clock)
        attempt.file.write()
        end = turn()
    for _ in range(_ATTEMPTS):
        # 1. Find the leader's log end under this epoch.
        if (
            end is not None
            and not attempt.begun
            and is_recent(end, clock)
            and not producer.late  # only the log shows appends that another driver made meanwhile
            and producer.base_offset in (None, end.log_end)
        ):
            seen: AbstractSet[DataName] = frozenset()
        else:
            end, seen = look_at_end(replicas, end, clock, copies, read)
        attempt.begun = True
        if attempt.placed is not None and attempt.placed[0] in seen and attempt.placed[1] <= end.log_end:
            # Other tasks of a mirror may have appended after this append by now; ``end`` shows only the log's last
            # append.
            next_offset = attempt.placed[1]
            return Appended(
                producer.base_offset,
                next_offset,
                duplicate=False,
                bytes=attempt.written,
                end=end if next_offset == end.log_end else None,
            )
        # 2. Find an earlier attempt of this append: some members may not have its bytes yet.
        earlier = earlier_attempt(end.state.producers, producer, str(replicas))
        if earlier is not None:
            if earlier.base_offset is None and producer.on_changed_replay is not None:
                earlier = old_append(replicas, producer) or earlier
            if (records := source.digested()) is not None:
                check_same_records(earlier, producer, records.count, records.value, str(replicas))
            return Appended(
                earlier.base_offset,
                earlier.next_offset,
                duplicate=attempt.written == 0,
                bytes=attempt.written,
                end=end if earlier.next_offset == end.log_end else None,
            )
        _check_place(replicas, producer, end)
        if options.acks_all and not replicas.view.has_min_isr(options.min_insync_replicas):
            raise NotEnoughReplicasError(
                f"{replicas}: {len(replicas.view.isr)} replicas are in sync, min.insync.replicas is "
                f"{options.min_insync_replicas}; nothing was appended"
            )
        attempt.names -= seen  # the listed files are from other producers
        if attempt.file is None and not source.replayable:
            return Raced(attempt.tried)
        # 3. Create the file at the log end. False means that another driver appended there first, or that the
        #    store retried this call after a lost answer.
        name = DataName(end.log_end, None, replicas.epoch)
        staged = attempt.file.staged if attempt.file is not None else _staged(replicas, end.log_end)
        try:
            if attempt.file is not None:
                attempt.file.close(end)
                next_offset = attempt.file.next_offset
            else:
                next_offset = _encode(staged, replicas, end, producer, source, options, clock)
            with errors_of(leader):
                created = _commit(staged, name, attempt)
            if created:
                attempt.written = staged.size_bytes
                attempt.placed = None if producer.base_offset is None else (name, next_offset)
        finally:
            attempt.file = None
            with suppress(Exception):
                staged.abort()
        # 4. List again, in steps 1 and 2 of the next round: the append has succeeded only if the log holds the
        #    file (a zombie can re-create a name that retention or a merge has freed).
    raise RetriableError(
        f"{replicas}: other appends were faster {_ATTEMPTS} times; try again, or append less at a time"
    )


def _check_place(replicas: PartitionReplicas, producer: ProducerAppend, end: LogEnd) -> None:
    """Check the offset that a mirror requests. Raises: OffsetOutOfRangeError if the offset is not the log end."""
    if producer.base_offset not in (None, end.log_end):
        raise OffsetOutOfRangeError(
            f"{replicas}: the log ends at {end.log_end}, but these records begin at {producer.base_offset}: "
            "another mirror has appended in the meantime, or the log has lost its last records; read the log end "
            "again"
        )


def _commit(staged: StagedWriter, name: DataName, attempt: _Attempt) -> bool:
    before = set(attempt.names)
    attempt.names.add(name)
    try:
        return staged.commit()
    except RetriableError:  # refused, so nothing has changed
        attempt.names = before
        raise


def _staged(replicas: PartitionReplicas, base_offset: int) -> StagedWriter:
    leader = replicas.leader
    with errors_of(leader):
        return leader.store.stage_writer(leader.path(DataName(base_offset, None, replicas.epoch)))


def _encode(
    staged: StagedWriter,
    replicas: PartitionReplicas,
    end: LogEnd,
    producer: ProducerAppend,
    source: ReplayableBatches,
    options: AppendOptions,
    clock: Clock,
) -> int:
    """Write the records into the staged file. Returns the end offset of the records."""
    file = AppendFile(staged, replicas, end.log_end, producer, source, options, clock)
    file.write()
    file.close(end)
    return file.next_offset


def old_append(replicas: PartitionReplicas, producer: ProducerAppend) -> EarlierAttempt | None:
    """Find the append of this epoch and sequence, which is not among the producer's last five; None if no file has
    its offsets.

    The footer of each data file has the last five appends of each producer. Sequences grow with offsets, so a
    binary search over the files finds the append, with one listing, and a few footers per step. An append can no
    longer be found if at least five later appends of the producer were merged into its file, if retention has
    deleted the append, or if the replica was rebuilt from the remote log.

    Raises: see ``Replica.log`` and ``Replica.producers_at``.
    """
    leader = replicas.leader
    log = leader.log()

    def entry(index: int) -> ProducerEntry | None:
        return leader.producers_at(log, log.chain[index].end).get(producer.producer_id)

    def place(index: int) -> tuple[int, int]:
        found = entry(index)
        return (-1, -1) if found is None else (found.epoch, found.sequence)

    index = bisect_left(range(len(log.chain)), (producer.epoch, producer.sequence), key=place)
    found = entry(index) if index < len(log.chain) else None
    if found is not None and found.epoch == producer.epoch:
        for past in found.lately:
            if past.sequence == producer.sequence:
                return EarlierAttempt(past.next_offset, past.base_offset, past.digest)
    return None
