"""Transactional ids through their log: take over, begin, end, complete; and who was faster (KIP-98)."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.context import Context
from engine.operations import transactions
from engine.state.internal_topics import TRANSACTIONS_TOPIC, partition_for
from engine.state.transaction_state import State
from partitions.errors import (
    ConcurrentTransactionsError,
    InvalidCallError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults


class Producers(LiveCluster):
    """A cluster with topic ``t`` and two partitions of ``__transaction_state``."""

    def begin(self) -> Producers:
        self.cluster.alter_configs(None, {"transaction.state.log.num.partitions": "2"})
        self.topic()
        return self

    def context(self) -> Context:
        """Of another driver."""
        return self.driver()._context

    @property
    def partition(self) -> tuple[str, int]:
        return self.cluster.image.topic("t").topic_id, 0


@pytest.fixture
def live(tmp_path: Path) -> Producers:
    return Producers(tmp_path).begin()


def test_a_transaction_from_begin_to_end(live: Producers) -> None:
    context = live.context()
    producer = transactions.init_producer(context, "x", timeout_ms=5000)
    assert (producer.producer_epoch, producer.state, producer.timeout_ms) == (0, State.EMPTY, 5000)
    begun = transactions.add_partitions(context, producer, [live.partition])
    assert (begun.state, begun.partitions) == (State.ONGOING, (live.partition,))
    assert transactions.end(context, producer, commit=True).state is State.PREPARE_COMMIT
    assert transactions.complete(context, "x").state is State.COMPLETE_COMMIT
    assert transactions.end(context, producer, commit=True).state is State.COMPLETE_COMMIT
    assert transactions.present_state(live.context(), "x") == transactions.present_state(context, "x")


def test_the_topic_is_created_by_the_first_producer(live: Producers) -> None:
    """transaction.state.log.*; a look creates nothing."""
    with live.unchanged():
        assert transactions.present_state(live.context(), "x") is None
    transactions.init_producer(live.context(), "x")
    topic = live.cluster.image.topic(TRANSACTIONS_TOPIC)
    assert (len(topic.partitions), topic.configs["min.insync.replicas"]) == (2, "2")
    assert live.log(live.leader(TRANSACTIONS_TOPIC, partition_for("x", 2)), TRANSACTIONS_TOPIC, 0).log_end in (
        0,
        1,
    )


def test_a_newer_producer_fences_an_older_one(live: Producers) -> None:
    """KIP-98: what the older one left open is aborted first, across drivers."""
    older, newer = live.context(), live.context()
    zombie = transactions.init_producer(older, "x")
    transactions.add_partitions(older, zombie, [live.partition])
    with pytest.raises(ConcurrentTransactionsError, match="PrepareAbort"):
        transactions.init_producer(newer, "x")
    with pytest.raises(ProducerFencedError):
        transactions.end(older, zombie, commit=True)
    transactions.complete(newer, "x")
    producer = transactions.init_producer(newer, "x")
    assert (producer.producer_id, producer.producer_epoch) == (zombie.producer_id, 2)
    with pytest.raises(ProducerFencedError):
        transactions.add_partitions(older, zombie, [live.partition])


def test_of_two_that_take_an_id_over_at_once_both_get_an_epoch_of_their_own(tmp_path: Path) -> None:
    """Between the look and the append another driver was faster: the log decides, the slower one decides anew."""
    faults = Faults()
    live = Producers(tmp_path, through=faults.wrap).begin()
    transactions.init_producer(live.context(), "x")
    other = live.context()
    epochs = []

    def overtake(uri: str, what: str, name: str) -> None:
        if what == "stage" and TRANSACTIONS_TOPIC in name:
            faults.none()
            epochs.append(transactions.init_producer(other, "x").producer_epoch)

    faults.before = overtake
    epochs.append(transactions.init_producer(live.context(), "x").producer_epoch)
    assert epochs == [1, 2]


def test_what_is_wrong_is_said_and_nothing_changed(live: Producers) -> None:
    context = live.context()
    producer = transactions.init_producer(context, "x")
    with live.unchanged():
        with pytest.raises(InvalidCallError, match="must not be empty"):
            transactions.init_producer(context, "")
        with pytest.raises(UnknownTopicOrPartitionError):
            transactions.add_partitions(context, producer, [(live.partition[0], 7)])
        with pytest.raises(InvalidCallError, match="Empty: it cannot become PrepareCommit"):
            transactions.end(context, producer, commit=True)


def test_a_snapshot_stands_for_the_log(live: Producers) -> None:
    """KIP-630: state after a restart is the snapshot's, and decisions go on from it."""
    context = live.context()
    producer = transactions.init_producer(context, "x")
    transactions.add_partitions(context, producer, [live.partition])
    live.cluster.snapshot(TRANSACTIONS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.retain(TRANSACTIONS_TOPIC).raise_for_failures()
    live.clock.sleep(100)
    live.cluster.retain(TRANSACTIONS_TOPIC).raise_for_failures()
    fresh = live.context()
    assert transactions.present_state(fresh, "x") == transactions.present_state(context, "x")
    assert transactions.end(fresh, producer, commit=False).state is State.PREPARE_ABORT
