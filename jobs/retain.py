"""Apply total and local retention; delete what left the log file.delete.delay.ms ago."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, job_parser
from stratalog.jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    parser = job_parser("retain", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    return parser


def retain(job: Job) -> Report:
    return job.on_workers().retain(job.arguments.topics, dry_run=job.arguments.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("retain", arguments(), retain, argv)


if __name__ == "__main__":
    sys.exit(main())
