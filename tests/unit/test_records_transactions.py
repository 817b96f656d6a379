"""Transactional ids through their log: take over, begin, end, complete; and who was faster (KIP-98)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.opening import Ports
from stratalog.engine.records import coordinator
from stratalog.engine.records.state_log import append_state
from stratalog.engine.state import transaction_steps as steps
from stratalog.engine.state.internal_topics import TRANSACTIONS_TOPIC, partition_for
from stratalog.engine.state.keyed import TRANSACTIONS
from stratalog.engine.state.transaction_state import State
from stratalog.partitions.errors import (
    InvalidCallError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults


class Producers(LiveCluster):
    """A cluster with topic ``t`` and two partitions of ``__transaction_state``."""

    def begin(self) -> Producers:
        self.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "2"})
        self.topic()
        return self

    def ports(self) -> Ports:
        """Of another driver."""
        return ports_of(self.driver())

    @property
    def partition(self) -> tuple[str, int]:
        return self.cluster.image.topic("t").topic_id, 0


@pytest.fixture
def live(tmp_path: Path) -> Producers:
    return Producers(tmp_path).begin()


def test_a_transaction_from_begin_to_end(live: Producers) -> None:
    ports = live.ports()
    producer = coordinator.init_producer(
        ports.metadata, ports.storage, ports.clock, ports.memory, "x", timeout_ms=5000
    )
    assert (producer.producer_epoch, producer.state, producer.timeout_ms) == (0, State.EMPTY, 5000)
    begun = coordinator.add_partitions(
        ports.metadata, ports.storage, ports.clock, ports.memory, producer, [live.partition]
    )
    assert (begun.state, begun.partitions) == (State.ONGOING, (live.partition,))
    ended = coordinator.end(ports.metadata, ports.storage, ports.clock, ports.memory, producer, commit=True)
    assert ended.state is State.PREPARE_COMMIT
    assert coordinator.finish(ports.metadata, ports.storage, ports.clock, ports.memory, ended).failures == []
    assert (
        coordinator.end(ports.metadata, ports.storage, ports.clock, ports.memory, producer, commit=True).state
        is State.COMPLETE_COMMIT
    )
    for late in (
        ended,
        coordinator.end(ports.metadata, ports.storage, ports.clock, ports.memory, producer, commit=True),
    ):  # somebody else was faster
        assert coordinator.finish(ports.metadata, ports.storage, ports.clock, ports.memory, late).failures == []
    assert with_ports(coordinator.present_state, live.ports())("x") == coordinator.present_state(
        ports.metadata, ports.storage, ports.clock, ports.memory, "x"
    )


def test_the_topic_is_created_by_the_first_producer(live: Producers) -> None:
    """transaction.state.log.*; a look creates nothing."""
    with live.unchanged():
        assert with_ports(coordinator.present_state, live.ports())("x") is None
    with_ports(coordinator.init_producer, live.ports())("x")
    topic = live.cluster.image.topic(TRANSACTIONS_TOPIC)
    assert (len(topic.partitions), topic.configs["min.insync.replicas"]) == (2, "2")
    assert live.log(live.leader(TRANSACTIONS_TOPIC, partition_for("x", 2)), TRANSACTIONS_TOPIC, 0).log_end in (
        0,
        1,
    )


def test_a_newer_producer_fences_an_older_one(live: Producers) -> None:
    """KIP-98: what the older one left open is aborted first, across drivers."""
    older, newer = live.ports(), live.ports()
    zombie = coordinator.init_producer(older.metadata, older.storage, older.clock, older.memory, "x")
    coordinator.add_partitions(older.metadata, older.storage, older.clock, older.memory, zombie, [live.partition])
    producer = coordinator.init_producer(newer.metadata, newer.storage, newer.clock, newer.memory, "x")
    with pytest.raises(ProducerFencedError):
        coordinator.end(older.metadata, older.storage, older.clock, older.memory, zombie, commit=True)
    assert (producer.producer_id, producer.producer_epoch) == (zombie.producer_id, 2)
    with pytest.raises(ProducerFencedError):
        coordinator.add_partitions(
            older.metadata, older.storage, older.clock, older.memory, zombie, [live.partition]
        )


def test_of_two_that_take_an_id_over_at_once_both_get_an_epoch_of_their_own(tmp_path: Path) -> None:
    """Between the look and the append another driver was faster: the log decides, the slower one decides anew."""
    faults = Faults()
    live = Producers(tmp_path, through=faults.wrap).begin()
    with_ports(coordinator.init_producer, live.ports())("x")
    other = live.ports()
    epochs = []

    def overtake(uri: str, what: str, name: str) -> None:
        if what == "stage" and TRANSACTIONS_TOPIC in name:
            faults.none()
            epochs.append(
                coordinator.init_producer(
                    other.metadata, other.storage, other.clock, other.memory, "x"
                ).producer_epoch
            )

    faults.before = overtake
    epochs.append(with_ports(coordinator.init_producer, live.ports())("x").producer_epoch)
    assert epochs == [1, 2]


def test_what_is_wrong_is_said_and_nothing_changed(live: Producers) -> None:
    ports = live.ports()
    producer = coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, "x")
    with live.unchanged():
        for bad in ("", "x" * 256, "\ud800", 7):
            with pytest.raises(InvalidCallError, match=r"transactional id .*: its name is"):
                coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, bad)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartitionError):
            coordinator.add_partitions(
                ports.metadata, ports.storage, ports.clock, ports.memory, producer, [(live.partition[0], 7)]
            )
        with pytest.raises(InvalidCallError, match="Empty: it cannot become PrepareCommit"):
            coordinator.end(ports.metadata, ports.storage, ports.clock, ports.memory, producer, commit=True)


def test_a_snapshot_stands_for_the_log(live: Producers) -> None:
    """KIP-630: state after a restart is the snapshot's, and decisions go on from it."""
    ports = live.ports()
    producer = coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, "x")
    coordinator.add_partitions(
        ports.metadata, ports.storage, ports.clock, ports.memory, producer, [live.partition]
    )
    live.cluster.snapshot(TRANSACTIONS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.retain(TRANSACTIONS_TOPIC).raise_for_failures()
    live.clock.sleep(100)
    live.cluster.retain(TRANSACTIONS_TOPIC).raise_for_failures()
    fresh = live.ports()
    assert coordinator.present_state(
        fresh.metadata, fresh.storage, fresh.clock, fresh.memory, "x"
    ) == coordinator.present_state(ports.metadata, ports.storage, ports.clock, ports.memory, "x")
    assert (
        coordinator.end(fresh.metadata, fresh.storage, fresh.clock, fresh.memory, producer, commit=False).state
        is State.PREPARE_ABORT
    )


def begin(live: Producers, ports: Ports, *names: str) -> None:
    """An open transaction of each of these ids."""
    for name in names:
        coordinator.add_partitions(
            ports.metadata,
            ports.storage,
            ports.clock,
            ports.memory,
            coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, name, 5000),
            [live.partition],
        )


