"""Transactional ids through their log: take over, begin, end, complete; and concurrent drivers (KIP-98)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.records.coordinator import TransactionCoordinator
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

    def coordinator(self) -> TransactionCoordinator:
        """The coordinator of another driver."""
        made: TransactionCoordinator = with_ports(TransactionCoordinator, ports_of(self.driver()))()
        return made

    @property
    def partition(self) -> tuple[str, int]:
        return self.cluster.image.topic("t").topic_id, 0


@pytest.fixture
def live(tmp_path: Path) -> Producers:
    return Producers(tmp_path).begin()


def test_a_transaction_from_begin_to_end(live: Producers) -> None:
    coordinator = live.coordinator()
    producer = coordinator.init_producer("x", timeout_ms=5000)
    assert (producer.producer_epoch, producer.state, producer.timeout_ms) == (0, State.EMPTY, 5000)
    begun = coordinator.add_partitions(producer, [live.partition])
    assert (begun.state, begun.partitions) == (State.ONGOING, (live.partition,))
    ended = coordinator.end(producer, commit=True)
    assert ended.state is State.PREPARE_COMMIT
    assert coordinator.finish(ended).failures == []
    assert coordinator.end(producer, commit=True).state is State.COMPLETE_COMMIT
    for late in (
        ended,
        coordinator.end(producer, commit=True),
    ):  # another driver was faster
        assert coordinator.finish(late).failures == []
    assert live.coordinator().present_state("x") == coordinator.present_state("x")


def test_the_topic_is_created_by_the_first_producer(live: Producers) -> None:
    """transaction.state.log.*; a look creates nothing."""
    with live.unchanged():
        assert live.coordinator().present_state("x") is None
    live.coordinator().init_producer("x")
    topic = live.cluster.image.topic(TRANSACTIONS_TOPIC)
    assert (len(topic.partitions), topic.configs["min.insync.replicas"]) == (2, "2")
    assert live.log(live.leader(TRANSACTIONS_TOPIC, partition_for("x", 2)), TRANSACTIONS_TOPIC, 0).log_end in (
        0,
        1,
    )


def test_a_newer_producer_fences_an_older_one(live: Producers) -> None:
    """KIP-98: the older producer's open transaction is aborted first, across drivers."""
    older, newer = live.coordinator(), live.coordinator()
    zombie = older.init_producer("x")
    older.add_partitions(zombie, [live.partition])
    producer = newer.init_producer("x")
    with pytest.raises(ProducerFencedError):
        older.end(zombie, commit=True)
    assert (producer.producer_id, producer.producer_epoch) == (zombie.producer_id, 2)
    with pytest.raises(ProducerFencedError):
        older.add_partitions(zombie, [live.partition])


def test_two_drivers_that_take_an_id_over_at_once_get_different_epochs(tmp_path: Path) -> None:
    """Another driver was faster between the look and the append: the log decides, the slower one decides again."""
    faults = Faults()
    live = Producers(tmp_path, through=faults.wrap).begin()
    live.coordinator().init_producer("x")
    other = live.coordinator()
    epochs = []

    faults.once(lambda: epochs.append(other.init_producer("x").producer_epoch), "stage", of=TRANSACTIONS_TOPIC)
    epochs.append(live.coordinator().init_producer("x").producer_epoch)
    assert epochs == [1, 2]


def test_an_error_is_reported_and_nothing_is_changed(live: Producers) -> None:
    coordinator = live.coordinator()
    producer = coordinator.init_producer("x")
    with live.unchanged():
        for bad in ("", "x" * 256, "\ud800", 7):
            with pytest.raises(
                InvalidCallError, match=r"transactional id .*: (give a name of 1 to 255|its name is not)"
            ):
                coordinator.init_producer(bad)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartitionError):
            coordinator.add_partitions(producer, [(live.partition[0], 7)])
        with pytest.raises(InvalidCallError, match="Empty: it cannot become PrepareCommit"):
            coordinator.end(producer, commit=True)


