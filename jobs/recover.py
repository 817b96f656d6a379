"""Export truncated records that replicas still have. The Parquet files have all columns of a record.

  stratalog recover flights --to recovered
  stratalog recover flights --keep remote --dry-run

An export does not change the log, and may be repeated. verify --discarded lists the files. To return the records
to the log, append them again; recovered/manifest.json explains how.

--keep is for partitions whose leader and remote log have different records at the same offsets (verify, health and
appends report this). It keeps one of the two logs, and discards the other log's records from the first different
offset on. With --dry-run, it only shows the offsets of both logs.

--keep brokers is also for partitions whose records are lost on all brokers and in the remote log (LOG_LOST): the
log restarts at the last known offset.
"""

from __future__ import annotations

import argparse
import os
import sys

from stratalog import Report
from stratalog.jobs.arguments import check_options
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.store.address import parse_address

_WHAT = ("to", "keep")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.recover", leave_out=_WHAT)
    what = parser.add_mutually_exclusive_group(required=True)
    add_declared(what, "jobs.Jobs.recover", only=_WHAT, special={"to": {"metavar": "URI"}})


def recover(job: Job) -> Report:
    given = job.arguments
    if given.to is not None:
        address = parse_address(given.to, "--to")
        given.to = os.path.abspath(address.path) if address.is_folder else str(address)
    check_options(given, bars=[("keep", "broker")])
    return call(job.on_workers().recover, given)


main = JobMain("recover", __doc__, arguments, recover)


if __name__ == "__main__":
    sys.exit(main())
