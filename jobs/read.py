"""Read a range of topics from both tiers: show the first records, count them, or write them out.

  stratalog read flights --start 2013-06-01 --end 2013-07-01 --where "value.carrier = 'UA'"
  stratalog read flights --output flights.parquet
  stratalog read --pattern "flights-.*" --last 10 --explain

Ranges are half-open, [start, end). The end is at most the high watermark. Times select records by timestamp,
regardless of their order in the log: --start 2013-01-10 --end 2013-01-11 reads that day, in UTC unless the time
names a zone. --start first-at:2013-06-01 is Kafka's lookup: it reads everything from the first record at or after
that time.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import stratalog
from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.jobs.arguments import PAIRS, add_dry_run, check_options, count, names
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.run import Job, JobMain, printing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from stratalog.engine.reading.plan import FileRange

_METHOD = "client.Client.plan_read"
_SHOWN = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    of = parser.add_mutually_exclusive_group(required=True)
    topics = {"flags": ("topics",), "nargs": "?", "type": names}
    special: Special = {"topic": topics, "pattern": {"metavar": "REGEX"}, "last": {"type": count}}
    add_declared(of, _METHOD, only=["topic", "pattern"], special=special)
    begin = parser.add_mutually_exclusive_group()
    add_declared(begin, _METHOD, only=["start", "last"], special=special)
    begin.add_argument("--group", metavar="NAME", help="start at the offsets of this consumer group")
    add_declared(parser, _METHOD, leave_out=["topic", "pattern", "start", "last"])
    parser.add_argument("--where", metavar="EXPR", help="read only the records for which EXPR is true")
    add_dry_run(parser, "list the files that would be scanned; needs no Spark")
    parser.add_argument(
        "--explain", action="store_true", help="like --dry-run, but print a readable summary with totals"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--limit", metavar="N", type=count, default=_SHOWN, help=f"show N records (default: {_SHOWN})"
    )
    what.add_argument("--count", action="store_true", help="only count the records")
    what.add_argument("--output", metavar="PATH", help="write all records to PATH, as Spark's writers do")
    parser.add_argument("--format", metavar="NAME", help="format of --output (default: parquet)")
    parser.add_argument("--option", default={}, **PAIRS, help="an option of --output; repeatable")
    parser.add_argument(
        "--mode", choices=("error", "overwrite", "append"), help="what to do if --output exists (default: error)"
    )


def read(job: Job) -> Report:
    given = job.arguments
    check_options(
        given,
        needs=[(option, "output") for option in ("format", "option", "mode")],
        bars=[("count", "dry_run", "explain")],
    )
    cluster = job.cluster()
    planned_only = given.dry_run or given.explain
    with cluster.measured() as planning:
        start = given.start if given.group is None else stratalog.Committed(given.group)
        # report errors before a session starts
        plan = call(cluster.plan_read, given, topic=given.topics, start=start)
    if not planned_only:
        cluster = job.on_spark()
    with cluster.measured() as measure:
        totals: dict[str, Value] = {
            "files": len(plan),
            "remote_files": sum(part.remote for part in plan),
            "bytes": plan.size_bytes,
        }
        if (across := plan.cross_rack_bytes) is not None:
            totals["cross_rack_bytes"] = across
        rows: list[dict[str, Value]] = []
        if given.explain:
            with printing():
                print(plan.explain())
        elif given.dry_run:
            rows = [_planned(part) for part in plan]
        else:
            frame = cluster.read(plan)
            if given.where is not None:
                frame = frame.where(given.where)
            with cluster.read_errors():
                rows, records = _carry_out(given, frame)
            totals = {"records": records, **totals}
    seconds, counts = planning.seconds + measure.seconds, planning.counts + measure.counts
    return Report("read", rows, (), totals, planned_only, seconds, counts, plan.notes)


def _carry_out(given: argparse.Namespace, frame: DataFrame) -> tuple[list[dict[str, Value]], int]:
    """Return the rows to show, and the number of records that were read."""
    if given.count:
        return [], frame.count()
    if given.output is not None:
        return [], _write(given, frame)
    first = frame.orderBy("topic", "partition", "offset").limit(given.limit)
    if given.topics is not None and len(given.topics) == 1:
        first = first.drop("topic")
    shown = first.select(*(_readable(field) for field in first.schema)).collect()
    return [{name: _shown(value) for name, value in row.asDict().items()} for row in shown], len(shown)


def _write(given: argparse.Namespace, frame: DataFrame) -> int:
    """Write the records, and count them meanwhile. Returns their number."""
    from pyspark.sql import Observation, functions

    counted = Observation("read")
    writer: Any = frame.observe(counted, functions.count(functions.lit(1)).alias("records")).write
    writer = writer.format(given.format or "parquet").mode(given.mode or "error")
    writer.options(**given.option).save(given.output)
    return int(counted.get["records"])


def _readable(field: StructField) -> Column:
    """Return the column of a field. Spark converts times and nested values to text, because Python would show
    times in the zone of this machine.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    column = functions.col(field.name)
    if isinstance(field.dataType, TimestampType):
        return column.cast("string").alias(field.name)
    if isinstance(field.dataType, StructType | ArrayType | MapType) and field.name != "headers":
        return functions.to_json(column).alias(field.name)
    return column


def _planned(part: FileRange) -> dict[str, Value]:
    return {
        "partition": part.partition,
        "start": part.start,
        "end": part.end,
        "tier": "remote" if part.remote else "local",
        "bytes": part.size_bytes,
        "file": part.uri,
    }


def _shown(value: Any) -> Value:
    """Return a value of a record as the text of a table cell."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", errors="replace")
    if isinstance(value, list):
        return " ".join(f"{header.key}={_shown(header.value)}" for header in value)
    return str(value)


main = JobMain("read", __doc__, arguments, read, runs="session")


if __name__ == "__main__":
    sys.exit(main())