def test_a_snapshot_covers_the_log(live: Producers) -> None:
    """KIP-630: the state after a restart is the snapshot's, and decisions continue from it."""
    coordinator = live.coordinator()
    producer = coordinator.init_producer("x")
    coordinator.add_partitions(producer, [live.partition])
    live.cluster.snapshot(TRANSACTIONS_TOPIC, by_hand=True).raise_for_failures()
    live.cluster.retain(TRANSACTIONS_TOPIC).raise_for_failures()
    live.clock.sleep(100)
    live.cluster.retain(TRANSACTIONS_TOPIC).raise_for_failures()
    fresh = live.coordinator()
    assert fresh.present_state("x") == coordinator.present_state("x")
    assert fresh.end(producer, commit=False).state is State.PREPARE_ABORT


def begin(live: Producers, coordinator: TransactionCoordinator, *names: str) -> None:
    """An open transaction of each of these ids."""
    for name in names:
        coordinator.add_partitions(coordinator.init_producer(name, 5000), [live.partition])


def upkeep(live: Producers, driver: Cluster | None = None) -> int:
    """The number of ids for which a run of the snapshot job makes a decision."""
    report = (driver or live.cluster).snapshot(TRANSACTIONS_TOPIC).raise_for_failures()
    return sum(int(str(row["expired"])) for row in report.rows)


def test_overdue_transactions_are_aborted_by_the_snapshot_job(live: Producers) -> None:
    """KIP-98: Kafka's coordinator aborts by itself; here the upkeep of the internal topics does."""
    coordinator = live.coordinator()
    producer = coordinator.init_producer("x", 5000)
    coordinator.add_partitions(producer, [live.partition])
    live.clock.sleep(4.999)
    begin(live, coordinator, "later")
    assert upkeep(live) == 0
    live.clock.sleep(0.001)
    assert upkeep(live) == 1
    aborted = coordinator.present_state("x")
    assert aborted is not None
    assert (aborted.state, aborted.partitions) == (State.PREPARE_ABORT, (live.partition,))
    with pytest.raises(ProducerFencedError):
        coordinator.end(producer, commit=True)
    open_still = coordinator.present_state("later")
    assert open_still is not None
    assert open_still.state is State.ONGOING


def test_a_transaction_that_a_dead_driver_left_fenced_is_aborted(live: Producers) -> None:
    """The driver died between PrepareEpochFence and PrepareAbort."""
    ports = ports_of(live.driver())
    coordinator = with_ports(TransactionCoordinator, ports)()
    begin(live, coordinator, "x")
    fence = steps.init_producer(
        coordinator.present_state("x"),
        "x",
        producer_id="new",
        timeout_ms=5000,
        max_timeout_ms=5000,
        now_ms=live.clock.now_ms(),
    )
    topic = live.cluster.image.topic(TRANSACTIONS_TOPIC)
    with_ports(append_state, ports)(topic, partition_for("x", 2), TRANSACTIONS, [fence])
    assert upkeep(live) == 1
    aborted = coordinator.present_state("x")
    assert aborted is not None
    assert aborted.state is State.PREPARE_ABORT


def test_a_transaction_that_ends_while_it_is_found_overdue_has_ended(tmp_path: Path) -> None:
    """The producer commits between the look and the append: the log decides which was first."""
    faults = Faults()
    live = Producers(tmp_path, through=faults.wrap).begin()
    coordinator = live.coordinator()
    producer = coordinator.init_producer("x", 5000)
    coordinator.add_partitions(producer, [live.partition])
    live.clock.sleep(10)

    faults.once(lambda: coordinator.end(producer, commit=True), "stage", of=TRANSACTIONS_TOPIC)
    assert upkeep(live) == 1
    after = live.coordinator().present_state("x")
    assert after is not None
    assert after.state is State.PREPARE_COMMIT


def test_ids_that_nobody_uses_are_forgotten(live: Producers) -> None:
    """transactional.id.expiration.ms; an id with an open transaction never expires."""
    live.cluster.topics.alter_configs(None, {"transactional.id.expiration.ms": "60000"})
    coordinator = live.coordinator()
    coordinator.init_producer("x")
    begin(live, coordinator, "y")
    live.clock.sleep(59)
    coordinator.init_producer("z")
    live.clock.sleep(1)
    assert upkeep(live) == 2  # x is removed, y aborted
    states = {name: live.coordinator().present_state(name) for name in "xyz"}
    assert states["x"] is None
    assert {name: state.state for name, state in states.items() if state} == {
        "y": State.PREPARE_ABORT,
        "z": State.EMPTY,
    }
    live.clock.sleep(120)
    assert upkeep(live) == 1
    assert live.coordinator().present_state("y") is not None
