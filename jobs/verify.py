"""Compare every replica and the remote tier with each other: names, sizes, contiguity, footers, and all bytes.

Changes nothing. What is wrong is a failure of the report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine import Report
from jobs.arguments import add_dry_run, add_topics, job_parser
from jobs.run import Job, renamed, run_job


def arguments() -> argparse.ArgumentParser:
    """What this job takes."""
    parser = job_parser("verify", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser, "list what would be read")
    parser.add_argument(
        "--no-checksums", action="store_true", help="names, sizes and footers only: reads no records"
    )
    return parser


def verify(job: Job) -> Report:
    """The job."""
    given, cluster = job.arguments, job.on_workers()
    if given.dry_run:
        return renamed(cluster.describe(given.topics), "verify", dry_run=True)
    return cluster.verify(given.topics, checksums=not given.no_checksums)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("verify", arguments(), verify, argv)


if __name__ == "__main__":
    sys.exit(main())
