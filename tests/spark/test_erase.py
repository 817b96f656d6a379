"""The job erase, with its tasks in Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from stratalog.jobs.main import job_of
from stratalog.partitions.records import RECORD_COLUMNS
from tests.spark.spark_cluster import write_cluster_file
from tests.unit.snapshot_harness import keyed
from tests.unit.test_where import CASES, VALUE_DDL, batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_job_erases_certifies_and_verifies(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c").mkdir()
    file = write_cluster_file(tmp_path / "c")
    cluster = Cluster.format(file, spark)
    cluster.topics.create("t", partitions=2, replication_factor=2)
    for partition in (0, 1):
        for number in range(3):
            pairs = [("erase-me", f"secret-{number}"), (f"keep-{number}", "1")]
            cluster.append_batches("t", {partition: [keyed(pairs, 1)]}).raise_for_failures()
    (tmp_path / "keys").write_text("erase-me\nnobody\n")
    given = ["t", "--cluster", str(file), "--keys-file", str(tmp_path / "keys")]
    assert job_of("erase")([*given, "--dry-run", "--json"]) == 0
    assert [row["records"] for row in json.loads(capsys.readouterr().out)["rows"]] == [3, 3]
    certificate = str(tmp_path / "erased.json")
    assert job_of("erase")([*given, "--certificate", certificate, "--now", "--yes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["totals"]["whole"] is True
    assert job_of("verify")(["--cluster", str(file), "--erased", certificate]) == 0
    left = cluster.read("t").orderBy("partition", "offset").select("partition", "offset", "key").collect()
    assert [(row.partition, row.offset, bytes(row.key)) for row in left] == [
        (partition, 2 * number + 1, b"keep-%d" % number) for partition in (0, 1) for number in range(3)
    ]
    assert job_of("erase")(["t", "--cluster", str(file), "--yes"]) == 0, "nothing is left to carry on with"


def test_the_job_erases_in_both_tiers(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c").mkdir()
    file = write_cluster_file(tmp_path / "c")
    cluster = Cluster.format(file, spark)
    configs = {"remote.storage.enable": "true", "segment.bytes": "1", "local.retention.bytes": "0"}
    cluster.topics.create("t", partitions=2, replication_factor=2, configs={**configs, "retention.ms": "-1"})
    for partition in (0, 1):
        for number in range(3):
            pairs = [("erase-me", f"secret-{number}"), (f"keep-{number}", "1")]
            cluster.append_batches("t", {partition: [keyed(pairs, 1)]}).raise_for_failures()
    cluster.tier("t").raise_for_failures()
    cluster.retain("t").raise_for_failures()
    (tmp_path / "keys").write_text("erase-me\n")
    given = ["t", "--cluster", str(file), "--keys-file", str(tmp_path / "keys")]
    certificate = str(tmp_path / "erased.json")
    assert job_of("erase")([*given, "--certificate", certificate, "--now", "--yes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["totals"]["whole"] is True
    assert sum(row["remote_files"] for row in report["rows"]) > 0
    assert job_of("verify")(["--cluster", str(file), "--erased", certificate]) == 0
    left = cluster.read("t").orderBy("partition", "offset").select("partition", "offset", "key").collect()
    assert [(row.partition, row.offset, bytes(row.key)) for row in left] == [
        (partition, 2 * number + 1, b"keep-%d" % number) for partition in (0, 1) for number in range(3)
    ]


def test_a_condition_of_an_erasure_selects_what_spark_selects(spark: SparkSession, tmp_path: Path) -> None:
    cluster = Cluster.format(write_cluster_file(tmp_path), spark)
    cluster.topics.create("t", partitions=1, replication_factor=1, value=VALUE_DDL)
    cluster.append_batches("t", {0: [batch().select(RECORD_COLUMNS)]}).raise_for_failures()
    frame = cluster.read("t")
    named = frame.selectExpr("offset", *(f"{text} AS `{number}`" for number, text in enumerate(CASES)))
    rows = named.orderBy("offset").collect()
    for number, (text, expected) in enumerate(CASES.items()):
        assert [row.offset for row in rows if row[f"{number}"]] == expected, text
    text = "value.name LIKE 'A%' OR value.x > 1.0"
    expected = [row.offset for row in frame.where(text).orderBy("offset").collect()]
    (row,) = cluster.erase("t", where=text).rows
    assert row["records"] == len(expected) == 3
    assert [row.offset for row in cluster.read("t").orderBy("offset").collect()] == [2, 3, 5]
