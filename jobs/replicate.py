"""Bring followers to their leaders, advance high watermarks, and let caught-up followers into the ISR."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, job_parser, numbers
from stratalog.jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    parser = job_parser("replicate", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    parser.add_argument("--brokers", metavar="N,M", type=numbers, help="only followers on these (default: all)")
    return parser


def replicate(job: Job) -> Report:
    given = job.arguments
    return job.on_workers().replicate(given.topics, brokers=given.brokers, dry_run=given.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("replicate", arguments(), replicate, argv)


if __name__ == "__main__":
    sys.exit(main())
