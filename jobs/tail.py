"""Print the latest records of a topic, and with -f the records that are appended from now on; needs no Spark.

  stratalog tail flights                       the last 10 records of each partition
  stratalog tail flights -f -n 0               records from now on
  stratalog tail flights --start 2013-06-01    everything from the first record at or after that time
  stratalog tail flights -f --group dashboard  from the offsets of a consumer group; commits nothing
  stratalog tail flights --format json | stratalog produce copy --format json
A line is partition, offset, timestamp, key and value, separated by tabs. In a key or value, \\t is a tab, \\n and
\\r end a line, \\\\ is a backslash, and \\xff, \\u202e and the like are bytes that are not UTF-8 and characters
that no terminal should receive. A time beyond the year 9999 is a number of microseconds. --format hex and base64
show keys and values as bytes; those of other types as the bytes of their JSON. --format json prints one object per
line, in which bytes are text if they are UTF-8, else {"base64": "..."}. --format avro does the same with values
decoded by --schema; confluent-avro expects the id of a schema before each value. The report goes to standard
error; with --json it is the last line, and records are JSON unless --format says otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import stratalog
from stratalog import Report
from stratalog.engine.driver.plain_values import as_it_is
from stratalog.jobs.arguments import check_options, count
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.payloads import FORMATS, decoded_formats, shown_as
from stratalog.jobs.run import Job, JobMain, printing

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.engine.reading.tail import Tail

_SHOWN = 10
_METHOD = "client.Client.tail"
_HOW = ("partitions", "idle_timeout_s", "auto_offset_reset", "isolation", "client_rack")
_SPECIAL: Special = {
    "follow": {"flags": ("-f", "--follow"), "action": "store_true"},
    "last": {
        "flags": ("-n", "--lines"),
        "help": f"begin N records before the end of each partition (default: {_SHOWN})",
    },
    "idle_timeout_s": {"flags": ("--timeout",)},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, _METHOD, only=["topic", "follow"], special=_SPECIAL)
    begin = parser.add_mutually_exclusive_group()
    add_declared(begin, _METHOD, only=["last", "start"], special=_SPECIAL)
    begin.add_argument("--group", metavar="NAME", help="begin at the offsets of a consumer group")
    add_declared(parser, _METHOD, only=_HOW, special=_SPECIAL)
    parser.add_argument("--max-messages", metavar="N", type=count, help="end after N records")
    parser.add_argument(
        "--format",
        choices=(*FORMATS, *decoded_formats()),
        help="format of keys and values (default: text; json with --json)",
    )
    parser.add_argument("--schema", metavar="FILE", help="schema of values, for --format avro and confluent-avro")


def tail(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("schema", "format")])
    show = shown_as(given.format or ("json" if given.json else "text"), given.schema)
    cluster = job.cluster()
    if given.group is not None:
        given.start = stratalog.Committed(given.group)
    if given.start is None and given.last is None:
        given.last = _SHOWN
    with cluster.measured() as measure:
        tailed: Tail = call(cluster.tail, given)
        try:
            shown = _print(tailed, given.max_messages, show)
        except KeyboardInterrupt:
            if not given.follow:
                raise
            shown = None  # the normal way to stop following
    report = tailed.report()
    totals = report.totals if shown is None else {**report.totals, "records": shown}
    return replace(report, totals=totals, seconds=measure.seconds, counts=measure.counts)


def _print(tailed: Tail, most: int | None, show: Callable[[dict[str, Any]], str]) -> int:
    """Print records. Returns how many were printed. Raises: NobodyReadsError."""
    shown = 0
    for table in tailed:
        with printing():
            for record in islice(_records(table), None if most is None else most - shown):
                print(show(record))
                shown += 1
        if shown == most:
            break
    return shown


def _records(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=1000):
        try:
            rows = batch.to_pylist()
        except (OverflowError, UnicodeDecodeError):  # Python has no times after 9999, and only UTF-8 text
            names = batch.schema.names
            rows = [{name: as_it_is(batch.column(name)[row]) for name in names} for row in range(len(batch))]
        yield from rows


main = JobMain("tail", __doc__, arguments, tail, runs="driver", prints=True)


if __name__ == "__main__":
    sys.exit(main())
