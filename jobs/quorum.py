"""Describe the metadata quorum, take snapshots of its log, change its voters.

  stratalog quorum describe
  stratalog quorum replace-voter 3

quorum snapshot takes a snapshot now, and reports one row per voter; the job snapshot takes a snapshot only if the
policy requires it. To bring back a voter that lost its storage, run bootstrap N, then quorum replace-voter N. Add
or remove one voter at a time. After add-voter or remove-voter, write the voters that the report lists into the
cluster file.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.jobs.arguments import commands_of
from stratalog.jobs.declared import add_command, call
from stratalog.jobs.run import Job, JobMain, warn


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    for one in ("describe", "snapshot", "replace_voter", "add_voter", "remove_voter"):
        add_command(command, f"quorum.Quorum.{one}", leave_out=["by_hand"])
    add_command(
        command, "__init__.Cluster.sign", leave_out=["cluster_file", "progress", "cluster_key", "credentials"]
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
