"""Transactional ids: their producers, and where their transactions are (``__transaction_state``; KIP-98).

Decide on the state as it was read, append what was decided, look whether it counted (``engine.state``). Of two
drivers that decided on the same state, the first in the log has decided; the other decides anew. What appends do
with transactions is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.context import Context
from engine.metadata.image import PartitionView, TopicImage
from engine.operations.state_log import append_state, ensure_topic, read_state
from engine.state import transaction_steps as steps
from engine.state.internal_topics import TRANSACTIONS_TOPIC, check_name, partition_for, transactions_topic
from engine.state.keyed import TRANSACTIONS
from engine.state.transaction_state import State, TopicPartition, Transaction, TransactionStates
from engine.state_cache import ReadState
from partitions.errors import ConcurrentTransactionsError, InvalidCallError

MAX_ID_LENGTH = 255
_ATTEMPTS = 10

Decide = Callable[[Transaction | None], Transaction | None]
"""From the present state to the next one; None when there is nothing to change."""


def init_producer(context: Context, transactional_id: str, timeout_ms: int = 60_000) -> Transaction:
    """Take a transactional id over: fence whoever has it, and get its producer id with the next producer epoch.
    A transaction that was left open is aborted first: that is refused for as long as it takes (``complete``),
    and then asked for again. The first call of a cluster creates ``__transaction_state``.

    Raises: InvalidCallError for an id that is empty, too long or no text; InvalidTransactionTimeoutError;
        InvalidReplicationFactorError; ConcurrentTransactionsError while a transaction is being ended; as
        ``append_state``.
    """
    check_name(transactional_id, "transactional id", MAX_ID_LENGTH, InvalidCallError)
    image = context.metadata.image()
    config = context.cluster_config(image)
    topic = ensure_topic(context, image, transactions_topic(config))
    producer_id = context.new_id()

    def take_over(present: Transaction | None) -> Transaction:
        if present is not None and present.state is State.PREPARE_EPOCH_FENCE:  # left so by a crash
            return steps.abort_fenced(present, context.clock.now_ms())
        return steps.init_producer(
            present,
            transactional_id,
            producer_id=producer_id,
            timeout_ms=timeout_ms,
            max_timeout_ms=config.transaction_max_timeout_ms,
            now_ms=context.clock.now_ms(),
        )

    after = _change(context, topic, transactional_id, take_over)
    while after.state is not State.EMPTY:  # fenced, then aborted, then refused until that is complete
        after = _change(context, topic, transactional_id, take_over)
    return after


def add_partitions(context: Context, producer: Transaction, partitions: Iterable[TopicPartition]) -> Transaction:
    """The transaction also writes to these partitions (topic id, number); the first ones begin it.

    Raises: UnknownTopicOrPartitionError, InvalidProducerIdMappingError, ProducerFencedError,
        ConcurrentTransactionsError; as ``append_state``.
    """
    image = context.metadata.image()
    wanted = sorted(set(partitions))
    for key in wanted:
        image.partition(*key)
    return _change(
        context,
        _topic(context),
        producer.transactional_id,
        lambda present: steps.add_partitions(present, *_who(producer), wanted, context.clock.now_ms()),
    )


def end(context: Context, producer: Transaction, *, commit: bool) -> Transaction:
    """The transaction is to be committed or aborted: from here on that is decided.

    Raises: InvalidProducerIdMappingError, ProducerFencedError, InvalidTxnStateError,
        ConcurrentTransactionsError; as ``append_state``.
    """
    return _change(
        context,
        _topic(context),
        producer.transactional_id,
        lambda present: steps.end(present, *_who(producer), commit=commit, now_ms=context.clock.now_ms()),
    )


def complete(context: Context, transactional_id: str) -> Transaction:
    """Every partition of the ended transaction has its marker. Raises: InvalidTxnStateError; as ``end``."""
    return _change(context, _topic(context), transactional_id, lambda present: _complete(context, present))


def present_state(context: Context, transactional_id: str) -> Transaction | None:
    """The state of a transactional id now; None when it has none."""
    image = context.metadata.image()
    if TRANSACTIONS_TOPIC not in image.topic_ids:
        return None
    read = _read(context, image.topic(TRANSACTIONS_TOPIC), transactional_id)
    return read.state.transactions.get(transactional_id)


def end_overdue(context: Context, view: PartitionView) -> int:
    """Abort the transactions of one partition of ``__transaction_state`` that have run into their timeout, and
    forget the ids that nobody has used for ``transactional.id.expiration.ms``; for how many ids that was decided.
    Whoever takes an id a step on meanwhile was faster, and what was decided here counts for nothing.

    Raises: as ``read_state`` and ``append_state``.
    """
    image = context.metadata.image()
    expiration_ms = context.cluster_config(image).transactional_id_expiration_ms
    now_ms = context.clock.now_ms()
    held = read_state(context, view, TRANSACTIONS).state.transactions.values()
    due = [step for one in held if (step := steps.overdue(one, now_ms, expiration_ms)) is not None]
    if due:
        append_state(context, image.topic(TRANSACTIONS_TOPIC), view.partition, TRANSACTIONS, due)
    return len(due)


def _topic(context: Context) -> TopicImage:
    image = context.metadata.image()
    return ensure_topic(context, image, transactions_topic(context.cluster_config(image)))


def _who(producer: Transaction) -> tuple[str, str, int]:
    return producer.transactional_id, producer.producer_id, producer.producer_epoch


def _complete(context: Context, present: Transaction | None) -> Transaction | None:
    if present is None:
        raise InvalidCallError("the transactional id has no transaction: initialise its producer first")
    return steps.complete(present, context.clock.now_ms())


def _change(context: Context, topic: TopicImage, transactional_id: str, decide: Decide) -> Transaction:
    """Decide, append, look; the state that came of it."""
    for _ in range(_ATTEMPTS):
        before = _read(context, topic, transactional_id)
        present = before.state.transactions.get(transactional_id)
        wanted = decide(present)
        if wanted is None:
            assert present is not None
            return present
        partition = partition_for(transactional_id, len(topic.partitions))
        offset = append_state(context, topic, partition, TRANSACTIONS, [wanted])
        read = _read(context, topic, transactional_id, until=offset + 1, since=before)
        after = read.state.transactions.get(transactional_id)
        if after is not None and after.at == offset:
            return after
    raise ConcurrentTransactionsError(
        f"transactional id {transactional_id!r}: others changed its state {_ATTEMPTS} times meanwhile; try again"
    )


def _read(
    context: Context,
    topic: TopicImage,
    transactional_id: str,
    *,
    until: int | None = None,
    since: ReadState[TransactionStates] | None = None,
) -> ReadState[TransactionStates]:
    """The states of the partition that the transactional id belongs to."""
    partition = partition_for(transactional_id, len(topic.partitions))
    view = context.metadata.image().view(topic.topic_id, partition)
    return read_state(context, view, TRANSACTIONS, until=until, since=since)
