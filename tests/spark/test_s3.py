"""Brokers on a folder and in a bucket, the remote tier in another bucket, on a real S3 server."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from bench.s3_server import ACCESS_KEY, credentials
from stratalog import Cluster, load_cluster_file
from stratalog.jobs.hadoop import reach_stores
from stratalog.partitions.store import StoreOptions, open_store, s3_session
from stratalog.partitions.store.s3_connection import client_of
from tests.s3_server import SECRET_KEY, S3Endpoint
from tests.spark.spark_cluster import begun
from tests.spark.standalone import spark_submit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]

ROOT = Path(__file__).resolve().parents[2]
WRONG_KEY = "not-the-secret-at-all"
CLUSTER_KEY = "bm90LXRoZS1rZXktb2YtYW55LWNsdXN0ZXItYXQtYWxs"

CLUSTER = """
[cluster]
id = "on-s3"
remote = "s3://{remote}/{prefix}/remote"
voters = [1]

[[brokers]]
id = 1
rack = "a"
log_dir = "broker-1"

[[brokers]]
id = 2
rack = "b"
log_dir = "s3://{bucket}/{prefix}/broker-2"

[s3]
endpoint_url = "{url}"
region = "{region}"
"""


@pytest.fixture
def file(s3_endpoint: S3Endpoint, tmp_path: Path) -> Path:
    (tmp_path / "broker-1").mkdir()
    bucket, remote = s3_endpoint.buckets
    file = tmp_path / "cluster.toml"
    file.write_text(
        CLUSTER.format(
            bucket=bucket, remote=remote, prefix=tmp_path.name, url=s3_endpoint.url, region=s3_endpoint.region
        )
    )
    return file


@pytest.fixture
def cluster(spark: SparkSession, s3_endpoint: S3Endpoint, file: Path) -> Cluster:
    reach_stores(spark, load_cluster_file(file).roots)
    return Cluster.format(file, spark)


@pytest.fixture
def named_by_environment(s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster in a bucket that no test has opened. Only the driver's environment names the server."""
    client = client_of(StoreOptions(s3_endpoint.url, s3_endpoint.region))
    bucket = f"named-by-{tmp_path.name.replace('_', '-')[:50].strip('-')}".lower()
    client.create_bucket(Bucket=bucket)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint.url)
    file = tmp_path / "cluster.toml"
    text = CLUSTER.partition("[s3]")[0].replace('"broker-1"', '"s3://{bucket}/{prefix}/broker-1"')
    file.write_text(text.format(prefix=tmp_path.name, bucket=bucket, remote=bucket))
    return file


@pytest.mark.delta
def test_spark_reaches_a_server_that_only_the_environment_names(
    spark: SparkSession, named_by_environment: Path
) -> None:
    """Spark's tasks, its Parquet reader and its Delta tables go there."""
    roots = load_cluster_file(named_by_environment).roots
    reach_stores(spark, roots)
    cluster = Cluster.format(named_by_environment, spark)
    configs = {"remote.storage.enable": "true", "segment.bytes": "1", "local.retention.bytes": "0"}
    cluster.topics.create("t", partitions=1, replication_factor=2, configs={**configs, "retention.ms": "-1"})
    for first in (0, 50):
        frame = spark.range(first, first + 50).selectExpr("cast(id AS STRING) AS value")
        cluster.append("t", frame).raise_for_failures()
    for operation in (cluster.replicate, cluster.tier, cluster.retain):
        operation().raise_for_failures()
    assert any(part.remote for part in cluster.plan_read("t"))
    assert cluster.read("t").count() == 100
    table = f"{cluster.file.remote}/t-{cluster.image.topic('t').topic_id}"
    assert spark.read.format("delta").load(table).count() > 0
    cluster.verify(deep=True).raise_for_failures()


