"""Describe the quorum of the metadata, shorten its log, change its voters.

Without an option: one row per voter, with its log's end and lag. --snapshot is by hand, with a row per voter;
``snapshot`` keeps the log short by its policy, together with the logs of topics. A voter that lost its storage
comes back by ``bootstrap --brokers N`` and then --replace-voter N. Voters change one at a time; after --add-voter
and --remove-voter let the cluster file name those that the report says.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.jobs.arguments import add_dry_run
from stratalog.jobs.run import Job, JobMain, warn


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser, "check, and print the plan; change nothing")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--describe", action="store_true", help="every voter, and who leads; the default")
    what.add_argument("--snapshot", action="store_true", help="take a snapshot now, delete the files below it")
    what.add_argument(
        "--sign",
        action="store_true",
        help="sign, with the cluster key, what the voters of a cluster without one show now, and trust it",
    )
    what.add_argument("--replace-voter", metavar="N", type=int, help="broker N votes with the storage it has now")
    what.add_argument("--add-voter", metavar="N", type=int, help="broker N becomes a voter")
    what.add_argument("--remove-voter", metavar="N", type=int, help="broker N is no voter any more")


def quorum(job: Job) -> Report:
    given = job.arguments
    if given.sign:
        return stratalog.Cluster.sign(
            given.cluster,
            dry_run=given.dry_run,
            progress=job.progress,
            cluster_key=job.key,
            credentials=given.credentials,
        )
    cluster = stratalog.Cluster.open(
        given.cluster,
        progress=job.progress,
        voters_as_logged=True,
        cluster_key=job.key,
        credentials=given.credentials,
    )
    warn(cluster.file.warnings)
    if given.snapshot:
        return cluster.quorum.snapshot(dry_run=given.dry_run)
    if given.replace_voter is not None:
        return cluster.quorum.replace_voter(given.replace_voter, dry_run=given.dry_run)
    if given.add_voter is not None:
        return cluster.quorum.add_voter(given.add_voter, dry_run=given.dry_run)
    if given.remove_voter is not None:
        return cluster.quorum.remove_voter(given.remove_voter, dry_run=given.dry_run)
    return cluster.quorum.describe()


main = JobMain("quorum", __doc__, arguments, quorum, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
