"""Copy sealed segments of tiered topics to the remote tier, and commit them to its Delta tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine import Report
from jobs.arguments import add_dry_run, add_topics, job_parser
from jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    """What this job takes."""
    parser = job_parser("tier", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    return parser


def tier(job: Job) -> Report:
    """The job."""
    return job.on_workers().tier(job.arguments.topics, dry_run=job.arguments.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("tier", arguments(), tier, argv)


if __name__ == "__main__":
    sys.exit(main())
