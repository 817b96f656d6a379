"""Describe the quorum of the metadata, shorten its log, change its voters.

  stratalog quorum describe
  stratalog quorum replace-voter 3
``quorum snapshot`` is by hand, with a row per voter; the job ``snapshot`` keeps the log short by its policy,
together with the logs of topics. A voter that lost its storage comes back by ``bootstrap --brokers N`` and then
``replace-voter N``. Voters change one at a time; after ``add-voter`` and ``remove-voter`` let the cluster file
name those that the report says.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.jobs.arguments import commands_of
from stratalog.jobs.run import Job, JobMain, warn


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    command("describe", "every voter, its log's end and lag, and who leads", reads=True)
    command("snapshot", "take a snapshot now, delete the files below it")
    command("sign", "sign, with the cluster key, what the voters of a cluster without one show now, and trust it")
    for name, doc in (
        ("replace-voter", "broker N votes with the storage it has now"),
        ("add-voter", "broker N becomes a voter"),
        ("remove-voter", "broker N is no voter any more"),
    ):
        command(name, doc).add_argument("voter", metavar="N", type=int)


def quorum(job: Job) -> Report:
    given = job.arguments
    if given.command == "sign":
        return stratalog.Cluster.sign(
            given.cluster,
            dry_run=given.dry_run,
            progress=job.progress,
            cluster_key=job.key,
            credentials=given.credentials,
            check=False,
        )
    cluster = stratalog.Cluster.open(
        given.cluster,
        progress=job.progress,
        voters_as_logged=True,
        cluster_key=job.key,
        credentials=given.credentials,
    )
    warn(cluster.file.warnings)
    match given.command:
        case "snapshot":
            return cluster.quorum.snapshot(dry_run=given.dry_run, check=False)
        case "replace-voter":
            return cluster.quorum.replace_voter(given.voter, dry_run=given.dry_run, check=False)
        case "add-voter":
            return cluster.quorum.add_voter(given.voter, dry_run=given.dry_run, check=False)
        case "remove-voter":
            return cluster.quorum.remove_voter(given.voter, dry_run=given.dry_run, check=False)
    return cluster.quorum.describe()


main = JobMain("quorum", __doc__, arguments, quorum, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
