"""List the problems of the cluster, each with its start and the command that fixes it. Changes nothing.

  ERROR    an operator must act now; the exit status is 1
  WARNING  maintain should fix this in its next runs, or a manual change caused it
  INFO     worth knowing

The job lists each broker once. Cluster configs set the limits (health.upkeep.max.delay.ms and others).
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.engine.health.finding import unopened
from stratalog.jobs.arguments import add_dry_run
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import MetadataLostError, RetriableError


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser, "no effect: this job changes nothing anyway")


def health(job: Job) -> Report:
    try:
        cluster = job.cluster()
    except (RetriableError, MetadataLostError) as error:  # an invalid call is not a finding
        return unopened(job.arguments.cluster, error, SystemClock().now_ms())
    return cluster.health()


main = JobMain("health", __doc__, arguments, health, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
