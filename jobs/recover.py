"""Export truncated records that replicas still have, as Parquet files with all record columns.

  stratalog recover flights --to recovered
  stratalog recover flights --keep remote --dry-run

This does not change the log, and may be repeated. verify --discarded lists the records. To put the records back
into the log, append them: recovered/manifest.json explains how.

--keep is for partitions whose leader and remote log hold different records at the same offsets (verify, health and
appends report this). It keeps one of the two, and discards the records of the other from the offset where they
differ. With --dry-run it shows the offsets of both.

--keep brokers is also for partitions that had records, but have none on any broker or in a remote log (LOG_LOST):
the log begins again at the last known offset.
"""

from __future__ import annotations

import argparse
import os
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, number, numbers
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.store.address import parse_address


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser, required=True)
    parser.add_argument("--partitions", metavar="N,M", type=numbers, help="only these partitions")
    parser.add_argument("--broker", metavar="N", type=number, help="only records that this broker holds")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", metavar="URI", help="export to an existing folder, or to s3://bucket/prefix")
    what.add_argument("--keep", choices=("remote", "brokers"), help="keep this side where the two differ")
    add_dry_run(parser, "list the files to export, or show both sides; write nothing")


def recover(job: Job) -> Report:
    given = job.arguments
    if given.keep is not None:
        return job.on_workers().recover(
            given.topics, keep=given.keep, partitions=given.partitions, dry_run=given.dry_run, check=False
        )
    address = parse_address(given.to, "--to")
    to = os.path.abspath(address.path) if address.is_folder else str(address)
    return job.on_workers().recover(
        given.topics, to, partitions=given.partitions, broker=given.broker, dry_run=given.dry_run, check=False
    )


main = JobMain("recover", __doc__, arguments, recover)


if __name__ == "__main__":
    sys.exit(main())
