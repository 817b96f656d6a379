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
from stratalog.jobs.declared import add_commands, call
from stratalog.jobs.run import Job, JobMain, warn


def arguments(parser: argparse.ArgumentParser) -> None:
    command = add_commands(
        parser,
        "quorum",
        ("describe", "snapshot", "replace_voter", "add_voter", "remove_voter"),
        leave_out=["by_hand"],
    )
    command(
        "sign",
        "sign the present metadata of a cluster that had no key with the cluster key, and trust it",
    )


def quorum(job: Job) -> Report:
    given = job.arguments
    with_key = {"progress": job.progress, "cluster_key": job.key, "credentials": given.credentials}
    if given.command == "sign":
        return stratalog.Cluster.sign(given.cluster, dry_run=given.dry_run, check=False, **with_key)
    cluster = stratalog.Cluster.open(given.cluster, voters_as_logged=True, **with_key)
    warn(cluster.file.warnings)
    report: Report = call(getattr(cluster.quorum, given.command.replace("-", "_")), given)
    return report


main = JobMain("quorum", __doc__, arguments, quorum, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
