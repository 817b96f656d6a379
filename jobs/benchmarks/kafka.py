"""Scanning the same records through Spark's Kafka connector, where a Kafka is at hand: ``make bench
KAFKA=host:port``.

The session needs the connector: ``spark.jars.packages org.apache.spark:spark-sql-kafka-0-10_2.13`` of Spark's own
version in ``$SPARK_CONF_DIR/spark-defaults.conf``.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from jobs.benchmarks.bench import TOPIC, Bench
from jobs.benchmarks.measuring import in_turn, seconds_of
from jobs.benchmarks.options import RECORD_BYTES
from jobs.benchmarks.table import Line, speed_line
from partitions.identity import random_id

AT_LEAST = 4.0


def kafka(bench: Bench) -> list[Line]:
    """``count`` and ``sum(length(value))`` of the same records; Kafka's own defaults for its topic."""
    server = bench.options.kafka
    if server is None:
        bench.say("kafka: left out, no KAFKA=host:port was given")
        return []
    made = bench.filled(bench.options.partitions)
    made.cluster.replicate().raise_for_failures()
    options = {"kafka.bootstrap.servers": server}
    topic = f"stratalog-bench-{random_id()}"
    bench.say(f"kafka, writing the records to {server}")
    bench.records().write.format("kafka").options(**options, topic=topic).save()
    bench.say("kafka, scan")

    def lengths(frame: DataFrame) -> None:
        frame.agg(F.count("*"), F.sum(F.length("value"))).collect()

    def read() -> None:
        lengths(made.cluster.read(TOPIC))

    def read_kafka() -> None:
        lengths(bench.spark.read.format("kafka").options(**options, subscribe=topic).load())

    ours, peer = in_turn(lambda: seconds_of(read), lambda: seconds_of(read_kafka))
    return [
        speed_line(
            "scan; Spark's Kafka connector on the same records",
            bench.options.records * RECORD_BYTES,
            ours,
            peer,
            AT_LEAST,
        )
    ]
