"""Appends with acks=all to three replicas, compared with Spark writing the same Parquet three times."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bench.appending import ZSTD_LEVEL
from bench.bench import Bench, copy_durably, data_files
from bench.measuring import in_turn, seconds_of
from bench.options import size_text
from bench.table import Limit, Line

REPLICAS = 3
AT_MOST = Limit(1.3, at_most=True)


def append3(bench: Bench) -> list[Line]:
    """Append a DataFrame until its offsets are acknowledged. The second peer copies two of the three replicas with
    ``cp``, and has no limit."""
    partitions = bench.options.partitions
    bench.records()
    bench.say(f"append3, {partitions} partitions")
    target = bench.folder / "plain"

    def append_all() -> float:
        made = bench.cluster("append3", brokers=REPLICAS)
        made.create_topic(partitions, replicas=REPLICAS)
        seconds = seconds_of(lambda: made.append(bench.records(), acks="all"))
        made.remove()
        return seconds

    def write_thrice() -> float:
        def write() -> None:
            for copy in range(REPLICAS):
                write_plain(bench.records(), partitions, target / str(copy))

        seconds = seconds_of(write)
        shutil.rmtree(target)
        return seconds

    def write_and_copy() -> float:
        def write() -> None:
            write_plain(bench.records(), partitions, target / "0")
            for copy in range(1, REPLICAS):
                (target / str(copy)).mkdir()
            written = data_files([target / "0"])
            copy_durably({target / str(copy): written for copy in range(REPLICAS) if copy})

        seconds = seconds_of(write)
        shutil.rmtree(target)
        return seconds

    ours, thrice, copied = in_turn(append_all, write_thrice, write_and_copy)
    what = f"append, acks=all, 3 replicas, {size_text(bench.options.bytes)}: 3 writes"
    return [
        Line(what, f"{ours:.2f} s", f"{thrice:.2f} s", ours / thrice, AT_MOST),
        Line("    a write, and cp + fsync twice", f"{ours:.2f} s", f"{copied:.2f} s", ours / copied),
    ]


def write_plain(records: DataFrame, partitions: int, target: Path) -> None:
    """Write a segment's columns with Spark, shuffled into the same partitions, with the same codec and level."""
    partition = F.pmod(F.hash("key"), F.lit(partitions))
    shuffled = records.withColumn("partition", partition).repartitionById(partitions, "partition")
    frame = shuffled.select(
        "partition",
        F.monotonically_increasing_id().alias("offset"),
        F.current_timestamp().alias("timestamp"),
        "key",
        "value",
        F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        F.lit(None).cast("string").alias("producer_id"),
        F.lit(None).cast("int").alias("control"),
    )
    writer = frame.write.option("compression", "zstd")
    writer.option("parquet.compression.codec.zstd.level", ZSTD_LEVEL).parquet(str(target))
