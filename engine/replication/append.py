"""Appends records at the end of the leader's log, then to every member of the maximal ISR.

A task carries out steps 1 to 5 of the protocol's Append (section 2) under one view. Steps 6 and 7 (the
linearizable read, the high watermark) follow once for all partitions (``stratalog.engine.records``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.replication.damage import is_damage_of
from stratalog.engine.replication.log_end import LogEnd, is_recent, look_at_end
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import SyncOptions, sync_followers
from stratalog.partitions.agreed_time import agreed_ms, earlier_ms, stamp_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import constant, scalar
from stratalog.partitions.digest import RecordsDigest
from stratalog.partitions.errors import (
    DuplicateSequenceNumberError,
    InvalidRecordError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    RetriableError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName
from stratalog.partitions.producer_changes import part_after
from stratalog.partitions.producers import (
    EarlierAttempt,
    ProducerAppend,
    ProducerEntry,
    after_append,
    check_same_records,
    earlier_attempt,
    unexpired,
)
from stratalog.partitions.replica import EndState, Replica, errors_of, writes_of
from stratalog.partitions.runner import Done, Failed, Runner
from stratalog.partitions.segment_check import SMALL_BYTES, check_copy, read_small
from stratalog.partitions.segment_footer import TransactionPart
from stratalog.partitions.segment_writer import SegmentWriter
from stratalog.partitions.store import StagedWriter

_ATTEMPTS = 50
_REPLAY_BYTES = 64 * 1024 * 1024
"""Bytes of an append to keep in memory, to encode it again after a lost race."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The leader's log holds the records at ``[base_offset, next_offset)``.

    With ``acks=all`` every member of the view's maximal ISR holds them too, except those in ``missed``. They are
    not acknowledged until the view is found unchanged.
    """

    base_offset: int | None
    """None if an earlier attempt appended the records so long ago that only ``next_offset``, an upper bound of
    their end, is known."""
    next_offset: int
    duplicate: bool
    """Whether an earlier attempt appended the records."""
    bytes: int
    missed: Mapping[int, StratalogError] = field(default_factory=dict)
    """The error of each member of the maximal ISR that does not have the records yet, by broker id."""
    end: LogEnd | None = None
    """The end of the log behind these records; None if this attempt has not seen it."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Another append took the offset, and this one is too large to be kept for a retry: the caller repeats it with
    the same sequence.
    """

    tried: bool
    """See ``NotAppended.tried``."""


@dataclass(frozen=True, slots=True)
class NotAppended:
    """The append failed before the leader's log was known to hold it."""

    error: StratalogError
    tried: bool
    """Whether the leader's folder may nevertheless hold a file of this append, which counts now or later."""
    ours: bool
    """Whether that file may come from this call; False for a duplicate that could not be synced."""


AppendOutcome = Appended | Raced | NotAppended


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """Options of an append to one partition."""

    schema: pa.Schema
    acks_all: bool
    min_insync_replicas: int
    compression: str
    log_append_time: bool
    producer_expiration_ms: int
    keys_required: bool = False
    """Refuse records without a key, as no snapshot could hold them (cleanup.policy=snapshot)."""


class ReplayableBatches:
    """Record batches that can be read more than once while they are small."""

    def __init__(self, batches: Iterator[pa.RecordBatch], digest: RecordsDigest | None = None) -> None:
        """``digest`` receives every batch once."""
        self._rest = batches
        self._digest = digest
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self.replayable = True
        """Whether all batches that were read so far can be read again."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        assert self.replayable
        yield from list(self._kept)
        for batch in self._rest:
            if self._digest is not None:
                self._digest.add(batch)
            self._keep(batch)
            yield batch

    def digested(self) -> RecordsDigest | None:
        """The digest of all batches; reads the remaining ones without keeping them."""
        if self._digest is not None:
            for batch in self._rest:
                self._digest.add(batch)
        return self._digest

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._kept_bytes += batch.nbytes
        if self._kept_bytes > _REPLAY_BYTES:
            self.replayable = False
            self._kept = []
        if self.replayable:
            self._kept.append(batch)


def append(
    replicas: PartitionReplicas,
    producer: ProducerAppend,
    batches: Iterator[pa.RecordBatch],
    options: AppendOptions,
    *,
    clock: Clock,
    copies: Runner,
    known: LogEnd | None = None,
) -> AppendOutcome:
    """Append all records of ``batches`` (at least one) as one file, and sync the ISR to it. ``known`` is the end
    that an earlier append left under this view, if any.

    Returns NotAppended with one of: StaleMetadataError kinds when the view is stale; NotEnoughReplicasError before
    anything is written; DuplicateSequenceNumberError, OutOfOrderSequenceNumberError, InvalidProducerEpochError,
    InvalidRecordError; OffsetOutOfRangeError if the log does not end at the requested offset; CorruptionError
    kinds with the broker to blame; RetriableError kinds.
    """
    attempt = _Attempt()
    try:
        with writes_of(replicas.leader):
            appended = _append_to_leader(replicas, producer, batches, options, attempt, clock, known)
    except DuplicateSequenceNumberError as error:  # an earlier attempt may have appended it
        return NotAppended(error, tried=True, ours=attempt.tried)
    except StratalogError as error:
        return NotAppended(error, attempt.tried, ours=attempt.tried)
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
    """Step 5 for members that hold everything before the append: copy exactly the object that the leader holds.
    ``small`` is a small file of the leader whose bytes were read and checked. Returns whether all members have it.
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
        if not created:  # a sync may have been faster: list the member again
            raise SourceChangedError(f"{member}: {file.name} is there already")
        member.check_root()

    return all(isinstance(outcome, Done) for outcome in copies.run(copy_to, replicas.acknowledging))


