"""List transactions, describe one, end abandoned ones, find those that hang in a log.

  stratalog transactions --list
  stratalog transactions --describe --transactional-id loader-1
  stratalog transactions --finish
  stratalog transactions --find-hanging --topics trips
  stratalog transactions --abort --transactional-id loader-1
``--finish`` is part of every replicate run: it aborts what has run into its timeout, and completes what was
decided.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, check_options
from stratalog.jobs.run import Job, JobMain

_NEEDS = (
    ("describe", "transactional_id"),
    ("abort", "transactional_id"),
    ("transactional_id", "describe", "abort"),
    ("topics", "find_hanging"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="every transactional id")
    what.add_argument("--describe", action="store_true", help="the partitions of a transaction")
    what.add_argument("--abort", action="store_true", help="abort an open or hanging one, and fence its producer")
    what.add_argument("--finish", action="store_true", help="end abandoned ones, forget ids nobody uses")
    what.add_argument("--find-hanging", action="store_true", help="those open in a log that nobody will end")
    parser.add_argument("--transactional-id", metavar="ID", help="of --describe; of --abort a producer id will do")
    add_topics(parser)
    add_dry_run(parser)


def transactions(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=_NEEDS)
    cluster = job.cluster()
    if given.list:
        return cluster.transactions.list()
    if given.describe:
        return cluster.transactions.describe(given.transactional_id)
    if given.abort:
        return cluster.transactions.abort(given.transactional_id, dry_run=given.dry_run)
    if given.finish:
        return cluster.transactions.finish(dry_run=given.dry_run)
    return cluster.transactions.hanging(given.topics)


main = JobMain("transactions", __doc__, arguments, transactions, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
