"""A stream from topic to topic with brokers and the remote tier in buckets of a real S3 server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster, load_cluster_file
from stratalog.jobs.hadoop import reach_stores
from tests.s3_server import SECRET_KEY, S3Endpoint
from tests.spark.spark_cluster import TIERED
from tests.spark.streams import limits, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]

CLUSTER = """
[cluster]
id = "stream-on-s3"
remote = "s3://{remote}/{prefix}/remote"
voters = [1]

[[brokers]]
id = 1
log_dir = "s3://{bucket}/{prefix}/broker-1"

[s3]
endpoint_url = "{url}"
region = "{region}"
"""


@pytest.fixture
def file(s3_endpoint: S3Endpoint, tmp_path: Path) -> Path:
    bucket, remote = s3_endpoint.buckets
    file = tmp_path / "cluster.toml"
    file.write_text(
        CLUSTER.format(
            bucket=bucket, remote=remote, prefix=tmp_path.name, url=s3_endpoint.url, region=s3_endpoint.region
        )
    )
    return file


@limits
def test_a_stream_reads_buckets_of_both_tiers_and_writes_down_no_secret(
    spark: SparkSession, s3_endpoint: S3Endpoint, file: Path, tmp_path: Path
) -> None:
    """Credentials come from the environment of each process: they are not in options, plans or the checkpoint."""
    reach_stores(spark, load_cluster_file(file).roots)
    cluster = Cluster.format(file, spark)
    cluster.topics.create("t", partitions=2, replication_factor=1, value="n BIGINT", configs=TIERED)
    cluster.topics.create("u", partitions=1, replication_factor=1, value="n BIGINT")
    writer = cluster.stream_writer("u", producer="copy", value="value")
    frame = (
        spark.readStream.format("stratalog")
        .options(cluster=str(file), startingOffsets="earliest", maxRowsPerTrigger="60")
        .load("t")
    )
    for sequence in range(2):
        part = spark.range(sequence * 50, sequence * 50 + 50).selectExpr("id AS n")
        cluster.append("t", part, producer="p", sequence=sequence).raise_for_failures()
        for job in (cluster.tier, cluster.retain):
            job("t").raise_for_failures()
        query = to_its_end(frame.writeStream.foreachBatch(writer), tmp_path / "checkpoint")
        assert SECRET_KEY not in str(query.lastProgress)
    assert any(part.remote for part in cluster.plan_read("t"))
    assert Counter(row.n for row in cluster.read("u").select("value.n").collect()) == Counter(range(100))
    written = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET_KEY.encode() in content for content in written)
