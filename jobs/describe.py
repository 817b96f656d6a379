"""Every replica of the topics, or every broker, as a table. Changes nothing."""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, check_options
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser, "the same: this job only reads")
    parser.add_argument("--brokers", action="store_true", help="brokers in place of replicas")


def describe(job: Job) -> Report:
    given = job.arguments
    check_options(given, bars=[("brokers", "topics")])
    cluster = job.cluster()
    return cluster.brokers.list() if given.brokers else cluster.describe(given.topics)


main = JobMain("describe", __doc__, arguments, describe, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
