"""A query over a mirrored topic and its source, which ``test_live`` runs as a separate program and kills. Its
arguments are the folder of the cluster, the topic, Kafka's address, and ``once`` for a run to the present end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog import Cluster, spark_session
from stratalog.jobs.session import log_option
from stratalog.partitions.identity import random_id
from tests.spark.streams import patiently

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH = 40
"""The maximum number of offsets in a batch."""


class Kept:
    """Stores each run of a batch as a separate file, atomically, so that two runs of a batch can be compared."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr("partition", "offset", "cast(value AS STRING) AS value").toArrow()
        written = self._folder / f".{random_id()}"
        with pa.OSFile(str(written), "wb") as out, pa.ipc.new_file(out, rows.schema) as file:
            file.write_table(rows)
        written.rename(self._folder / f"{batch_id}-{written.name}")


def main(folder: Path, topic: str, bootstrap: str, *once: str) -> None:
    quick = f'"{log_option()}" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto'
    spark = spark_session("live", master="local[1]", settings={"spark.driver.extraJavaOptions": quick})
    cluster = Cluster.open(folder / "cluster.toml", spark)
    writer = cluster.for_each_live_batch(
        topic, bootstrap, Kept(folder / "kept"), startingOffsets="earliest", maxOffsetsPerTrigger=BATCH
    ).option("checkpointLocation", str(folder / "checkpoint"))
    if once:
        patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())
    else:
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
