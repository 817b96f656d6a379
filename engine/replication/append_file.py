"""Writes the file of an append: the records first, and the footer once the end of the log is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.agreed_time import agreed_ms, earlier_ms, stamp_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import constant, scalar
from stratalog.partitions.digest import RecordsDigest
from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.producer_changes import part_after
from stratalog.partitions.producers import ProducerAppend, ProducerEntry, after_append, unexpired
from stratalog.partitions.replica import EndState
from stratalog.partitions.segments.footer import TransactionPart
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store import StagedWriter

_REPLAY_BYTES = 64 * 1024 * 1024
"""The maximum bytes of an append to keep in memory. After a lost race, the append is encoded again from them."""


@dataclass(frozen=True, slots=True)
class AppendOptions:
    schema: pa.Schema
    acks_all: bool
    min_insync_replicas: int
    compression: str
    log_append_time: bool
    producer_expiration_ms: int
    keys_required: bool = False
    """Refuse records without a key: the topic keeps the latest record of each key (cleanup.policy)."""


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
        """The digest of all batches; reads the remaining batches without keeping them."""
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


class AppendFile:
    """The file of an append, in a staged file of the leader's store."""

    def __init__(
        self,
        staged: StagedWriter,
        replicas: PartitionReplicas,
        base_offset: int,
        producer: ProducerAppend,
        source: ReplayableBatches,
        options: AppendOptions,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._base_offset = base_offset
        self._producer = producer
        self._source = source
        self._options = options
        self._clock = clock
        self._marked: bool | None = None
        """Whether the file has gaps or records of a transaction; None until its records are written."""
        self._closed = False
        self.next_offset = base_offset
        """The end of the file's records, once it is closed."""
        self.staged = staged
        self._writer = SegmentWriter(
            self.staged.file,
            options.schema,
            topic_id=replicas.view.topic_id,
            partition=replicas.view.partition,
            base_offset=base_offset,
            compression=options.compression,
        )

    def write(self) -> None:
        """Encode the records into the staged file."""
        producer, options = self._producer, self._options
        now_ms = stamp_ms(self._clock, self._replicas.leader.store)
        marked = producer.transactional
        try:
            for batch in self._source:
                if producer.base_offset is None:
                    if options.keys_required and producer.control is None:
                        _check_keys(batch, self._replicas)
                    batch = _stamped(batch, now_ms, every=options.log_append_time)
                else:
                    marked = marked or has_gaps(batch)
                self._writer.write(_in_transaction(batch, producer) if producer.transactional else batch)
        except BaseException:
            self._closed = True
            self._writer.abort()
            raise
        self._marked = marked

    def close(self, end: LogEnd) -> None:
        """Write the footer of the file, which follows ``end`` in the log."""
        # the store has usually answered within the last minute, so this sends no request
        producer, clock, store = self._producer, self._clock, self._replicas.leader.store
        now_ms, removal_ms = stamp_ms(clock, store), agreed_ms(clock, store)

        def producers(next_offset: int) -> dict[str, ProducerEntry]:
            self.next_offset = next_offset
            kept = end.state.producers
            # Sent only after a full listing of the log, not at each append.
            if end.acknowledged_to is None and removal_ms is not None:
                kept = unexpired(kept, removal_ms, self._options.producer_expiration_ms)
            records = self._source.digested()
            digest = None if records is None else records.value
            return after_append(kept, producer, end.log_end, next_offset, now_ms, digest)

        transaction = _part(end.state, producer) if producer.transactional else None
        self._closed = True
        self._writer.close(
            lineage=end.lineage,
            producers=producers,
            part=partial(part_after, end.state.producers, end.state.levels, producer.producer_id, end.log_end),
            created_ms=earlier_ms(clock, store),  # snapshots drop old tombstones by this time
            transaction=transaction,
            last_transactional_offset=self._base_offset if self._marked else end.state.last_transactional_offset,
        )

    def abort(self) -> None:
        """Release the staged file, unless it is part of the log."""
        if not self._closed:
            self._writer.abort()
        with suppress(Exception):
            self.staged.abort()


def _part(state: EndState, producer: ProducerAppend) -> TransactionPart:
    """The entry of the append for its transaction, for the footer."""
    last = state.producers.get(producer.producer_id)
    ends = None if producer.control is None or last is None else last.txn_first_offset
    return TransactionPart(producer.producer_id, producer.epoch, producer.control, ends)


def _in_transaction(batch: pa.RecordBatch, producer: ProducerAppend) -> pa.RecordBatch:
    """The batch with the columns for its transaction. A marker also has its type as a column."""
    batch = batch.append_column("producer_id", constant(producer.producer_id, pa.string(), batch.num_rows))
    if producer.control is None:
        return batch
    return batch.append_column("control", constant(producer.control, pa.int32(), batch.num_rows))


def has_gaps(batch: pa.RecordBatch) -> bool:
    """Whether some rows are offsets without a record."""
    index = batch.schema.get_field_index("control")
    return bool(index >= 0 and batch.column(index).null_count < batch.num_rows)


def _check_keys(batch: pa.RecordBatch, replicas: PartitionReplicas) -> None:
    missing = batch.column(batch.schema.get_field_index("key")).null_count
    if missing:
        raise InvalidRecordError(
            f"{replicas}: {missing} of {batch.num_rows} records have no key: this cleanup.policy keeps the "
            "latest record of each key; give every record a key"
        )


def _stamped(batch: pa.RecordBatch, now_ms: int, *, every: bool) -> pa.RecordBatch:
    """The batch with the append's time in records without a time, or in ``every`` record
    (message.timestamp.type)."""
    index = batch.schema.get_field_index("timestamp")
    given = batch.column(index)
    if not every and given.null_count == 0:
        return batch
    stamp = scalar(now_ms * 1000, given.type)
    stamped = pa.repeat(stamp, batch.num_rows) if every else pc.fill_null(given, stamp)
    return batch.set_column(index, batch.schema.field(index), stamped)
