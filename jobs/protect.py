"""Protect the records of a topic: before a time no job deletes any of them, nor the topic.

  stratalog protect trips --until 2030-01-01
  stratalog protect trips --days 365

Retention, delete_records, snapshots, topics delete and the end of tiering are held (POLICY_VIOLATION). The time
can be put later, never sooner. It is protect.until.ms among the configs of the topic. Storage does not know of it:
SECURITY.md, "Protected records", tells what its owner sets besides.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_yes
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    until = parser.add_mutually_exclusive_group(required=True)
    until.add_argument("--until", metavar="TIME", help="ISO 8601; UTC where it names no zone")
    until.add_argument("--days", metavar="N", type=float, help="from now")
    add_yes(parser)
    add_dry_run(parser, "only check")


def protect(job: Job) -> Report:
    given, cluster = job.arguments, job.cluster()
    until = f"until {given.until}" if given.days is None else f"for {given.days:g} days"
    job.confirm(f"keep everybody from deleting records of topic {given.topic!r} {until}")
    with cluster.measured() as measure:
        time = cluster.topics.protect(given.topic, until=given.until, days=given.days, dry_run=given.dry_run)
    return Report(
        operation="protect",
        rows=[{"topic": given.topic, "protected_until": time.isoformat(timespec="milliseconds")}],
        dry_run=given.dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
    )


main = JobMain("protect", __doc__, arguments, protect, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
