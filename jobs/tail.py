"""Print the latest records of a topic, and with -f also new records as they are appended; needs no Spark.

  stratalog tail flights                       the last 10 records of each partition
  stratalog tail flights -f -n 0               records from now on
  stratalog tail flights --start 2013-06-01    everything from the first record at or after a time
  stratalog tail flights -f --group dashboard  from the offsets of a consumer group; commits nothing
  stratalog tail flights --format json | stratalog produce copy --format json

A line has partition, offset, timestamp, key and value, separated by tabs. Keys and values are escaped: \\t is a
tab, \\n and \\r end a line, \\\\ is a backslash; \\xff is a byte that is not UTF-8, and \\u202e is a character
that could control a terminal. A time beyond the year 9999 is printed in microseconds. --format hex and base64
print the bytes of keys and values; a typed value is printed as the bytes of its JSON. --format json prints one
object per line. Bytes are a string if they are UTF-8, otherwise {"base64": "..."}. --format avro decodes values
with the schema in --schema; confluent-avro expects a schema id before each value. The report goes to standard
error. With --json, it is the last line of standard output instead, and records are printed as JSON unless you give
--format.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stratalog
from stratalog import Report
from stratalog.engine.config.bridges import bridges
from stratalog.engine.driver.plain_values import as_it_is, plain, raw_bytes, time_text
from stratalog.jobs.arguments import check_options, count
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.run import Job, JobMain, printing
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.printable import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.engine.reading.tail import Tail


FORMATS = ("text", "json", "hex", "base64")
"""The formats without a schema."""

Show = Callable[[dict[str, Any]], str]
"""Formats a record as a line."""


def decoded_formats() -> list[str]:
    """Return the formats of bridges, which decode values by a schema."""
    return [name for bridge in bridges() for name in bridge.formats]


def shown_as(how: str, schema: str | None = None) -> Show:
    """Return the formatter for a name of ``FORMATS`` or ``decoded_formats``. For the latter, ``schema`` is the
    schema file.

    Raises: InvalidCallError; EnvironmentUnusableError without the bridge or its library. The formatter raises
        InvalidCallError for a value that does not fit the schema.
    """
    if how in FORMATS:
        if schema is not None:
            raise InvalidCallError(f"--schema is for --format {' and '.join(decoded_formats())}")
        return {"text": _line, "json": _object, "hex": _hex, "base64": _base64}[how]
    if schema is None:
        raise InvalidCallError(f"--format {how} needs --schema")
    bridge = next(one for one in bridges() if how in one.formats)
    decode = _decoded(bridge.load(bridge.formats[how])(Path(schema)), how)
    return lambda record: _object({**record, "value": decode(record)})


def _line(record: dict[str, Any], text: Callable[[Any], str] | None = None) -> str:
    text = text or _text
    columns = ("" if record[name] is None else text(record[name]) for name in ("key", "value"))
    return "\t".join((str(record["partition"]), str(record["offset"]), time_text(record["timestamp"]), *columns))


def _object(record: dict[str, Any]) -> str:
    headers = [{"key": plain(one["key"]), "value": plain(one["value"])} for one in record["headers"] or ()]
    shown = {name: plain(record[name]) for name in ("partition", "offset")}
    shown |= {
        "timestamp": time_text(record["timestamp"]),
        "key": plain(record["key"]),
        "value": plain(record["value"]),
    }
    return json.dumps({**shown, "headers": headers}, default=str, allow_nan=False)


def _text(value: Any) -> str:
    """Return a value as part of a line. Backslashes are escaped first, then bytes that are not UTF-8, then
    unprintable text."""
    if isinstance(value, bytes):
        return printable(value.replace(b"\\", b"\\\\").decode("utf-8", errors="backslashreplace"))
    shown = plain(value)
    if not isinstance(shown, str):
        return printable(json.dumps(shown, default=str, allow_nan=False))
    return printable(shown.replace("\\", "\\\\"))


def _hex(record: dict[str, Any]) -> str:
    return _line(record, lambda value: (raw_bytes(value) or b"").hex())


def _base64(record: dict[str, Any]) -> str:
    return _line(record, lambda value: base64.b64encode(raw_bytes(value) or b"").decode())


def _decoded(decode: Callable[[bytes], Any], how: str) -> Callable[[dict[str, Any]], Any]:
    """Return the decoded value of a record. Raises: InvalidCallError."""

    def decoded(record: dict[str, Any]) -> Any:
        value = record["value"]
        if value is None:
            return None
        of = f"partition {record['partition']}, offset {record['offset']}"
        if not isinstance(value, bytes):
            raise InvalidCallError(f"{of}: the topic is typed, so its values are not {how}: omit --format")
        try:
            return decode(value)
        except ValueError as error:
            raise InvalidCallError(f"{of}: {error}") from error

    return decoded


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
    begin.add_argument("--group", metavar="NAME", help="begin at the committed offsets of a consumer group")
    add_declared(parser, _METHOD, only=_HOW, special=_SPECIAL)
    parser.add_argument("--max-messages", metavar="N", type=count, help="stop after N records")
    parser.add_argument(
        "--format",
        choices=(*FORMATS, *decoded_formats()),
        help="format of keys and values (default: text, or json with --json)",
    )
    parser.add_argument(
        "--schema", metavar="FILE", help="Avro schema of the values, for --format avro and confluent-avro"
    )


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
            shown = None  # this is the normal way to stop a tail
    report = tailed.report()
    totals = report.totals if shown is None else {**report.totals, "records": shown}
    return replace(report, totals=totals, seconds=measure.seconds, counts=measure.counts)


def _print(tailed: Tail, most: int | None, show: Callable[[dict[str, Any]], str]) -> int:
    """Print records. Returns the number of printed records. Raises: OutputClosedError."""
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
        # Python has no times after the year 9999, and text must be UTF-8
        except (OverflowError, UnicodeDecodeError):
            names = batch.schema.names
            rows = [{name: as_it_is(batch.column(name)[row]) for name in names} for row in range(len(batch))]
        yield from rows


main = JobMain("tail", __doc__, arguments, tail, runs="driver", prints=True)


if __name__ == "__main__":
    sys.exit(main())
