r"""Append lines of standard input or a file to a topic; needs no Spark.

  echo hello | stratalog produce greetings
  stratalog produce trips --input trips.txt --key-separator :     key:value
  stratalog produce flights < flights.jsonl                       a typed topic: values as JSON
  stratalog tail trips --format json | stratalog produce copy --format json
  stratalog produce trips --input day-7.txt --producer loader --sequence 7    stored once, however often you run it

Each line is one value, unchanged. For a typed topic, the line is JSON, or plain text if the type is STRING. With
--key-separator the text before the separator is the key, in the same form. With --format json each line is a
record as tail prints it: an object with value, key, headers and timestamp, all optional; partition and offset are
ignored. Bytes are written as a string, or as {"base64": "..."}. A record without a timestamp gets the time of the
append.

A batch is appended when it has --batch lines, or when no line has arrived for --linger. If a line does not fit the
topic, the error names the line, and no line of its batch is appended. With --producer and --sequence, all lines
are one append.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stratalog import Failure, Report
from stratalog.engine.driver.report import Value
from stratalog.jobs.arguments import add_dry_run, check_options, count, duration, number, separator
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.ending import Ending, after_the_work
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError, StratalogError
from stratalog.partitions.spelling import did_you_mean

_CHUNK = 1 << 16
_LONGEST = 64 * 1024 * 1024
_METHOD = "producer.Producer.produce"
_HOW = ("partition", "acks", "on_unknown_field", "producer", "sequence")
_ASIDE = ("partition", "offset")
"""The fields that tail prints, but that are ignored here: the record's position in the topic that tail has
read."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, _METHOD, only=["topic"])
    add_dry_run(parser, "check and count all lines; append nothing")
    parser.add_argument("--input", metavar="FILE", help="read lines from FILE (default: standard input)")
    parser.add_argument(
        "--format",
        choices=("lines", "json"),
        default="lines",
        help="lines: each line is a value; json: each line is a record (default: lines)",
    )
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        type=separator,
        help="text between the key and the value of a line; may contain escapes such as \\t, \\0 or \\x1f",
    )
    add_declared(parser, _METHOD, only=_HOW, special={"partition": {"metavar": "N", "type": number}})
    parser.add_argument(
        "--batch",
        metavar="N",
        type=count,
        default=10_000,
        help="append at most N lines in one batch (default: 10000)",
    )
    parser.add_argument(
        "--linger",
        metavar="TIME",
        type=duration,
        default=0.5,
        help="append the batch when no line has arrived for TIME (default: 500ms)",
    )


def produce(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("producer", "sequence"), ("sequence", "producer")])
    if given.key_separator is not None and given.format == "json":
        raise InvalidCallError("--key-separator needs --format lines: a JSON object contains its key")
    image = (cluster := job.cluster()).image
    topic = image.topic(given.topic)
    _check_takes_lines(image, topic, given.acks)
    lines = _Lines(given, topic)
    total, read = _Total(named=given.producer is not None), 0
    source = _opened(given.input)
    try:
        with cluster.measured() as measure, after_the_work() as ending:
            ending.listen()
            most = None if given.sequence is not None else given.batch
            try:
                for batch in batches(source, most, given.linger, ending):
                    rows = lines.records(batch, read)
                    total.batch = len(batch)
                    if not given.dry_run:
                        total.add(call(cluster.produce, given, rows=rows, **lines.columns))
                    if total.failures:
                        break
                    read, total.batch = read + len(batch), 0
            except KeyboardInterrupt as stop:  # the second signal
                raise type(stop)(
                    total.interrupted(read) if not given.dry_run else "nothing was appended"
                ) from None
            except StratalogError as error:
                if not read or given.dry_run:
                    raise  # nothing was changed
                total.stop(error)
    finally:
        os.close(source)
    return replace(total.report(read), dry_run=given.dry_run, seconds=measure.seconds, counts=measure.counts)


def _check_takes_lines(image: Any, topic: Any, acks: str | None) -> None:
    """Check before a line is read, and in a dry run, what each append checks. Raises: InvalidCallError kinds."""
    from stratalog.engine.records.append import check_call
    from stratalog.engine.state.internal_topics import check_not_internal

    check_not_internal(topic.name, "produce to")
    check_call(image, topic, "all" if acks is None else acks, None)


