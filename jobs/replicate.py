"""Bring followers up to date with their leaders, advance high watermarks, and readmit caught-up followers to the
ISR."""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, numbers
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser)
    parser.add_argument(
        "--brokers", metavar="N,M", type=numbers, help="only followers on these brokers (default: all)"
    )


def replicate(job: Job) -> Report:
    given = job.arguments
    return job.on_workers().replicate(given.topics, brokers=given.brokers, dry_run=given.dry_run, check=False)


main = JobMain("replicate", __doc__, arguments, replicate)


if __name__ == "__main__":
    sys.exit(main())
