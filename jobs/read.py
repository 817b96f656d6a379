"""Read a range of a topic, local and remote alike: show the first records, count them, or write them out.

  jobs/read.py --topic flights --start 2013-06-01 --end 2013-07-01 --where "value.carrier = 'UA'"
  jobs/read.py --topic flights --output flights.parquet
Offsets and times are half open, [start, end); the end is at most the high watermark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine import Report
from engine.reading.plan import FileRange
from engine.report import Value
from jobs.arguments import add_dry_run, bound, count, job_parser, numbers, pair
from jobs.run import Job, run_job

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_SHOWN = 20


def arguments() -> argparse.ArgumentParser:
    """What this job takes."""
    parser = job_parser("read", __doc__ or "", runs="session")
    parser.add_argument("--topic", metavar="NAME", required=True)
    where = "an offset, offsets by partition (0:1000,3:20), a time, or a position (earliest-local ...)"
    parser.add_argument("--start", metavar="BOUND", type=bound, help=f"{where}; default: the log start")
    parser.add_argument("--end", metavar="BOUND", type=bound, help="likewise; default: the high watermark")
    parser.add_argument("--partitions", metavar="N,M", type=numbers, help="only these (default: all)")
    parser.add_argument("--where", metavar="EXPR", help="only these records")
    add_dry_run(parser, "list the files that would be scanned; needs no Spark")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--limit", metavar="N", type=count, default=_SHOWN, help=f"show so many (default: {_SHOWN})")
    what.add_argument("--count", action="store_true", help="count them only")
    what.add_argument("--output", metavar="PATH", help="write all of them there, as Spark's writers do")
    parser.add_argument("--format", metavar="NAME", default="parquet", help="of --output (default: parquet)")
    parser.add_argument("--option", metavar="K=V", type=pair, action="append", default=[], help="of --output")
    parser.add_argument(
        "--mode", choices=("error", "overwrite", "append"), default="error", help="when --output exists"
    )
    return parser


def read(job: Job) -> Report:
    """The job."""
    given, cluster = job.arguments, job.cluster()
    chosen = given.topic, given.start, given.end, given.partitions
    plan = cluster.plan_read(*chosen)  # finds out what is wrong before a session is started
    if not given.dry_run:
        cluster = job.on_spark()
    with cluster.measured() as measure:
        totals: dict[str, Value] = {
            "files": len(plan),
            "remote_files": sum(part.remote for part in plan),
            "bytes": sum(part.size_bytes for part in plan),
        }
        rows: list[dict[str, Value]] = []
        if given.dry_run:
            rows = [_planned(part) for part in plan]
        else:
            frame = cluster.read(*chosen)
            if given.where is not None:
                frame = frame.where(given.where)
            rows, records = _carry_out(given, frame)
            totals = {"records": records, **totals}
    return Report("read", rows, (), totals, given.dry_run, measure.seconds, measure.counts)


def _carry_out(given: argparse.Namespace, frame: DataFrame) -> tuple[list[dict[str, Value]], int]:
    """Rows to show, and how many records were read."""
    if given.count:
        return [], frame.count()
    if given.output is not None:
        return [], _write(given, frame)
    first = frame.drop("topic").orderBy("partition", "offset").limit(given.limit)
    shown = first.select(*(_readable(field) for field in first.schema)).collect()
    return [{name: _shown(value) for name, value in row.asDict().items()} for row in shown], len(shown)


def _write(given: argparse.Namespace, frame: DataFrame) -> int:
    """Counted while they are written."""
    from pyspark.sql import Observation, functions

    counted = Observation("read")
    writer: Any = frame.observe(counted, functions.count(functions.lit(1)).alias("records")).write
    writer.format(given.format).options(**dict(given.option)).mode(given.mode).save(given.output)
    return int(counted.get["records"])


def _readable(field: StructField) -> Column:
    """What Spark itself turns into text: times, which Python would show in the zone of this machine, and
    nested values.
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
    """A value of a record in a cell of a table."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", errors="replace")
    if isinstance(value, list):
        return " ".join(f"{header.key}={_shown(header.value)}" for header in value)
    return str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("read", arguments(), read, argv)


if __name__ == "__main__":
    sys.exit(main())
