"""What was done to a cluster, when, by whom, and what came of it. The latest first; changes nothing.

  jobs/history.py                                  the latest 100 events
  jobs/history.py --since 7d --operation tier      of the last seven days
  jobs/history.py --topic flights --limit 20       that name a topic, or have figures of it
  jobs/history.py --json                           with all columns

Appends and commits of offsets leave no event: the log is their record. What destroys leaves one before it acts,
too. A process with STRATALOG_HISTORY=off leaves none. The events are the topic __operations.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.engine.admin.history import MOST, short
from stratalog.jobs.arguments import count
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="TIME", help="not before this time, or so long ago (90s, 15m, 12h, 7d)")
    parser.add_argument("--operation", metavar="NAME", help="only these, as jobs are named: tier, 'topics delete'")
    parser.add_argument("--topic", metavar="NAME", help="only those that name this topic, or have figures of it")
    parser.add_argument("--limit", metavar="N", type=count, default=MOST, help=f"at most so many ({MOST})")


def history(job: Job) -> Report:
    given = job.arguments
    found = job.cluster().history(
        since=given.since, operation=given.operation, topic=given.topic, limit=given.limit
    )
    return found if given.json else short(found)


main = JobMain("history", __doc__, arguments, history, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
