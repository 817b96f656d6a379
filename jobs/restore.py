"""Restore a cluster to empty brokers from its remote tier, or rehearse a restore while the cluster runs.

  stratalog restore --cluster new.toml --from flights     the file names the same remote tier, new brokers, new id
  stratalog restore --cluster cluster.toml --drill        restore to a temporary folder, compare, delete the copy

The job restores topics, configs, records, leader epochs and producers as far as they were tiered. The report lists
what is not restored: records that were not tiered yet, topics without tiering, offsets of consumer groups, and
transactions. Afterwards the former cluster can neither write nor read the remote tier. If a restore is
interrupted, run it again. A drill does not change the cluster.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.jobs.arguments import add_yes, check_options
from stratalog.jobs.declared import add_declared
from stratalog.jobs.run import Job, JobMain

_METHOD = "__init__.Cluster.restore"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, _METHOD, only=["dry_run"])
    add_yes(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    add_declared(what, _METHOD, only=["former"], special={"former": {"flags": ("--from",), "metavar": "ID"}})
    what.add_argument(
        "--drill", action="store_true", help="rehearse a restore of this running cluster, and compare the result"
    )
    add_declared(
        parser,
        "jobs.Jobs.drill",
        special={"deep": {"help": "with --drill: read and check every byte of the remote tier"}},
    )


def restore(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("deep", "drill")], bars=[("drill", "dry_run", "yes")])
    if given.drill:
        return job.cluster().drill(deep=given.deep)
    job.confirm(f"restore {given.former!r}: the former cluster will lose access to its remote tier")
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