def upkeep(live: Producers, driver: Cluster | None = None) -> int:
    """For how many ids a run of the snapshot job decides something."""
    report = (driver or live.cluster).snapshot(TRANSACTIONS_TOPIC).raise_for_failures()
    return sum(int(str(row["expired"])) for row in report.rows)


def test_overdue_transactions_are_aborted_by_the_snapshot_job(live: Producers) -> None:
    """KIP-98: Kafka's coordinator does it by itself; here whoever keeps the internal topics short."""
    ports = live.ports()
    producer = coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, "x", 5000)
    coordinator.add_partitions(
        ports.metadata, ports.storage, ports.clock, ports.memory, producer, [live.partition]
    )
    live.clock.sleep(4.999)
    begin(live, ports, "later")
    assert upkeep(live) == 0
    live.clock.sleep(0.001)
    assert upkeep(live) == 1
    aborted = coordinator.present_state(ports.metadata, ports.storage, ports.clock, ports.memory, "x")
    assert aborted is not None
    assert (aborted.state, aborted.partitions) == (State.PREPARE_ABORT, (live.partition,))
    with pytest.raises(ProducerFencedError):
        coordinator.end(ports.metadata, ports.storage, ports.clock, ports.memory, producer, commit=True)
    open_still = coordinator.present_state(ports.metadata, ports.storage, ports.clock, ports.memory, "later")
    assert open_still is not None
    assert open_still.state is State.ONGOING


def test_what_a_driver_left_fenced_when_it_died_is_aborted(live: Producers) -> None:
    """Between PrepareEpochFence and PrepareAbort it came to its end."""
    ports = live.ports()
    begin(live, ports, "x")
    fence = steps.init_producer(
        coordinator.present_state(ports.metadata, ports.storage, ports.clock, ports.memory, "x"),
        "x",
        producer_id="new",
        timeout_ms=5000,
        max_timeout_ms=5000,
        now_ms=live.clock.now_ms(),
    )
    topic = live.cluster.image.topic(TRANSACTIONS_TOPIC)
    append_state(
        ports.metadata,
        ports.storage,
        ports.clock,
        ports.memory,
        topic,
        partition_for("x", 2),
        TRANSACTIONS,
        [fence],
    )
    assert upkeep(live) == 1
    aborted = coordinator.present_state(ports.metadata, ports.storage, ports.clock, ports.memory, "x")
    assert aborted is not None
    assert aborted.state is State.PREPARE_ABORT


def test_a_transaction_that_ends_while_it_is_found_overdue_has_ended(tmp_path: Path) -> None:
    """Between the look and the append its producer commits: the log decides who was faster."""
    faults = Faults()
    live = Producers(tmp_path, through=faults.wrap).begin()
    ports = live.ports()
    producer = coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, "x", 5000)
    coordinator.add_partitions(
        ports.metadata, ports.storage, ports.clock, ports.memory, producer, [live.partition]
    )
    live.clock.sleep(10)

    def overtake(uri: str, what: str, name: str) -> None:
        if what == "stage" and TRANSACTIONS_TOPIC in name:
            faults.none()
            coordinator.end(ports.metadata, ports.storage, ports.clock, ports.memory, producer, commit=True)

    faults.before = overtake
    assert upkeep(live) == 1
    after = with_ports(coordinator.present_state, live.ports())("x")
    assert after is not None
    assert after.state is State.PREPARE_COMMIT


def test_ids_that_nobody_uses_are_forgotten(live: Producers) -> None:
    """transactional.id.expiration.ms; never one with a transaction that is not over."""
    live.cluster.topics.alter_configs(None, {"transactional.id.expiration.ms": "60000"})
    ports = live.ports()
    coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, "x")
    begin(live, ports, "y")
    live.clock.sleep(59)
    coordinator.init_producer(ports.metadata, ports.storage, ports.clock, ports.memory, "z")
    live.clock.sleep(1)
    assert upkeep(live) == 2  # x is forgotten, y aborted
    states = {name: with_ports(coordinator.present_state, live.ports())(name) for name in "xyz"}
    assert states["x"] is None
    assert {name: state.state for name, state in states.items() if state} == {
        "y": State.PREPARE_ABORT,
        "z": State.EMPTY,
    }
    live.clock.sleep(120)
    assert upkeep(live) == 1
    assert with_ports(coordinator.present_state, live.ports())("y") is not None
