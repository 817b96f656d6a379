"""Compares source, log and remote table, row for row. Imports nothing from stratalog, so any Spark could do this.

    spark-submit ... compare.py --source DIR --read DIR --remote DIR --topic NAME [--store s3 --endpoint http://...]
``--source`` has the Parquet files that were appended, ``--read`` the result of a read of the topic, ``--remote``
the tables of all topics, each in a folder whose name begins with the topic's name; or the same folders in a bucket
of the server at ``--endpoint``, whose kind is ``--store``. Prints one JSON object, the last line of standard
output; the exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Any

import fsspec
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

PLACE = ["partition", "offset"]


class Checks:
    """The comparisons that were made, and the number of differing rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, check: str, rows: int, differences: int) -> None:
        self.rows.append({"check": check, "rows": rows, "differences": differences})


def multiplicities(**frames: DataFrame) -> DataFrame:
    """Every distinct row of the frames, with its count in each frame. The frames must have the same columns."""
    columns = next(iter(frames.values())).columns
    marked = (
        frame.select(*columns, *(F.lit(int(other == name)).alias(other) for other in frames))
        for name, frame in frames.items()
    )
    return reduce(DataFrame.unionAll, marked).groupBy(*columns).agg(*(F.sum(n).alias(n) for n in frames))


def differing(rows: DataFrame, *conditions: str) -> list[int]:
    """For each condition, the number of rows that meet it."""
    found = rows.agg(*(F.count_if(F.expr(condition)) for condition in conditions)).first()
    assert found is not None
    return list(found)


def flat(log: DataFrame) -> DataFrame:
    """Records with a column per field."""
    return log.select(*PLACE, "timestamp", "key", "value.*")


def holes(log: DataFrame) -> int:
    """The number of partitions whose offsets are not 0, 1, 2 ..., each once."""
    found = log.groupBy("partition").agg(
        F.count("*").alias("n"),
        F.countDistinct("offset").alias("d"),
        F.min("offset").alias("a"),
        F.max("offset").alias("z"),
    )
    return found.where("a <> 0 OR z + 1 <> n OR d <> n").count()


@dataclass(frozen=True)
class Access:
    """The settings with which three readers reach a server."""

    files: Mapping[str, Any]
    """For fsspec's file system of the address."""
    hadoop: Mapping[str, str]
    """For Hadoop's connector, which Spark uses."""
    delta: Mapping[str, str]
    """For delta-rs."""


def access(store: str, endpoint: str) -> Access:
    """The settings for a server without TLS; S3's credentials and Azure's key are in the environment."""
    if store in ("s3", "s3fs"):
        s3a = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
        return Access(
            {"endpoint_override": endpoint.partition("://")[2], "scheme": endpoint.partition("://")[0]},
            {f"fs.s3a.{name}": value for name, value in s3a.items()},
            {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"},
        )
    if store == "gcs":
        nobody = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return Access(
            {"endpoint_url": endpoint, "token": "anon"},
            {
                "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
                "fs.gs.storage.root.url": f"{endpoint}/",
                "fs.gs.auth.null.enable": "true",
                "fs.gs.auth.service.account.enable": "false",
                # Hadoop's defaults for these have units, which this connector does not accept as numbers.
                "fs.gs.block.size": "67108864",
                "fs.gs.inputstream.inplace.seek.limit": "8388608",
                "fs.gs.inputstream.min.range.request.size": "2097152",
                "fs.gs.outputstream.buffer.size": "8388608",
                "fs.gs.rewrite.max.chunk.size": "536870912",
            },
            {"google_service_account_key": json.dumps({"gcs_base_url": endpoint, **nobody}), "allow_http": "true"},
        )
    key, account = os.environ["AZURE_STORAGE_ACCOUNT_KEY"], endpoint.rpartition("/")[2]
    host = f"{account}.dfs.core.windows.net"
    abfs = "org.apache.hadoop.fs.azurebfs"
    return Access(
        {"connection_string": f"BlobEndpoint={endpoint};AccountName={account};AccountKey={key}"},
        {
            "fs.abfss.impl": f"{abfs}.AzureBlobFileSystem",
            "fs.azure.abfs.endpoint": endpoint.partition("://")[2].partition("/")[0],
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.always.use.https": "false",
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            "fs.azure.metrics.collection.enabled": "false",  # its threads would outlive the command
            # The key stays in the environment: a command prints it from there.
            f"fs.azure.account.keyprovider.{host}": f"{abfs}.services.ShellDecryptionKeyProvider",
            f"fs.azure.account.key.{host}": "environment=",
            "fs.azure.shellkeyprovider.script": "sh -c printenv${IFS}AZURE_STORAGE_ACCOUNT_KEY",
        },
        {
            "azure_storage_account_name": account,
            "azure_storage_account_key": key,
            "azure_storage_endpoint": endpoint,
            "azure_allow_http": "true",
        },
    )


def table_of(topic: str, remote: str, files: Mapping[str, Any]) -> str:
    """The address of the remote table of a topic."""
    scheme = remote.partition("://")[0] if "://" in remote else ""
    if scheme == "s3":
        found = pafs.S3FileSystem(**files).get_file_info(pafs.FileSelector(remote.removeprefix("s3://")))
        names = [each.base_name for each in found]
    else:
        found = fsspec.filesystem(scheme or "file", **files).ls(remote, detail=False)
        names = [each.rstrip("/").rpartition("/")[2] for each in found]
    (name,) = (name for name in names if name.startswith(f"{topic}-"))
    return f"{remote}/{name}"


def session(hadoop: Mapping[str, str]) -> SparkSession:
    """A Spark session with the settings to reach the server."""
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "8")
    return builder.config(map={f"spark.hadoop.{name}": value for name, value in hadoop.items()}).getOrCreate()


