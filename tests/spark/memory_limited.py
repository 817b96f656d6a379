"""Appends wide rows to 64 partitions while no Python worker of Spark may have more than 1 GiB of address space.

    memory_limited.py MASTER CLUSTER_FILE

``MASTER`` is ``local[2]``, or a server of Spark Connect that was started with ``LIMIT``. Prints ``TOLD`` and a
JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator

import pyarrow as pa

from stratalog import Cluster, load_cluster_file
from stratalog.jobs.session import log_option, spark_session

LIMIT = {
    "spark.executor.pyspark.memory": "1g",
    "spark.executor.cores": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
}
"""Spark sets the first as RLIMIT_AS of each worker. The last two are Spark's defaults, as in the session of a
platform."""
PARTITIONS = 64
WIDE_BYTES = 256 * 1024
"""The size of a row's text: more than the records of one batch of Spark may have if Spark counts them."""
LARGE = 1_280_000_000 // WIDE_BYTES
"""The rows of the first partition: more than the memory of a worker."""
ROWS = LARGE + 8 * PARTITIONS
"""All rows; the others are distributed equally over all partitions."""
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "local.retention.bytes": "0",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}


def limits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The limit of a worker."""
    for batch in batches:
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        yield pa.RecordBatch.from_pydict({"most": pa.array([most] * batch.num_rows, pa.int64())})


def main(master: str, file: str) -> None:
    settings = {**LIMIT, "spark.driver.extraJavaOptions": f'"{log_option()}" -XX:TieredStopAtLevel=1'}
    spark = spark_session(
        "memory",
        master=master,
        settings={} if master.startswith("sc:") else settings,
        roots=load_cluster_file(file).roots,
    )
    found: dict[str, object] = {
        "limit": {row.most for row in spark.range(8).mapInArrow(limits, "most bigint").collect()}.pop()
    }
    cluster = Cluster.open(file, spark)
    cluster.topics.create(
        "wide", partitions=PARTITIONS, replication_factor=2, value="n BIGINT, s STRING", configs=CONFIGS
    )
    first = spark.range(LARGE).selectExpr("id AS n", "0 AS p")
    last = spark.range(LARGE, ROWS).selectExpr("id AS n", f"id % {PARTITIONS} AS p")
    appended = 0
    for part in (first.union(last.where(f"n < {ROWS - PARTITIONS}")), last.where(f"n >= {ROWS - PARTITIONS}")):
        wide = part.selectExpr("n", "p", f"repeat(sha2(cast(n AS STRING), 256), {WIDE_BYTES // 64}) AS s")
        report = cluster.append("wide", wide, partition="p", acks="leader").raise_for_failures()
        appended += int(report.totals["records"] or 0)
    found["appended"] = appended
    found["copied"] = cluster.replicate("wide").raise_for_failures().totals["copied_bytes"]
    found["uploaded"] = cluster.tier("wide").raise_for_failures().totals["uploaded_files"]
    for _ in range(2):
        cluster.retain("wide").raise_for_failures()
    found["findings"] = cluster.verify("wide", deep=True).raise_for_failures().totals["findings"]
    found["remote"] = any(part.remote for part in cluster.plan_read("wide"))
    sums = ("count(*) AS records", "sum(length(value.s)) AS bytes", "sum(value.n) AS n")
    found["read"] = list(cluster.read("wide").selectExpr(*sums).first() or ())
    print("TOLD", json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
