"""Shared parts of the tests of streams: a cluster, numbers to append, a query that reads everything, and its
results."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from stratalog import Cluster
from stratalog.engine.spark.versions import LIMITS, spark_version
from tests.spark.spark_cluster import format_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

T = TypeVar("T")

VALUE = "n BIGINT, word STRING"
_LIMITED = "a stream's batches have limits from Spark 4.2 on"
limits = pytest.mark.skipif(spark_version() < LIMITS, reason=_LIMITED)
"""Marks a test whose stream is not made by ``source``."""


def stream_cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = format_cluster(spark, folder)
    made.topics.alter_configs(None, {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "1"})
    return made


def topic_of_its_own(cluster: Cluster, test: str) -> str:
    """A topic named after the test."""
    name = test[:80].replace("[", "-").replace("]", "")
    cluster.topics.create(name, partitions=2, replication_factor=2, key="STRING", value=VALUE)
    return name


class Numbers:
    """Appends 0, 1, 2, ... to a topic."""

    def __init__(self, cluster: Cluster, spark: SparkSession, topic: str) -> None:
        self._cluster, self._spark, self._topic = cluster, spark, topic
        self.count = 0

    def append(self, count: int) -> None:
        source = self._spark.range(self.count, self.count + count, numPartitions=1).selectExpr(
            "id AS n", "sha2(cast(id AS STRING), 256) AS word", "cast(id % 7 AS STRING) AS k"
        )
        self._cluster.append(self._topic, source, key="k").raise_for_failures()
        self.count += count


def source(spark: SparkSession, folder: Path, topic: str, **options: object) -> DataFrame:
    """A stream of a topic from its beginning. A test of limits is skipped if Spark has none."""
    if spark_version() < LIMITS and any(name.startswith("max") for name in options):
        pytest.skip(_LIMITED)
    given = {"cluster": str(folder / "cluster.toml"), "topic": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("stratalog").options(**{k: str(v) for k, v in given.items()}).load()


def patiently(act: Callable[[], T]) -> T:
    """Run again if Spark's process of a stream is not up within ten seconds, as on a busy machine. A late process
    still starts, and delays the next ones, so the pause between tries grows.
    """
    for pause_s in range(5, 65, 5):
        try:
            return act()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
            time.sleep(pause_s)
    return act()


def to_its_end(writing: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a query over all current records."""

    def run() -> StreamingQuery:
        query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return patiently(run)


def drain(frame: DataFrame, checkpoint: Path, each: Callable[[Any, int], None]) -> StreamingQuery:
    """Process all current records, batch by batch."""
    return to_its_end(frame.writeStream.foreachBatch(each).queryName("drain"), checkpoint)


class Seen:
    """The content of a query's batches. Spark Connect passes them to a copy of this object in a process of the
    server, so they are stored in a folder."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns or ("value.n",)
        self._folder = Path(tempfile.mkdtemp(prefix="stratalog-seen-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # of this process' Seen alone

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select(*self.columns).collect()
        held = sorted(tuple(row) if len(row) > 1 else row[0] for row in rows)
        (self._folder / f"{len(list(self._folder.iterdir())):06}").write_bytes(pickle.dumps(held))

    @property
    def batches(self) -> list[list[Any]]:
        return [pickle.loads(file.read_bytes()) for file in sorted(self._folder.iterdir())]

    @property
    def all(self) -> list[Any]:
        return sorted(row for batch in self.batches for row in batch)
