"""Appends and scans the same records here and through Spark's Kafka connector: ``make bench KAFKA=host:port``, or
``KAFKA=own`` for a broker that the benchmark starts on this machine.

The topic of the started broker has as many partitions as ours. All other settings of the broker are Kafka's
defaults, so it uses no codec. The scan is ``count`` and the sum of the values' lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from bench.bench import TOPIC, Bench
from bench.kafka_server import running_kafka
from bench.measuring import TURNS, in_turn, seconds_of
from bench.options import OWN_KAFKA
from bench.scanning import totals
from bench.table import Line, speed_line
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.identity import random_id

AT_LEAST = 4.0
"""The minimum ratio of the scan."""


def kafka(bench: Bench) -> list[Line]:
    """Append the same records to one replica, ``acks=leader`` here and ``acks=1`` on Kafka, and scan them."""
    if bench.options.kafka is None:
        bench.say("kafka: skipped; KAFKA=own starts a broker for it, KAFKA=host:port uses a running broker")
        return []
    partitions, size_bytes = bench.options.partitions, bench.options.bytes
    records = bench.records().count()
    with _broker(bench) as server:
        made = bench.filled(partitions)
        made.cluster.replicate().raise_for_failures()  # readers see records up to the ends of the followers
        topics = [f"stratalog-bench-{random_id()}" for _ in range(TURNS)]
        unwritten = iter(topics)
        options = {"kafka.bootstrap.servers": server}

        def append() -> float:
            target = bench.cluster("append")
            target.create_topic(partitions)
            seconds = seconds_of(lambda: target.append(bench.records()))
            target.remove()
            return seconds

        def append_to_kafka() -> float:
            writer = bench.records().write.format("kafka").options(**options)
            return seconds_of(writer.option("kafka.acks", "1").option("topic", next(unwritten)).save)

        def scan() -> float:
            return seconds_of(lambda: _scan(made.cluster.read(TOPIC), records))

        def scan_kafka() -> float:
            frame = bench.spark.read.format("kafka").options(**options, subscribe=topics[0]).load()
            return seconds_of(lambda: _scan(frame, records))

        bench.say(f"kafka, append, to {server}")
        append_s, kafka_append_s = in_turn(append, append_to_kafka)
        bench.say("kafka, scan")
        scan_s, kafka_scan_s = in_turn(scan, scan_kafka)
    return [
        speed_line("append; Spark's Kafka connector, the same records", size_bytes, append_s, kafka_append_s),
        speed_line("scan; Spark's Kafka connector, the same records", size_bytes, scan_s, kafka_scan_s, AT_LEAST),
    ]


def _scan(frame: DataFrame, records: int) -> None:
    read, _ = totals(frame)
    if read != records:
        raise CorruptionError(f"{read:,} records were read, {records:,} were written")


@contextmanager
def _broker(bench: Bench) -> Iterator[str]:
    assert bench.options.kafka is not None
    if bench.options.kafka != OWN_KAFKA:
        yield bench.options.kafka
        return
    folder = bench.folder / "kafka"
    folder.mkdir()
    with running_kafka(folder, partitions=bench.options.partitions) as server:
        yield server
