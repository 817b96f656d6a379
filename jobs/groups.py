"""List consumer groups, describe one and its lag, move its offsets, delete it or its offsets of a topic.

  stratalog groups --list
  stratalog groups --describe --group dashboard
  stratalog groups --reset-offsets --group dashboard --topics trips --to-datetime 2013-06-01 --dry-run
Stop the consumers of a group before its offsets are moved: their next commit would take their place.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import timedelta
from typing import Any

from stratalog import OffsetSpec, Report
from stratalog.jobs.arguments import add_dry_run, add_topics, add_yes, check_options, number, numbers, time
from stratalog.jobs.run import Job, JobMain

_PLACES = ("to_earliest", "to_latest", "to_offset", "to_datetime", "shift_by", "by_duration")
_NEEDS = (
    *((action, "group") for action in ("describe", "delete", "delete_offsets", "reset_offsets")),
    *((action, "topics") for action in ("delete_offsets", "reset_offsets")),
    ("reset_offsets", *_PLACES),
    ("group", "describe", "delete", "delete_offsets", "reset_offsets"),
    ("topics", "delete_offsets", "reset_offsets"),
    *((option, "reset_offsets") for option in ("partitions", *_PLACES)),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="every group")
    what.add_argument("--describe", action="store_true", help="a group's offsets and lag")
    what.add_argument("--reset-offsets", action="store_true", help="move what a group has committed")
    what.add_argument("--delete", action="store_true", help="forget a group")
    what.add_argument("--delete-offsets", action="store_true", help="forget its offsets for --topics")
    parser.add_argument("--group", metavar="NAME")
    add_topics(parser)
    parser.add_argument("--partitions", metavar="N,M", type=numbers, help="reset only these (default: all)")
    add_dry_run(parser)
    add_yes(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--to-earliest", action="store_true", help="to the log start")
    place.add_argument("--to-latest", action="store_true", help="to the high watermark")
    place.add_argument("--to-offset", metavar="N", type=number)
    place.add_argument("--to-datetime", metavar="T", type=time, help="to the first record at or after an ISO time")
    place.add_argument("--shift-by", metavar="N", type=_shift, help="N records on, or back: --shift-by=-10")
    place.add_argument(
        "--by-duration", metavar="PnDTnHnMnS", type=duration, help="to where the log was that long ago"
    )


def groups(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=_NEEDS)
    cluster = job.cluster()
    if given.list:
        return cluster.groups.list()
    if given.describe:
        return cluster.groups.lag(given.group)
    if given.delete:
        job.confirm(f"delete group {given.group!r} and its offsets")
        return cluster.groups.delete(given.group, dry_run=given.dry_run)
    if given.delete_offsets:
        job.confirm(f"delete the offsets of group {given.group!r} for {', '.join(given.topics)}")
        return cluster.groups.delete_offsets(given.group, given.topics, dry_run=given.dry_run)
    to: Any = given.to_offset if given.to_offset is not None else given.to_datetime
    if given.to_earliest or given.to_latest:
        to = OffsetSpec.EARLIEST if given.to_earliest else OffsetSpec.LATEST
    return cluster.groups.reset_offsets(
        given.group,
        given.topics,
        to=to,
        shift_by=given.shift_by,
        by_duration=given.by_duration,
        partitions=given.partitions,
        dry_run=given.dry_run,
    )


def _shift(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of records, negative to go back")
    return int(text)


def duration(text: str) -> timedelta:
    """An ISO 8601 duration of days, hours, minutes and seconds: ``P7D``, ``PT1H30M``."""
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", text, re.ASCII)
    if found is None or not any(found.groups()):
        raise argparse.ArgumentTypeError(f"{text!r}: write durations as P7D, PT1H30M or P1DT12H")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than any log") from error


main = JobMain("groups", __doc__, arguments, groups, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
