"""Read and append under spark-submit in a plain session of PySpark, without jars and settings of stratalog.

without_jars.py CLUSTER_FILE PROVIDER TOPIC
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from stratalog import Cluster, register_format

if __name__ == "__main__":
    file, provider, topic = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    absent = []
    for name in ("org.apache.hadoop.fs.s3a.S3AFileSystem", "io.delta.sql.DeltaSparkSessionExtension"):
        try:
            loader.loadClass(name)
        except Exception:  # py4j's
            absent.append(name)
    register_format(spark)
    source = spark.read.format("stratalog").options(cluster=file, credentials=provider)
    before = source.load(topic).count()
    cluster = Cluster.open(file, spark, credentials=provider)
    more = spark.range(20_000, 40_000, 1, 2).selectExpr("id AS n", "cast(id % 7 AS STRING) AS k")
    appended = cluster.append(topic, more, key="k", producer="plain", sequence=0).raise_for_failures()
    found = {
        "absent": absent,
        "before": before,
        "appended": appended.totals["records"],
        "sum": source.load(topic).selectExpr("sum(value.n) AS n").first().n,  # type: ignore[union-attr]
        "fetched": cluster.fetch(topic, 0, 0, max_bytes=1000).records.num_rows,
        "tailed": sum(table.num_rows for table in cluster.tail(topic, last=4, follow=False)),
        "read": cluster.read(topic).count(),
    }
    print("TOLD", json.dumps(found))