def _copy(leader: Replica, file: DataFile, member: Replica) -> bool:
    """Copy a file of the leader, whose bytes are checked before they get their name. False: the name is taken."""
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
    """Step 5: sync every other replica of the ISR, and those being added, to the leader. Returns the error of each
    broker that was not reached.

    Each copy is checked on its way, so other members hold verified bytes. If the leader is the only member, the
    next copy is the first to check its bytes. The remote log is not read: followers of an acknowledgement already
    hold the log.

    Raises: errors of listing the leader; CorruptionError kinds when the leader is damaged.
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
    """Names of files that may have been created, until they are known not to exist."""
    written: int = 0
    """Bytes of the created file."""
    begun: bool = False
    """Whether a log end was looked for, or one was known."""
    small: tuple[DataFile, bytes] | None = None
    """A small file that the look behind the known end has read, with its bytes, which are right."""

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
    end: LogEnd | None = None,
) -> Appended | Raced:
    """Steps 1 to 4: write the file into the leader's log. Raises: the errors of ``NotAppended``."""
    digest = None
    if producer.on_changed_replay == "refuse":
        digest = RecordsDigest(options.schema, timestamps=not options.log_append_time)
    source = ReplayableBatches(batches, digest)
    leader = replicas.leader

    def read(file: DataFile) -> None:
        """Read a file once for its footer and for all copies of it."""
        if options.acks_all and replicas.acknowledging and file.object.size_bytes <= SMALL_BYTES:
            attempt.small = file, read_small(leader.store, file)

    for _ in range(_ATTEMPTS):
        # 1. The leader's log end, under this epoch.
        if (
            end is not None
            and not attempt.begun
            and is_recent(end, clock)
            and not producer.late  # appends that another driver made for it meanwhile show only in the log
            and producer.base_offset in (None, end.log_end)
        ):
            seen: AbstractSet[DataName] = frozenset()
        else:
            end, seen = look_at_end(replicas, end, clock, read)
        attempt.begun = True
        # 2. An earlier attempt of this append: its bytes may not be everywhere yet.
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
        attempt.names -= seen  # other producers wrote these files
        if not source.replayable:
            return Raced(attempt.tried)
        # 3. Create it at the log end. False: another driver appended there first, or the store repeated this call
        # after a lost answer.
        name = DataName(end.log_end, None, replicas.epoch)
        with errors_of(leader):
            staged = leader.store.stage_writer(leader.path(name))
        try:
            _encode(staged, replicas, end, producer, source, options, clock)
            with errors_of(leader):
                created = _commit(staged, name, attempt)
            if created:
                attempt.written = staged.size_bytes
        finally:
            with suppress(Exception):
                staged.abort()
        # 4. Look again, in step 1 and 2 of the next round: the append counts if the log holds it (a
        #    zombie can re-create a name that retention or a merge had freed).
    raise RetriableError(
        f"{replicas}: another append was faster {_ATTEMPTS} times; try again, or append less at once"
    )


def _check_place(replicas: PartitionReplicas, producer: ProducerAppend, end: LogEnd) -> None:
    """Raises: OffsetOutOfRangeError for records of a mirror that do not begin at the log end."""
    if producer.base_offset not in (None, end.log_end):
        raise OffsetOutOfRangeError(
            f"{replicas}: the log ends at {end.log_end}, but these records begin at {producer.base_offset}: "
            "another mirror was faster, or the log has lost its end; read the log end again"
        )


