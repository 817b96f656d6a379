"""Verify every byte of every copy, and replace damaged or missing files on brokers by verified copies of other
replicas or of the remote tier. Damage that remains is a failure in the report, with its offsets."""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser, "read the files, and list the repairs; change nothing")


def heal(job: Job) -> Report:
    return job.on_workers().heal(job.arguments.topics, dry_run=job.arguments.dry_run, check=False)


main = JobMain("heal", __doc__, arguments, heal)


if __name__ == "__main__":
    sys.exit(main())
