"""A separate process, whose JVM has the connectors of Azure and Google, and the clouds' variables: it opens each
named cluster file, and prints Spark's rows of topic ``t``, all settings, and the thread pools that would keep a
JVM of spark-submit from ending."""

from __future__ import annotations

import sys

from stratalog import Cluster, load_cluster_file, spark_session


def main() -> None:
    roots = {address: each for file in sys.argv[1:] for address, each in load_cluster_file(file).roots.items()}
    spark = spark_session("clouds", master="local[2]", roots=roots)
    for file in sys.argv[1:]:
        cluster = Cluster.open(file, spark)
        tiers = sorted({part.remote for part in cluster.plan_read("t")})
        values = sorted(bytes(row.value).decode() for row in cluster.read("t").select("value").collect())
        table = f"{cluster.file.remote}/t-{cluster.image.topic('t').topic_id}"
        print("READ", tiers, values, spark.read.format("delta").load(table).count())
    for setting in spark.sparkContext.getConf().getAll():
        print("SETTING", *setting)
    for key, value in spark.sql("SET").collect():
        print("SETTING", key, value)
    jvm = spark.sparkContext._jvm
    spark.stop()
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()  # type: ignore[union-attr]
    names = [str(thread.getName()) for thread in threads if not thread.isDaemon()]
    print("LASTING", [name for name in names if name.startswith("pool-")])


if __name__ == "__main__":
    main()
