"""Bring a cluster back on empty brokers from what it has tiered, or try that out beside it.

  stratalog restore --cluster new.toml --from flights     the file names the same remote, other brokers, another id
  stratalog restore --cluster cluster.toml --drill        restore to a temporary folder, compare, remove it again

Topics, configs, records, leader epochs and producers come back as far as they were tiered; the report says what
does not: records that were not tiered yet, topics that were not tiered at all, offsets of consumer groups,
transactions. From then on the former cluster, should any of it be left, can add nothing to the remote tier, nor
read it. A restore that stopped is run again. A drill changes nothing.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_yes, check_options
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser, "look at the remote tier, print the plan, change nothing")
    add_yes(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--from", metavar="ID", dest="former", help="the cluster that shall come back")
    what.add_argument("--drill", action="store_true", help="try it out beside this living cluster, and compare")
    parser.add_argument(
        "--deep", action="store_true", help="of a drill: read and check every byte of the remote tier"
    )


def restore(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("deep", "drill")], bars=[("drill", "dry_run", "yes")])
    if given.drill:
        return job.cluster().drill(deep=given.deep)
    job.confirm(f"restore {given.former!r}: whatever is left of it can use its remote tier no more")
    return stratalog.Cluster.restore(
        given.cluster,
        given.former,
        dry_run=given.dry_run,
        progress=job.progress,
        cluster_key=job.key,
        credentials=given.credentials,
        check=False,
    )


main = JobMain("restore", __doc__, arguments, restore, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
