"""Elect leaders: the preferred replicas where they do not lead, so that the load is spread again.

--unclean gives partitions without a leader the replica that holds most, also where the topic's
unclean.leader.election.enable is false. Acknowledged records that only lost storage had are lost for good:
look at the plan first (--dry-run), and bring that storage back if you can.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, add_yes, number, numbers
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser, "print the new leaders and the losses; change nothing")
    add_yes(parser)
    parser.add_argument(
        "--partitions", metavar="N,M", type=numbers, help="only these partitions of the topics (default: all)"
    )
    parser.add_argument("--leader", metavar="N", type=number, help="this broker instead of the preferred replica")
    parser.add_argument(
        "--unclean", action="store_true", help="a leader for partitions without one, whatever is lost by that"
    )


def elect(job: Job) -> Report:
    given = job.arguments
    if given.unclean:
        job.confirm("elect unclean leaders: acknowledged records that they lack are lost")
    return job.on_workers().elect(
        given.topics,
        given.partitions,
        unclean=given.unclean,
        leader=given.leader,
        dry_run=given.dry_run,
        check=False,
    )


main = JobMain("elect", __doc__, arguments, elect)


if __name__ == "__main__":
    sys.exit(main())
