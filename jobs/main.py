"""``stratalog JOB ...``: all jobs under one command, the same as ``python -m stratalog.jobs.JOB``.

argcomplete completes jobs and their options in the shell (``pip install 'stratalog[completion]'``):

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
        "produce": "append lines of text or JSON to a topic; needs no Spark",
        "append": "append anything that Spark can read to a topic, once or as a stream",
        "read": "show, count or write out a range of records",
        "tail": "print the latest records, and follow new ones",
        "offsets": "print the offset of each partition at a time, or at a position such as earliest",
        "delete_records": "delete records below given offsets",
    },
    "state of the cluster": {
        "health": "list problems, their start, and the command that fixes each",
        "describe": "list partitions or replicas",
        "metrics": "print all health figures in OpenMetrics format",
        "history": "list past operations: who ran them, and how they ended",
        "verify": "compare all replicas and the remote tier",
    },
    "upkeep": {
        "maintain": "run the upkeep steps that are due: the only job you must schedule",
        "replicate": "bring followers up to date, and return them to the ISR",
        "elect": "elect preferred leaders; --unclean if no in-sync replica remains",
        "merge": "merge small appends into segments",
        "compact": "keep the last record of each key (cleanup.policy=compact)",
        "tier": "copy sealed segments to the remote tier, as a Delta table",
        "retain": "apply total and local retention",
        "snapshot": "snapshot the metadata, and topics that keep the latest record of each key",
        "vacuum": "delete files that are no longer needed",
        "erase": "permanently erase the records of given keys",
        "heal": "replace damaged files on brokers with verified copies",
    },
    "topics, groups, transactions": {
        "topics": "list, describe, create, alter, configure, delete",
        "protect": "forbid every deletion of a topic or its records until a given time",
        "groups": "list, describe with lag, move offsets, delete",
        "transactions": "list, describe, end abandoned or hanging transactions",
    },
    "Kafka": {},
    "brokers and clusters": {
        "check_store": "test whether a storage gives the guarantees that a log needs",
        "format": "create the cluster that a cluster file describes",
        "bootstrap": "set up brokers that are new or have lost their storage",
        "reassign": "move replicas to other brokers",
        "brokers": "list and add brokers, take them out of service, bring them back",
        "quorum": "describe the metadata quorum, change its voters",
        "restore": "restore a cluster from its remote tier; --drill only rehearses it",
        "recover": "export records that an unclean election has truncated",
        "package": "pack stratalog into one zip for --py-files",
    },
}
"""The jobs of the core, by heading. ``overview`` adds the jobs of bridges."""
_CORE = tuple(name for group in GROUPS.values() for name in group)
_OF_BRIDGES = {name: bridge for bridge in bridges() for name in bridge.jobs if name not in _CORE}
JOBS = (*_CORE, *_OF_BRIDGES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job named by the first argument with the remaining arguments. Returns its exit status."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    words = [*(sys.argv[1:] if argv is None else argv)]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]  # a command of a job may follow: help topics create
    name, *rest = words or [""]
    if name in ("version", "--version"):
        print(f"stratalog {VERSION}")
        return 0
    if name in JOBS:
        try:
            return int(job_of(name)(rest))
        except EnvironmentUnusableError as error:  # the error of a bridge
            print(f"stratalog {name}: {error}", file=sys.stderr)
            return 2
    if name in ("-h", "--help", ""):
        print(_overview(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    print(f"stratalog: no job {name!r}{did_you_mean(name, JOBS)}; stratalog --help lists them", file=sys.stderr)
    return 2


def job_of(name: str) -> JobMain:
    """Return ``main`` of a job's module. Raises: EnvironmentUnusableError for a job of a bridge that is not
    installed."""
    if (bridge := _OF_BRIDGES.get(name)) is not None:
        bridged: JobMain = bridge.load(f"{bridge.jobs[name].module}:main")
        return bridged
    found: JobMain = importlib.import_module(f"stratalog.jobs.{name}").main  # noqa: TID251 - one of JOBS
    return found


def _complete() -> None:
    """Print completions of the command line for the shell, and exit. The completions are options of the job on the
    line, or the names of all jobs. argcomplete passes the line in the environment.
    """
    import argcomplete

    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    if len(words) > 2 and words[1] in JOBS:
        os.environ["_ARGCOMPLETE"] = "2"  # the parser gets the words after the job's name
        parser = job_of(words[1]).parser()
        for action in parser._actions:
            if action.dest in ("topic", "topics"):
                action.completer = _topics  # type: ignore[attr-defined]
        argcomplete.autocomplete(parser)
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    argcomplete.autocomplete(parser)


def _topics(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names of topics; none if the cluster cannot be opened."""
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
    for name, bridge in _OF_BRIDGES.items():
        groups.setdefault(bridge.jobs[name].group, {})[name] = bridge.jobs[name].help
    for title, jobs in groups.items():
        lines += ["", title, *(f"  {name:<14}  {what}" for name, what in jobs.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