def batches(source: int, most: int | None, linger_s: float, ending: Ending) -> Iterator[list[bytes]]:
    """Yield batches of lines without line ends, with at most ``most`` lines each (None: all lines are one batch).
    A batch ends when it is full, or when no line has arrived for ``linger_s``. After a signal to end, the lines
    that were already read are yielded.

    Raises: InvalidRecordError for a line that is too long.
    """
    # the pieces of a line are joined once, at the end of the line
    rest, rest_bytes, lines = list[bytes](), 0, list[bytes]()
    while True:
        patience = linger_s if lines and most is not None else None
        ready = ending.wait([source], patience)
        if ending.requested:
            break
        if not ready:
            yield lines
            lines = []
            continue
        chunk = os.read(source, _CHUNK)
        if not chunk:
            lines += [b"".join(rest)] if rest_bytes else []
            break
        *ends, begun = chunk.split(b"\n")
        if ends:
            lines += [b"".join([*rest, ends[0]]), *ends[1:]]
            rest, rest_bytes = [], 0
        rest.append(begun)
        rest_bytes += len(begun)
        if rest_bytes > _LONGEST:
            begin = b"".join(rest)[:40]
            raise InvalidRecordError(f"a line is longer than {_LONGEST:,} bytes; it begins with {begin!r}")
        while most is not None and len(lines) >= most:
            yield lines[:most]
            lines = lines[most:]
    if lines:
        yield lines


class _Lines:
    """Converts lines to the records of a topic."""

    def __init__(self, given: argparse.Namespace, topic: Any) -> None:
        from stratalog.partitions.records import HEADERS, TIMESTAMP, schema_of

        schema = schema_of(topic.key_schema, topic.value_schema)
        self._given = given
        self._types = {
            **{column: schema.field(column).type for column in ("key", "value")},
            "headers": HEADERS,
            "timestamp": TIMESTAMP,
        }
        columns = tuple(self._types)
        if given.format == "lines":
            columns = ("value",) if given.key_separator is None else ("key", "value")
        self._columns = columns
        self._declared = {"key": topic.key_schema, "value": topic.value_schema}
        self.columns = {column: column for column in columns}
        """Return the columns of the rows, as arguments of ``Cluster.produce``."""

    def records(self, lines: Sequence[bytes], before: int) -> list[dict[str, Any]]:
        """Return the rows for ``Cluster.produce``. Raises: InvalidRecordError, which names the line."""
        found = []
        for index, line in enumerate(lines):
            try:
                row = self._record(line.removesuffix(b"\r"))
                if self._given.on_unknown_field in (None, "fail"):
                    self._check(row)
                found.append(row)
            except ValueError as error:
                raise InvalidRecordError(
                    f"produce to {self._given.topic}: line {before + index + 1:,}: {error}"
                ) from error
        return found

    def _check(self, row: dict[str, Any]) -> None:
        """Check that the topic's type has all fields, so that the error can name the line. Raises: ValueError."""
        from stratalog.partitions.unknown_fields import refused, unknown_in_values

        for column in self._columns:
            kind = self._types[column]
            if found := unknown_in_values([(0, row[column])], kind, column, (), f"{column}."):
                raise ValueError(refused([replace(one, row=None) for one in found]))

    def _record(self, line: bytes) -> dict[str, Any]:
        if self._given.format == "json":
            return self._object(line)
        if self._given.key_separator is None:
            return {"value": self._of_text(line, "value")}
        key, separator, value = line.partition(self._given.key_separator.encode())
        if not separator:
            raise ValueError(f"there is no {self._given.key_separator!r} after a key")
        return {"key": self._of_text(key, "key"), "value": self._of_text(value, "value")}

    def _of_text(self, text: bytes, column: str) -> Any:
        """Return the key or value in a part of a line. Raises: ValueError."""
        import pyarrow as pa

        from stratalog.engine.driver.plain_values import example, from_plain
        from stratalog.partitions.declared import ddl

        kind = self._types[column]
        if pa.types.is_binary(kind):
            return text
        if pa.types.is_string(kind):
            return text.decode()
        try:
            found = parse_json(text)
        except ValueError as error:
            declared, such = ddl(self._declared[column]), json.dumps(example(kind))
            raise ValueError(
                f"the {column} is not JSON ({error}). Its type is {declared}: give a {column} such as {such}"
            ) from error
        return from_plain(found, kind)

    def _object(self, line: bytes) -> dict[str, Any]:
        from stratalog.engine.driver.plain_values import from_plain

        found = parse_json(line)
        if not isinstance(found, dict):
            raise ValueError('not an object such as {"key": "a", "value": 1}')
        for column in found.keys() - {*self._columns, *_ASIDE}:
            hint = did_you_mean(column, self._columns) or f"; the columns are {', '.join(self._columns)}"
            raise ValueError(f"records have no column {column!r}{hint}")
        row = {}
        for column in self._columns:
            try:
                row[column] = from_plain(found.get(column), self._types[column])
            except ValueError as error:
                raise ValueError(f"{column}: {error}") from error
        return row


