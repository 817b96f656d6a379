"""Upkeep of transactions: lists transactions, ends abandoned transactions, and finds hanging transactions
(KIP-664).

Abandoned transactions are ended by a job that calls ``finish_transactions``, by every ``replicate``, which calls
``finish_due`` at its end, and by the next producer of the id. A transaction *hangs* when it is open in a log but
not in ``__transaction_state``: an unclean election lost the transaction's marker, and readers of committed records
would wait forever. Upkeep ends a hanging transaction with the decided outcome, if the outcome is known; otherwise
it aborts the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from stratalog.engine.driver.compared_clocks import removal_time
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, Report, utc_text
from stratalog.engine.driver.run import OperationRun, PartitionRow, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, cluster_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.coordinator import TransactionCoordinator
from stratalog.engine.records.markers import write_markers
from stratalog.engine.records.state_log import read_state
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.state import transaction_steps as steps
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from stratalog.engine.state.keyed import TRANSACTIONS
from stratalog.engine.state.transaction_state import ENDING, State, Transaction
from stratalog.partitions.clock import FOREVER_MS, Clock
from stratalog.partitions.errors import InvalidTxnStateError, TransactionalIdNotFoundError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.producers import ProducerEntry


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A producer's open transaction in a partition."""

    view: PartitionView
    producer_id: str
    entry: ProducerEntry


class TransactionRow(Row, frozen=True, kw_only=True):
    """A transactional id and its transaction; times are text."""

    transactional_id: str
    state: str
    producer_id: str
    producer_epoch: int
    partitions: int
    timeout_ms: int
    since: str | None
    updated: str
    was: str | msgspec.UnsetType = msgspec.UNSET
    """The state before this change."""


class BegunRow(PartitionRow, frozen=True, kw_only=True):
    """A partition of a transaction, with the offset of the transaction's first record there."""

    first_offset: int | None


class HangingRow(PartitionRow, frozen=True, kw_only=True):
    """A hanging transaction in a partition."""

    transactional_id: str | None
    producer_id: str
    producer_epoch: int
    first_offset: int | None
    last_append: str


