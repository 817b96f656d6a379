"""``stratalog JOB ...``: every job under one command, as ``python -m stratalog.jobs.JOB`` runs it.

The shell completes jobs and their options by argcomplete (``pip install 'stratalog[completion]'``):

    eval "$(register-python-argcomplete stratalog)"
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratalog.engine.config.bridges import bridges
from stratalog.partitions.errors import EnvironmentUnusableError
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.version import VERSION

if TYPE_CHECKING:
    from stratalog.jobs.run import JobMain

GROUPS: Mapping[str, Mapping[str, str]] = {
    "records": {
        "produce": "lines of text or JSON, to a topic; without Spark",
        "append": "what Spark can read, to a topic; once, or as a stream",
        "read": "a range of topics: shown, counted, or written out",
        "tail": "the latest records, and those that follow",
        "offsets": "of a position or a time, in every partition",
        "delete_records": "below given offsets",
    },
    "is it well?": {
        "health": "what needs a person, since when, and the command that mends it",
        "describe": "every partition, replica or broker",
        "metrics": "all figures of health, in OpenMetrics",
        "history": "what was done, by whom, and what came of it",
        "verify": "compare all replicas and the remote tier; --heal mends damage",
    },
    "upkeep": {
        "maintain": "the one job to schedule: whatever of the others is due",
        "replicate": "followers to their leaders, and into the ISR",
        "elect": "preferred leaders; --unclean where nobody in sync is left",
        "merge": "small appends into segments",
        "tier": "sealed segments to the remote tier, a Delta table",
        "retain": "total and local retention",
        "snapshot": "of topics that keep the latest record of each key, and of the metadata",
        "vacuum": "delete what nobody needs any more",
    },
    "topics, groups, transactions": {
        "topics": "list, describe, create, alter, configure, delete",
        "protect": "the records of a topic, from everybody, until a time",
        "groups": "list, describe with lag, move offsets, delete",
        "transactions": "list, describe, end abandoned ones, find hanging ones",
    },
    "Kafka": {},
    "brokers and clusters": {
        "check_store": "is a storage good enough for a log?",
        "format": "make the folders of a cluster file a cluster",
        "bootstrap": "brokers that are new, or have lost their storage",
        "reassign": "move replicas to other brokers",
        "fence": "take brokers out of service, and bring them back",
        "quorum": "of the metadata: describe it, change its voters",
        "restore": "a cluster from what it has tiered; --drill tries that out",
        "recover": "export records that an unclean election has cut off",
        "package": "this package as one zip, for --py-files",
    },
}
"""The jobs of the core, by heading. Those of bridges join them (``overview``)."""
JOBS: Mapping[str, str] = {
    **{name: f"stratalog.jobs.{name}" for group in GROUPS.values() for name in group},
    **{name: job.module for bridge in bridges() for name, job in bridge.jobs.items()},
}
"""The module of each job."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job that the first argument names with the others; returns its exit status."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    words = [*(sys.argv[1:] if argv is None else argv)]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]  # of a command of a job, too: help topics create
    name, *rest = words or [""]
    if name in ("version", "--version"):
        print(f"stratalog {VERSION}")
        return 0
    if name in JOBS:
        try:
            return int(job_of(name)(rest))
        except EnvironmentUnusableError as error:  # of a bridge
            print(f"stratalog {name}: {error}", file=sys.stderr)
            return 2
    if name in ("-h", "--help", ""):
        print(_overview(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    print(f"stratalog: no job {name!r}{did_you_mean(name, JOBS)}; stratalog --help lists them", file=sys.stderr)
    return 2


def job_of(name: str) -> JobMain:
    """``main`` of a job's module. Raises: EnvironmentUnusableError for a job of a bridge that is not installed."""
    for bridge in bridges():
        if name in bridge.jobs:
            bridged: JobMain = bridge.load(f"{bridge.jobs[name].module}:main")
            return bridged
    found: JobMain = importlib.import_module(JOBS[name]).main  # noqa: TID251 - one of JOBS
    return found


def _complete() -> None:
    """Answer the shell, which asks for what the command line may go on with, and end: of the job that it names,
    else of all jobs. argcomplete hands the line over in the environment.
    """
    import argcomplete

    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    if len(words) > 2 and words[1] in JOBS:
        os.environ["_ARGCOMPLETE"] = "2"  # its words begin with the second of the line
        parser = job_of(words[1]).parser()
        for action in parser._actions:
            if action.dest in ("topic", "topics"):
                action.completer = _topics  # type: ignore[attr-defined]
        argcomplete.autocomplete(parser)
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    argcomplete.autocomplete(parser)


def _topics(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Names of topics, where the cluster can be asked."""
    from stratalog import Cluster, StratalogError

    before = prefix.rpartition(",")[0]
    try:
        image = Cluster.open(parsed_args.cluster, credentials=parsed_args.credentials).image
    except StratalogError:
        return []
    return [f"{before},{name}" if before else name for name in image.topic_ids]


def _overview() -> str:
    lines = ["stratalog JOB ...; stratalog help JOB explains a job, stratalog version prints the version"]
    groups = {title: dict(jobs) for title, jobs in GROUPS.items()}
    for bridge in bridges():
        for name, job in bridge.jobs.items():
            groups.setdefault(job.group, {})[name] = job.help
    for title, jobs in groups.items():
        lines += ["", title, *(f"  {name:<14}  {what}" for name, what in jobs.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