def compare(
    spark: SparkSession, source_path: str, read_path: str, remote_path: str, delta: Mapping[str, str]
) -> Checks:
    """All comparisons. ``delta``: the storage options of the remote table."""
    checks = Checks()
    source = (
        spark.read.option("recursiveFileLookup", "true")
        .parquet(source_path)
        .withColumnsRenamed({"tailnum": "key", "time_hour": "timestamp"})
    )
    log = flat(spark.read.parquet(read_path))
    remote = flat(spark.read.format("delta").load(remote_path))
    records = log.drop(*PLACE).columns
    count, tiered = log.count(), remote.count()

    everything = multiplicities(
        source=source.select(records), log=log.select(records), remote=remote.select(records)
    )
    not_equal, not_within = differing(everything, "source <> log", "remote > source")
    checks.add("as many records as the source has rows", count, abs(count - source.count()))
    checks.add("log = source: key, timestamp, every value column", count, not_equal)
    checks.add("log: offsets are contiguous from 0 on", count, holes(log))

    ends = remote.groupBy("partition").agg((F.max("offset") + 1).alias("end"))
    covered = log.join(F.broadcast(ends), "partition").where("offset < end").select(*log.columns)
    (not_same,) = differing(multiplicities(remote=remote, covered=covered), "remote <> covered")
    checks.add("remote by delta-spark: within the source", tiered, not_within)
    checks.add("remote by delta-spark: = log below the remote end, offsets too", tiered, not_same)
    checks.add("remote by delta-spark: offsets are contiguous from 0 on", tiered, holes(remote))

    theirs = DeltaTable(remote_path, storage_options=dict(delta)).to_pyarrow_table(
        columns=[*PLACE, "timestamp", "key", "value"]
    )
    order = [(name, "ascending") for name in PLACE]
    theirs = theirs.sort_by(order)
    ours = ds.dataset(read_path, format="parquet").to_table(columns=theirs.column_names)
    places = {row["partition"]: row["end"] for row in ends.collect()}
    wanted = pc.scalar(False)
    for partition, end in places.items():
        wanted = wanted | ((pc.field("partition") == partition) & (pc.field("offset") < end))
    ours = ours.filter(wanted).sort_by(order)
    differs = 0
    if not ours.cast(theirs.schema).equals(theirs):
        pairs = zip_longest(ours.to_pylist(), theirs.to_pylist())
        differs = sum(one != other for one, other in pairs)
    checks.add("remote by deltalake: = log below the remote end, offsets too", theirs.num_rows, differs)
    if not tiered:
        checks.add("the remote table is not empty", 0, 1)
    return checks


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "read", "remote", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--store", choices=("s3", "s3fs", "azure", "gcs"))
    parser.add_argument("--endpoint")
    given = parser.parse_args()
    began = time.monotonic()
    server = Access({}, {}, {}) if given.store is None else access(given.store, given.endpoint)
    table = table_of(given.topic, given.remote, server.files)
    spark = session(server.hadoop)
    checks = compare(spark, given.source, given.read, table, server.delta)
    spark.stop()
    ok = all(row["differences"] == 0 for row in checks.rows)
    seconds = round(time.monotonic() - began, 3)
    totals = {"records": checks.rows[0]["rows"]}
    print(
        json.dumps({"operation": "compare", "ok": ok, "seconds": seconds, "totals": totals, "rows": checks.rows})
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
