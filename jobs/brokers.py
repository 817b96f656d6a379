"""List and add brokers, take them out of service, bring them back, or remove them from the cluster for good.

  stratalog brokers list
  stratalog brokers add 4                format and register a broker that is new in the cluster file
  stratalog brokers fence 2,3 --dry-run  print the leader that each partition would get

A fenced broker leads no partition and is in no ISR (except as the last member). Nothing is written to its root
until it is brought back. To decommission a broker, first move its replicas away with reassign. The job bootstrap
brings back a broker that lost its storage.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_yes, commands_of, numbers
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    command("list", "list all brokers", reads=True)
    add = command("add", "format and register brokers that are new in the cluster file")
    fence = command("fence", "take brokers out of service, until they are brought back")
    unfence = command("unfence", "bring brokers back, including those that a probe fenced")
    decommission = command("decommission", "remove brokers from the metadata for good")
    for added in (add, fence, unfence, decommission):
        added.add_argument("brokers", metavar="BROKERS", type=numbers, help="one broker, or several: 2,3")
    for added in (fence, decommission):
        add_yes(added)
    fence.add_argument(
        "--force", action="store_true", help="fence them even if that leaves partitions without a leader"
    )
    add.add_argument(
        "--if-not-exists", action="store_true", help="leave brokers alone that are in the cluster already"
    )


def brokers(job: Job) -> Report:
    given, door = job.arguments, job.cluster().brokers
    match given.command:
        case "list":
            return door.list()
        case "add":
            return door.add(given.brokers, if_not_exists=given.if_not_exists, dry_run=given.dry_run, check=False)
        case "unfence":
            return door.unfence(given.brokers, dry_run=given.dry_run, check=False)
    named = f"broker{'s' if len(given.brokers) > 1 else ''} {', '.join(map(str, given.brokers))}"
    if given.command == "decommission":
        job.confirm(f"take {named} out of the cluster")
        return door.decommission(given.brokers, dry_run=given.dry_run, check=False)
    if given.force:
        job.confirm(f"fence {named}, even if that leaves partitions without a leader")
    return door.fence(given.brokers, force=given.force, dry_run=given.dry_run, check=False)


main = JobMain("brokers", __doc__, arguments, brokers, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
