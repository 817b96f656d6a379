"""Apply total and local retention, and delete files that left the log at least log.file.delete.delay.ms ago."""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser)


def retain(job: Job) -> Report:
    return job.on_workers().retain(job.arguments.topics, dry_run=job.arguments.dry_run, check=False)


main = JobMain("retain", __doc__, arguments, retain)


if __name__ == "__main__":
    sys.exit(main())
