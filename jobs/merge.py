"""Merge small appends into segments, on the leaders; followers receive the segments when they replicate."""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser)


def merge(job: Job) -> Report:
    return job.on_workers().merge(job.arguments.topics, dry_run=job.arguments.dry_run, check=False)


main = JobMain("merge", __doc__, arguments, merge)


if __name__ == "__main__":
    sys.exit(main())
