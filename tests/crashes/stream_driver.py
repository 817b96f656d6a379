"""A driver that copies a topic into another one as a stream, in small batches, until nothing is left.

    spark-submit tests/crashes/stream_driver.py WAY CLUSTER_FILE CHECKPOINT SOURCE TARGET
WAY is writer (``foreachBatch`` with ``stream_writer``), sink (``writeStream.format``), or transaction (read,
process, write: the group's offsets record the progress).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stratalog import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

WAYS = ("writer", "sink", "transaction")
ROWS = 10


class Transactions:
    """Appends the unprocessed part of a batch, and commits that it is processed."""

    def __init__(self, cluster: Cluster, source: str, target: str) -> None:
        self._cluster, self._source, self._target = cluster, source, target

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as f

        with self._cluster.transactions.begin(
            "copy"
        ) as t:  # this ends any transaction that another driver left open
            done = self._cluster.groups.committed("copy", [self._source], require_stable=True)
            new = f.lit(True)
            for (_, partition), known in done.items():
                new = new & ((f.col("partition") != partition) | (f.col("offset") >= known.offset))
            rows = batch.where(new)
            ends = {
                (self._source, row.partition): row.end
                for row in rows.groupBy("partition").agg((f.max("offset") + 1).alias("end")).collect()
            }
            if ends:
                t.append(self._target, rows, key="key", value="value")
                t.commit_offsets("copy", ends)


def writer_of(
    way: str, cluster: Cluster, file: str, frame: DataFrame, source: str, target: str
) -> DataStreamWriter:
    if way == "writer":
        return frame.writeStream.foreachBatch(
            cluster.stream_writer(target, key="key", value="value", producer="copy")
        )
    if way == "transaction":
        return frame.writeStream.foreachBatch(Transactions(cluster, source, target))
    records = cluster.records(target, frame, key="key", value="value")
    return records.writeStream.format("stratalog").option("cluster", file).option("topic", target)


def main(way: str, file: str, checkpoint: str, source: str, target: str) -> None:
    """Copy all existing records."""
    from stratalog import spark_session

    spark = spark_session("stream")
    given = {"cluster": file, "topic": source, "startingOffsets": "earliest", "maxRowsPerTrigger": str(ROWS)}
    frame = spark.readStream.format("stratalog").options(**given).load()
    stream = writer_of(way, Cluster.open(file, spark), file, frame, source, target)
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:6])
