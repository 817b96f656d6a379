"""Three brokers of Kafka and a controller: four processes on this machine, each of which can be killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.kafka_server import KafkaNode
from bench.s3_server import HOST, free_ports
from stratalog.partitions.identity import random_id
from tests.kafka.kafka_clients import CLIENT, WAIT_S, only, wait_until

BROKERS = 1, 2, 3
_CONTROLLER = 9
_HEAP = "256m"
_QUICK = "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"
"""Options of a JVM that starts often and runs for minutes."""
_OF_ALL = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "0",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
}
"""Periodic work is done often; topics may be tiered, to a folder."""


class KafkaCluster:
    """A cluster that runs from its construction until ``close``."""

    def __init__(self, folder: Path) -> None:
        controller, *ports = free_ports(4)
        self.addresses = {number: f"{HOST}:{port}" for number, port in zip(BROKERS, ports, strict=True)}
        cluster_id = random_id()

        def make(number: int) -> KafkaNode:
            (folder / str(number)).mkdir(parents=True)
            text = _properties(number, controller, self.addresses.get(number), folder / "remote")
            return KafkaNode(
                folder / str(number), cluster_id, text, ("kafka-broker", "kafka-tiers"), _HEAP, _QUICK
            )

        with ThreadPoolExecutor(len(BROKERS) + 1) as threads:
            self._nodes = dict(
                zip((_CONTROLLER, *BROKERS), threads.map(make, (_CONTROLLER, *BROKERS)), strict=True)
            )
            try:
                list(threads.map(KafkaNode.start, self._nodes.values()))
            except BaseException:
                self.close()
                raise
        self._up = set(BROKERS)
        self._knows_anew()

    def close(self) -> None:
        for node in self._nodes.values():
            node.kill()

    def kill(self, broker: int) -> None:
        self._nodes[broker].kill()
        self._up.remove(broker)
        self._knows_anew()

    def stop(self, broker: int) -> None:
        """Stop the broker in a controlled way: others lead before it ends."""
        self._nodes[broker].stop()
        self._up.remove(broker)
        self._knows_anew()

    def start(self, broker: int) -> None:
        """Start the broker, and return when it serves."""
        self._nodes[broker].start()
        self._up.add(broker)
        self._knows_anew()

    def _knows_anew(self) -> None:
        """Let clients start with the current brokers."""
        self.bootstrap = ",".join(self.addresses[broker] for broker in sorted(self._up))
        self.admin = AdminClient({**CLIENT, "bootstrap.servers": self.bootstrap})

    def create(self, topic: str, replicas: list[list[int]], configs: Mapping[str, str] | None = None) -> None:
        """Create a topic whose partitions have these replicas; the first of each leads."""
        given = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1), **(configs or {})}
        only(self.admin.create_topics([NewTopic(topic, len(replicas), replica_assignment=replicas, config=given)]))
        self.await_state(
            topic, lambda states: len(states) == len(replicas) and all(leader for leader, _ in states)
        )

    def add_partition(self, topic: str, number: int) -> None:
        """Increase the topic to ``number`` partitions."""
        only(self.admin.create_partitions([NewPartitions(topic, number)]))
        self.await_state(topic, lambda states: len(states) == number and all(leader for leader, _ in states))

    def elect_unclean(self, topic: str, partition: int) -> None:
        """Elect a replica outside the ISR."""
        wanted = [TopicPartition(topic, partition)]
        answered = self.admin.elect_leaders(ElectionType.UNCLEAN, wanted).result(WAIT_S)
        errors = [error for error in answered.values() if error is not None]
        assert not errors, errors

    def state(self, topic: str) -> list[tuple[int | None, set[int]]]:
        """The leader, if there is one, and the ISR of each partition."""
        partitions = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
        return [(None if one.leader < 0 else one.leader, set(one.isrs)) for _, one in sorted(partitions.items())]

    def await_state(self, topic: str, wanted: Callable[[list[tuple[int | None, set[int]]]], bool]) -> None:
        """Wait until leaders and ISRs are as ``wanted``, according to a running broker."""

        def reached() -> bool:
            try:
                return wanted(self.state(topic))
            except KafkaException:
                return False

        try:
            wait_until(reached, every_s=0.2)
        except AssertionError as late:
            raise AssertionError(f"{topic} is not as it should be: {self.state(topic)}") from late

    def await_all_in_sync(self, topic: str, replicas: int = len(BROKERS)) -> None:
        """Wait until each partition has a leader, and an ISR of this size."""
        self.await_state(topic, lambda states: all(leader and len(isr) == replicas for leader, isr in states))


def _properties(number: int, controller: int, address: str | None, remote: Path) -> str:
    given = {
        **_OF_ALL,
        "process.roles": "controller" if address is None else "broker",
        "node.id": str(number),
        "controller.quorum.voters": f"{_CONTROLLER}@{HOST}:{controller}",
        "listeners": f"CONTROLLER://{HOST}:{controller}" if address is None else f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "rsm.config.dir": str(remote),
    }
    return "".join(f"{name}={value}\n" for name, value in given.items())
