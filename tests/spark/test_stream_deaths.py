"""Streams whose queries die, are killed or stopped: they copy each record once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from stratalog import Cluster
from tests.crashes.victim import Victim
from tests.depth import at_depth
from tests.spark.spark_cluster import TIERED, ordered
from tests.spark.streams import VALUE, Numbers, drain, limits, source
from tests.spark.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark
LIVES = at_depth(test=5, nightly=20)


class DiedError(Exception):
    """The driver has died."""


class Dying:
    """Appends batches, and dies at a seeded moment: before, within, or after a batch."""

    def __init__(self, cluster: Cluster, topic: str, rng: random.Random) -> None:
        self._append = cluster.stream_writer(topic, key="key", value="value", producer="copy")
        self._rng = rng
        self._whole = -1
        self.alive_for = 0
        self.deaths: Counter[str] = Counter()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.alive_for -= 1
        how = "not" if self.alive_for >= 0 else self._rng.choice(["before", "amid", "after"])
        if how == "amid" and batch_id > self._whole:  # a complete batch is repeated completely, or not at all
            self._append(batch.where("pmod(hash(key), 2) = 0"), batch_id)
        elif how != "before":
            self._append(batch, batch_id)
            self._whole = max(self._whole, batch_id)
        if how != "not":
            self.deaths[how] += 1
            raise DiedError(how)


@pytest.mark.long("starts a query again and again")
@pytest.mark.slow
@pytest.mark.classic("the function of foreachBatch counts in the driver")
def test_a_query_that_dies_again_and_again_copies_every_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """From a tiered topic into another, while records are appended to the first one, merged, uploaded and dropped
    from the brokers."""
    rng = random.Random(25)
    cluster.topics.alter_configs(topic, TIERED)
    cluster.topics.create("copied", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(40)
    copy = Dying(cluster, "copied", rng)
    jobs = [cluster.merge, cluster.tier, cluster.retain, lambda name: numbers.append(rng.randrange(1, 40))]
    for _ in range(LIVES):
        copy.alive_for = rng.choice([0, 0, 1, 2])
        frame = source(spark, folder, topic, maxRowsPerTrigger=rng.randrange(5, 20), group="copy")
        try:
            drain(frame, tmp_path, copy)
        except StreamingQueryException as died:
            if "DiedError" not in str(died):
                raise
        for job in rng.sample(jobs, 2):
            job(topic)
        numbers.append(20)
    copy.alive_for = 1000
    drain(source(spark, folder, topic), tmp_path, copy)
    assert sum(copy.deaths.values()) >= LIVES - 2
    assert len(copy.deaths) == 3
    found = Counter(row.n for row in cluster.read("copied").select("value.n").collect())
    assert found == Counter(range(numbers.count))
    keys = ordered(cluster.read("copied"), "partition", "key", "value.n")
    for key in {key for _, key, _ in keys}:
        assert [n for _, k, n in keys if k == key] == sorted(n for _, k, n in keys if k == key)


@pytest.mark.long("starts spark-submit again and again")
@pytest.mark.nightly
@limits
@pytest.mark.slow
@pytest.mark.classic("it starts sessions of its own")
def test_a_job_that_is_killed_copies_every_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """kill -9 of a spark-submit at a certain progress; the last run is undisturbed."""
    rng = random.Random(9)
    cluster.topics.create("killed", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(100)
    argv = ["--cluster", str(folder / "cluster.toml"), "killed", "--input", topic, "--key", "key"]
    argv += ["--format", "stratalog", "--option", "startingOffsets=earliest", "--option", "maxRowsPerTrigger=10"]
    argv += ["--value", "value", "--stream", "--checkpoint", str(tmp_path / "cp"), "--producer", "copy"]

    def begun() -> int:
        return len(list((tmp_path / "cp" / "offsets").glob("[0-9]*")))

    for run in range(2):
        further = begun() + rng.randrange(1, 4)
        victim = Victim("append", argv, tmp_path / f"{run}.log")
        wait_for("batches", lambda further=further, victim=victim: begun() >= further or victim.ended)
        assert not victim.ended, victim.output
        victim.kill()
    last = Victim("append", argv, tmp_path / "last.log")
    assert last.wait() == 0, last.output
    assert Counter(row.n for row in cluster.read("killed").select("value.n").collect()) == Counter(range(100))


@pytest.mark.nightly
@pytest.mark.long("starts a query again and again")
def test_a_query_that_is_stopped_in_the_middle_of_its_batches_copies_every_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """``stop`` interrupts the running work of the format's own sink. A stop during the first file of a checkpoint
    is left out, because Spark refuses the resulting checkpoint.
    """
    cluster.topics.create("stopped", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(200)

    def start(now: bool) -> StreamingQuery:
        frame = source(spark, folder, topic, maxRowsPerTrigger=20).select("value.*", "key")
        records = cluster.records("stopped", frame, key="key")
        writer = records.writeStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
        writer = writer.option("topic", "stopped").option("checkpointLocation", str(tmp_path))
        return (writer.trigger(availableNow=True) if now else writer).start()

    for pause in (0.5, 2.2, 3.1):
        query = start(now=False)
        wait_for("a batch", (tmp_path / "offsets" / "0").exists)
        query.awaitTermination(pause)
        query.stop()
    start(now=True).awaitTermination()
    assert Counter(row.n for row in cluster.read("stopped").select("value.n").collect()) == Counter(range(200))


@pytest.mark.nightly
@pytest.mark.long("starts a query twice")
def test_a_batch_whose_end_spark_did_not_note_is_not_appended_again(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """The driver died between the append and the checkpoint: the batch is repeated under its id."""
    cluster.topics.create("noted", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    Numbers(cluster, spark, topic).append(30)
    writer = cluster.stream_writer("noted", key="key", value="value", producer="copy")
    for _ in range(3):
        drain(source(spark, folder, topic), tmp_path, writer)
        for file in (tmp_path / "commits").iterdir():
            file.unlink()
    assert cluster.read("noted").count() == 30
