"""Reads with Spark: this log's relation compared with the same files read as plain Parquet, and one column of
twenty compared with all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bench.bench import COLUMNS, TOPIC, TYPED, Bench, data_files, size_of, stages_of, typed_columns
from bench.measuring import in_turn, seconds_of, timed
from bench.options import size_text
from bench.table import Limit, Line, seconds_line, speed_line
from stratalog.engine.spark.scanning import PAGE_CHECKS
from stratalog.engine.spark.types import BINARY, record_schema

AT_LEAST = 0.95
PRUNED_AT_LEAST = 10.0
CHECKED = "Both verify the checksum of every page."
WITHOUT_CHECKS = "scan, compared with Spark without checks"
VECTORED_READS = "parquet.hadoop.vectored.io.enabled"


def scan(bench: Bench) -> list[Line]:
    """``count`` and ``sum(length(value))``, including planning: our listings and footers, Spark's paths. One peer
    compares the pages with their checksums, as this log does; another peer does not, which shows the cost of the
    checksums.
    """
    made = bench.filled(bench.options.partitions)
    made.cluster.replicate().raise_for_failures()  # only what is below the high watermark is read
    bench.say("scan")
    files = data_files(made.replicas(leading=True))
    schema = record_schema(BINARY, BINARY)
    wanted = (bench.options.records, bench.options.records * 1024)

    def read_plain(checks: bool) -> DataFrame:
        return plain_reader(bench.spark, checks=checks).schema(schema).parquet(*map(str, files))

    def scanned(frame: Callable[[], DataFrame]) -> float:
        seconds, found = timed(lambda: totals(frame()))
        if abs(found[0] - wanted[0]) > 16 or found[1] != found[0] * 1024:
            raise AssertionError(f"a scan found {found}, not {wanted}")
        return seconds

    ours, peer, unchecked = in_turn(
        lambda: scanned(lambda: made.cluster.read(TOPIC)),
        lambda: scanned(lambda: read_plain(True)),
        lambda: scanned(lambda: read_plain(False)),
    )
    what = "scan: count, sum(length(value))"
    return [
        speed_line(what, size_of(files), ours, peer, AT_LEAST, CHECKED),
        speed_line(f"    {WITHOUT_CHECKS}", size_of(files), ours, unchecked),
    ]


def totals(frame: DataFrame) -> tuple[int, int]:
    """The numbers of records and of bytes of values; reads every value."""
    row = frame.agg(F.count("*"), F.sum(F.length("value"))).collect()[0]
    return row[0], row[1]


def plain_reader(spark: SparkSession, *, checks: bool) -> DataFrameReader:
    """Spark's reader, with or without the check of page checksums."""
    return spark.read.option(PAGE_CHECKS, str(checks).lower())


def pruned(bench: Bench) -> list[Line]:
    """``sum(length)`` of one column of a typed value, compared with that of every one of the twenty columns."""
    made = bench.cluster("typed")
    made.create_topic(bench.options.partitions, value=TYPED)
    records = bench.records()
    bench.say(f"appending {COLUMNS} typed columns")
    made.append(records, value=typed_columns(records["value"]))
    made.cluster.replicate().raise_for_failures()
    bench.say("pruned scan")

    def lengths(count: int) -> None:
        sums: list[Column] = [F.sum(F.length(f"value.c{i:02d}")) for i in range(COLUMNS)][-count:]
        made.cluster.read(TOPIC).agg(*sums).collect()

    one, full = in_turn(lambda: seconds_of(lambda: lengths(1)), lambda: seconds_of(lambda: lengths(COLUMNS)))
    ours = bytes_read(bench, lambda: lengths(1))
    all_columns = bytes_read(bench, lambda: lengths(COLUMNS))
    made.remove()
    return [
        seconds_line(f"typed scan, 1 column against {COLUMNS}", one, full, Limit(PRUNED_AT_LEAST)),
        Line("    bytes read", size_text(ours), size_text(all_columns), all_columns / ours if ours else None),
    ]


def bytes_read(bench: Bench, run: Callable[[], None]) -> int:
    """The bytes that the tasks of ``run`` read, as Spark counts them when it reads one range after the other."""
    bench.spark.conf.set(VECTORED_READS, "false")
    try:
        with stages_of(bench.spark) as stages:
            run()
    finally:
        bench.spark.conf.unset(VECTORED_READS)
    return sum(stage.inputBytes() for stage in stages)
