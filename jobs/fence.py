"""Take brokers out of service, bring them back, or remove them from the cluster for good.

A fenced broker leads no partition and is in no ISR (except as the last member). Nothing is written to its root
until it is brought back. --decommission needs a broker without replicas: move them away with reassign first.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_yes, numbers
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser, "print the leader that each partition would get; change nothing")
    add_yes(parser)
    parser.add_argument("--brokers", metavar="N,M", type=numbers, required=True, help="the brokers")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--unfence", action="store_true", help="bring them back, including those that a probe fenced"
    )
    instead.add_argument("--decommission", action="store_true", help="remove them from the metadata for good")
    instead.add_argument(
        "--force", action="store_true", help="fence them even if that leaves partitions without a leader"
    )


def fence(job: Job) -> Report:
    given, cluster = job.arguments, job.cluster()
    if given.unfence:
        return cluster.brokers.unfence(given.brokers, dry_run=given.dry_run, check=False)
    brokers = f"broker{'s' if len(given.brokers) > 1 else ''} {', '.join(map(str, given.brokers))}"
    if given.decommission:
        job.confirm(f"take {brokers} out of the cluster")
        return cluster.brokers.decommission(given.brokers, dry_run=given.dry_run, check=False)
    if given.force:
        job.confirm(f"fence {brokers}, even if that leaves partitions without a leader")
    return cluster.brokers.fence(given.brokers, force=given.force, dry_run=given.dry_run, check=False)


main = JobMain("fence", __doc__, arguments, fence, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
