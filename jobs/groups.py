"""List consumer groups, describe a group and its lag, commit or move its offsets, delete a group or its offsets
for a topic.

  stratalog groups list
  stratalog groups describe dashboard
  stratalog groups commit dashboard --offsets trips:0:1000,trips:1:980
  stratalog groups reset-offsets dashboard --topics trips --to-datetime 2013-06-01 --dry-run

Stop the consumers of a group before you move its offsets: their next commit would overwrite the new offsets.
"""

from __future__ import annotations

import argparse
import re
import sys

from stratalog import OffsetSpec, Report
from stratalog.jobs.arguments import add_yes, commands_of, number, time, whole_number
from stratalog.jobs.declared import add_command, add_declared, call
from stratalog.jobs.run import Job, JobMain

_OFFSET = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d{1,9}):(?P<offset>\d{1,18})", re.ASCII)
_PLACES = ("to", "shift_by", "by_duration")


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    add_command(command, "groups.Groups.list")
    add_command(command, "groups.Groups.lag", "describe")
    offsets = {
        "flags": ("--offsets",),
        "metavar": "TOPIC:N:OFFSET,...",
        "type": topic_offsets,
        "required": True,
        "help": "the offset of the next record to read in each partition",
    }
    add_command(command, "groups.Groups.commit", special={"offsets": offsets})
    reset = add_command(
        command,
        "groups.Groups.reset_offsets",
        leave_out=_PLACES,
        special={"topics": {"required": True, "help": "only these topics"}},
    )
    for name in ("delete", "delete_offsets"):
        add_yes(add_command(command, f"groups.Groups.{name}"))
    place = reset.add_mutually_exclusive_group(required=True)
    add_place = place.add_argument  # Kafka has one option for each kind of ``to``
    add_place(
        "--to-earliest", action="store_const", const=OffsetSpec.EARLIEST, dest="to", help="move to the log start"
    )
    add_place(
        "--to-latest", action="store_const", const=OffsetSpec.LATEST, dest="to", help="move to the high watermark"
    )
    add_place("--to-offset", metavar="N", type=number, dest="to", help="move to offset N")
    add_place(
        "--to-datetime",
        metavar="T",
        type=time,
        dest="to",
        help="move to the first record at or after an ISO 8601 time",
    )
    add_declared(
        place, "groups.Groups.reset_offsets", only=_PLACES[1:], special={"shift_by": {"type": whole_number}}
    )


def topic_offsets(text: str) -> dict[tuple[str, int], int]:
    """Parse ``trips:0:1000,trips:1:980`` to offsets by topic and partition."""
    found = dict[tuple[str, int], int]()
    for part in text.split(","):
        parts = _OFFSET.fullmatch(part)
        if parts is None:
            raise argparse.ArgumentTypeError(f"{part!r} is not TOPIC:PARTITION:OFFSET, such as trips:0:1000")
        place = parts["topic"], int(parts["partition"])
        if place in found:
            raise argparse.ArgumentTypeError(f"partition {place[1]} of topic {place[0]!r} is given twice")
        found[place] = int(parts["offset"])
    return found


def groups(job: Job) -> Report:
    given, door = job.arguments, job.cluster().groups
    if given.command == "delete":
        job.confirm(f"delete group {given.group!r} and its offsets")
    elif given.command == "delete-offsets":
        job.confirm(f"delete the offsets of group {given.group!r} for {', '.join(given.topics)}")
    method = "lag" if given.command == "describe" else given.command.replace("-", "_")
    report: Report = call(getattr(door, method), given)
    return report


main = JobMain("groups", __doc__, arguments, groups, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
