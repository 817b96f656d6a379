"""Take snapshots of topics with cleanup.policy=snapshot, including internal ones, and of the metadata log; copy
them, and move log starts. Without --topics it works on all of these; the metadata log is named __cluster_metadata.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, duration
from stratalog.jobs.repeat import once_or_every
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser)
    parser.add_argument(
        "--by-hand",
        action="store_true",
        help="take a snapshot of all new records, whatever the policy (metadata.snapshot.*)",
    )
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="run once (the default)")
    often.add_argument(
        "--every",
        metavar="TIME",
        type=duration,
        help="run again TIME after the end of each run (10m), until interrupted",
    )


def snapshot(job: Job) -> Report:
    given = job.arguments

    def once() -> Report:
        return job.on_workers().snapshot(given.topics, by_hand=given.by_hand, dry_run=given.dry_run, check=False)

    return once_or_every("snapshot", once, job.show, given.every)


main = JobMain("snapshot", __doc__, arguments, snapshot)


if __name__ == "__main__":
    sys.exit(main())
