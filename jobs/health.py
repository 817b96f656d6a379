"""List all that needs somebody, since when, and the command that mends it. Changes nothing.

  ERROR    a person, now: the exit status is 1
  WARNING  the next runs of maintain should mend it, or somebody has made it so
  INFO     worth knowing

It costs one listing of each broker. The limits are configs of the cluster (health.upkeep.max.delay.ms and others).
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
    add_dry_run(parser, "the same: this job only reads")


def health(job: Job) -> Report:
    try:
        cluster = job.cluster()
    except (RetriableError, MetadataLostError) as error:  # whatever is wrong with the call is no finding
        return unopened(job.arguments.cluster, error, SystemClock().now_ms())
    return cluster.health()


main = JobMain("health", __doc__, arguments, health, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
