"""A mirrored topic and a real Kafka as one relation: every committed record once, whatever Kafka has deleted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from stratalog import Cluster
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import OffsetOutOfRangeError
from tests.kafka.kafka_clients import WAIT_S, KafkaClients, only, wait_until
from tests.kafka.mirrored import new_cluster
from tests.kafka.test_mirror import Topic
from tests.spark.streams import Seen, limits, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("STRATALOG_TEST_KILLS", "3"))
"""50 in the nightly run."""
RETENTION_MS = 8000


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    new_cluster(tmp_path).close()
    with closing(Cluster.open(tmp_path / "cluster.toml", spark)) as made:
        yield made


def delete_below(clients: KafkaClients, topic: str, offset: int, partition: int = 0) -> None:
    """Delete records as retention does, now."""
    only(clients.admin.delete_records([TopicPartition(topic, partition, offset)], operation_timeout=WAIT_S))


def rows(frame: DataFrame) -> list[tuple[int, int, str | None]]:
    found = frame.selectExpr("partition", "offset", "cast(value AS STRING)").orderBy("partition", "offset")
    return [tuple(row) for row in found.collect()]


def test_history_and_kafka_are_one_frame(clients: KafkaClients, cluster: Cluster, prefix: str) -> None:
    """Markers and aborted records of transactions are on neither side. The rows stay the same when everything is
    mirrored."""
    topic = Topic(clients, f"{prefix}one", 2)
    topic.append("a", None, "b")
    topic.transact("c")
    cluster.mirror(topic.name, clients.address, replication_factor=2)
    topic.transact("never", commit=False)
    topic.transact("d", "e")
    topic.append("x", partition=1)
    live = rows(cluster.read_live(topic.name, clients.address))
    assert [value for _, _, value in live] == ["a", None, "b", "c", "d", "e", "x"]
    cluster.mirror(topic.name, clients.address)
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
    cluster.mirror(topic.name, clients.address, replication_factor=2)
    topic.append("b", "c", "d")
    delete_below(clients, topic.name, 3)
    with pytest.raises(OffsetOutOfRangeError, match=r"had deleted the offsets \[1, 3\) before"):
        cluster.read_live(topic.name, clients.address)
    with pytest.warns(UserWarning, match=r"\[1, 3\)"):
        frame = cluster.read_live(topic.name, clients.address, fail_on_data_loss=False)
    assert [value for _, _, value in rows(frame)] == ["a", "d"]


@limits
def test_a_stream_that_stalled_for_longer_than_retention_loses_nothing(
    clients: KafkaClients, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    """The stream reads the history, Kafka's newest records, records that Kafka has deleted meanwhile, and Kafka
    again.
    """
    topic = Topic(clients, f"{prefix}stream", 1)
    seen = Seen("offset", "value")
    topic.append(*map(str, range(5)))
    cluster.mirror(topic.name, clients.address, replication_factor=2, archive=True)

    def run() -> None:
        writer = cluster.for_each_live_batch(
            topic.name, clients.address, seen, startingOffsets="earliest", maxOffsetsPerTrigger=4
        )
        to_its_end(writer, tmp_path / "checkpoint")

    topic.append(*map(str, range(5, 10)))
    run()
    topic.append(*map(str, range(10, 20)))
    cluster.mirror(topic.name, clients.address)
    delete_below(clients, topic.name, 20)
    topic.append(*map(str, range(20, 25)))
    run()
    assert [(offset, bytes(value)) for offset, value in seen.all] == [(n, str(n).encode()) for n in range(25)]


@limits
@pytest.mark.slow
@pytest.mark.long("starts a query again and again")
@pytest.mark.classic("it starts sessions of its own")
def test_a_killed_query_has_every_row_once_though_kafka_keeps_records_for_seconds(
    clients: KafkaClients, prefix: str, tmp_path: Path
) -> None:
    """kill -9 of its driver and JVM at any moment, while a mirror runs and Kafka deletes; the last run is
    undisturbed. A batch that runs again has the same rows."""
    rng = random.Random(43)
    topic = Topic(clients, f"{prefix}killed", 2)
    topic.configure(retention_ms=str(RETENTION_MS), segment_ms="1000")
    kept, run = tmp_path / "kept", [sys.executable, "-m", "tests.kafka.live_query", str(tmp_path), topic.name]
    counts, killed_in_work = Counter[int](), 0

    def append() -> None:
        """Append some records, most of them to either partition, and sometimes an aborted transaction."""
        # So that the topic expires as current records do.
        topic.now_ms = SystemClock().now_ms() - 1_700_000_000_000
        for partition in (0, 1):
            values = [f"{partition}-{counts[partition] + n}" for n in range(rng.randrange(1, 30))]
            topic.append(*values, partition=partition)
            counts[partition] += len(values)
        if rng.random() < 0.2:
            topic.transact("never", commit=False)

    with closing(new_cluster(tmp_path)) as cluster:
        append()
        wait_until(  # a broker that has just started loads its groups
            lambda: bool(
                cluster.mirror(topic.name, clients.address, replication_factor=2, archive=True, check=False)
            ),
            every_s=0.5,
        )
        for _ in range(KILLS):
            before, log = len(_files(kept)), tmp_path / "query.log"
            with log.open("wb") as out:
                query = subprocess.Popen(
                    [*run, clients.address], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
                )
            try:
                wanted, until = before + rng.randrange(0, 4), time.monotonic() + WAIT_S * 4
                while len(_files(kept)) < wanted or not (tmp_path / "checkpoint" / "offsets").exists():
                    assert query.poll() is None, log.read_text(errors="replace")[-3000:]
                    assert time.monotonic() < until, "the query does nothing"
                    append()
                    time.sleep(rng.random())  # only the source has the newest records
                    cluster.mirror(topic.name, clients.address)
                time.sleep(rng.random() * 2)
                assert query.poll() is None, log.read_text(errors="replace")[-3000:]
                killed_in_work += len(_files(kept)) > before
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(query.pid, signal.SIGKILL)
                query.wait()
        with clients.consumer("read_committed") as consumer:
            first, _ = consumer.get_watermark_offsets(TopicPartition(topic.name, 0), WAIT_S)
        assert first > 0, "Kafka has deleted some"
        append()
        cluster.mirror(topic.name, clients.address)  # a start takes longer than Kafka keeps records
        subprocess.run([*run, clients.address, "once"], cwd=ROOT, check=True, timeout=WAIT_S * 10)
    batches: dict[int, list[tuple[int, int, str]]] = {}
    attempts = _files(kept)
    for file in attempts:
        rows = sorted(tuple(row.values()) for row in pa.ipc.open_file(file).read_all().to_pylist())
        assert batches.setdefault(int(file.name.partition("-")[0]), rows) == rows, "the same rows at each attempt"
    found = sorted(row for rows in batches.values() for row in rows)
    for partition in (0, 1):
        values = [value for at, _, value in found if at == partition]
        assert values == [f"{partition}-{n}" for n in range(counts[partition])], "every row, none twice, in order"
    print(
        f"{KILLS} kills, {killed_in_work} after a batch; {len(found)} records in {len(batches)} batches, "
        f"{len(attempts) - len(batches)} of which ran again"
    )


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*") if not file.name.startswith(".")]
