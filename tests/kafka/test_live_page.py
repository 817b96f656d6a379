"""The tutorial on a mirrored topic and its source as one relation, from top to bottom, with a real Kafka."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.kafka.kafka_clients import WAIT_S, KafkaClients, only, wait_until
from tests.kafka.mirrored import new_cluster
from tests.kafka.test_mirror import Topic
from tests.pages import blocks
from tests.spark.streams import limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.delta]
AFTER_2026_MS = 1_767_312_000_000 - 1_700_000_000_000
"""2026-01-02 UTC, from the time of a topic's first record in these tests."""


@limits
@pytest.mark.long("four queries")
def test_the_code_of_the_tutorial_runs(
    clients: KafkaClients, spark: SparkSession, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka deletes records while the query is paused; both tables have every record once."""
    with closing(new_cluster(tmp_path)) as cluster:
        first = Topic(clients, f"{prefix}first", 1)
        wait_until(  # a broker that has just started loads its groups
            lambda: bool(cluster.mirror(first.name, clients.address, check=False)), every_s=0.5
        )
    monkeypatch.chdir(tmp_path)
    topic = Topic(clients, f"{prefix}trips", 2)
    setup, read, stream, refresh = blocks("docs/mirror.md", "python")
    names: dict[str, Any] = {}

    def run(code: str) -> None:
        exec(code.replace("kafka-1:9092", clients.address).replace('"trips"', repr(topic.name)), names)

    topic.append("0", "1", "2")
    run(setup)
    topic.now_ms = AFTER_2026_MS
    topic.append("3", "4")
    topic.append("other", partition=1)
    run(read)
    assert names["frame"].count() == 6
    assert names["since"].count() == 3
    run(stream)
    topic.append("5")
    names["cluster"].mirror([topic.name], clients.address)
    end = TopicPartition(topic.name, 0, 6)
    only(clients.admin.delete_records([end], operation_timeout=WAIT_S))
    topic.append("6")
    run(stream)
    run(refresh)
    expected = [(0, n, str(n)) for n in range(7)] + [(1, 0, "other")]
    for table in ("trips-table", "trips-2"):
        rows = spark.read.format("delta").load(str(tmp_path / table)).select("partition", "offset", "trip")
        assert sorted(tuple(row) for row in rows.collect()) == expected
