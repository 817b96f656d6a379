"""Compare every replica and the remote tier with each other, and mend damage.

  stratalog verify                   names, sizes, contiguity, footers, the remote table: reads no records
  stratalog verify --deep            every byte of every copy against its checksums
  stratalog verify --deep --heal     replace damaged or missing files on brokers by verified copies of others
  stratalog verify --discarded       files that replicas have discarded and still hold (recover exports them)

Damage is a failure of the report, with its offsets; with --heal, damage that remains at the end. Without --heal
nothing is changed.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, check_options
from stratalog.jobs.run import Job, JobMain, renamed


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser, "list the files to read; with --heal, read them and list the repairs")
    parser.add_argument("--deep", action="store_true", help="read every byte")
    parser.add_argument(
        "--heal", action="store_true", help="mend the findings of --deep, from copies of which every byte was read"
    )
    parser.add_argument(
        "--discarded", action="store_true", help="show files that replicas have discarded and still hold"
    )


def verify(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("heal", "deep")], bars=[("discarded", "deep")])
    cluster = job.on_workers()
    if given.discarded:
        return renamed(cluster.discarded(given.topics), "verify --discarded", dry_run=given.dry_run)
    if given.heal:
        return renamed(
            cluster.heal(given.topics, dry_run=given.dry_run, check=False),
            "verify --deep --heal",
            dry_run=given.dry_run,
        )
    if given.dry_run:
        return renamed(cluster.describe(given.topics), "verify", dry_run=True)
    return cluster.verify(given.topics, deep=given.deep)


main = JobMain("verify", __doc__, arguments, verify)


if __name__ == "__main__":
    sys.exit(main())
