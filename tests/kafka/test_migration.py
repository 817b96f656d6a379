"""The commands of docs/migration.md: from a Kafka to here, and to a fresh Kafka after the first one has gone."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from bench.kafka_server import running_kafka
from stratalog import Cluster, Committed
from stratalog.jobs.main import main
from tests.kafka.kafka_clients import CLIENT, PRODUCER, WAIT_S, only, wait_until
from tests.pages import blocks, make_cluster_file

pytestmark = pytest.mark.kafka
PAGE = "docs/migration.md"


def run(block: str, **addresses: str) -> None:
    """Run each command of a block, with brokers at these addresses."""
    for line in block.splitlines():
        for host, address in addresses.items():
            line = line.replace(f"{host}:9092", address)
        assert main(shlex.split(line)[1:]) == 0, line


def fill(address: str) -> list[tuple[int, bytes | None]]:
    """Append records in transactions and without, some of them aborted, and let a group read some. Returns the
    committed records."""
    settings = {"bootstrap.servers": address, **PRODUCER}
    admin = AdminClient(settings)
    only(admin.create_topics([NewTopic("trips", 2, 1, config={"retention.ms": "-1"})]))
    plain = Producer(settings)
    for number in range(50):
        plain.produce("trips", b"plain %d" % number, b"k%d" % (number % 5), partition=0, headers=[("n", b"1")])
    plain.flush(WAIT_S)
    transactional = Producer({**settings, "transactional.id": "t"})
    transactional.init_transactions(WAIT_S)
    for number in range(6):
        transactional.begin_transaction()
        for one in range(5):
            transactional.produce("trips", b"in %d/%d" % (number, one), partition=0)
        transactional.flush(WAIT_S)
        if number % 3:
            transactional.commit_transaction(WAIT_S)
        else:
            transactional.abort_transaction(WAIT_S)
    with closing(Consumer({"bootstrap.servers": address, **CLIENT, "group.id": "dashboard"})) as consumer:

        def committed() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition("trips", 0, 20)], asynchronous=False)
            except KafkaException:  # the coordinator of a new cluster is not available immediately
                return False
            return True

        wait_until(committed)
    return records(address)


def records(address: str, start: int = 0) -> list[tuple[int, bytes | None]]:
    """Offsets and values of committed records of partition 0."""
    found: list[tuple[int, bytes | None]] = []
    level = {"group.id": "look", "isolation.level": "read_committed", "enable.partition.eof": True}
    with closing(Consumer({"bootstrap.servers": address, **CLIENT, **level})) as consumer:
        consumer.assign([TopicPartition("trips", 0, start)])
        while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
            found.append((message.offset(), message.value()))
    return found


def test_a_kafka_is_restored_from_here_and_its_groups_continue(
    kafka_jars: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cluster_file(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRATALOG_CLUSTER", "cluster.toml")
    there, tiered, moves, ended, restored = blocks(PAGE, "sh")
    (tmp_path / "kafka-1").mkdir()
    with running_kafka(tmp_path / "kafka-1") as address:
        before = fill(address)
        run(f"{there}{tiered}{moves}{ended}", **{"kafka-1": address})
    with closing(Cluster.open("cluster.toml")) as cluster:
        (part, _) = cluster.plan_read("trips", start=Committed("dashboard")).partitions
        assert part.start == 20
        assert cluster.produce("trips", [{"value": b"here"}], partition=0).ok
        cluster.groups.commit("dashboard", {("trips", 0): 30})
    tables = [path.parent for path in tmp_path.glob("remote/**/_delta_log")]
    assert any(DeltaTable(str(table)).to_pyarrow_table().num_rows >= len(before) for table in tables)
    (tmp_path / "kafka-2").mkdir()
    with running_kafka(tmp_path / "kafka-2") as address:
        run(restored, **{"kafka-2": address})
        after = records(address)
        assert after == [*before, (after[-1][0], b"here")]
        with closing(Consumer({"bootstrap.servers": address, **CLIENT, "group.id": "dashboard"})) as consumer:
            (place,) = consumer.committed([TopicPartition("trips", 0)], WAIT_S)
        assert place.offset == 30
        assert records(address, place.offset)[0] == next(one for one in before if one[0] >= 30)
