"""A provider of credentials is asked on executors, too: each process that has asked leaves a mark.

The environment of executors has good credentials, from when the session started, and the driver bad ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.s3_server import ACCESS_KEY, SECRET_KEY
from stratalog import Cluster
from tests.s3_server import S3Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]


def named(root: str) -> Mapping[str, Any]:
    """Each process imports it. The prefix of the root is a folder of this machine, where the marks are left."""
    folder = root.split("/", 3)[3].rpartition("/")[0]
    Path("/", folder, f"asked-{os.getpid()}").touch()
    return {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}


def given() -> Callable[[str], Mapping[str, Any]]:
    """As a notebook has one: no process could import it."""
    return lambda root: named(root)


@pytest.mark.parametrize("way", ["named", "given"])
def test_executors_ask_for_credentials_themselves(
    way: str, spark: SparkSession, s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-at-all")  # set after the session had started
    brokers = "".join(
        f'[[brokers]]\nid = {n}\nlog_dir = "s3://{s3_endpoint.bucket}{tmp_path}/b{n}"\n' for n in (1, 2)
    )
    server = f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\n'
    file = tmp_path / "cluster.toml"
    file.write_text(f'[cluster]\nid = "c"\nvoters = [1]\n{brokers}{server}')
    provider = f"{__name__}:named" if way == "named" else given()
    cluster = Cluster.format(file, spark, credentials=provider, keeps_short=False)
    cluster.topics.create("t", partitions=2, replication_factor=2)
    frame = spark.range(10_000).selectExpr("cast(id AS STRING) AS value")
    cluster.append(frame, "t", acks="leader").raise_for_failures()
    copied = cluster.replicate().raise_for_failures()
    assert sum(int(row["copied_files"]) for row in copied.rows) > 0
    cluster.verify(deep=True).raise_for_failures()
    asked = {path.name for path in tmp_path.glob("asked-*")}
    assert f"asked-{os.getpid()}" in asked
    assert len(asked) > 1
    assert SECRET_KEY not in str(dict(spark.sparkContext.getConf().getAll()))
