"""Delete files that are no longer needed: uploads that were never committed, remote files past their delay,
remains of deleted topics and of moved replicas, temporary files."""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser)


def vacuum(job: Job) -> Report:
    return job.on_workers().vacuum(job.arguments.topics, dry_run=job.arguments.dry_run, check=False)


main = JobMain("vacuum", __doc__, arguments, vacuum)


if __name__ == "__main__":
    sys.exit(main())
