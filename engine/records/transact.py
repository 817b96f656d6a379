"""A transaction of a producer: appends to any partitions, and offsets of groups, all or none (KIP-98).

1. Begin: take the transactional id over, fence its previous producer, abort its open transaction. If this driver's
   last transaction of the id has ended, and no other driver used the id since, continue with its producer.
2. Before the first append to a partition: add the partition to the transaction.
3. Append with the producer's id and epoch, synced and acknowledged as usual; offsets stay pending.
4. Commit: one record of ``__transaction_state`` decides; markers follow in all partitions; then the transaction is
   complete.

A crash before step 4 leaves an open transaction, which is aborted by the next producer of the id, or after the
timeout. If a driver crashes after the record of step 4, the next driver writes the markers. A transaction with a
failed or unknown append cannot be committed: some of its records might be in the log, or get there later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import pyarrow as pa

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.execution import Execution, measured
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_batches
from stratalog.engine.records.bad_record_lane import LeaveOut, OnBadRecord, bad_record_policy, topic_of_bad_records
from stratalog.engine.records.coordinator import TransactionCoordinator
from stratalog.engine.records.groups import commit_pending
from stratalog.engine.records.markers import MarkersWritten
from stratalog.engine.records.state_log import ensure_topic
from stratalog.engine.state.group_commits import OffsetAndMetadata, check_group
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, check_not_internal, offsets_topic, partition_for
from stratalog.engine.state.transaction_state import Transaction
from stratalog.partitions.errors import (
    FencedError,
    InvalidCallError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition, TopicPartition
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.unknown_fields import OnUnknownField, unknown_field_policy

TIMEOUT_MS = 60_000
"""Kafka's transaction.timeout.ms of producers."""
MOST_AT_ONCE = 16
"""All partitions of a topic with at most this many partitions join the transaction at the first append to any of
them, by one change of the transaction's state. Partitions of a larger topic join one by one. The end writes
markers only to partitions that were written to, unless the append failed or another driver aborts.
"""


def partitions_of(topic: TopicImage) -> set[TopicIdPartition]:
    return {TopicIdPartition(topic.topic_id, partition.partition) for partition in topic.partitions}


def partitions_of_bad(image: ClusterImage, bad_records: LeaveOut | None) -> set[TopicIdPartition]:
    """All partitions of the topic for bad records, if there is such a topic. Raises: see
    ``topic_of_bad_records``."""
    topic = None if bad_records is None else topic_of_bad_records(image, bad_records)
    return set() if topic is None else partitions_of(topic)


