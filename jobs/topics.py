"""List, describe, create, alter, configure and delete topics.

stratalog topics create flights --value "carrier STRING, distance INT" --config retention.ms=-1
stratalog topics describe flights           the types, and every config with its source
stratalog topics list --under-replicated    partitions with a replica outside the ISR; reads only the metadata
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.jobs.arguments import PAIRS, add_yes, commands_of, count
from stratalog.jobs.declared import add_command, add_declared, call
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.errors import InvalidCallError

_TROUBLES = (
    ("unavailable", "list only partitions without a leader"),
    ("under-min-isr", "list partitions whose ISR is smaller than min.insync.replicas, or that have no leader"),
    ("under-replicated", "list partitions with a replica outside the ISR, or in a worse state"),
)
_CELL = 37
"""The number of characters that the table shows of the types and configs of an internal topic. topics describe
shows all characters."""


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    listed = add_command(command, "topics.Topics.list", leave_out=["exclude_internal"])
    trouble = listed.add_mutually_exclusive_group()
    for state, doc in _TROUBLES:  # Kafka has one option for each state
        trouble.add_argument(f"--{state}", dest="trouble", action="store_const", const=state, help=doc)
    add_declared(trouble, "topics.Topics.list", only=["exclude_internal"])
    add_command(command, "topics.Topics.describe")
    add_command(
        command,
        "topics.Topics.create",
        special={
            "partitions": {"type": count},
            "replication_factor": {"type": count},
            "configs": {"flags": ("--config",)},
        },
    )
    add_command(
        command, "topics.Topics.create_partitions", special={"partitions": {"type": count, "metavar": "N"}}
    )
    add_command(command, "topics.Topics.alter")
    configs = add_command(command, "topics.Topics.alter_configs", leave_out=["topic", "changes"])
    of = configs.add_mutually_exclusive_group(required=True)
    add_declared(
        of, "topics.Topics.alter_configs", only=["topic"], special={"topic": {"nargs": "?", "help": "the topic"}}
    )
    of.add_argument(
        "--cluster-wide", action="store_true", help="change the configs of the cluster instead of a topic's"
    )
    configs.add_argument("--set", default={}, **PAIRS, help="set a config; repeatable")
    configs.add_argument(
        "--unset", metavar="K", action="append", default=[], help="reset a config to its default; repeatable"
    )
    add_yes(add_command(command, "topics.Topics.delete"))


def topics(job: Job) -> Report:
    cluster, given = job.cluster(), job.arguments
    if given.command == "delete":
        if not given.if_exists or given.name in cluster.image.topic_ids:
            what = "" if given.keep_remote else ", in both tiers"
            job.confirm(f"delete topic {cluster.image.topic(given.name).name!r} and its records{what}")
        return call(cluster.topics.delete, given)
    if given.command == "list":
        listed = cluster.topics.list if given.trouble is None else cluster.topics.troubled
        report = call(listed, given)
        return report if given.json else replace(report, rows=[_short(row) for row in report.rows])
    if given.command == "describe":
        return cluster.topics.describe(given.name)
    if given.command == "alter-configs":
        return cluster.topics.alter_configs(given.topic, _changes(given), dry_run=given.dry_run)
    changes: Mapping[str, Callable[..., Report]] = {
        "create": cluster.topics.create,
        "create-partitions": cluster.topics.create_partitions,
        "alter": cluster.topics.alter,
    }
    return call(changes[given.command], given)


def _short(row: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the row of an internal topic with its long cells cut, because long cells would widen the columns for
    all topics.
    """
    from stratalog.engine.state.internal_topics import (
        INTERNAL_TOPICS,  # imported here, because ``--help`` does not need it
    )

    if row["topic"] not in INTERNAL_TOPICS:
        return row
    wide = {name: str(row[name]) for name in ("value", "configs") if name in row}
    return {**row, **{name: f"{text[:_CELL]}..." for name, text in wide.items() if len(text) > _CELL + 3}}


def _changes(given: argparse.Namespace) -> dict[str, str | None]:
    """Return the changes of ``--set`` and ``--unset``. Raises: InvalidCallError for a config that has both."""
    if both := given.set.keys() & set(given.unset):
        raise InvalidCallError(f"{min(both)} is set and unset in one call")
    return {**given.set, **dict.fromkeys(given.unset)}


main = JobMain("topics", __doc__, arguments, topics, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
