"""Source, log and remote table, row for row. Imports nothing of stratalog: what anybody's Spark would do.

    spark-submit ... compare.py --source DIR --read DIR --remote DIR --topic NAME [--endpoint http://host:port]
``--source`` has the Parquet files that were appended, ``--read`` what a read of the topic gave, ``--remote``
the tables of all topics, each in a folder that begins with its name, or the like in a bucket of the S3 server at
``--endpoint``. Prints one object, the last line of standard output, and ends with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import reduce
from itertools import zip_longest
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

PLACE = ["partition", "offset"]


class Checks:
    """What was compared, and how many rows differ."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, check: str, rows: int, differences: int) -> None:
        self.rows.append({"check": check, "rows": rows, "differences": differences})


def multiplicities(**frames: DataFrame) -> DataFrame:
    """Every different row of the frames, and per frame how often it occurs there. They have the same columns."""
    columns = next(iter(frames.values())).columns
    marked = (
        frame.select(*columns, *(F.lit(int(other == name)).alias(other) for other in frames))
        for name, frame in frames.items()
    )
    return reduce(DataFrame.unionAll, marked).groupBy(*columns).agg(*(F.sum(n).alias(n) for n in frames))


def differing(rows: DataFrame, *conditions: str) -> list[int]:
    """How many of the rows meet each condition."""
    found = rows.agg(*(F.count_if(F.expr(condition)) for condition in conditions)).first()
    assert found is not None
    return list(found)


def flat(log: DataFrame) -> DataFrame:
    """Records with a column per field."""
    return log.select(*PLACE, "timestamp", "key", "value.*")


def holes(log: DataFrame) -> int:
    """Partitions whose offsets are not 0, 1, 2 ... each once."""
    found = log.groupBy("partition").agg(
        F.count("*").alias("n"),
        F.countDistinct("offset").alias("d"),
        F.min("offset").alias("a"),
        F.max("offset").alias("z"),
    )
    return found.where("a <> 0 OR z + 1 <> n OR d <> n").count()


def table_of(topic: str, remote: str, endpoint: str | None) -> str:
    """The address of the remote table of a topic."""
    if endpoint is None:
        files, scheme, folder = pafs.LocalFileSystem(), "", remote
    else:
        protocol, _, host = endpoint.partition("://")
        files = pafs.S3FileSystem(endpoint_override=host, scheme=protocol)
        scheme, folder = "s3://", remote.removeprefix("s3://")
    found = files.get_file_info(pafs.FileSelector(folder))
    (table,) = (each.path for each in found if each.base_name.startswith(f"{topic}-"))
    return f"{scheme}{table}"


def session(endpoint: str | None) -> SparkSession:
    """Spark as it is submitted, and what it needs to find the server."""
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "8")
    if endpoint is not None:
        found_by = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
        builder = builder.config(map={f"spark.hadoop.fs.s3a.{name}": value for name, value in found_by.items()})
    return builder.getOrCreate()


def compare(
    spark: SparkSession, source_path: str, read_path: str, remote_path: str, endpoint: str | None
) -> Checks:
    """All comparisons."""
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

    options = None if endpoint is None else {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    theirs = DeltaTable(remote_path, storage_options=options).to_pyarrow_table(
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
        checks.add("the remote table holds something", 0, 1)
    return checks


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "read", "remote", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--endpoint")
    given = parser.parse_args()
    began = time.monotonic()
    table = table_of(given.topic, given.remote, given.endpoint)
    spark = session(given.endpoint)
    checks = compare(spark, given.source, given.read, table, given.endpoint)
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
