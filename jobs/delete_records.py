"""Delete the records of partitions below given offsets, as kafka-delete-records.sh does.

  stratalog delete_records trips --before 0:1000,1:latest
  stratalog delete_records --offset-json-file offsets.json

The file has Kafka's format: {"partitions": [{"topic": "trips", "partition": 0, "offset": 1000}], "version": 1}.
latest (-1 in the file) deletes everything that is committed. The report lists the new low watermarks; stratalog
retain deletes the files later. A topic whose log may be shortened only by snapshots (cleanup.policy=snapshot,
__cluster_metadata) is refused with POLICY_VIOLATION.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import msgspec

from stratalog import Failure, Report
from stratalog.jobs.arguments import add_yes, check_options
from stratalog.jobs.declared import Special, add_declared
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError, StratalogError

_METHOD = "topics.Topics.delete_records"
_LATEST = -1
"""Kafka's word for the high watermark."""


class _Partition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int


class _OffsetsFile(msgspec.Struct, frozen=True):
    partitions: tuple[_Partition, ...]
    version: int = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    special: Special = {
        "topic": {"nargs": "?"},
        "before": {"metavar": "N:OFFSET,...", "type": _offsets, "flags": ("--before",)},
    }
    add_declared(parser, _METHOD, only=["dry_run"])
    add_yes(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    add_declared(which, _METHOD, only=["topic"], special=special)
    which.add_argument(
        "--offset-json-file",
        metavar="FILE",
        type=Path,
        help="file with topics, partitions and offsets, in Kafka's format",
    )
    add_declared(parser, _METHOD, only=["before"], special=special)


def delete_records(job: Job) -> Report:
    given = job.arguments
    by_topic: dict[str, dict[int, int]] = {}
    for one in _wanted(given):
        offsets = by_topic.setdefault(one.topic, {})
        if one.partition in offsets:
            raise InvalidCallError(f"partition {one.partition} of topic {one.topic!r} is given twice")
        offsets[one.partition] = one.offset
    cluster = job.cluster()
    with cluster.measured() as measure:
        # Check all topics before the first one is changed.
        reports = [
            cluster.topics.delete_records(topic, before, dry_run=True, check=False)
            for topic, before in by_topic.items()
        ]
        job.confirm(f"delete records of {', '.join(map(repr, by_topic))}, in both tiers")
        if not given.dry_run:
            reports = []
            for topic, before in by_topic.items():
                try:
                    reports.append(cluster.topics.delete_records(topic, before, check=False))
                except StratalogError as error:
                    if not reports:
                        raise
                    reports.append(Report("delete_records", (), [Failure.of(topic, error)]))
    return Report(
        operation="delete_records",
        rows=[row for report in reports for row in report.rows],
        failures=[failure for report in reports for failure in report.failures],
        dry_run=given.dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
        notes=[note for report in reports for note in report.notes],
    )


def _offsets(text: str) -> list[tuple[int, int]]:
    """Parse ``0:1000,1:latest``."""
    if not re.fullmatch(r"\d+:(\d+|latest)(,\d+:(\d+|latest))*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: write offsets by partition as 0:1000,1:latest")
    pairs = (part.split(":") for part in text.split(","))
    return [(int(partition), _LATEST if offset == "latest" else int(offset)) for partition, offset in pairs]


def _wanted(given: argparse.Namespace) -> list[_Partition]:
    """Return the requested offsets. Raises: InvalidCallError."""
    if given.offset_json_file is None:
        if given.before is None:
            raise InvalidCallError("no partitions were given: use --before, such as --before 0:1000,1:latest")
        return [_Partition(given.topic, partition, offset) for partition, offset in given.before]
    check_options(given, bars=[("offset_json_file", "before")])
    if not (wanted := _read(given.offset_json_file)):
        raise InvalidCallError(f"{given.offset_json_file} names no records")
    return wanted


def _read(path: Path) -> list[_Partition]:
    try:
        found = parse_json(path.read_bytes(), _OffsetsFile)
    except OSError as error:
        raise InvalidCallError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidCallError(f"{path} is not in the format of kafka-delete-records.sh: {error}") from error
    if found.version != 1:
        raise InvalidCallError(f"{path} has version {found.version}: this job reads version 1")
    return list(found.partitions)


main = JobMain("delete_records", __doc__, arguments, delete_records, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
