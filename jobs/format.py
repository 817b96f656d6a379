"""Create the cluster that a cluster file describes: format the roots, begin the metadata log, register the
brokers. To add a broker to an existing cluster, use brokers add."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import stratalog
from stratalog import Report
from stratalog.jobs.arguments import add_dry_run
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.store import StoreCounts


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser)


def format_cluster(job: Job) -> Report:
    """Format the cluster. Roots that are already formatted and registered stay unchanged."""
    given = job.arguments
    if given.dry_run:
        return stratalog.Cluster.plan_format(given.cluster, credentials=given.credentials)
    began = SystemClock().monotonic_s()
    cluster = stratalog.Cluster.format(given.cluster, cluster_key=job.key, credentials=given.credentials)
    table = cluster.brokers.list()
    counts = sum((store.counts for store in cluster.stores.values()), StoreCounts())
    return replace(table, operation="format", seconds=SystemClock().monotonic_s() - began, counts=counts)


main = JobMain("format", __doc__, arguments, format_cluster, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
