"""Describe the quorum of the metadata, shorten its log, change its voters.

  stratalog quorum describe
  stratalog quorum replace-voter 3
``quorum snapshot`` takes a snapshot on request, with one row per voter; the job ``snapshot`` keeps the log short
by its policy, together with the logs of topics. To bring back a voter that lost its storage, run ``bootstrap
--brokers N`` and then ``replace-voter N``. Voters change one at a time. After ``add-voter`` and ``remove-voter``
put the voters that the report lists into the cluster file.
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
    command("describe", "list the voters, the end and lag of their logs, and the leader", reads=True)
    command("snapshot", "take a snapshot now, and delete the files below it")
    command(
        "sign",
        "for a cluster without a key so far: sign the metadata its voters hold now "
        "with the cluster key, and trust it",
    )
    for name, doc in (
        ("replace-voter", "let broker N vote with its present storage"),
        ("add-voter", "make broker N a voter"),
        ("remove-voter", "remove broker N from the voters"),
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
