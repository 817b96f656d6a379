"""List consumer groups, describe a group and its lag, move its offsets, delete the group or its offsets of a
topic.

  stratalog groups list
  stratalog groups describe dashboard
  stratalog groups reset-offsets dashboard --topics trips --to-datetime 2013-06-01 --dry-run
Stop the consumers of a group before you move its offsets: their next commit would overwrite the new offsets.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import timedelta
from typing import Any

from stratalog import OffsetSpec, Report
from stratalog.jobs.arguments import add_topics, add_yes, commands_of, names, number, numbers, time
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    command("list", "list all groups", reads=True)
    describe = command("describe", "show the offsets and the lag of a group", reads=True)
    reset = command("reset-offsets", "move the committed offsets of a group")
    delete = command("delete", "delete a group and its offsets")
    delete_offsets = command("delete-offsets", "delete a group's offsets for some topics")
    for added in (describe, reset, delete, delete_offsets):
        added.add_argument("group", metavar="GROUP")
    add_topics(delete_offsets, required=True)
    reset.add_argument("--topics", metavar="A,B", type=names, required=True, help="only these topics")
    for added in (delete, delete_offsets):
        add_yes(added)
    delete.add_argument("--if-exists", action="store_true", help="succeed if the group does not exist")
    reset.add_argument("--partitions", metavar="N,M", type=numbers, help="only these (default: all)")
    place = reset.add_mutually_exclusive_group(required=True)
    place.add_argument("--to-earliest", action="store_true", help="move to the log start")
    place.add_argument("--to-latest", action="store_true", help="move to the high watermark")
    place.add_argument("--to-offset", metavar="N", type=number)
    place.add_argument(
        "--to-datetime", metavar="T", type=time, help="move to the first record at or after an ISO time"
    )
    place.add_argument(
        "--shift-by", metavar="N", type=_shift, help="move N records forward, or back: --shift-by=-10"
    )
    place.add_argument(
        "--by-duration",
        metavar="PnDTnHnMnS",
        type=duration,
        help="move to the first record that is not older than this",
    )


def groups(job: Job) -> Report:
    given, door = job.arguments, job.cluster().groups
    match given.command:
        case "list":
            return door.list()
        case "describe":
            return door.lag(given.group)
        case "delete":
            job.confirm(f"delete group {given.group!r} and its offsets")
            return door.delete(given.group, if_exists=given.if_exists, dry_run=given.dry_run, check=False)
        case "delete-offsets":
            job.confirm(f"delete the offsets of group {given.group!r} for {', '.join(given.topics)}")
            return door.delete_offsets(given.group, given.topics, dry_run=given.dry_run, check=False)
    to: Any = given.to_offset if given.to_offset is not None else given.to_datetime
    if given.to_earliest or given.to_latest:
        to = OffsetSpec.EARLIEST if given.to_earliest else OffsetSpec.LATEST
    return door.reset_offsets(
        given.group,
        given.topics,
        to=to,
        shift_by=given.shift_by,
        by_duration=given.by_duration,
        partitions=given.partitions,
        dry_run=given.dry_run,
        check=False,
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