def list_transactions(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> Report:
    """Every transactional id, as a table."""
    with execution.run("transactions list") as run:
        found = _all_transactions(storage, execution.clock, memory, metadata.image(), run)
    run.add(_row(one) for one in sorted(found, key=lambda one: one.transactional_id))
    run.totals["ids"] = len(run.rows)
    return run.report()


def describe_transaction(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, transactional_id: str
) -> Report:
    """The partitions of a transaction: one row per partition, with the offset of the transaction's first record
    there.

    Raises: TransactionalIdNotFoundError; see ``TransactionCoordinator.present_state``.
    """
    with execution.run("transactions describe") as run:
        present = _existing(metadata, storage, execution.clock, memory, transactional_id)
        image = metadata.image()
        views = [image.view(*key) for key in present.partitions if key[0] in image.topics]
        found = _open_in_logs(storage, views, run)
        begun = {
            one.view.key: one.entry.txn_first_offset for one in found if one.producer_id == present.producer_id
        }
        run.add(
            BegunRow(topic=view.topic, partition=view.partition, first_offset=begun.get(view.key))
            for view in views
        )
    run.totals |= _row(present).columns()
    return run.report()


def hanging_transactions(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None = None,
) -> Report:
    """Hanging transactions in the logs of the topics (None: all).

    Raises: UnknownTopicOrPartitionError; a log that cannot be listed is a failure in the report.
    """
    with execution.run("transactions find_hanging") as run:
        run.add(
            HangingRow(
                topic=one.view.topic,
                partition=one.view.partition,
                transactional_id=None if known is None else known.transactional_id,
                producer_id=one.producer_id,
                producer_epoch=one.entry.epoch,
                first_offset=one.entry.txn_first_offset,
                last_append=utc_text(one.entry.appended_ms),
            )
            for one, known in _hanging(metadata, storage, execution.clock, memory, topics, run)
        )
    run.totals["hanging"] = len(run.rows)
    return run.report()


def abort_transaction(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    transactional_id: str,
    *,
    dry_run: bool = False,
) -> Report:
    """Abort the open transaction of an id, or end a hanging transaction of the id's producer in a log. A producer
    id without a known transactional id is also accepted.

    Raises: TransactionalIdNotFoundError; InvalidTxnStateError when nothing is open; see
        ``TransactionCoordinator.abort``.
    """
    with execution.run("transactions abort", dry_run=dry_run) as run:
        coordinator = TransactionCoordinator(metadata, storage, execution.clock, memory)
        present = coordinator.present_state(transactional_id)
        if present is not None and present.state in (State.ONGOING, State.PREPARE_EPOCH_FENCE, *ENDING):
            _abort(metadata, coordinator, present, run)
        else:
            producer_id = transactional_id if present is None else present.producer_id
            _end_hanging(metadata, storage, execution.clock, memory, producer_id, run)
            if not run.rows and not run.failures:
                if present is None:
                    raise _unknown(transactional_id)
                raise InvalidTxnStateError(
                    f"transactional id {transactional_id!r} is {present.state}, and it has no "
                    "hanging transaction in a log: there is nothing to abort"
                )
    run.totals |= {"transactional_id": transactional_id, "markers": len(run.rows)}
    return run.report()


def finish_transactions(
    metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, *, dry_run: bool = False
) -> Report:
    """Abort transactions that exceeded their timeout, complete decided transactions, and delete ids unused for
    ``transactional.id.expiration.ms``.
    """
    with execution.run("transactions finish", dry_run=dry_run) as run:
        image = metadata.image()
        views = image.views(TRANSACTIONS_TOPIC) if TRANSACTIONS_TOPIC in image.topic_ids else []
        rows, _ = finish_due(metadata, storage, execution.clock, memory, views, run)
        run.add(rows)
    run.totals["ids"] = len(run.rows)
    return run.report()


def finish_due(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    views: Iterable[PartitionView],
    run: OperationRun,
) -> tuple[list[TransactionRow], dict[TopicIdPartition, int]]:
    """Run ``finish_transactions`` for these partitions of ``__transaction_state``. Returns a row per id that was
    changed. If nothing is due, the call costs one listing per partition. Also returns, for each partition without
    a failure, the time (ms) at which work is due next if nothing is written to the partition.
    """
    rows: list[TransactionRow] = []
    next_ms: dict[TopicIdPartition, int] = {}
    wanted = list(views)
    if not wanted:
        return rows, next_ms
    image = metadata.image()
    expiration_ms = cluster_config_of(image).transactional_id_expiration_ms
    now_ms = removal_time(storage, clock, image, run)

    def finish(view: PartitionView) -> tuple[list[TransactionRow], list[Failure], int]:
        return _finish_partition(metadata, storage, clock, memory, view, expiration_ms, now_ms, run.dry_run)

    outcomes = storage.threads.run(finish, wanted)
    for view, (its_rows, its_failures, its_next_ms) in run.done(outcomes, storage.replicas):
        rows += its_rows
        run.failures += its_failures
        if not its_failures:
            next_ms[view.key] = its_next_ms
    return sorted(rows, key=lambda row: row.transactional_id), next_ms


def _finish_partition(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    view: PartitionView,
    expiration_ms: int,
    now_ms: int | None,
    dry_run: bool,
) -> tuple[list[TransactionRow], list[Failure], int]:
    before = read_state(storage, clock, memory, view, TRANSACTIONS).state.transactions
    due = [
        one
        for one in before.values()
        if one.state in ENDING or steps.overdue(one, now_ms, expiration_ms, 0) is not None
    ]
    failures: list[Failure] = []
    after = before
    if due and not dry_run:
        coordinator = TransactionCoordinator(metadata, storage, clock, memory)
        coordinator.end_overdue(view, now_ms)
        for one in read_state(storage, clock, memory, view, TRANSACTIONS).state.transactions.values():
            if one.state in ENDING:
                failures += coordinator.finish(one).failures
        after = read_state(storage, clock, memory, view, TRANSACTIONS).state.transactions
    rows: list[TransactionRow] = []
    for one in due:
        now = after.get(one.transactional_id)
        state = State.DEAD if now is None else now.state
        rows.append(msgspec.structs.replace(_row(one), state=str(state), was=str(one.state)))
    next_ms = min((steps.next_ms(one, expiration_ms) for one in after.values()), default=FOREVER_MS)
    next_ms = 0 if now_ms is None else next_ms
    return rows, failures, next_ms


# ------------------------------------------------------------------------------------ what hangs


def _abort(
    metadata: MetadataClient, coordinator: TransactionCoordinator, present: Transaction, run: OperationRun
) -> None:
    if run.dry_run:
        named = metadata.image().topics
        keys = [key for key in present.partitions if key[0] in named]
        run.add(PartitionRow(topic=named[topic_id].name, partition=partition) for topic_id, partition in keys)
        return
    ended = present if present.state in ENDING else coordinator.abort(present.transactional_id)
    written = coordinator.finish(ended)
    run.add(written.rows)
    run.failures += written.failures


def _end_hanging(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, producer_id: str, run: OperationRun
) -> None:
    """Write a marker in each partition where a transaction of the producer hangs: the decided outcome if it is
    known, otherwise an abort.
    """
    for one, known in _hanging(metadata, storage, clock, memory, None, run):
        if one.producer_id != producer_id:
            continue
        view, epoch = one.view, one.entry.epoch + 1
        if run.dry_run:
            run.add([PartitionRow(topic=view.topic, partition=view.partition)])
            continue
        decided = known is not None and (known.producer_epoch, known.state) == (epoch, State.COMPLETE_COMMIT)
        ended = Transaction(
            transactional_id=producer_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            state=State.PREPARE_COMMIT if decided else State.PREPARE_ABORT,
            partitions=(view.key,),
            timeout_ms=0,
            update_ms=clock.now_ms(),
        )
        written = write_markers(metadata, storage, clock, memory, ended)
        run.add(written.rows)
        run.failures += written.failures


def _hanging(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topics: Sequence[str] | None,
    run: OperationRun,
) -> list[tuple[OpenInLog, Transaction | None]]:
    """Transactions that are open in logs but not in progress, each with the state of its transactional id. The
    logs are read before the states, and again after the states, to drop transactions that have ended meanwhile.
    """
    image = metadata.image()
    views = [
        view
        for topic in chosen_topics(image, topics)
        if topic.name not in INTERNAL_TOPICS
        for view in image.views(topic.name)
    ]
    found = _open_in_logs(storage, views, run)
    states = _all_transactions(storage, clock, memory, image, run) if found else []
    by_producer = {one.producer_id: one for one in states}
    left = [one for one in found if not _in_progress(one, by_producer.get(one.producer_id))]
    still = _open_in_logs(storage, list({one.view.key: one.view for one in left}.values()), run)
    confirmed = {(one.view.key, one.producer_id, one.entry.epoch) for one in still}
    return [
        (one, by_producer.get(one.producer_id))
        for one in left
        if (one.view.key, one.producer_id, one.entry.epoch) in confirmed
    ]


def _in_progress(one: OpenInLog, known: Transaction | None) -> bool:
    """Whether a producer or a later run will end the transaction."""
    if known is None or one.view.key not in known.partitions:
        return False
    raised = known.state is not State.ONGOING
    return known.producer_epoch == one.entry.epoch + raised


def _open_in_logs(storage: Storage, views: Sequence[PartitionView], run: OperationRun) -> list[OpenInLog]:
    """The open transactions in the leaders' logs of these partitions."""

    def look(view: PartitionView) -> list[OpenInLog]:
        replicas = storage.replicas(view)
        producers = replicas.leader.producers(look_at_leader(replicas))
        return [
            OpenInLog(view, producer_id, entry)
            for producer_id, entry in sorted(producers.items())
            if entry.txn_first_offset is not None
        ]

    outcomes = run.done(storage.threads.run(look, views), storage.replicas)
    found = [one for _, open_there in outcomes for one in open_there]
    return sorted(found, key=lambda one: (one.view.topic, one.view.partition, one.producer_id))


def _all_transactions(
    storage: Storage, clock: Clock, memory: Memory, image: ClusterImage, run: OperationRun
) -> list[Transaction]:
    views = image.views(TRANSACTIONS_TOPIC) if TRANSACTIONS_TOPIC in image.topic_ids else []
    outcomes = storage.threads.run(lambda view: read_state(storage, clock, memory, view, TRANSACTIONS), views)
    return [one for _, read in run.done(outcomes, storage.replicas) for one in read.state.transactions.values()]


def _existing(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, transactional_id: str
) -> Transaction:
    present = TransactionCoordinator(metadata, storage, clock, memory).present_state(transactional_id)
    if present is None:
        raise _unknown(transactional_id)
    return present


def _unknown(transactional_id: str) -> TransactionalIdNotFoundError:
    return TransactionalIdNotFoundError(
        f"transactional id {transactional_id!r} does not exist: no producer has used "
        "it within transactional.id.expiration.ms; see stratalog transactions list"
    )


def _row(one: Transaction) -> TransactionRow:
    return TransactionRow(
        transactional_id=one.transactional_id,
        state=str(one.state),
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        partitions=len(one.partitions),
        timeout_ms=one.timeout_ms,
        since=None if one.start_ms is None else utc_text(one.start_ms),
        updated=utc_text(one.update_ms),
    )
