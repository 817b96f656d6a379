"""Protect a topic: until a given time, no job deletes its records or the topic itself.

  stratalog protect trips --until 2030-01-01
  stratalog protect trips --days 365

Until then retention deletes nothing; delete_records, snapshots, topics delete, and turning off tiering are refused
(POLICY_VIOLATION). The config protect.until.ms of the topic holds the time, which can be moved later, but never
earlier. The storage does not enforce the protection by itself. SECURITY.md, "Protected records", lists the storage
settings that enforce it.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_yes
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain

_METHOD = "topics.Topics.protect"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, _METHOD, only=["topic", "dry_run"])
    until = parser.add_mutually_exclusive_group(required=True)
    add_declared(until, _METHOD, only=["until", "days"])
    add_yes(parser)


def protect(job: Job) -> Report:
    given, cluster = job.arguments, job.cluster()
    until = f"until {given.until}" if given.days is None else f"for {given.days:g} days"
    job.confirm(f"forbid the deletion of records of topic {given.topic!r} {until}")
    return call(cluster.topics.protect, given)


main = JobMain("protect", __doc__, arguments, protect, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