class _Total:
    """The reports of all batches as one report: one row per partition, with first offset and number of records."""

    def __init__(self, *, named: bool) -> None:
        """``named``: whether --producer and --sequence were given, so that all lines are one append."""
        self._named = named
        self._batches = 0
        self._in_part = False
        self.batch = 0
        """The number of lines of the latest batch."""
        self._dropped = 0
        self._rows: dict[Value, dict[str, Value]] = {}
        self._notes: dict[str, None] = {}
        self.failures: Sequence[Failure] = ()
        """The failures of the latest batch."""

    def add(self, report: Report) -> None:
        """Add the report of the next batch."""
        self._batches += 1
        self.failures = report.failures
        self._in_part = any(row["outcome"] in ("acknowledged", "unknown") for row in report.rows)
        self._notes |= dict.fromkeys(report.notes)
        for row in report.rows:
            dropped = row["outcome"] == "dropped"
            known = self._rows.setdefault(row["reason" if dropped else "partition"], {**row, "records": 0})
            known["records"] = int(known["records"] or 0) + int(row["records"] or 0)
            known |= {name: row[name] for name in ("next_offset", "outcome")}
            if dropped:
                self._dropped += int(row["records"] or 0)

    def stop(self, error: StratalogError) -> None:
        """Note that the next batch has no report. Only a wrong call is known to have appended nothing."""
        self.failures = [Failure.of("produce", error)]
        self._in_part = not isinstance(error, InvalidCallError)

    def interrupted(self, lines: int) -> str:
        """Return what the interrupted run has appended, and how to append the rest; ``lines`` as in ``report``."""
        if self._named:
            return "run the job again with the same --producer and --sequence, which appends no line twice"
        self._in_part = self.batch > 0
        return " ".join(self._after_failure(lines)) or "nothing was appended"

    def report(self, lines: int) -> Report:
        """Return the report of all batches. ``lines`` is the number of lines in batches that were appended
        completely."""
        if self.failures and not self._named:  # otherwise the notes of the append itself say how to proceed
            self._notes |= dict.fromkeys(self._after_failure(lines))
        rows = sorted(self._rows.values(), key=lambda row: (row["partition"] is None, int(row["partition"] or 0)))
        totals: dict[str, Value] = {"lines": lines, "batches": self._batches}
        if self._dropped:
            totals["dropped_fields"] = self._dropped
        return Report("produce", rows, self.failures, totals, notes=[*self._notes])

    def _after_failure(self, lines: int) -> Iterator[str]:
        """Return notes on the lines that were appended, and on how to append the rest."""
        if self._in_part:
            known = f"lines 1 to {lines:,} were appended; " if lines else ""
            yield (
                f"{known}some of lines {lines + 1:,} to {lines + self.batch:,} may have been appended: to run "
                "their append again, give only these lines; with --producer and --sequence in each run, a second "
                "run appends no line twice"
            )
        elif lines:
            yield f"lines 1 to {lines:,} were appended, and no later line: next time, give only the later lines"


def _opened(path: str | None) -> int:
    """Open the input. Raises: InvalidCallError."""
    try:
        return os.dup(sys.stdin.fileno()) if path is None else os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidCallError(f"{path or 'standard input'} cannot be read: {error.strerror}") from error


main = JobMain("produce", __doc__, arguments, produce, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
