"""A session reads files of delta-rs, on a disk and in S3, without warnings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from stratalog.jobs.hadoop import s3a_settings
from stratalog.jobs.session import local_cores, read_properties
from stratalog.partitions.store.protocol import StoreOptions
from tests.spark.spark_cluster import format_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROWS = pa.table({"partition": pa.array([0, 0, 1], pa.int32()), "offset": pa.array([0, 1, 0], pa.int64())})


@pytest.mark.long("starts a JVM of its own")
@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.delta
def test_delta_tables_of_delta_rs_can_be_read_as_of_a_version_and_streamed(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    for _ in range(2):
        deltalake.write_deltalake(table, ROWS, mode="append")
    reader = spark.read.format("delta")
    assert reader.load(table).count() == 6
    assert spark.read.format("delta").option("versionAsOf", 0).load(table).count() == 3
    assert spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count() == 2
    assert spark.sql(f"VACUUM delta.`{table}` DRY RUN").count() == 0
    query = (
        spark.readStream.format("delta")
        .load(table)
        .writeStream.format("memory")
        .queryName("streamed")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("streamed").count() == 6


@pytest.mark.spark
def test_workers_run_the_same_python(spark: SparkSession) -> None:
    def interpreter(batches):  # type: ignore[no-untyped-def]
        import sys

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"executable": [sys.executable]})

    workers = spark.range(1).mapInArrow(interpreter, "executable string").collect()
    assert {row.executable for row in workers} == {sys.executable}


@pytest.mark.delta
@pytest.mark.long("starts a JVM of its own")
@pytest.mark.spark
@pytest.mark.classic("it starts a session of its own")
def test_a_session_starts_without_a_word_on_standard_error(tmp_path: Path) -> None:
    code = (
        "from stratalog.jobs.session import spark_session; "
        "print(spark_session('quiet', master='local[1]').range(3).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert (done.stdout.split(), done.stderr) == (["3"], "")


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("spark://host:7077", None), ("yarn", None)],
)
def test_the_master_determines_the_number_of_local_cores(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_properties_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# c\n\nspark.a   b c\nspark.d=e=f\nspark.g = h\nspark.i\n")
    expected = {"spark.a": "b c", "spark.d": "e=f", "spark.g": "h", "spark.i": ""}
    assert read_properties(file) == expected


def test_a_profile_is_named_and_no_secret_is_copied() -> None:
    settings = s3a_settings("b", StoreOptions(profile="ops"), {"AWS_SECRET_ACCESS_KEY": "hidden"}, "4.2.0")
    assert settings["fs.s3a.bucket.b.auth.profile.name"] == "ops"
    assert "hidden" not in str(settings)


@pytest.mark.spark
@pytest.mark.classic("it asks the JVM which jobs were started")
def test_sparks_pages_name_the_operation_of_a_job(spark: SparkSession, tmp_path: Path) -> None:
    cluster = format_cluster(spark, tmp_path)
    cluster.topics.create("t", partitions=1, replication_factor=1)
    cluster.replicate("t").raise_for_failures()
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(number).description() for number in range(jobs.size())]
    assert "Some(stratalog replicate)" in {each.toString() for each in described}
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None
