"""Merge small appends into segments, on the leaders; followers get the segments when they replicate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, job_parser
from stratalog.jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    parser = job_parser("merge", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    return parser


def merge(job: Job) -> Report:
    return job.on_workers().merge(job.arguments.topics, dry_run=job.arguments.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("merge", arguments(), merge, argv)


if __name__ == "__main__":
    sys.exit(main())
