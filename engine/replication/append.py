"""Append: records at the end of the leader's log, then on every member of the maximal ISR.

Steps 1 to 5 of the protocol's Append (section 2), under one view; a Spark task does them. Steps 6 and 7
(the linearizable read, the high watermark) are done once for all partitions (``stratalog.engine.records``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.replication.damage import is_damage_of
from stratalog.engine.replication.log_end import LogEnd, is_free, look_at_end
from stratalog.engine.replication.old_appends import old_append
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
from stratalog.partitions.paths import DataName
from stratalog.partitions.producer_changes import part_after
from stratalog.partitions.producers import (
    ProducerAppend,
    ProducerEntry,
    after_append,
    check_same_records,
    earlier_attempt,
    unexpired,
)
from stratalog.partitions.replica import EndState, errors_of, writes_of
from stratalog.partitions.runner import Done, Failed, Runner
from stratalog.partitions.segment_check import check_copy
from stratalog.partitions.segment_footer import TransactionPart
from stratalog.partitions.segment_writer import SegmentWriter
from stratalog.partitions.store import StagedWriter

_ATTEMPTS = 50
_REPLAY_BYTES = 64 * 1024 * 1024
"""How much of an append is kept in memory to encode it again after a lost race."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The records are in the leader's log at ``[base_offset, next_offset)``, and, with ``acks=all``, on
    every member of the view's maximal ISR that is not in ``missed``. Not acknowledged before the view is
    found unchanged.
    """

    base_offset: int | None
    """None: an earlier attempt has appended them so long ago that it is only known that they end at
    ``next_offset``, or before."""
    next_offset: int
    duplicate: bool
    """An earlier attempt of this append had put them there."""
    bytes: int
    missed: Mapping[int, StratalogError] = field(default_factory=dict)
    """Members of the maximal ISR that do not have them yet, by broker id, and why."""
    end: LogEnd | None = None
    """The end of the log where these records are its last ones; None where it was not seen."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Another append took the offset, and this one was too large to be kept for a second try: run it again
    with the same sequence.
    """

    tried: bool
    """As ``NotAppended.tried``."""


@dataclass(frozen=True, slots=True)
class NotAppended:
    """The append failed before it was known to be in the leader's log."""

    error: StratalogError
    tried: bool
    """Whether a file of it may be in the leader's folder all the same, and count now or later."""
    ours: bool
    """Whether such a file may be of this very call. Of a duplicate that could not be synced it is not: an earlier
    attempt has put it there."""


AppendOutcome = Appended | Raced | NotAppended


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """How to append."""

    schema: pa.Schema
    acks_all: bool
    min_insync_replicas: int
    compression: str
    log_append_time: bool
    producer_expiration_ms: int
    keys_required: bool = False
    """Refuse records without a key (cleanup.policy=snapshot: no snapshot could hold them)."""


class ReplayableBatches:
    """Record batches that can be read again as long as they are small."""

    def __init__(self, batches: Iterator[pa.RecordBatch], digest: RecordsDigest | None = None) -> None:
        """``digest`` is told of every batch, once."""
        self._rest = batches
        self._digest = digest
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self.replayable = True
        """Whether everything read so far can be read again."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        assert self.replayable
        yield from list(self._kept)
        for batch in self._rest:
            if self._digest is not None:
                self._digest.add(batch)
            self._keep(batch)
            yield batch

    def digested(self) -> RecordsDigest | None:
        """The digest of all batches; those that nobody has read yet are not kept."""
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
    that an earlier append under this view has left, if any.

    NotAppended has StaleMetadataError kinds when the view is stale; NotEnoughReplicasError before anything
    is written; DuplicateSequenceNumberError, OutOfOrderSequenceNumberError, InvalidProducerEpochError,
    InvalidRecordError; OffsetOutOfRangeError where the log does not end at the offset that was given;
    CorruptionError kinds with the broker that is to blame; RetriableError kinds.
    """
    attempt = _Attempt()
    try:
        with writes_of(replicas.leader):
            appended = _append_to_leader(replicas, producer, batches, options, attempt, clock, known)
    except DuplicateSequenceNumberError as error:  # it may have been appended before
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
            and _copy_to_members(replicas, end, copies)
        ):
            return appended
        return replace(appended, missed=replicate(replicas, copies))
    except StratalogError as error:
        return NotAppended(error, tried=True, ours=attempt.tried)


