"""Read, process, write as a stream: output and input offsets in one transaction (KIP-98).

The group's offsets, not the checkpoint, determine the processed records: they are committed with the output or not
at all. So a process that repeats a batch first begins a transaction (which ends any open one), and then reads the
offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from stratalog import Cluster
from tests.depth import at_depth
from tests.spark.spark_cluster import format_cluster
from tests.spark.streams import limits, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = format_cluster(spark, folder)
    small = {"num.partitions": "1", "replication.factor": "2"}
    for topic in ("transaction.state.log", "offsets.topic"):
        made.topics.alter_configs(None, {f"{topic}.{name}": value for name, value in small.items()})
    made.topics.alter_configs(None, {"transaction.state.log.min.isr": "1"})
    made.topics.create("raw", partitions=2, replication_factor=2, value="n BIGINT")
    for topic in ("squares", "cubes"):
        made.topics.create(topic, partitions=2, replication_factor=2, value="n BIGINT, result BIGINT")
    return made


def nothing(step: str, batch_id: int) -> None:
    """Goes on."""


class Powers:
    """Squares and cubes, one of each number; ``at`` is called with the name of each step. It opens the cluster
    itself, because Spark Connect passes batches to a process of the server."""

    def __init__(self, folder: Path, at: Callable[[str, int], None] = nothing) -> None:
        self._file, self._at = folder / "cluster.toml", at

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        cluster = Cluster.open(self._file, batch.sparkSession)
        ends = {
            ("raw", row.partition): row.end
            for row in batch.groupBy("partition").agg((f.max("offset") + 1).alias("end")).collect()
        }
        with cluster.transactions.begin("powers") as t:
            done = cluster.groups.committed("powers", ["raw"], require_stable=True)
            if all(key in done and done[key].offset >= end for key, end in ends.items()):
                return
            n = f.col("value.n")
            t.append("squares", batch.select(n.alias("n"), (n * n).alias("result")))
            self._at("between", batch_id)
            t.append("cubes", batch.select(n.alias("n"), (n * n * n).alias("result")))
            t.commit_offsets("powers", ends)
            self._at("before the commit", batch_id)
        self._at("after the commit", batch_id)


def drain(spark: SparkSession, folder: Path, checkpoint: Path, each: Powers) -> None:
    """Process all current records, in batches of ten."""
    given = {"topic": "raw", "startingOffsets": "earliest", "maxRowsPerTrigger": "10"}
    frame = spark.readStream.format("stratalog").options(cluster=str(folder / "cluster.toml"), **given).load()
    to_its_end(frame.writeStream.foreachBatch(each), checkpoint)


def committed(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    rows = cluster.read(topic, isolation="read_committed").select("value.*").collect()
    return sorted(tuple(row) for row in rows)


ENDS = (("between", 0), ("after the commit", 0), ("before the commit", 1), ("after the commit", 2))
"""The step and the batch at which each query ends."""


@limits
def test_a_stream_cut_short_anywhere_processes_each_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Spark repeats a batch that is not in its checkpoint, even if its transaction was committed."""
    cluster.append("raw", spark.range(35).selectExpr("id AS n")).raise_for_failures()
    for step, batch in ENDS[: at_depth(test=2, nightly=4)]:

        def die(at: str, batch_id: int, step: str = step, batch: int = batch) -> None:
            if (at, batch_id) == (step, batch):
                raise KeyError(f"cut short {step}")

        with pytest.raises(StreamingQueryException, match=f"cut short {step}"):
            drain(spark, folder, tmp_path, Powers(folder, die))
    drain(spark, folder, tmp_path, Powers(folder))
    assert committed(cluster, "squares") == [(n, n**2) for n in range(35)]
    assert committed(cluster, "cubes") == [(n, n**3) for n in range(35)]
    assert cluster.groups.lag("powers").raise_for_failures().totals["lag"] == 0


@limits
def test_the_older_of_two_streams_with_one_transactional_id_is_fenced(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """It ends with one clear error, and writes nothing."""
    cluster.append("raw", spark.range(100, 105).selectExpr("id AS n")).raise_for_failures()
    before = len(committed(cluster, "squares"))

    def overtaken(at: str, batch_id: int) -> None:
        if at == "between":
            with Cluster.open(folder / "cluster.toml").transactions.begin("powers"):
                pass

    with pytest.raises(StreamingQueryException, match="a newer producer"):
        drain(spark, folder, tmp_path, Powers(folder, overtaken))
    assert len(committed(cluster, "squares")) == before