@pytest.mark.nightly
@pytest.mark.classic("it starts a session of its own")
@pytest.mark.delta
def test_spark_uses_a_profile_that_only_the_environment_names(
    named_by_environment: Path, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile has the server and the keys, for S3A too, which does not read profiles itself."""
    folder = named_by_environment.parent
    for variable in ("AWS_ENDPOINT_URL_S3", *credentials()):
        monkeypatch.delenv(variable)
    (folder / "config").write_text(
        f"[profile lake]\nregion = {s3_endpoint.region}\nendpoint_url = {s3_endpoint.url}\n"
    )
    (folder / "credentials").write_text(
        f"[lake]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3_session._session.cache_clear()
    begun(named_by_environment)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.reading_clouds", str(named_by_environment)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    s3_session._session.cache_clear()
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    assert "READ [False, True] ['a', 'b', 'c'] 2" in done.stdout
    assert SECRET_KEY not in done.stdout + done.stderr


def rows(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.mark.delta
@pytest.mark.connect
def test_a_log_lives_on_folders_and_on_buckets(
    cluster: Cluster, spark: SparkSession, s3_endpoint: S3Endpoint
) -> None:
    """Append, replicate, merge, tier, drop the local prefix, read both tiers, verify every byte."""
    configs = {
        "remote.storage.enable": "true",
        "segment.bytes": "20000",
        "segment.merge.min.files": "2",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "0",
    }
    cluster.topics.create(
        "t", partitions=2, replication_factor=2, key="STRING", value="n BIGINT, word STRING", configs=configs
    )
    source = spark.range(6000).selectExpr(
        "cast(id AS STRING) AS key", "id AS n", "sha2(cast(id AS STRING), 256) AS word"
    )
    for sequence in range(3):
        part = source.where(f"n % 3 = {sequence}")
        cluster.append("t", part, key="key", producer="p", sequence=sequence).raise_for_failures()
    for operation in (cluster.merge, cluster.replicate, cluster.tier, cluster.retain, cluster.retain):
        operation().raise_for_failures()

    assert any(part.remote for part in cluster.plan_read("t"))
    assert rows(cluster.read("t").select("key", "value.n", "value.word")) == rows(source)
    cluster.verify(deep=True).raise_for_failures()

    topic = cluster.image.topic("t")
    bucket, prefix = s3_endpoint.buckets[1], cluster.plan_read("t")[0].uri.split("/")[3]
    address = f"s3://{bucket}/{prefix}/remote/t-{topic.topic_id}"
    options = {"AWS_ENDPOINT_URL": s3_endpoint.url, "AWS_ALLOW_HTTP": "true"}
    by_delta_rs = deltalake.DeltaTable(address, storage_options=options).to_pyarrow_table().num_rows
    assert by_delta_rs == spark.read.format("delta").load(address).count() > 0


def test_a_broker_in_a_bucket_that_lost_everything_comes_back(
    cluster: Cluster, spark: SparkSession, s3_endpoint: S3Endpoint
) -> None:
    """KIP-903: it is another incarnation; it rejoins the ISR after it has copied the records that are not
    tiered."""
    cluster.topics.create("t", partitions=1, replication_factor=2)
    frame = spark.range(100).selectExpr("cast(id AS STRING) AS value")
    cluster.append("t", frame).raise_for_failures()
    store = cluster.stores[2]
    store.delete([stored.name for stored in store.list("")])

    report = cluster.bootstrap(2).raise_for_failures()

    assert set(cluster.image.topic("t").partitions[0].isr) == {1, 2}
    assert int(report.totals["copied_bytes"] or 0) > 0
    cluster.verify(deep=True).raise_for_failures()


def run_telling_everything(file: Path, secret: str, *argv: str) -> str:
    """The output of ``telling.py`` under spark-submit, with this secret key in its environment and an event
    log."""
    events = file.parent / "events"
    events.mkdir(exist_ok=True)
    settings = {
        "spark.master": "local[1]",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.hadoop.fs.s3a.session.token": "by-hand",
        "spark.local.dir": str(file.parent / "spark"),
    }
    command = spark_submit()
    command += [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
    environ |= {"PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), environ["PATH"]]), "PYTHONPATH": str(ROOT)}
    environ |= {"AWS_SECRET_ACCESS_KEY": secret, "STRATALOG_CLUSTER_KEY": CLUSTER_KEY}
    done = subprocess.run(
        [*command, "tests/spark/telling.py", str(file), *argv],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.classic("it tells all settings of the JVM")
def test_a_secret_is_in_nothing_that_a_run_leaves(file: Path, s3_endpoint: S3Endpoint) -> None:
    """The secret is neither in the output (reports, plans, settings including Hadoop's, exceptions for a wrong
    key, pickles), nor in a file or an object: event logs, checkpoints, Delta's logs, the roots.
    """
    found = run_telling_everything(file, SECRET_KEY, "format")
    assert (
        found.count("Traceback (most")
        == found.count("UnsupportedStoreError: the folder to export to: this address (s3:...) is refused")
        == 1
    )
    assert "\nfs.s3a.session.token=by-hand\n" in found, "Hadoop's settings were looked at; what a user sets stays"
    refused = run_telling_everything(file, WRONG_KEY)
    assert refused.count("Traceback (most") >= 3
    assert "SignatureDoesNotMatch" in refused or "403" in refused
    secrets = (SECRET_KEY, WRONG_KEY, CLUSTER_KEY, str(base64.b64decode(CLUSTER_KEY))[2:-1], "hunter2")
    for secret in secrets:
        assert secret not in found + refused

    left = {path: path.read_bytes() for path in file.parent.rglob("*") if path.is_file()}
    for bucket in s3_endpoint.buckets:
        store = open_store(f"s3://{bucket}/{file.parent.name}", StoreOptions(s3_endpoint.url, s3_endpoint.region))
        left |= {Path(store.uri_of(stored.name)): store.read(stored.name) for stored in store.list("")}
    assert any(b"fs.s3a.bucket." in data for path, data in left.items() if "events" in path.parts)
    assert any("_delta_log" in path.parts for path in left)
    assert any("checkpoint" in path.parts for path in left)
    for path, data in left.items():
        assert [secret for secret in secrets if secret.encode() in data] == [], path
