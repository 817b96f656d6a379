"""A partition on three brokers of which two leave, one after the other: here, and in Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from bench.kafka_server import KafkaNode, broker_properties
from bench.s3_server import HOST, free_ports
from stratalog import FoundOffset, OffsetSpec
from stratalog.partitions.identity import random_id
from tests.kafka import kafka_clients, our_log
from tests.kafka.kafka_clients import CLIENT, only, wait_until
from tests.kafka.kafka_log import ANY_TIME
from tests.kafka.kafka_wire import KafkaWire
from tests.kafka.log import Code
from tests.unit.cluster_harness import LiveCluster, fence, offsets_of, unfence

_LATEST = -1
_PRODUCER = 7, 0


class Trio(Protocol):
    """One partition with a leader, its heir, and a third replica; all three are in the ISR."""

    def append(self, value: str, *, acks_all: bool = True) -> int | Code:
        """Append one record and return its offset. All remaining brokers hold the record when the call returns."""

    def latest(self) -> int | Code:
        """The log end for readers, by the current leader."""

    def third_leaves(self) -> None:
        """Stop the third broker in a controlled way, so that it leaves the ISR."""

    def leader_leaves(self) -> None:
        """Stop the leader in a controlled way, so that the heir leads."""

    def all_come_back(self) -> None:
        """Start all brokers, and wait until they are in the ISR."""


class OurTrio(Trio):
    """Three brokers in memory."""

    def __init__(self, folder: Path, configs: dict[str, str]) -> None:
        self._live = LiveCluster(folder)
        self._live.cluster.topics.create("t", partitions=1, replication_factor=3, configs=configs)
        self._live.append(["first"]).raise_for_failures()
        self._leader = self._live.leader()
        self._heir, self._third = self._live.followers()

    @our_log.answers
    def append(self, value: str, *, acks_all: bool = True) -> int:
        appended = self._live.append([value], acks="all" if acks_all else "leader").raise_for_failures()
        self._live.cluster.replicate().raise_for_failures()
        return offsets_of(appended)[0][0]

    @our_log.answers
    def latest(self) -> int:
        found = self._live.cluster.offsets("t", OffsetSpec.LATEST)[0]
        assert isinstance(found, FoundOffset)
        return found.offset

    def third_leaves(self) -> None:
        fence(self._live, self._third)

    def leader_leaves(self) -> None:
        fence(self._live, self._leader)
        assert self._live.leader() == self._heir

    def all_come_back(self) -> None:
        unfence(self._live, self._leader, self._third)
        self._live.cluster.replicate().raise_for_failures()


class KafkaTrio(Trio):
    """Three processes of Kafka; the first is the controller, and the heir."""

    def __init__(self, folder: Path, wire: KafkaWire, configs: dict[str, str]) -> None:
        self._wire = wire
        controller_port, *ports = free_ports(4)
        self._addresses = {number: f"{HOST}:{port}" for number, port in enumerate(ports, 1)}
        self._nodes: dict[int, KafkaNode] = {}
        cluster_id = random_id()
        for number, port in enumerate(ports, 1):
            (folder / str(number)).mkdir(parents=True)
            text = broker_properties(number, port, controller_port)
            self._nodes[number] = KafkaNode(folder / str(number), cluster_id, text)
        try:
            for node in self._nodes.values():
                node.start()
            self._admin = AdminClient({**CLIENT, "bootstrap.servers": self._addresses[1]})
            new = NewTopic("t", 1, replica_assignment=[[2, 1, 3]], config={**ANY_TIME, **configs})
            only(self._admin.create_topics([new]))
        except BaseException:
            self.close()
            raise
        self._leader, self._there, self._sequence = 2, {1, 2, 3}, 0
        wait_until(lambda: self.append("first") == 0)

    def close(self) -> None:
        for node in self._nodes.values():
            node.kill()

    @kafka_clients.answers
    def append(self, value: str, *, acks_all: bool = True) -> int:
        acks = -1 if acks_all else 1
        address = self._addresses[self._leader]
        offset = self._wire.produce(address, "t", value, _PRODUCER, self._sequence, acks)
        self._sequence += 1
        for broker in self._there:
            wait_until(lambda broker=broker: self._held_by(broker) == offset + 1)  # type: ignore[misc]
        return offset

    @kafka_clients.answers
    def latest(self) -> int:
        return self._wire.list_offset(self._addresses[self._leader], "t", 0, _LATEST)

    def third_leaves(self) -> None:
        self._leave(3)

    def leader_leaves(self) -> None:
        self._leave(2)
        self._leader = 1
        wait_until(lambda: self.latest() != "NOT_LEADER_FOR_PARTITION")

    def all_come_back(self) -> None:
        for broker in sorted({1, 2, 3} - self._there):
            self._nodes[broker].start()
        self._there = {1, 2, 3}
        wait_until(lambda: self.latest() == self._held_by(self._leader))

    def _leave(self, broker: int) -> None:
        self._nodes[broker].stop()
        self._there.remove(broker)

    @kafka_clients.answers
    def _held_by(self, broker: int) -> int:
        """The log end of a replica."""
        return self._wire.list_offset(self._addresses[broker], "t", 0, _LATEST, of_replica=True)
