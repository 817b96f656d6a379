"""Transactional ids: their producers, and the state of their transactions (``__transaction_state``; KIP-98).

Each step reads the state, decides, appends the decision, and checks whether the decision took effect
(``stratalog.engine.state``). If two drivers decide on the same state, the first record in the log is in effect,
and the other driver decides again. One record in ``__transaction_state`` decides how a transaction ends. After
that, markers are written; then the transaction is complete. The next driver finishes an interrupted transaction,
so no process has to run all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from stratalog.engine.brokers.probe import with_leaders
from stratalog.engine.config.mirrored import check_not_mirrored
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.state_cache import ReadState
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.markers import MarkersWritten, write_markers
from stratalog.engine.records.state_log import append_state, ensure_topic, read_state, stamp_of
from stratalog.engine.state import transaction_steps as steps
from stratalog.engine.state.internal_topics import (
    TRANSACTIONS_TOPIC,
    check_name,
    partition_for,
    transactions_topic,
)
from stratalog.engine.state.keyed import TRANSACTIONS
from stratalog.engine.state.transaction_state import ENDING, State, Transaction, TransactionStates
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    ConcurrentTransactionsError,
    InvalidCallError,
    InvalidTxnStateError,
    OutcomeUnknownError,
    RetriableError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.numbers import whole

MAX_ID_LENGTH = 255
_ATTEMPTS = 10

Decide = Callable[[Transaction | None], Transaction | None]
"""A decision: from the current state to the next one; None if there is nothing to change."""


class TransactionCoordinator:
    """Decides about transactional ids, on the state as read. A coordinator has no state except ``memory``, so each
    call may create one.
    """

    def __init__(self, metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory) -> None:
        self._metadata = metadata
        self._storage = storage
        self._clock = clock
        self._memory = memory

    def next_producer(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """The producer for this driver's next transaction with a transactional id. This is the producer of the
        last transaction, if one read of the state shows that no other driver has taken over the id and that the
        timeout is unchanged; otherwise see ``init_producer``. A producer is given out to one transaction at a
        time, until it returns to ``memory.transactional_producers``.

        Raises: see ``init_producer``; errors from reading the state.
        """
        check_name(transactional_id, "transactional id", MAX_ID_LENGTH, InvalidCallError)
        last: Transaction | None = self._memory.transactional_producers.take(transactional_id)
        if last is not None:
            present = self._read(self._topic(), transactional_id).state.transactions.get(transactional_id)
            if present is not None and steps.may_continue(present, last, timeout_ms):
                return present
        return self.init_producer(transactional_id, timeout_ms)

    def init_producer(self, transactional_id: str, timeout_ms: int = 60_000) -> Transaction:
        """Take a transactional id over: fence its previous producer, and return its producer id with the next
        epoch. Aborts an open transaction, and completes a decided transaction. The first call in a cluster creates
        ``__transaction_state``.

        Raises: InvalidCallError for an id that is empty, too long or not a string, or a timeout that is not a
            whole number; InvalidTransactionTimeoutError; InvalidReplicationFactorError;
            ConcurrentTransactionsError when a transaction cannot be completed now; see ``append_state``.
        """
        check_name(transactional_id, "transactional id", MAX_ID_LENGTH, InvalidCallError)
        timeout_ms = whole(timeout_ms, f"transactional id {transactional_id!r}: timeout_ms")
        image = self._metadata.image()
        config = cluster_config_of(image)
        image = ensure_topic(self._metadata, self._storage, image, transactions_topic(config))
        topic = image.topic(TRANSACTIONS_TOPIC)
        producer_id = self._storage.new_id()
        stamp_ms = partial(self._stamp_ms, topic, transactional_id)

        def take_over(present: Transaction | None) -> Transaction | None:
            if present is not None and present.state in ENDING:
                return None  # the decided transaction must be completed first
            if present is not None and present.state is State.PREPARE_EPOCH_FENCE:
                # the previous round, or a driver that crashed, has fenced the producer
                return steps.abort_fenced(present, stamp_ms())
            return steps.init_producer(
                present,
                transactional_id,
                producer_id=producer_id,
                timeout_ms=timeout_ms,
                max_timeout_ms=config.transaction_max_timeout_ms,
                now_ms=stamp_ms(),
            )

        for _ in range(_ATTEMPTS):
            after = self._change(topic, transactional_id, take_over)
            assert after is not None
            if after.state is State.EMPTY:
                return after
            if after.state in ENDING:
                for failure in self.finish(after).failures:
                    raise ConcurrentTransactionsError(
                        f"transactional id {transactional_id!r} is {after.state}, but its transaction "
                        f"cannot be completed now: {failure}"
                    )
        raise ConcurrentTransactionsError(
            f"transactional id {transactional_id!r}: other producers keep taking it over; use it in one producer "
            "only"
        )

    def add_partitions(
        self, producer: Transaction, partitions: Iterable[TopicIdPartition], probed: ClusterImage | None = None
    ) -> Transaction:
        """Add partitions (topic id, number) to the transaction; the first partitions begin it. ``probed`` is the
        metadata as just read, after a probe of the roots.

        Raises: UnknownTopicOrPartitionError, PolicyViolationError for a mirror, InvalidProducerIdMappingError,
            ProducerFencedError, ConcurrentTransactionsError; see ``append_state``.
        """
        image = probed or self._metadata.image()
        wanted = sorted(set(partitions))
        for key in wanted:
            image.partition(*key)
        for topic in map(image.topics.__getitem__, {topic_id for topic_id, _ in wanted}):
            check_not_mirrored(topic.name, topic_config_of(image, topic), "append to")
        stamp_ms = partial(self._stamp_ms, self._topic(), producer.transactional_id)
        return self._changed(
            producer.transactional_id,
            lambda present: steps.add_partitions(present, *_who(producer), wanted, stamp_ms()),
            probed,
        )

    def end(
        self,
        producer: Transaction,
        *,
        commit: bool,
        partitions: Container[TopicIdPartition] | None = None,
        probed: bool = False,
    ) -> Transaction:
        """Decide to commit or abort the transaction (``finish`` does the rest). ``partitions``, if given, are the
        only partitions that the transaction tried to write to. ``probed``: the transaction has probed the roots,
        so this call uses the metadata of the transaction's last append.

        Raises: InvalidProducerIdMappingError, ProducerFencedError, InvalidTxnStateError,
            ConcurrentTransactionsError; OutcomeUnknownError; see ``append_state``.
        """
        stamp_ms = partial(self._stamp_ms, self._topic(), producer.transactional_id)
        return self._changed(
            producer.transactional_id,
            lambda present: steps.end(
                present, *_who(producer), commit=commit, now_ms=stamp_ms(), partitions=partitions
            ),
            self._just_read() if probed else None,
        )

    def abort(self, transactional_id: str) -> Transaction:
        """Abort the open transaction of the id, whichever producer began it, and fence this producer.

        Raises: InvalidTxnStateError when none is open; see ``end``.
        """

        def decide(present: Transaction | None) -> Transaction | None:
            now_ms = self._stamp_ms(self._topic(), transactional_id)
            if present is not None and present.state is State.PREPARE_EPOCH_FENCE:
                return steps.abort_fenced(present, now_ms)
            if present is not None and present.state is State.PREPARE_ABORT:
                return None
            if present is None or present.state is not State.ONGOING:
                held = "has no transaction" if present is None else f"is {present.state}"
                raise InvalidTxnStateError(
                    f"transactional id {transactional_id!r} {held}: there is nothing to abort"
                )
            who = present.producer_id, present.producer_epoch
            return steps.end(present, transactional_id, *who, commit=False, now_ms=now_ms)

        return self._changed(transactional_id, decide)

    def finish(self, ended: Transaction, *, just_ended: bool = False) -> MarkersWritten:
        """Complete a decided transaction: write its markers, then record that it is complete. Any number of
        drivers may do so at the same time. If a marker cannot be written, the state is unchanged, and the next
        driver completes the transaction. ``just_ended``: this driver has decided the transaction in the same call,
        so metadata and roots were just read.

        Raises: see ``append_state``.
        """
        if ended.state not in ENDING:  # another driver was faster
            return MarkersWritten()
        probed = self._just_read() if just_ended else None
        written = write_markers(self._metadata, self._storage, self._clock, self._memory, ended, probed)
        if not written.failures:
            complete = partial(self._complete, ended)
            self._change(self._topic(), ended.transactional_id, complete, self._just_read())
        return written

    def present_state(self, transactional_id: str) -> Transaction | None:
        """The current state of a transactional id; None if the id has no state."""
        image = self._metadata.image()
        if TRANSACTIONS_TOPIC not in image.topic_ids:
            return None
        read = self._read(image.topic(TRANSACTIONS_TOPIC), transactional_id)
        return read.state.transactions.get(transactional_id)

    def end_overdue(self, view: PartitionView, now_ms: int | None) -> int:
        """Abort the transactions of one partition of ``__transaction_state`` that exceeded their timeout, and
        delete ids unused for ``transactional.id.expiration.ms``. Returns the number of changed ids. ``now_ms``
        comes from ``removal_time``. If another driver changes the state of an id meanwhile, this call's decision
        about the id has no effect.

        Raises: see ``read_state`` and ``append_state``.
        """
        image = self._metadata.image()
        expiration_ms = cluster_config_of(image).transactional_id_expiration_ms
        held = read_state(self._storage, self._clock, self._memory, view, TRANSACTIONS).state.transactions.values()
        at_ms = stamp_of(self._storage, self._clock, image, *view.key)
        due = [step for one in held if (step := steps.overdue(one, now_ms, expiration_ms, at_ms)) is not None]
        if due:
            self._append(image.topic(TRANSACTIONS_TOPIC), view.partition, due)
        return len(due)

    def _topic(self) -> TopicImage:
        image = self._metadata.last_known.image  # an older topic id is fine: the topic is never deleted
        if TRANSACTIONS_TOPIC in image.topic_ids:
            return image.topic(TRANSACTIONS_TOPIC)
        image = self._metadata.image()
        image = ensure_topic(self._metadata, self._storage, image, transactions_topic(cluster_config_of(image)))
        return image.topic(TRANSACTIONS_TOPIC)

    def _stamp_ms(self, topic: TopicImage, transactional_id: str) -> int:
        """The timestamp for a step of a transactional id."""
        return stamp_of(
            self._storage,
            self._clock,
            self._just_read(),
            topic.topic_id,
            partition_for(transactional_id, len(topic.partitions)),
        )

    def _just_read(self) -> ClusterImage:
        """The metadata that the previous append read at its end. The next append uses only its view, and checks
        for itself that the view is still valid.
        """
        return self._metadata.last_known.image

    def _complete(self, ended: Transaction, present: Transaction | None) -> Transaction | None:
        """Record that the transaction is complete; None if another driver has recorded it."""
        if present is None or present.at != ended.at:
            return None
        return steps.complete(present, self._stamp_ms(self._topic(), present.transactional_id))

    def _changed(self, transactional_id: str, decide: Decide, probed: ClusterImage | None = None) -> Transaction:
        after = self._change(self._topic(), transactional_id, decide, probed)
        assert after is not None  # ``decide`` raises if there is no state at all
        return after

    def _change(
        self, topic: TopicImage, transactional_id: str, decide: Decide, probed: ClusterImage | None = None
    ) -> Transaction | None:
        """Decide, append the decision, and check whether it took effect. Returns the resulting state. If the
        outcome of an append is unknown, the state is read, and the decision is made again.

        A decision uses the state that this driver last read, and the record of the decision takes effect only if
        the log still has that state. A decision to change nothing, or to refuse, uses the current state.
        """
        unknown: OutcomeUnknownError | None = None
        partition = partition_for(transactional_id, len(topic.partitions))
        kept: ReadState[TransactionStates] | None = self._memory.states.get(topic.topic_id, partition)
        for _ in range(_ATTEMPTS):
            try:
                before = kept or self._read(topic, transactional_id)
                wanted = _decided(
                    decide, before.state.transactions.get(transactional_id), is_kept=kept is not None
                )
                if wanted is None and kept is None:
                    return before.state.transactions.get(transactional_id)
                kept = None
                if wanted is None:
                    continue
                view, probed = probed, None  # valid for one try
                offset = self._append(topic, partition, [wanted], view)
                read = _following(self._metadata, topic, partition, before, offset, wanted) or self._read(
                    topic, transactional_id, until=offset + 1, since=before
                )
                self._memory.states.put(topic.topic_id, partition, read)
            except OutcomeUnknownError as error:
                unknown = error
                continue
            except RetriableError as error:
                if unknown is None:
                    raise
                raise unknown from error
            after = read.state.transactions.get(transactional_id)
            if after is not None and after.at == offset:
                return after
        if unknown is not None:
            raise unknown
        raise ConcurrentTransactionsError(
            f"transactional id {transactional_id!r}: other drivers changed its state {_ATTEMPTS} times in the "
            "meantime; try again"
        )

    def _append(
        self, topic: TopicImage, partition: int, records: Sequence[Transaction], probed: ClusterImage | None = None
    ) -> int:
        """The offset of the first record. Raises: see ``append_state``."""
        return append_state(
            *(self._metadata, self._storage, self._clock, self._memory),
            topic,
            partition,
            TRANSACTIONS,
            records,
            probed,
        )

    def _read(
        self,
        topic: TopicImage,
        transactional_id: str,
        *,
        until: int | None = None,
        since: ReadState[TransactionStates] | None = None,
    ) -> ReadState[TransactionStates]:
        """The states in the partition of the transactional id."""
        partition = partition_for(transactional_id, len(topic.partitions))

        def read(image: ClusterImage) -> ReadState[TransactionStates]:
            view = image.view(topic.topic_id, partition)
            return read_state(
                self._storage, self._clock, self._memory, view, TRANSACTIONS, until=until, since=since
            )

        return with_leaders(self._metadata, self._storage, read)


def _who(producer: Transaction) -> tuple[str, str, int]:
    return producer.transactional_id, producer.producer_id, producer.producer_epoch


def _decided(decide: Decide, present: Transaction | None, *, is_kept: bool) -> Transaction | None:
    """The next state. None if the state is unchanged, or if ``decide`` refuses because of a cached state, which
    may be outdated."""
    try:
        return decide(present)
    except StratalogError:
        if not is_kept:
            raise
        return None


def _following(
    metadata: MetadataClient,
    topic: TopicImage,
    partition: int,
    before: ReadState[TransactionStates],
    offset: int,
    appended: Transaction,
) -> ReadState[TransactionStates] | None:
    """The state after a record that was acknowledged directly after ``before``. None if the record is not directly
    after ``before``, or if the leader has changed. In both cases, the state must be read.
    """
    image = metadata.last_known.image
    if topic.topic_id not in image.topics or offset != before.state.next_offset:
        return None
    if image.view(topic.topic_id, partition).leader_epoch != before.epoch:
        return None
    return ReadState(before.state.apply(offset, [appended]), before.epoch)