def _copy_to_members(replicas: PartitionReplicas, end: LogEnd, copies: Runner) -> bool:
    """Step 5 where the members are known to hold all that lies before the append: the last file is all that they
    lack. The object that the leader was just seen to hold is copied, and no other. Whether all of them have it.
    """
    leader, file = replicas.leader, end.last
    assert file is not None

    def copy_to(broker_id: int) -> None:
        member = replicas.replica(broker_id)
        with errors_of(leader):
            segment = leader.segment(file)
        copy = member.store.stage_copy(leader.store, file.object, member.path(file.name))
        try:
            with errors_of(leader):
                check_copy(leader.store, segment, copy)
            created = copy.commit()
        except BaseException:
            with suppress(Exception):
                copy.abort()
            raise
        if not created:  # a sync may have been faster: it has to be looked at
            raise SourceChangedError(f"{member}: {file.name} is there already")
        member.check_root()

    return all(isinstance(outcome, Done) for outcome in copies.run(copy_to, replicas.acknowledging))


def replicate(replicas: PartitionReplicas, copies: Runner) -> dict[int, StratalogError]:
    """Step 5: sync every other replica of the ISR, and of those being added, to the leader. Returns those
    that were not reached, and why.

    Copies are checked as they pass, so acknowledged records lie in good bytes on every other member. Where
    the leader is the only one, nobody has looked at its bytes since they were written; the next copy does.

    The followers of an acknowledgement hold the log already, so none of them has to start over: the
    remote log does not matter here.

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
    """The state of an append so far."""

    names: set[DataName] = field(default_factory=set)
    """Of files that were asked for, and of which it is not known that nothing came of it."""
    written: int = 0
    """Bytes of the file that was created."""
    begun: bool = False
    """Whether the leader was asked about its log end."""

    @property
    def tried(self) -> bool:
        """As ``NotAppended.tried``."""
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
    """Steps 1 to 4: the file is in the leader's log. Raises: what ``NotAppended`` has."""
    digest = None
    if producer.on_changed_replay == "refuse":
        digest = RecordsDigest(options.schema, timestamps=not options.log_append_time)
    source = ReplayableBatches(batches, digest)
    leader = replicas.leader
    for _ in range(_ATTEMPTS):
        # 1. The leader's log end, under this epoch.
        if end is not None and not attempt.begun and is_free(replicas, end, clock):
            seen: AbstractSet[DataName] = frozenset()
        else:
            end, seen = look_at_end(replicas, end, clock)
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
        attempt.names -= seen  # those are appends of others
        if not source.replayable:
            return Raced(attempt.tried)
        # 3. Create it at the log end. False: somebody else appended there first, or an answer to this very call
        #    was lost, and it has been repeated.
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
    raise RetriableError(f"{replicas}: {_ATTEMPTS} times another append was faster; try again, or less at once")


def _check_place(replicas: PartitionReplicas, producer: ProducerAppend, end: LogEnd) -> None:
    """Raises: OffsetOutOfRangeError for records of a mirror that begin elsewhere than at the log end."""
    if producer.base_offset not in (None, end.log_end):
        raise OffsetOutOfRangeError(
            f"{replicas}: the log ends at {end.log_end}, these records begin at {producer.base_offset}: another "
            "mirror was faster, or the log has lost its end; look at the log end again"
        )


def _commit(staged: StagedWriter, name: DataName, attempt: _Attempt) -> bool:
    before = set(attempt.names)
    attempt.names.add(name)
    try:
        return staged.commit()
    except RetriableError:  # refused: nothing has changed
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
    store = replicas.leader.store  # it has just answered: this costs no request
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
        # After a look at all of the log, and not at each append.
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
        created_ms=earlier_ms(clock, store),  # what is left out of snapshots goes by it
        transaction=transaction,
        last_transactional_offset=end.log_end if marked else end.state.last_transactional_offset,
    )


def _part(state: EndState, producer: ProducerAppend) -> TransactionPart:
    """The description of the append in its transaction, for the footer."""
    last = state.producers.get(producer.producer_id)
    ends = None if producer.control is None or last is None else last.txn_first_offset
    return TransactionPart(producer.producer_id, producer.epoch, producer.control, ends)


def _in_transaction(batch: pa.RecordBatch, producer: ProducerAppend) -> pa.RecordBatch:
    """The batch with the columns that say whose transaction it is of, and of a marker which one it is."""
    batch = batch.append_column("producer_id", constant(producer.producer_id, pa.string(), batch.num_rows))
    if producer.control is None:
        return batch
    return batch.append_column("control", constant(producer.control, pa.int32(), batch.num_rows))


def has_gaps(batch: pa.RecordBatch) -> bool:
    """Whether some of its rows stand for offsets without a record."""
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
    """The batch with the append's time where a record has none; in place of ``every`` record's own too
    (message.timestamp.type)."""
    index = batch.schema.get_field_index("timestamp")
    given = batch.column(index)
    if not every and given.null_count == 0:
        return batch
    stamp = scalar(now_ms * 1000, given.type)
    stamped = pa.repeat(stamp, batch.num_rows) if every else pc.fill_null(given, stamp)
    return batch.set_column(index, batch.schema.field(index), stamped)
