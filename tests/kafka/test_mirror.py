"""Topics of a real Kafka broker in a log of the engine: equal after each run, whatever happens on either side."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from bench.s3_server import HOST, free_ports
from stratalog import Cluster, Report
from stratalog.bridges.formats.opening import typed_values
from stratalog.bridges.mirror import kafka_source
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.partitions.errors import EnvironmentUnusableError, RetriableError
from tests.kafka.kafka_clients import CLIENT, PRODUCER, WAIT_S, KafkaClients, only, wait_until
from tests.ports import ports_of

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).resolve().parents[2]
EARLIEST_LOCAL = -4
"""The number by which ListOffsets names the start of the log on the brokers' own disks."""


EPOCH_MS = 1_700_000_000_000
"""The time at which the clock of a ``Topic`` begins."""


class Topic:
    """A topic of the broker, and operations on it."""

    def __init__(self, clients: KafkaClients, name: str, partitions: int = 3, **configs: str) -> None:
        self.clients, self.name = clients, name
        given = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}}
        only(clients.admin.create_topics([NewTopic(name, partitions, 1, config=given)]))
        self._ids = self.now_ms = 0
        self.knows_partitions_anew()

    def knows_partitions_anew(self) -> None:
        """A producer only knows the partitions that existed at its first request."""
        self.plain = Producer({**self.clients.server, **PRODUCER})

    def append(self, *values: str | None, partition: int = 0, key: str | None = None) -> None:
        self._produce(self.plain, values, partition, key)
        assert self.plain.flush(WAIT_S) == 0

    def transact(self, *values: str | None, commit: bool = True, partition: int = 0) -> None:
        """Append in one transaction of a new producer."""
        self._ids += 1
        producer = Producer({**self.clients.server, **PRODUCER, "transactional.id": f"{self.name}-{self._ids}"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        self._produce(producer, values, partition, None)
        producer.flush(WAIT_S)
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)

    def configure(self, **configs: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        only(self.clients.admin.incremental_alter_configs([resource]))

    def records(self) -> int:
        """The number of records that a consumer of committed records gets from partition 0."""
        with self.clients.consumer("read_committed") as consumer:
            consumer.assign([TopicPartition(self.name, 0, 0)])
            found = 0
            while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
                found += 1
            return found

    def _produce(
        self, producer: Producer, values: tuple[str | None, ...], partition: int, key: str | None
    ) -> None:
        for number, value in enumerate(values):
            headers = [("h", b"1"), ("h", None)] if number % 2 else []
            self.now_ms += 100
            stamp = EPOCH_MS + self.now_ms
            producer.produce(self.name, value, key, partition=partition, headers=headers, timestamp=stamp)


def commit_there(clients: KafkaClients, group: str, topic: str, offset: int) -> None:
    """Commit for partition 0. The coordinator of a broker that has just started may not be available yet."""

    def committed() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return False
        return True

    settings = {**clients.server, **CLIENT, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        wait_until(committed)


def mirrored(cluster: Cluster, topic: Topic, *, archive: bool = False) -> Report:
    """Mirror once, and compare."""
    address = topic.clients.address
    report = cluster.mirror(topic.name, address, replication_factor=2, archive=archive).raise_for_failures()
    compared = cluster.compare(topic.name, address).raise_for_failures()
    assert compared.totals["differences"] == 0
    assert all(row["ranges"] == row["equal_ranges"] for row in compared.rows)
    return report


def test_transactions_tombstones_and_new_partitions_are_the_same_here(
    clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    topic = Topic(clients, f"{prefix}all")
    topic.append("a", None, "b")
    topic.transact("c", "d")
    topic.transact("never", "ever", commit=False)
    topic.transact("e", partition=1)
    report = mirrored(cluster, topic)
    assert [(row["log_end"], row["records"], row["gaps"]) for row in report.rows] == [
        (9, 5, 4),
        (2, 1, 1),
        (0, 0, 0),
    ]
    topic.append("f", partition=2)
    topic.transact("g", commit=False)
    only(clients.admin.create_partitions([NewPartitions(topic.name, 4)]))
    wait_until(lambda: len(clients.admin.list_topics(topic.name).topics[topic.name].partitions) == 4)
    topic.knows_partitions_anew()
    topic.append("h", partition=3)
    report = mirrored(cluster, topic)
    assert [row["lag"] for row in report.rows] == [0, 0, 0, 0]
    assert report.rows[3]["records"] == 1
    cluster.verify(deep=True).raise_for_failures()


def test_an_open_transaction_holds_its_records_back(clients: KafkaClients, cluster: Cluster, prefix: str) -> None:
    topic = Topic(clients, f"{prefix}open", 1)
    topic.append("a")
    producer = Producer({**clients.server, **PRODUCER, "transactional.id": f"{prefix}open"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic.name, "b")
    producer.flush(WAIT_S)
    topic.append("c")
    assert mirrored(cluster, topic).rows[0]["log_end"] == 1
    producer.commit_transaction(WAIT_S)
    assert mirrored(cluster, topic).rows[0]["log_end"] == 4


def test_records_that_the_source_has_compacted_become_gaps_and_leave_with_a_compaction_of_the_mirror(
    clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    often = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.0001", "delete_retention_ms": "0"}
    topic = Topic(clients, f"{prefix}compact", 1, cleanup_policy="compact", **often)
    topic.append(*map(str, range(20)), key="k")
    first = mirrored(cluster, topic).rows[0]["records"]
    topic.now_ms += 10_000  # a segment of its own
    topic.append(*map(str, range(20, 40)), key="k")
    topic.now_ms += 10_000
    topic.append("last", key="other")
    wait_until(lambda: topic.records() == 2)
    report = mirrored(cluster, topic)
    assert [report.rows[0][name] for name in ("log_end", "records", "gaps")] == [41, 2, 19]
    compared = cluster.compare(topic.name, clients.address).rows[0]
    assert [compared[name] for name in ("there", "here", "compacted")] == [2, 22, 20]
    assert first == 20
    cluster.compact([topic.name]).raise_for_failures()
    compared = cluster.compare(topic.name, clients.address).raise_for_failures().rows[0]
    assert [compared[name] for name in ("there", "here", "compacted")] == [2, 3, 1], "up to the last file here"
    topic.now_ms += 10_000
    topic.append(None, key="k")
    mirrored(cluster, topic)
    cluster.compact([topic.name]).raise_for_failures()
    mirrored(cluster, topic)
    compared = cluster.compare(topic.name, clients.address).rows[0]
    assert compared["here"] == 3, "the last record of each key, and the tombstone"
    cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize("archive", [False, True])
def test_deleted_records_go_here_too_but_not_from_an_archive(
    archive: bool, clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    topic = Topic(clients, f"{prefix}delete", 1)
    topic.append(*map(str, range(10)))
    mirrored(cluster, topic, archive=archive)
    only(clients.admin.delete_records([TopicPartition(topic.name, 0, 7)]))
    assert mirrored(cluster, topic, archive=archive).rows[0]["log_start"] == (0 if archive else 7)
    late = Topic(clients, f"{prefix}late", 1)
    late.append(*map(str, range(10)))
    only(clients.admin.delete_records([TopicPartition(late.name, 0, 10)]))
    assert mirrored(cluster, late).rows[0]["log_end"] == 10, "it is empty, and begins there"
    late.append("x")
    assert mirrored(cluster, late).rows[0]["log_end"] == 11


def test_records_that_are_tiered_there_come_through_its_brokers(
    clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    tiered = {"remote_storage_enable": "true", "segment_ms": "1000", "local_retention_bytes": "1"}
    topic = Topic(clients, f"{prefix}tiered", 1, **tiered)
    for value in ("a", "b", None, "d"):
        topic.append(value)
        topic.now_ms += 10_000  # a segment of its own
    wait_until(lambda: clients.wire.list_offset(clients.address, topic.name, 0, EARLIEST_LOCAL) == 3)
    (row,) = mirrored(cluster, topic).rows
    assert [row[name] for name in ("log_start", "log_end", "records")] == [0, 4, 4]


def test_groups_continue_here_at_the_same_record(clients: KafkaClients, cluster: Cluster, prefix: str) -> None:
    topic = Topic(clients, f"{prefix}groups", 1)
    topic.append(*map(str, range(10)))
    commit_there(clients, f"{prefix}readers", topic.name, 4)
    mirrored(cluster, topic)
    assert {key: one.offset for key, one in cluster.groups.committed(f"{prefix}readers").items()} == {
        (topic.name, 0): 4
    }


def test_a_topic_that_was_recreated_is_left_alone(clients: KafkaClients, cluster: Cluster, prefix: str) -> None:
    topic = Topic(clients, f"{prefix}again", 1)
    topic.append("a")
    mirrored(cluster, topic)
    only(clients.admin.delete_topics([topic.name]))
    wait_until(lambda: topic.name not in clients.admin.list_topics().topics)
    Topic(clients, topic.name, 1).append("x", "y")
    report = cluster.mirror(topic.name, clients.address, check=False)
    assert [(f.item, f.code) for f in report.failures] == [(topic.name, "INCONSISTENT_TOPIC_ID")]
    assert cluster.end_mirror(topic.name).rows[0]["topic"] == topic.name
    cluster.produce(topic.name, [{"value": b"mine"}]).raise_for_failures()


class Elsewhere(LocalTasks):
    """Tasks that are sent to other processes, like Spark's: all their objects were pickled."""

    processes = 2

    def run(self, function: Any, items: Iterable[Any], *_: Any) -> Iterator[Any]:
        yield from super().run(lambda item: function(pickle.loads(pickle.dumps(item))), items)


def test_tasks_mirror_partitions_side_by_side_and_decode_values(
    clients: KafkaClients, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    topic = Topic(clients, f"{prefix}tasks", 4)
    for partition in range(3):
        topic.append('{"id": 1}', None, "no JSON", partition=partition)
        topic.transact('{"id": 2}', '{"id": 3}', partition=partition)
        topic.transact('{"id": 4}', commit=False, partition=partition)
    schema = tmp_path / "trip.ddl"
    schema.write_text("id LONG")
    options = MirrorOptions(
        replication_factor=2, values=typed_values("json", str(schema)), bulk_offsets=1, throttle_bytes_per_s=1e9
    )
    ports = ports_of(cluster).with_tasks(Elsewhere(2))
    with closing(open_source(clients.address)) as source:
        report = mirror(
            ports.metadata, ports.storage, ports.execution, ports.memory, source, [topic.name], options
        ).raise_for_failures()
    assert report.totals["tasks"] == 2
    assert [(row["log_end"], row["records"], row["undecoded"]) for row in report.rows] == [(8, 5, 1)] * 3 + [
        (0, 0, 0)
    ]
    how: dict[str, str] = {"value_format": "json", "schema_file": str(schema)}
    cluster.compare(topic.name, clients.address, **how).raise_for_failures()
    topic.append('{"id": 5}', partition=3)
    cluster.mirror(topic.name, clients.address, **how).raise_for_failures()
    assert cluster.compare(topic.name, clients.address, **how).raise_for_failures().totals["here"] == 16
    cluster.verify(deep=True).raise_for_failures()


def test_a_config_of_the_mirror_itself_is_refused(clients: KafkaClients, cluster: Cluster) -> None:
    with pytest.raises(Exception, match=r"do not set isolation\.level"):
        cluster.mirror("t", clients.address, configs={"isolation.level": "read_uncommitted"})
    with pytest.raises(Exception, match="the configs of the source"):
        cluster.mirror("t", clients.address, configs={"no.such": "config"})
    assert EnvironmentUnusableError.code


def test_a_dead_broker_in_the_list_is_skipped_and_dead_ones_alone_are_an_error(
    clients: KafkaClients, cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(clients, f"{prefix}dead", 1)
    dead = [f"{HOST}:{port}" for port in free_ports(2)]
    for number, addresses in enumerate((f"{dead[0]},{clients.address}", f"{clients.address},{dead[0]}"), 1):
        topic.append("a", "b")
        report = cluster.mirror(topic.name, addresses, replication_factor=2).raise_for_failures()
        assert report.rows[0]["log_end"] == 2 * number
        cluster.compare(topic.name, addresses).raise_for_failures()
    monkeypatch.setattr(kafka_source, "TIMEOUT_S", 1.0)
    with pytest.raises(RetriableError, match=f"no broker at {dead[0]},{dead[1]} has answered"):
        cluster.mirror(topic.name, ",".join(dead))


KILLS = 6


def test_mirrors_are_killed_and_one_stalls_and_there_is_one_copy(
    clients: KafkaClients, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    """kill -9 at some moment of a run, repeatedly; and a zombie that was paused meanwhile continues."""
    topic = Topic(clients, f"{prefix}killed", 2)
    topic.append("first")
    mirrored(cluster, topic)
    rng, stop = random.Random(7), threading.Event()

    def fill() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            topic.transact(*(f"{number}/{n}" for n in range(20)), commit=number % 3 > 0, partition=number % 2)
            topic.append(*(f"{number}/{n}" for n in range(20)), partition=number % 2)

    def start() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "stratalog.bridges.jobs.mirror",
            "--cluster",
            str(tmp_path / "cluster.toml"),
        ]
        command += ["--from", clients.address, topic.name, "--every", "1ms"]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ends() -> list[object]:
        with closing(Cluster.open(tmp_path / "cluster.toml")) as looking:
            return [row["log_end"] for row in looking.describe(topic.name).rows]

    filling = threading.Thread(target=fill)
    filling.start()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        zombie = start()
        processes.append(zombie)
        before = ends()
        wait_until(lambda: ends() != before)
        zombie.send_signal(signal.SIGSTOP)
        for _ in range(KILLS):
            before, victim = ends(), start()
            processes.append(victim)
            wait_until(lambda before=before: ends() != before)  # type: ignore[misc]
            time.sleep(rng.random() / 4)
            victim.kill()
            victim.wait()
        zombie.send_signal(signal.SIGCONT)
        beside = start()
        processes.append(beside)
        before = ends()
        wait_until(lambda: ends() != before)
    finally:
        stop.set()
        for process in processes:
            process.kill()
            process.wait()
        filling.join()
    mirrored(cluster, topic)
    assert mirrored(cluster, topic).totals["records"] == 0
    cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize(("theirs", "ours"), [("murmur2_random", "murmur2"), ("consistent_random", "crc32")])
def test_keys_keep_their_partition_when_producers_move_over(
    theirs: str, ours: str, cluster: Cluster, clients: KafkaClients, prefix: str
) -> None:
    """A producer of librdkafka with Java's partitioner or its own, and then ``produce``: a key stays in one
    partition.
    """
    topic = Topic(clients, f"{prefix}keys", partitions=7)
    rng = random.Random(1)
    keys = [b"21", b"foobar", *(rng.randbytes(rng.randrange(1, 60)) for _ in range(300))]
    if theirs == "murmur2_random":
        keys.append(b"")  # librdkafka's own partitioner spreads empty keys
    producer = Producer({**clients.server, **PRODUCER, "partitioner": theirs})
    for key in keys:
        producer.produce(topic.name, b"there", key)
    assert producer.flush(WAIT_S) == 0
    mirrored(cluster, topic)
    notes = cluster.compare(topic.name, clients.address).notes
    assert [f"partitioner={ours}" in note for note in notes] == [True] * (ours != "murmur2")
    if ours != "murmur2":
        cluster.topics.alter_configs(topic.name, {"partitioner": ours})
    cluster.end_mirror(topic.name).raise_for_failures()
    cluster.produce(topic.name, [{"key": key, "value": b"here"} for key in keys], key="key").raise_for_failures()
    found: dict[bytes, dict[bytes, int]] = {b"there": {}, b"here": {}}
    for partition in range(7):
        for row in cluster.fetch(topic.name, partition, 0).records.select(["key", "value"]).to_pylist():
            found[row["value"]][row["key"]] = partition
    assert found[b"here"] == found[b"there"]
    assert len(set(found[b"here"].values())) == 7


def test_a_topic_with_the_longest_name_comes_under_another_one(
    cluster: Cluster, clients: KafkaClients, prefix: str
) -> None:
    topic, group = Topic(clients, prefix.ljust(249, "x"), partitions=1), f"{prefix}readers"
    topic.append("a", "b", "c")
    commit_there(clients, group, topic.name, 2)
    refused = cluster.mirror(topic.name, clients.address, check=False)
    assert f"--as {topic.name}=NAME" in refused.failures[0].message
    cluster.mirror(topic.name, clients.address, rename={topic.name: "t"}, replication_factor=2)
    assert cluster.groups.committed(group)["t", 0].offset == 2
    topic.append("d")
    assert mirrored(cluster, topic).rows[0]["topic"] == "t"
    assert cluster.describe("t").rows[0]["log_end"] == 4
