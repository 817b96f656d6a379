"""List transactions, describe one, end abandoned ones, find those that hang in a log.

  stratalog transactions list
  stratalog transactions describe loader-1
  stratalog transactions finish
  stratalog transactions find-hanging --topics trips
  stratalog transactions abort loader-1
Every replicate run includes ``finish``: it aborts transactions that have timed out, and completes those whose
outcome was already decided.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_topics, commands_of
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    command("list", "list all transactional ids", reads=True)
    describe = command("describe", "show the partitions of a transaction", reads=True)
    describe.add_argument("transactional_id", metavar="ID")
    abort = command("abort", "abort an open or hanging transaction, and fence its producer")
    abort.add_argument("transactional_id", metavar="ID", help="a transactional id, or a producer id")
    command("finish", "end abandoned transactions, and delete unused ids")
    add_topics(
        command(
            "find-hanging", "list transactions that are open in a log and that no producer will end", reads=True
        )
    )


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
    return door.find_hanging(given.topics)


main = JobMain("transactions", __doc__, arguments, transactions, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
