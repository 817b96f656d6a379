"""Delete what nobody needs any more: uploads that were never committed, remote files past their delay, what was
left of deleted topics and of replicas that were moved, temporary files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, job_parser
from stratalog.jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    parser = job_parser("vacuum", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    return parser


def vacuum(job: Job) -> Report:
    return job.on_workers().vacuum(job.arguments.topics, dry_run=job.arguments.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("vacuum", arguments(), vacuum, argv)


if __name__ == "__main__":
    sys.exit(main())
