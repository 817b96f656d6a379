"""A retried append distributes its records like its first attempt, whatever has changed in the topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stratalog.engine.driver.execution import measured
from stratalog.engine.driver.report import Report
from stratalog.engine.records.append import append_with, in_threads
from stratalog.engine.records.earlier import EarlierTries, earlier_tries
from stratalog.partitions.errors import LeaderNotAvailableError
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.store import StoreCounts
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

FIRST = ProducerAppend("p", 1, 7, on_changed_replay="refuse")
"""An append that began when the topic had two partitions."""


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """A topic with two partitions, one of which already has its part of ``FIRST``."""
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    _append_a_part(live, FIRST).raise_for_failures()
    return live


def _append_a_part(live: LiveCluster, who: ProducerAppend | None) -> Report:
    ports, image = ports_of(live.cluster), live.cluster.image
    tasks = in_threads(ports.storage, {1: [batch(["a"])]})
    return append_with(
        ports.metadata,
        ports.storage,
        ports.clock,
        ports.memory,
        image,
        image.topic("t"),
        tasks,
        who,
        partition_count=2,
    )


def dealt(live: LiveCluster, producer: str = "p", epoch: int = 1, sequence: int = 7) -> int | None:
    """The number of partitions for an append that is about to begin; None: the current number."""
    ports, image = ports_of(live.cluster), live.cluster.image
    who = ProducerAppend(producer, epoch, sequence, on_changed_replay="refuse")
    return earlier_tries(ports.metadata, ports.storage, ports.memory, image, image.topic("t"), who).partition_count


def test_an_attempt_from_before_the_topic_grew_is_distributed_as_before(live: LiveCluster) -> None:
    live.cluster.topics.create_partitions("t", 4)
    assert dealt(live) == 2
    live.cluster.topics.create_partitions("t", 5)
    assert dealt(live) == 2


def test_a_retry_of_an_append_without_a_producer_goes_where_it_went_before(live: LiveCluster) -> None:
    """A retry names the producer and sequence of the unknown outcome."""
    ports = ports_of(live.cluster)
    _append_a_part(live, None).raise_for_failures()
    before = ports.memory.unnamed_producers.take(ports.storage.new_id)
    live.cluster.topics.create_partitions("t", 4)
    assert dealt(live, before.producer_id, before.epoch, before.sequence - 1) == 2
    assert dealt(live, before.producer_id, before.epoch, before.sequence) is None


def test_all_other_rows_are_distributed_among_all_partitions(live: LiveCluster) -> None:
    live.cluster.topics.create_partitions("t", 4)
    assert [dealt(live, sequence=8), dealt(live, epoch=2), dealt(live, producer="q")] == [None] * 3


def test_an_append_to_partitions_that_were_given_says_nothing(live: LiveCluster) -> None:
    live.cluster.topics.create_partitions("t", 4)
    live.append(["b"], producer="q", sequence=3).raise_for_failures()
    assert dealt(live, producer="q", epoch=0, sequence=3) is None


def test_a_driver_that_began_the_sequence_before_asks_no_replica(live: LiveCluster) -> None:
    ports, image = ports_of(live.cluster), live.cluster.image
    topic, second = image.topic("t"), replace(FIRST, sequence=8)
    with measured(ports.clock, ports.storage.counts) as measure:
        assert earlier_tries(ports.metadata, ports.storage, ports.memory, image, topic, second) == EarlierTries()
    assert measure.counts == StoreCounts()
    assert earlier_tries(ports.metadata, ports.storage, ports.memory, image, topic, FIRST).partitions == {1}
    another = ports_of(live.driver())
    assert earlier_tries(another.metadata, another.storage, another.memory, image, topic, second) == EarlierTries()
    assert earlier_tries(another.metadata, another.storage, another.memory, image, topic, FIRST).partitions == {1}


def test_an_append_in_a_transaction_or_without_a_producer_asks_nobody(live: LiveCluster) -> None:
    ports, image = ports_of(live.driver()), live.cluster.image
    with measured(ports.clock, ports.storage.counts) as measure:
        for who in (None, ProducerAppend("p", 1, 7, transactional=True)):
            assert (
                earlier_tries(ports.metadata, ports.storage, ports.memory, image, image.topic("t"), who)
                == EarlierTries()
            )
    assert measure.counts == StoreCounts()


def test_asking_takes_two_requests_per_partition(live: LiveCluster) -> None:
    """The cost is a listing, and a footer."""
    ports, image = ports_of(live.driver()), live.cluster.image
    with measured(ports.clock, ports.storage.counts) as measure:
        earlier_tries(ports.metadata, ports.storage, ports.memory, image, image.topic("t"), FIRST)
    assert (measure.counts.lists, measure.counts.reads) == (2, 2)


def test_a_later_sequence_anywhere_makes_an_append_late(live: LiveCluster) -> None:
    live.append({0: ["b"]}, producer="q", sequence=3).raise_for_failures()
    ports, image = ports_of(live.driver()), live.cluster.image
    for sequence, late in ((2, True), (3, False), (4, False)):
        who = ProducerAppend("q", 0, sequence, on_changed_replay="refuse")
        assert (
            earlier_tries(ports.metadata, ports.storage, ports.memory, image, image.topic("t"), who).late == late
        )


def test_a_partition_that_cannot_be_asked_is_left_out(live: LiveCluster) -> None:
    for broker in sorted(live.isr(partition=1)):
        live.cluster.brokers.fence(broker, force=True).raise_for_failures()
    ports, image = ports_of(live.driver()), live.cluster.image
    assert (
        earlier_tries(ports.metadata, ports.storage, ports.memory, image, image.topic("t"), FIRST)
        == EarlierTries()
    )


def test_nothing_is_distributed_while_the_leader_that_knows_is_unreachable(live: LiveCluster) -> None:
    """Protocol, I3: otherwise its records would be appended to another partition too."""
    live.cluster.topics.create_partitions("t", 4)
    for broker in sorted(live.isr(partition=1)):
        live.cluster.brokers.fence(broker, force=True).raise_for_failures()
    with pytest.raises(LeaderNotAvailableError, match="has no leader"):
        dealt(live)
