"""Write one HTML page that shows the state of the cluster: health, topics, partitions, brokers, tiers, groups.

  stratalog report -o report.html
  stratalog report -o s3://bucket/report.html    from cron, for everyone who can read the bucket

The page is a single file that loads nothing else. The job costs as much as health, and changes nothing in the
cluster. The exit status says only whether the page was written; the exit status of health says whether an operator
is needed.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.health.finding import Severity, unopened
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import MetadataLostError, RetriableError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="write the page to FILE, or to an address such as s3://bucket/report.html; an existing page is "
        "overwritten",
    )


def report(job: Job) -> Report:
    given = job.arguments
    try:
        page = job.cluster().report()
    except (RetriableError, MetadataLostError) as error:  # an operator needs the page most in this case
        from stratalog.bridges.page.report import unopened_report  # imported here, because this module loads Arrow

        file = load_cluster_file(given.cluster, given.credentials)
        page = unopened_report(file, unopened(given.cluster, error, SystemClock().now_ms()))
    where = page.save(given.output)
    found = page.health.findings
    counts = {
        f"{level}s": sum(one.severity is level for one in found) for level in (Severity.ERROR, Severity.WARNING)
    }
    return Report(
        "report",
        [{"page": where, "bytes": len(page.html.encode()), **counts}],
        seconds=page.health.seconds,
        counts=page.health.counts,
    )


main = JobMain("report", __doc__, arguments, report, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
