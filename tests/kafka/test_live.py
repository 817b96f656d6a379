"""A mirrored topic and a real Kafka as one relation: every committed record once, whatever Kafka has deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from stratalog import Cluster
from stratalog.partitions.errors import OffsetOutOfRangeError
from tests.kafka.kafka_clients import WAIT_S, KafkaClients, only
from tests.kafka.mirrored import new_cluster
from tests.kafka.test_mirror import Topic
from tests.spark.streams import Seen, limits, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    new_cluster(tmp_path).close()
    with closing(Cluster.open(tmp_path / "cluster.toml", spark)) as made:
        yield made


def delete_below(clients: KafkaClients, topic: str, offset: int, partition: int = 0) -> None:
    """What retention does, now."""
    only(clients.admin.delete_records([TopicPartition(topic, partition, offset)], operation_timeout=WAIT_S))


def rows(frame: DataFrame) -> list[tuple[int, int, str | None]]:
    found = frame.selectExpr("partition", "offset", "cast(value AS STRING)").orderBy("partition", "offset")
    return [tuple(row) for row in found.collect()]


def test_history_and_kafka_are_one_frame(clients: KafkaClients, cluster: Cluster, prefix: str) -> None:
    """Transactions: markers and aborted records are on neither side. The same rows when all of it is mirrored."""
    topic = Topic(clients, f"{prefix}one", 2)
    topic.append("a", None, "b")
    topic.transact("c")
    cluster.mirror(clients.address, topic.name, replication_factor=2)
    topic.transact("never", commit=False)
    topic.transact("d", "e")
    topic.append("x", partition=1)
    live = rows(cluster.read_live(topic.name, clients.address))
    assert [value for _, _, value in live] == ["a", None, "b", "c", "d", "e", "x"]
    cluster.mirror(clients.address, topic.name)
    assert rows(cluster.read_live(topic.name, clients.address)) == live == rows(cluster.read(topic.name))
    delete_below(clients, topic.name, 5)
    assert rows(cluster.read_live(topic.name, clients.address, 0)) == live, (
        "the log here keeps an old plan's start"
    )


def test_records_that_kafka_deleted_before_they_were_mirrored_are_named(
    clients: KafkaClients, cluster: Cluster, prefix: str
) -> None:
    topic = Topic(clients, f"{prefix}lost", 1)
    topic.append("a")
    cluster.mirror(clients.address, topic.name, replication_factor=2)
    topic.append("b", "c", "d")
    delete_below(clients, topic.name, 3)
    with pytest.raises(OffsetOutOfRangeError, match=r"had deleted the offsets \[1, 3\) before"):
        cluster.read_live(topic.name, clients.address)
    with pytest.warns(UserWarning, match=r"\[1, 3\)"):
        frame = cluster.read_live(topic.name, clients.address, fail_on_data_loss=False)
    assert [value for _, _, value in rows(frame)] == ["a", "d"]


@limits
def test_a_stream_that_stood_still_for_longer_than_retention_loses_nothing(
    clients: KafkaClients, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    """It reads the history, Kafka's newest records, then what Kafka has deleted meanwhile, and Kafka again."""
    topic = Topic(clients, f"{prefix}stream", 1)
    seen = Seen("offset", "value")
    topic.append(*map(str, range(5)))
    cluster.mirror(clients.address, topic.name, replication_factor=2, archive=True)

    def run() -> None:
        writer = cluster.for_each_live_batch(
            topic.name, clients.address, seen, startingOffsets="earliest", maxOffsetsPerTrigger=4
        )
        to_its_end(writer, tmp_path / "checkpoint")

    topic.append(*map(str, range(5, 10)))
    run()
    topic.append(*map(str, range(10, 20)))
    cluster.mirror(clients.address, topic.name)
    delete_below(clients, topic.name, 20)
    topic.append(*map(str, range(20, 25)))
    run()
    assert [(offset, bytes(value)) for offset, value in seen.all] == [(n, str(n).encode()) for n in range(25)]
