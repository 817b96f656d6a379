"""Compare all replicas and the remote tier with each other. Changes nothing.

  stratalog verify                   check names, sizes, offsets, footers and the remote table; reads no records
  stratalog verify --deep            check every byte of every copy against the checksums
  stratalog verify --discarded       list discarded files that replicas still have (recover exports them)
  stratalog verify --erased FILE     read every copy again, and search for the keys of an erasure's certificate

The report lists damage as failures, with its offsets; the job heal repairs it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, check_options
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.verify")
    add_dry_run(parser, "list the files to read, but do not read them")
    parser.add_argument("--discarded", action="store_true", help="list discarded files that replicas still have")
    parser.add_argument(
        "--erased",
        metavar="FILE",
        type=Path,
        help="search for the keys of this erasure certificate: each copy is erased, not erased, or unknown",
    )
    parser.add_argument(
        "--where",
        metavar="EXPR",
        help="with --erased: the condition given to erase; also searches for the records that match it",
    )


def verify(job: Job) -> Report:
    given = job.arguments
    check_options(
        given,
        needs=[("where", "erased")],
        bars=[("discarded", "deep"), ("erased", "deep"), ("erased", "discarded"), ("erased", "topics")],
    )
    cluster = job.on_workers()
    if given.erased is not None:
        return cluster.verify_erased(given.erased, where=given.where)
    if given.discarded:
        return replace(cluster.discarded(given.topics), operation="verify --discarded", dry_run=given.dry_run)
    if given.dry_run:
        return replace(cluster.describe(given.topics), operation="verify", dry_run=True)
    return call(cluster.verify, given)


main = JobMain("verify", __doc__, arguments, verify)


if __name__ == "__main__":
    sys.exit(main())
