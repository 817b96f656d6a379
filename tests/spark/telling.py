"""A run on S3 that prints everything it can: reports, plans, settings, exceptions. A failed step prints its error.

spark-submit ... telling.py CLUSTER_FILE [format]
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from stratalog import Cluster, spark_session
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.partitions.store import open_store
from tests.ports import ports_of

CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
ADDRESS = "s3://me:hunter2@bucket/recovered"
ONE = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}


def settings_of(spark: SparkSession) -> str:
    """All settings: Spark's, SQL's, and Hadoop's, which scans copy to executors."""
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    lines = [f"{key}={value}" for key, value in spark.sparkContext.getConf().getAll()]
    lines += [f"{row.key}={row.value}" for row in spark.sql("SET -v").collect()]
    lines += [f"{entry.getKey()}={entry.getValue()}" for entry in hadoop.iterator()]
    return "\n".join(lines)


def main(path: str, *options: str) -> None:
    """Run all steps."""
    file_path = Path(path)
    file = load_cluster_file(file_path)
    spark = spark_session("telling", roots=file.roots)

    def run_step(step: Callable[[], object]) -> None:
        try:
            print(step())
        except Exception:
            traceback.print_exc()

    def scanned(address: str) -> object:
        """Spark's own way to S3, and its plan."""
        frame = spark.read.option("recursiveFileLookup", "true").format("binaryFile").load(address)
        frame.explain("extended")
        return frame.select("path", "length").collect()

    def read(cluster: Cluster) -> object:
        frame = cluster.read("t")
        frame.explain("extended")
        return frame.collect()

    def streamed(cluster: Cluster) -> object:
        """Stream out of the topic and into it again, with a checkpoint beside the cluster file."""
        source = spark.readStream.format("stratalog").options(cluster=path, startingOffsets="earliest", group="g")
        query = (
            source.load("t")
            .select("value")
            .writeStream.foreachBatch(cluster.stream_writer("t", producer="p"))
            .option("checkpointLocation", (file_path.parent / "checkpoint").as_uri())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query.recentProgress

    def pickled(cluster: Cluster) -> object:
        """The pickled objects that executors get, and the text of each object."""
        ports, image = ports_of(cluster), cluster.image
        replicas_of, table = (
            ports.storage.replicas_of(image, image.topics.values()),
            ports.storage.remote_table(image.topic("t")),
        )
        sent = (cluster.stores, file, replicas_of, cluster.plan_read("t"), table)
        return sent, pickle.dumps(sent), cloudpickle.dumps(sent), cluster, ports, vars(table)

    if "format" in options:
        cluster = Cluster.format(path, spark)
        cluster.topics.alter_configs(None, ONE)
        cluster.topics.create("t", partitions=1, replication_factor=2, configs=CONFIGS)
    else:
        cluster = Cluster.open(path, spark)
    frame = spark.range(100).selectExpr("cast(id AS STRING) AS value")
    for step in (
        lambda: settings_of(spark),
        lambda: [cluster.append("t", frame).to_json() for _ in range(3)],
        lambda: cluster.tier().to_json(),
        lambda: cluster.retain().to_json(),
        lambda: cluster.verify(deep=True).to_json(),
        lambda: read(cluster),
        lambda: scanned(f"{file.remote}/"),
        lambda: open_store(file.remote, file.remote_storage).list(""),
        lambda: "format" not in options or streamed(cluster),
        lambda: cluster.recover("t", ADDRESS),
        lambda: pickled(cluster),
    ):
        run_step(step)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
