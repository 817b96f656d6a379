"""List transactions, describe one, end abandoned ones, find those that hang in a log.

  stratalog transactions list
  stratalog transactions describe loader-1
  stratalog transactions finish
  stratalog transactions find-hanging --topics trips
  stratalog transactions abort loader-1
``finish`` is part of every replicate run: it aborts what has run into its timeout, and completes what was
decided.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_topics, commands_of
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    command("list", "every transactional id", reads=True)
    describe = command("describe", "the partitions of a transaction", reads=True)
    describe.add_argument("transactional_id", metavar="ID")
    abort = command("abort", "abort an open or hanging one, and fence its producer")
    abort.add_argument("transactional_id", metavar="ID", help="a transactional id, or a producer's")
    command("finish", "end abandoned ones, forget ids nobody uses")
    add_topics(command("find-hanging", "those open in a log that nobody will end", reads=True))


def transactions(job: Job) -> Report:
    given, door = job.arguments, job.cluster().transactions
    match given.command:
        case "list":
            return door.list()
        case "describe":
            return door.describe(given.transactional_id)
        case "abort":
            return door.abort(given.transactional_id, dry_run=given.dry_run, check=False)
        case "finish":
            return door.finish(dry_run=given.dry_run, check=False)
    return door.hanging(given.topics)


main = JobMain("transactions", __doc__, arguments, transactions, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