def _commit(staged: StagedWriter, name: DataName, attempt: _Attempt) -> bool:
    before = set(attempt.names)
    attempt.names.add(name)
    try:
        return staged.commit()
    except RetriableError:  # refused, so nothing has changed
        attempt.names = before
        raise


def _encode(
    staged: StagedWriter,
    replicas: PartitionReplicas,
    end: LogEnd,
    producer: ProducerAppend,
    source: ReplayableBatches,
    options: AppendOptions,
    clock: Clock,
) -> None:
    store = (
        replicas.leader.store
    )  # it has mostly answered within the last minute, so this usually sends no request
    now_ms, removal_ms = stamp_ms(clock, store), agreed_ms(clock, store)
    writer = SegmentWriter(
        staged.file,
        options.schema,
        topic_id=replicas.view.topic_id,
        partition=replicas.view.partition,
        base_offset=end.log_end,
        compression=options.compression,
    )
    marked = producer.transactional
    try:
        for batch in source:
            if producer.base_offset is None:
                if options.keys_required and producer.control is None:
                    _check_keys(batch, replicas)
                batch = _stamped(batch, now_ms, every=options.log_append_time)
            else:
                marked = marked or has_gaps(batch)
            writer.write(_in_transaction(batch, producer) if producer.transactional else batch)
    except BaseException:
        writer.abort()
        raise

    def producers(next_offset: int) -> dict[str, ProducerEntry]:
        kept = end.state.producers
        # Only after a full look at the log, not at each append.
        if end.acknowledged_to is None and removal_ms is not None:
            kept = unexpired(kept, removal_ms, options.producer_expiration_ms)
        records = source.digested()
        digest = None if records is None else records.value
        return after_append(kept, producer, end.log_end, next_offset, now_ms, digest)

    transaction = _part(end.state, producer) if producer.transactional else None
    writer.close(
        lineage=end.lineage,
        producers=producers,
        part=partial(part_after, end.state.producers, end.state.levels, producer.producer_id, end.log_end),
        created_ms=earlier_ms(clock, store),  # snapshots leave old tombstones out by this time
        transaction=transaction,
        last_transactional_offset=end.log_end if marked else end.state.last_transactional_offset,
    )


def _part(state: EndState, producer: ProducerAppend) -> TransactionPart:
    """The entry of the append for its transaction, for the footer."""
    last = state.producers.get(producer.producer_id)
    ends = None if producer.control is None or last is None else last.txn_first_offset
    return TransactionPart(producer.producer_id, producer.epoch, producer.control, ends)


def _in_transaction(batch: pa.RecordBatch, producer: ProducerAppend) -> pa.RecordBatch:
    """The batch with the columns for its transaction, and for a marker its type."""
    batch = batch.append_column("producer_id", constant(producer.producer_id, pa.string(), batch.num_rows))
    if producer.control is None:
        return batch
    return batch.append_column("control", constant(producer.control, pa.int32(), batch.num_rows))


def has_gaps(batch: pa.RecordBatch) -> bool:
    """Whether some rows represent offsets without a record."""
    index = batch.schema.get_field_index("control")
    return bool(index >= 0 and batch.column(index).null_count < batch.num_rows)


def _check_keys(batch: pa.RecordBatch, replicas: PartitionReplicas) -> None:
    missing = batch.column(batch.schema.get_field_index("key")).null_count
    if missing:
        raise InvalidRecordError(
            f"{replicas}: {missing} of {batch.num_rows} records have no key: with cleanup.policy = snapshot the "
            "latest record of each key is kept; give every record one"
        )


def _stamped(batch: pa.RecordBatch, now_ms: int, *, every: bool) -> pa.RecordBatch:
    """The batch with the append's time in records without one, or in ``every`` record (message.timestamp.type)."""
    index = batch.schema.get_field_index("timestamp")
    given = batch.column(index)
    if not every and given.null_count == 0:
        return batch
    stamp = scalar(now_ms * 1000, given.type)
    stamped = pa.repeat(stamp, batch.num_rows) if every else pc.fill_null(given, stamp)
    return batch.set_column(index, batch.schema.field(index), stamped)


def old_append(replicas: PartitionReplicas, producer: ProducerAppend) -> EarlierAttempt | None:
    """The append of this epoch and sequence, older than the producer's last five; None if no file has its offsets.

    The footer of each data file has the last five appends of each producer. A binary search over the files finds
    the one wanted, as sequences grow with offsets: one listing, and a few footers per step. Files lose it by a
    merge of more than five appends, by retention, and when a replica is rebuilt from the remote log.

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
