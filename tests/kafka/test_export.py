"""Topics exported to a real Kafka broker: equal there, whatever is killed, and groups continue at the same
record."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from stratalog import Cluster, Committed
from stratalog.bridges.export.kafka_target import open_target
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.partitions.clock import SystemClock
from tests.kafka.kafka_clients import CLIENT, WAIT_S, KafkaClients, only, wait_until
from tests.kafka.test_mirror import ROOT, Topic, mirrored

pytestmark = pytest.mark.kafka
KILLS = 4


def delete(clients: KafkaClients, topic: str) -> None:
    """Delete the topic there."""
    only(clients.admin.delete_topics([topic]))
    wait_until(lambda: topic not in clients.admin.list_topics().topics)


def read(clients: KafkaClients, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    """Offset and value of each committed record."""
    found: list[tuple[int, bytes | None]] = []
    with clients.consumer("read_committed") as consumer:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
            found.append((message.offset(), message.value()))
    return found


def committed(clients: KafkaClients, group: str, topic: str) -> int:
    """The record at which a consumer of the group continues."""
    with closing(Consumer({**clients.server, **CLIENT, "group.id": group})) as consumer:
        (one,) = consumer.committed([TopicPartition(topic, 0)], WAIT_S)
    return int(one.offset)


def test_a_gap_of_one_offset_may_follow_a_commit_at_once(clients: KafkaClients, prefix: str) -> None:
    """Brokers are still writing the markers of that commit, and no partition has joined a new transaction yet."""
    name = f"{prefix}gaps"
    with closing(open_target(clients.address, {}, SystemClock())) as target:
        target.create_topic(name, 1, {}, 1)
        target.begin(f"{name}-journal", 1)
        for offset in range(0, 40, 2):
            target.transact(name, {}, lambda _: [b"an entry"])
            target.take(name, 0, offset, 1)
            assert target.append(name, 0, [SourceRecord(0, None, b"k", b"v", (), None)]) == [offset + 1]
    assert read(clients, name) == [(offset, b"v") for offset in range(1, 40, 2)]


def test_a_topic_comes_back_with_its_gaps_at_the_same_offsets(
    clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    topic = Topic(clients, f"{prefix}back")
    topic.append("a", None, "b")
    topic.transact("c", "d")
    topic.transact("never", "ever", commit=False)
    topic.transact("e", partition=1)
    mirrored(cluster, topic)
    cluster.groups.commit("readers", {(topic.name, 0): 4})
    delete(clients, topic.name)
    report = cluster.export(topic.name, clients.address).raise_for_failures()
    assert [(row["exported"], row["records"], row["gaps"]) for row in report.rows] == [
        (9, 5, 4),
        (2, 1, 1),
        (0, 0, 0),
    ]
    compared = cluster.compare(topic.name, clients.address).raise_for_failures()
    assert compared.totals == {"there": 6, "here": 6, "differences": 0}
    assert committed(clients, "readers", topic.name) == 4
    cluster.end_mirror(topic.name)
    cluster.produce(topic.name, [{"value": b"more"}], partition=0).raise_for_failures()
    assert cluster.export(topic.name, clients.address).raise_for_failures().totals["records"] == 1
    cluster.compare(topic.name, clients.address).raise_for_failures()


def test_ranges_and_the_rest_of_a_group_follow_the_existing_records(
    clients: KafkaClients, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    name, there = f"{prefix}here", Topic(clients, f"{prefix}there", 1)
    there.append("theirs")
    cluster.topics.create(name, partitions=1, replication_factor=2)
    cluster.produce(name, [{"value": b"%d" % number} for number in range(6)]).raise_for_failures()
    cluster.groups.commit("g", {(name, 0): 4})
    for _ in range(2):
        for named, start in (("some", 1), ("rest", Committed("g"))):
            cluster.export(
                name,
                clients.address,
                name=f"{prefix}{named}",
                target_topic=there.name,
                new_offsets=True,
                start=start,
                end=3 if start == 1 else None,
                offset_map=str(tmp_path / "map"),
            ).raise_for_failures()
    assert [value for _, value in read(clients, there.name)] == [b"theirs", b"1", b"2", b"4", b"5"]
    of = dict(read(clients, there.name))
    rows = DeltaTable(str(tmp_path / "map")).to_pyarrow_table().to_pylist()
    assert [of[row["target_offset"]] for row in rows] == [b"%d" % row["offset"] for row in rows]


def test_the_most_extreme_timestamps_survive_mirror_and_export(
    clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    """All timestamps that the log can hold, including none, and times before 1970."""
    stamps = [-1, 1, -2, 2**53, 5, 9223372036854775, -9223372036854775]
    any_time = {
        "message.timestamp.after.max.ms": str(2**63 - 1),
        "message.timestamp.before.max.ms": str(2**63 - 1),
    }
    topic = Topic(clients, f"{prefix}stamps", 1, **any_time)
    for stamp in stamps:
        topic.plain.produce(topic.name, b"v", partition=0, timestamp=stamp)
    assert topic.plain.flush(WAIT_S) == 0
    mirrored(cluster, topic)
    found = cluster.fetch(topic.name, 0, 0).records.column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [None, *(stamp * 1000 for stamp in stamps[1:])]
    delete(clients, topic.name)
    refused = cluster.export(topic.name, clients.address, check=False)
    assert "message.timestamp.after.max.ms" in refused.failures[0].message
    delete(clients, topic.name)
    back = Topic(clients, topic.name, 1, **any_time)
    cluster.export(back.name, clients.address).raise_for_failures()
    cluster.compare(back.name, clients.address).raise_for_failures()
    with clients.consumer("read_committed") as consumer:
        consumer.assign([TopicPartition(back.name, 0, 0)])
        assert [one.timestamp() for one in consumer.consume(len(stamps), WAIT_S)] == [
            (1, stamp) for stamp in stamps
        ]


@pytest.mark.parametrize("new", [False, True], ids=["kept", "new"])
def test_exports_are_killed_and_one_stalls_and_each_record_is_there_once(
    new: bool, clients: KafkaClients, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    """kill -9 at some moment of a run, repeatedly; and a zombie that was paused meanwhile continues."""
    name = f"{prefix}killed"
    cluster.topics.create(name, partitions=2, replication_factor=2)
    rng, stop = random.Random(7), threading.Event()
    extra = ["--new-offsets"] if new else []
    journal = f"stratalog-export.c.{name}"

    def fill() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            rows = [{"value": b"%d/%d" % (number, n)} for n in range(500)]
            cluster.produce(name, rows, partition=number % 2).raise_for_failures()

    def start() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "stratalog.bridges.jobs.export",
            "--cluster",
            str(tmp_path / "cluster.toml"),
        ]
        command += ["--to", clients.address, name, "--every", "1ms", *extra]
        command += ["--config", "message.timeout.ms=4000"]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> int:
        if journal not in clients.admin.list_topics().topics:
            return 0
        with clients.consumer("read_committed") as consumer:
            return int(consumer.get_watermark_offsets(TopicPartition(journal, 0), WAIT_S)[1])

    def goes_on() -> None:
        before = end()
        wait_until(lambda: end() > before)

    filling = threading.Thread(target=fill)
    filling.start()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        zombie = start()
        processes.append(zombie)
        goes_on()
        zombie.send_signal(signal.SIGSTOP)
        for _ in range(KILLS):
            victim = start()
            processes.append(victim)
            goes_on()
            time.sleep(rng.random() / 4)
            victim.kill()
            victim.wait()
        last = start()
        processes.append(last)
        goes_on()
        zombie.send_signal(signal.SIGCONT)
        goes_on()
    finally:
        stop.set()
        for process in processes:
            process.kill()
            process.wait()
        filling.join()
    report = cluster.export(
        name, clients.address, new_offsets=new, configs={"message.timeout.ms": "4000"}
    ).raise_for_failures()
    assert report.totals["lag"] == 0
    if not new:
        assert cluster.compare(name, clients.address).raise_for_failures().totals["differences"] == 0
    for partition in (0, 1):
        values = [value for _, value in read(clients, name, partition)]
        assert len(values) > 500
        assert values == sorted(set(values), key=order), "each once, in order"
        (row,) = (row for row in report.rows if row["partition"] == partition)
        assert len(values) == row["end"]


def order(value: bytes | None) -> tuple[int, int]:
    """The order of the values of ``fill``."""
    assert value is not None
    batch, _, number = value.partition(b"/")
    return int(batch), int(number)
