"""A stream through the format's sink whose first appending task kills its worker, run by ``test_stream_sink`` as a
separate program, with the folder to work in."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql.types import StructType

from stratalog.engine.driver.opening import Ports, open_ports
from stratalog.engine.spark import stream_sink
from stratalog.engine.spark.format import StratalogDataSource
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.identity import random_id
from tests.spark.dying_worker import opener
from tests.spark.spark_cluster import write_cluster_file


class Dying(StratalogDataSource):
    """The product's sink, with brokers that let a process die."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> stream_sink.StreamSink:  # noqa: N802
        stream_sink._opened = _open  # type: ignore[assignment]  # in the process that Spark has for it
        return super().streamWriter(schema, overwrite)


def _open(file: str, *_: str | None) -> Ports:
    from stratalog import load_cluster_file

    return open_ports(load_cluster_file(file), clock=SystemClock(), new_id=random_id, opener=opener, key=None)


def main(folder: Path) -> None:
    from stratalog import Cluster, spark_session

    spark = spark_session("dying", master="local[2,4]", settings={"spark.speculation": "true"})
    file = write_cluster_file(folder)
    cluster = Cluster.format(file, spark)
    for name in ("source", "t"):
        cluster.topics.create(name, partitions=2, replication_factor=2)
    rows = spark.range(40).selectExpr("cast(id AS STRING) AS value", "id % 2 AS p")
    cluster.append("source", rows, partition="p").raise_for_failures()
    spark.dataSource.register(Dying)
    options = {"cluster": str(file), "startingOffsets": "earliest", "maxRowsPerTrigger": "20"}
    frame = spark.readStream.format("stratalog").options(**options).load("source")
    stream = cluster.records("t", frame.select("value", "partition"), partition="partition").writeStream
    stream = stream.format("dying").option("cluster", str(file)).option("checkpointLocation", str(folder / "cp"))
    stream.trigger(availableNow=True).start("t").awaitTermination()
    back = cluster.read("t")
    print("died", "yes" if (folder / "died").exists() else "no")
    print("records", back.count(), "distinct", back.select("value").distinct().count())
    cluster.verify(deep=True).raise_for_failures()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