class BatchTransaction:
    """One transaction of a transactional id, for one thread. The end of its ``with`` block commits the
    transaction. An exception in the block aborts it, and propagates.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        memory: Memory,
        transactional_id: str,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Takes over the transactional id. Raises: see ``TransactionCoordinator.next_producer``."""
        self._metadata = metadata
        self._storage = storage
        self._execution = execution
        self._memory = memory
        self._measuring = ExitStack()
        self._measure = self._measuring.enter_context(measured(execution.clock, storage.counts))
        self._coordinator = TransactionCoordinator(metadata, storage, execution.clock, memory)
        self._producer = self._coordinator.next_producer(transactional_id, timeout_ms)
        self._partitions: set[TopicIdPartition] = set()
        self._written: set[TopicIdPartition] = set()
        """The partitions with records or offsets of the transaction. If nothing has failed, the transaction has
        tried to write to no other partitions.
        """
        self._looked = False
        self._notes: list[str] = []
        self._sequence = 0
        self._rows: list[dict[str, Value]] = []
        self._offsets = 0
        self._failed: BaseException | None = None
        self.report: Report | None = None
        """The result: a row per append to a partition, and per marker. None before the end."""

    @property
    def producer_id(self) -> str:
        """The producer id of the transactional id; the transaction's records in the log have this id."""
        return self._producer.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer epoch of this transaction."""
        return self._producer.producer_epoch

    # ----------------------------------------------------------------------------------- operations

    def append_batches(
        self,
        topic: str,
        batches: Mapping[int, Sequence[pa.RecordBatch]],
        *,
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
    ) -> Report:
        """Append Arrow batches; see ``Cluster.append_batches``. Bad records that go to a topic belong to the
        transaction.

        Raises: see ``append_batches``; ProducerFencedError when a newer producer uses the id, or the transaction
            has exceeded its timeout; OperationFailedError when a partition failed: the transaction can then
            only be aborted.
        """
        check_not_internal(topic, "append to")
        bad = bad_record_policy(on_bad_record, bad_record_topic, topic)
        policy = unknown_field_policy(on_unknown_field)
        image = self._look()
        of_topic = image.topic(topic)
        filled = {
            TopicIdPartition(of_topic.topic_id, partition)
            for partition, given in batches.items()
            if any(batch.num_rows for batch in given)
        }
        if filled and len(of_topic.partitions) <= MOST_AT_ONCE:
            filled |= partitions_of(of_topic)
        ports = self._metadata, self._storage, self._execution.clock, self._memory
        with self._appending(image, filled | partitions_of_bad(image, bad)):
            report = append_batches(
                *ports, topic, batches, self._who(), bad_records=bad, on_unknown_field=policy, probed=image
            )
            return self._appended(report, image)

    def _look(self) -> ClusterImage:
        """Read the current metadata, once per call. The first read comes after a probe of the roots."""
        if self._looked:
            return self._metadata.image()
        probed = probe_brokers(self._metadata, self._storage)
        self._looked = True
        self._notes += probed.notes
        return probed.image

    def _who(self) -> ProducerAppend:
        """The producer. The engine numbers the sequences, because a failed attempt is aborted and not retried."""
        return ProducerAppend(self.producer_id, self.producer_epoch, self._sequence, transactional=True)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> Report:
        """Commit offsets of a group with the transaction, such as ``{("trips", 0): 17}``. The offsets are pending
        until the transaction is committed. The report is that of ``groups.commit``.

        Raises: see ``groups.commit`` and ``append_batches``.
        """
        check_group(group)
        image = self._look()
        image = ensure_topic(self._metadata, self._storage, image, offsets_topic(cluster_config_of(image)))
        topic = image.topic(OFFSETS_TOPIC)
        key = TopicIdPartition(topic.topic_id, partition_for(group, len(topic.partitions)))
        with self._appending(image, [key]):
            report = commit_pending(
                *(self._metadata, self._storage, self._execution, self._memory),
                group,
                offsets,
                self.producer_id,
                self.producer_epoch,
            )
            self._offsets += len(report.rows)
            self._written.add(key)
        return report

    @contextmanager
    def _appending(self, image: ClusterImage, partitions: Iterable[TopicIdPartition]) -> Iterator[None]:
        """Step 2, then step 3 inside the block. Both use one image, so a topic that is created again meanwhile is
        a different topic. Errors of the call are found before anything is written.
        """
        self._check_open()
        if isinstance(self._failed, FencedError):
            raise self._failed
        if self._failed is not None:
            raise InvalidTxnStateError(f"{self}: {self._why()}: abort it, and begin a new transaction")
        try:
            added = self._partitions.union(partitions)
            if added != self._partitions:
                self._producer = self._coordinator.add_partitions(self._producer, added, image)
                self._partitions = added
            yield
        except InvalidCallError:
            raise
        except BaseException as error:
            self._failed = error
            raise

    def _appended(self, report: Report, image: ClusterImage) -> Report:
        self._sequence += 1
        self._written |= {
            TopicIdPartition(image.topic(str(row["topic"])).topic_id, int(row["partition"] or 0))
            for row in report.rows
            if row["outcome"] not in ("bad", "dropped", "not tried")
        }
        self._rows += [{"kind": "records", **row} for row in report.rows]
        for failure in report.failures:
            if failure.code == InvalidProducerEpochError.code:
                raise ProducerFencedError(
                    f"{self} is over: a newer producer of the id has taken over, or the transaction "
                    "timed out; stop this producer, or begin a new transaction"
                )
        return report.raise_for_failures()

    # --------------------------------------------------------------------------------------- the end

    def commit(self) -> Report:
        """Commit the transaction. When this returns, the transaction is permanently committed. If a marker could
        not be written (a failure in the report), readers of committed records in that partition wait until the
        next driver writes it.

        Raises: InvalidTxnStateError when a part of the transaction had failed, so that it was aborted;
        ProducerFencedError when it was aborted because a newer producer took over, or because the timeout had
        expired; OutcomeUnknownError when the outcome is unknown (the state of the transactional id shows the
        outcome, or the timeout will abort the transaction).
        """
        self._check_open()
        if self._failed is not None:
            self.abort()
            if isinstance(self._failed, FencedError):
                raise self._failed
            raise InvalidTxnStateError(f"{self} cannot be committed, because it was aborted: {self._why()}")
        return self._end(commit=True)

    def abort(self) -> Report:
        """Abort the transaction. It is not an error if another driver has aborted it. Raises: see ``commit``."""
        self._check_open()
        return self._end(commit=False)

    def _end(self, *, commit: bool) -> Report:
        written = MarkersWritten()
        outcome = "empty"
        if (
            self._partitions or self._failed is not None
        ):  # an attempt to begin may have succeeded although its outcome is unknown
            outcome = "committed" if commit else "aborted"
            try:
                ended = self._coordinator.end(
                    self._producer,
                    commit=commit,
                    partitions=self._written if self._failed is None else None,
                    probed=self._looked,
                )
            except FencedError:
                if commit:
                    self._over("aborted", written)
                    raise
            except InvalidTxnStateError:
                if self._partitions:
                    raise  # otherwise the transaction had not begun
            else:
                written = self._finish(ended)
                self._memory.transactional_producers.give_back(ended.transactional_id, ended)
        else:
            self._memory.transactional_producers.give_back(self._producer.transactional_id, self._producer)
        return self._over(outcome, written)

    def _finish(self, ended: Transaction) -> MarkersWritten:
        try:
            return self._coordinator.finish(ended, just_ended=True)
        except StratalogError as error:  # the transaction is decided, with or without its markers
            written = MarkersWritten()
            written.fail(str(self), error)
            return written

    def _over(self, outcome: str, written: MarkersWritten) -> Report:
        self._measuring.close()
        self._rows += [
            {"kind": "marker", "topic": row.topic, "partition": row.partition, "base_offset": row.marker}
            for row in written.rows
        ]
        notes = self._notes
        if written.failures:
            notes.append(f"it is {outcome}; to write the missing markers run stratalog transactions finish")
        self.report = Report(
            operation="transaction",
            rows=self._rows,
            failures=written.failures,
            totals={
                "transactional_id": self._producer.transactional_id,
                "outcome": outcome,
                "records": sum(int(row.get("records") or 0) for row in self._rows),
                "offsets": self._offsets,
                "markers": len(written.rows),
            },
            seconds=self._measure.seconds,
            counts=self._measure.counts,
            notes=notes,
        )
        return self.report

    def _check_open(self) -> None:
        if self.report is not None:
            raise InvalidTxnStateError(
                f"{self} is over ({self.report.totals['outcome']}): begin a new transaction"
            )

    def _why(self) -> str:
        return f"one of its operations failed: {self._failed}"

    def __str__(self) -> str:
        return f"the transaction of {self._producer.transactional_id!r} with producer epoch {self.producer_epoch}"

    # -------------------------------------------------------------------------------------- the block

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.report is not None:
            return
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except StratalogError as also:
            error.add_note(
                f"{self} was not aborted ({also.code}: {also}); its timeout or its next producer will abort it"
            )
