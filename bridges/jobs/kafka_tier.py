"""Read the tiered storage of a Kafka cluster (KIP-405) from its bucket, without its brokers; needs no cluster.

  stratalog kafka_tier topics s3://kafka-tier --layout aiven --bootstrap kafka-1:9092
  stratalog kafka_tier segments s3://kafka-tier trips --layout aiven --metadata s3://backup/kafka-logs
  stratalog kafka_tier read s3://kafka-tier trips --layout aiven --bootstrap kafka-1:9092 --start 2026-06-01
  stratalog kafka_tier read s3://kafka-tier trips --layout aiven --bootstrap kafka-1:9092 --output trips.parquet

topics lists the offsets of each partition. segments lists the segments that read uses, and the segments that it
ignores, each with the reason. read shows records, counts them, or writes them to a Parquet file. Offsets are
unclear if the tier has no usable segment for them, or no proof that the segment belongs to the log's current
history. read fails on unclear offsets unless you leave them out. The command needs more packages: pip install
'stratalog[kafka-tier]', and with --bootstrap also 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stratalog import KafkaTierOptions, Report
from stratalog.bridges.jobs.mirror import OF_TIER, SPECIAL, TIER, check_format
from stratalog.engine.driver.report import Value
from stratalog.jobs.arguments import check_options, commands_of, count, names
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.errors import InvalidCallError

if TYPE_CHECKING:
    import pyarrow as pa

_TIER = "stratalog.bridges.kafka_tier.tier:KafkaTier"
_SHOWN = 20
_SPECIAL: Special = {
    "address": {"metavar": "TIER"},
    "layout": {**SPECIAL["layout"], "required": True},
    "metadata": {"metavar": "URL"},
    "bootstrap": {"metavar": "HOST:PORT"},
    "configs": SPECIAL["configs"],
    "keys": {"flags": ("--key",), "metavar": "ID=FILE"},
    "endpoint_url": {"metavar": "URL"},
    "epochs": {"metavar": "PARTITION=FILE"},
    "log_starts": {"flags": ("--log-start",), "metavar": "PARTITION=OFFSET"},
    "topics": {"flags": ("tiered",), "metavar": "TOPICS", "type": names, "help": "one or more topics: a,b"},
    "topic": {"flags": ("tiered",), "metavar": "TOPIC"},  # not ``topic``, because the topic is not in this cluster
    "value_format": SPECIAL["value_format"],
    "schema_file": SPECIAL["schema_file"],
    "fail_on_data_loss": {"flags": ("--leave-out-unclear",)},
}
_COMMANDS = {
    "topics": (
        "describe",
        "list the offsets of each partition that the tier has, and the unclear offsets with the reason",
    ),
    "segments": (
        "segments",
        "list the segments of a topic, with the offsets that are read, or the reason why a segment is ignored",
    ),
    "read": ("read_arrow", "show records, count them, or write them to a Parquet file"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    for name, (method, text) in _COMMANDS.items():
        added = command(name, text, reads=True)
        add_declared(added, TIER, only=["address"], special=_SPECIAL)
        add_declared(added, f"{_TIER}.{method}", special=_SPECIAL)
        tier = added.add_argument_group("tier")
        add_declared(tier, f"{_TIER}.open", only=["bootstrap", "configs"], special=_SPECIAL)
        add_declared(tier, TIER, only=["metadata", *OF_TIER[1:]], special=_SPECIAL)
    what = added.add_mutually_exclusive_group()
    what.add_argument(
        "--limit", metavar="N", type=count, default=_SHOWN, help=f"show N records (default: {_SHOWN})"
    )
    what.add_argument("--count", action="store_true", help="only count the records")
    what.add_argument("--output", metavar="FILE", help="write all records to a new Parquet file")


def kafka_tier(job: Job) -> Report:
    """Run the job. Raises: see ``KafkaTierOptions.open``, ``read_arrow``; InvalidCallError if the output
    exists."""
    given = job.arguments
    by_hand = [(one, "metadata") for one in ("epochs", "log_starts")]
    check_options(given, needs=by_hand, bars=[("metadata", "bootstrap")])
    if given.command == "read":
        check_format(given)
        if given.output is not None and os.path.lexists(given.output):
            raise InvalidCallError(f"{given.output} already exists: give --output another name")
    tier = call(KafkaTierOptions, given).open(given.bootstrap, given.configs)
    if given.command == "topics":
        return tier.describe()
    if given.command == "segments":
        return tier.segments(given.tiered)
    with _noted() as notes:
        batches = call(tier.read_arrow, given, topics=given.tiered)
        rows, records = _carry_out(given, batches)
    return Report("read", rows, totals={"records": records}, counts=tier.store.counts.snapshot(), notes=notes)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """A context that turns warnings into notes of the report."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield notes
        notes += [str(one.message) for one in seen if one.category is UserWarning]


def _carry_out(given: argparse.Namespace, batches: pa.RecordBatchReader) -> tuple[list[dict[str, Value]], int]:
    """Return the rows to show, and the number of records that were read."""
    if given.output is not None:
        return [], _write(given.output, batches)
    if given.count:
        return [], sum(batch.num_rows for batch in batches)
    rows: list[dict[str, Value]] = []
    for batch in batches:
        for row in batch.slice(0, given.limit - len(rows)).to_pylist():
            rows.append({name: _shown(value) for name, value in row.items()})
        if len(rows) >= given.limit:
            break
    return rows, len(rows)


def _write(path: str, batches: pa.RecordBatchReader) -> int:
    """Write a Parquet file, which gets its name only when the file is complete. Returns the number of records."""
    from pyarrow import parquet

    records, (folder, name) = 0, os.path.split(os.path.abspath(path))
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as scratch:
            part = os.path.join(scratch, name)
            with parquet.ParquetWriter(part, batches.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    records += batch.num_rows
            os.link(part, path)  # fails if another file has taken the name meanwhile
    except OSError as error:
        raise InvalidCallError(f"{path} cannot be written: {error.strerror}") from error
    return records


def _shown(value: Any) -> Value:
    """Return a value of a record as a cell of a table."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, list):
        return " ".join(f"{header['key']}={_shown(header['value'])}" for header in value)
    if isinstance(value, dict):
        return json.dumps(value, default=_shown, ensure_ascii=False)
    return str(value)


main = JobMain("kafka_tier", __doc__, arguments, kafka_tier, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
