"""Elect leaders: by default the preferred replicas of partitions that another replica leads, to spread the load
again.

--unclean elects, for each partition without a leader, the replica that holds most, even if the topic's
unclean.leader.election.enable is false. Acknowledged records that only lost storage had are then lost for good.
Look at the plan first (--dry-run), and bring that storage back if you can.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, add_yes, number, numbers
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser, "print the new leaders and the records lost; change nothing")
    add_yes(parser)
    parser.add_argument(
        "--partitions", metavar="N,M", type=numbers, help="only these partitions of the topics (default: all)"
    )
    parser.add_argument(
        "--leader", metavar="N", type=number, help="elect this broker instead of the preferred replica"
    )
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="elect a leader for partitions without one, even if records are lost",
    )


def elect(job: Job) -> Report:
    given = job.arguments
    if given.unclean:
        job.confirm("elect unclean leaders: acknowledged records that they lack will be lost")
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
