"""Every replica of the topics, or every broker, as a table. Changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, check_options, job_parser
from stratalog.jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    parser = job_parser("describe", __doc__ or "", runs="driver")
    add_topics(parser)
    add_dry_run(parser, "the same: this job only reads")
    parser.add_argument("--brokers", action="store_true", help="brokers in place of replicas")
    return parser


def describe(job: Job) -> Report:
    given = job.arguments
    check_options(given, bars=[("brokers", "topics")])
    cluster = job.cluster()
    return cluster.brokers.list() if given.brokers else cluster.describe(given.topics)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("describe", arguments(), describe, argv)


if __name__ == "__main__":
    sys.exit(main())
