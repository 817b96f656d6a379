"""The sink of a stream on executors: Spark's properties of its tasks, repeated batches, a task that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog import Cluster
from stratalog.engine.spark.sink_tasks import dealt, present_task
from stratalog.engine.spark.versions import SINK, spark_version
from tests.spark.streams import VALUE, Numbers, limits, source, stream_cluster, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark
if spark_version() < SINK:
    pytest.skip("a stream's sink takes Spark 4.1", allow_module_level=True)
from pyspark.sql.datasource import DataSourceStreamArrowWriter  # noqa: E402 - Spark 4.0 has none

PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = stream_cluster(spark, folder)
    made.topics.create("numbers", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    Numbers(made, spark, "numbers").append(60)
    return made


class Telling(DataSource):
    """A sink whose tasks write down their properties."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TellingWriter:  # noqa: N802 - Spark's name
        return TellingWriter(self.options["path"], dealt(schema))


class TellingWriter(DataSourceStreamArrowWriter):
    def __init__(self, folder: str, partitions: int | None) -> None:
        self._folder, self._partitions = folder, partitions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = present_task()
        found = sorted({one for batch in iterator for one in batch.column("partition").to_pylist()})
        assert task is not None
        line = json.dumps([task.query_id, task.batch_id, task.number, found, self._partitions])
        (Path(self._folder) / f"{task.batch_id}-{task.number}").write_text(line)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing."""


def run(records: DataFrame, sink: str, checkpoint: Path, **options: str) -> StreamingQuery:
    return to_its_end(records.writeStream.format(sink).options(**options), checkpoint)


def test_a_task_gets_its_batch_and_all_rows_of_its_partition(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Spark documents neither the local properties, nor that a task's number is that of its partition: this test
    finds a version of Spark that differs."""
    cluster.topics.create("told", partitions=PARTITIONS, replication_factor=2, key="STRING", value=VALUE)
    spark.dataSource.register(Telling)
    frame = source(spark, folder, "numbers", maxRowsPerTrigger=20)
    records = cluster.records("told", frame, key="key", value="value")
    (tmp_path / "told").mkdir()
    query = run(records, "telling", tmp_path / "checkpoint", path=str(tmp_path / "told"))
    messages = [json.loads(file.read_text()) for file in sorted((tmp_path / "told").iterdir())]
    assert {one[0] for one in messages} == {query.id}
    assert {(batch, number) for _, batch, number, _, _ in messages} >= {(b, n) for b in range(3) for n in range(3)}
    assert all(found in ([], [number]) for _, _, number, found, _ in messages)
    assert {one[4] for one in messages} == {PARTITIONS}


def test_a_batch_that_is_repeated_is_appended_once(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """As after the death of a driver that had not recorded its last batch in Spark's checkpoint."""
    cluster.topics.create("again", partitions=PARTITIONS, replication_factor=2, key="STRING", value=VALUE)
    for _ in range(2):
        frame = source(spark, folder, "numbers", maxRowsPerTrigger=20)
        records = cluster.records("again", frame, key="key", value="value")
        run(records, "stratalog", tmp_path, cluster=str(folder / "cluster.toml"), topic="again")
        for file in [*(tmp_path / "commits").iterdir()][-1:]:
            file.unlink()
    assert Counter(row.n for row in cluster.read("again").select("value.n").collect()) == Counter(range(60))
    keys = cluster.read("again").selectExpr("partition", "key", "value.n").collect()
    assert len({(row.partition, row.key) for row in keys}) == len({row.key for row in keys})


@pytest.mark.nightly
@limits
@pytest.mark.slow
@pytest.mark.classic("it starts a session of its own")
def test_a_task_that_dies_when_its_file_has_a_name_is_run_again_and_appends_nothing(tmp_path: Path) -> None:
    """In a separate session, with speculation: so the tasks append, and the driver gets no rows."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.dying_sink", str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["died", "yes", "records", "40", "distinct", "40"]
