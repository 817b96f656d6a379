"""Bring brokers up that lost their storage: format and register their roots, bring their replicas into the ISR.

With follower.fetch.last.tiered.offset.enable = true (on the cluster) a replica of a tiered topic starts at the
earliest pending upload offset, and copies nothing that is remote already (KIP-1023).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine import Report
from jobs.arguments import add_dry_run, job_parser, numbers
from jobs.run import Job, run_job


def arguments() -> argparse.ArgumentParser:
    """What this job takes."""
    parser = job_parser("bootstrap", __doc__ or "")
    add_dry_run(parser)
    parser.add_argument(
        "--brokers",
        metavar="N,M",
        type=numbers,
        required=True,
        help="these, by name: an empty folder may be a volume that is not mounted",
    )
    return parser


def bootstrap(job: Job) -> Report:
    """The job."""
    return job.on_workers().bootstrap(job.arguments.brokers, dry_run=job.arguments.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("bootstrap", arguments(), bootstrap, argv)


if __name__ == "__main__":
    sys.exit(main())
