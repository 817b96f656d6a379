"""Reads records that are only in the remote tier: the first record, and all of them."""

from __future__ import annotations

from pathlib import Path

from bench.bench import TOPIC, Bench, BenchCluster, size_of
from bench.measuring import in_turn, seconds_of
from bench.options import size_text
from bench.scanning import CHECKED, WITHOUT_CHECKS, plain_reader, totals
from bench.table import Line, seconds_line, speed_line
from stratalog.engine.spark.types import BINARY, record_schema

AT_LEAST = 0.95
MOST_FETCHES = 100
NOTE = "Includes opening the cluster. A row group, of up to 64 MiB, is read and checked whole."


def remote_reads(bench: Bench) -> list[Line]:
    """The first remote record by a fetch in Python and by Spark; a scan, compared with Spark on the same files."""
    made = bench.cluster("remote-reads")
    made.create_topic(bench.options.partitions)
    made.append(bench.records(range(8)), acks="all")
    made.append(bench.records([8]).limit(100 * bench.options.partitions), acks="all")  # the last file always stays
    bench.say("remote reads, tiering")
    made.tiered()
    made.cluster.tier().raise_for_failures()
    made.only_remote()
    lines = [_first(bench, made), _again(made), *_scan(bench, made)]
    made.remove()
    return lines


def _first(bench: Bench, made: BenchCluster) -> Line:
    """Read the first record by a driver that knows nothing yet."""

    def fetch() -> None:
        fetched = made.driver(bench.spark).fetch(TOPIC, 0, 0, max_bytes=1)
        if not fetched.remote or fetched.records.num_rows != 1:
            raise AssertionError("the first record is not remote")

    def spark() -> None:
        if len(made.driver(bench.spark).read(TOPIC, partitions=[0]).limit(1).collect()) != 1:
            raise AssertionError("Spark found no record")

    bench.say("remote reads, the first record")
    ours, peer = in_turn(lambda: seconds_of(fetch), lambda: seconds_of(spark))
    return seconds_line("first remote record: fetch in Python; Spark, limit 1", ours, peer, note=NOTE)


def _again(made: BenchCluster) -> Line:
    """Continue to read, 1 MiB at a time; the row group is cached."""
    fetched = made.cluster.fetch(TOPIC, 0, 0)
    sizes: list[int] = []

    def read_on() -> None:
        nonlocal fetched
        while fetched.remote and len(sizes) < MOST_FETCHES:
            fetched = made.cluster.fetch(TOPIC, 0, fetched.next_offset)
            sizes.append(fetched.records.nbytes)

    seconds = seconds_of(read_on)
    speed, each = sum(sizes) / seconds / 1e6, seconds / len(sizes) * 1e3
    return Line("    reading on by fetches of 1 MiB", f"{speed:.0f} MB/s", f"{each:.1f} ms each")


def _scan(bench: Bench, made: BenchCluster) -> list[Line]:
    parts = [part for part in made.cluster.plan_read(TOPIC) if part.remote]
    files = [Path(part.uri.removeprefix("file://")) for part in parts]
    ends = {part.partition: part.end for part in parts}
    schema = record_schema(BINARY, BINARY)
    bench.say(f"remote reads, a scan of {size_text(size_of(files))}")

    found: dict[str, tuple[int, int]] = {}

    def read() -> None:
        found["ours"] = totals(made.cluster.read(TOPIC, end=ends))

    def read_plain(checks: bool) -> None:
        found["peer"] = totals(plain_reader(bench.spark, checks=checks).schema(schema).parquet(*map(str, files)))

    ours, peer, unchecked = in_turn(
        lambda: seconds_of(read),
        lambda: seconds_of(lambda: read_plain(True)),
        lambda: seconds_of(lambda: read_plain(False)),
    )
    if found["ours"] != found["peer"]:
        raise AssertionError(f"two scans of the same files found {found}")
    what, size = "scan of the remote tier: count, sum(length(value))", size_of(files)
    return [
        speed_line(what, size, ours, peer, AT_LEAST, CHECKED),
        speed_line(f"    {WITHOUT_CHECKS}", size, ours, unchecked),
    ]
