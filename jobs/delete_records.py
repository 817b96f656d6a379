"""Delete the records of partitions below given offsets, as kafka-delete-records.sh does.

  stratalog delete_records --topic trips --partition 0 --offset 1000
  stratalog delete_records --offset-json-file offsets.json

The file has Kafka's format: {"partitions": [{"topic": "trips", "partition": 0, "offset": 1000}], "version": 1}.
Offset -1 deletes everything that is committed. The report lists the new low watermarks; stratalog retain deletes
the bytes. Topics whose log only snapshots may shorten (cleanup.policy=snapshot, __cluster_metadata) are refused
with POLICY_VIOLATION.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_yes, number
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError


class _Partition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int


class _OffsetsFile(msgspec.Struct, frozen=True):
    partitions: tuple[_Partition, ...]
    version: int = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser, "check, and print the low watermarks that would result; change nothing")
    add_yes(parser)
    parser.add_argument(
        "--offset-json-file", metavar="JSON", type=Path, help="a file of topics, partitions and offsets"
    )
    parser.add_argument("--topic", metavar="NAME")
    parser.add_argument("--partition", metavar="N", type=number)
    parser.add_argument("--offset", metavar="N", type=int, help="the first offset to keep; -1: the high watermark")


def delete_records(job: Job) -> Report:
    given = job.arguments
    by_topic: dict[str, dict[int, int]] = {}
    for one in _wanted(given):
        offsets = by_topic.setdefault(one.topic, {})
        if one.partition in offsets:
            raise InvalidCallError(f"partition {one.partition} of topic {one.topic!r} is named twice")
        offsets[one.partition] = one.offset
    cluster = job.cluster()
    with cluster.measured() as measure:
        # An error in the last of several topics is found before the first one is changed.
        reports = [
            cluster.topics.delete_records(topic, before, dry_run=True, check=False)
            for topic, before in by_topic.items()
        ]
        job.confirm(f"delete records of {', '.join(map(repr, by_topic))}, in both tiers")
        if not given.dry_run:
            reports = [
                cluster.topics.delete_records(topic, before, check=False) for topic, before in by_topic.items()
            ]
    return Report(
        operation="delete_records",
        rows=[row for report in reports for row in report.rows],
        failures=[failure for report in reports for failure in report.failures],
        dry_run=given.dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
    )


def _wanted(given: argparse.Namespace) -> list[_Partition]:
    """Raises: InvalidCallError."""
    named = (given.topic, given.partition, given.offset)
    wanted = [] if given.offset_json_file is None else _read(given.offset_json_file)
    if all(one is not None for one in named):
        wanted.append(_Partition(*named))
    elif any(one is not None for one in named):
        raise InvalidCallError("--topic, --partition and --offset go together")
    if not wanted:
        raise InvalidCallError(
            "no records are named: give --offset-json-file, or --topic, --partition and --offset"
        )
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
