"""List, describe, create, alter, configure and delete topics.

stratalog topics create flights --value "carrier STRING, distance INT" --config retention.ms=-1
stratalog topics describe flights        the types, and every config with its source
stratalog topics list --under-replicated partitions with a replica that is not in sync, from the metadata alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import stratalog
from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.engine.metadata.image import ClusterImage
from stratalog.jobs.arguments import add_yes, commands_of, count, pair
from stratalog.jobs.run import Job, JobMain, renamed
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.paths import METADATA_TOPIC

_SCHEMA = (
    'as DDL ("carrier STRING, distance INT"; "STRING"), Spark\'s JSON text of the type, or @FILE with either; '
    "default: binary"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    command = commands_of(parser)
    listed = command(
        "list", "list topics with partitions, types and configs; or partitions in trouble", reads=True
    )
    trouble = listed.add_mutually_exclusive_group()
    for state, doc in (
        ("unavailable", "only partitions without a leader"),
        ("under-min-isr", "also partitions whose ISR is smaller than min.insync.replicas"),
        ("under-replicated", "also partitions with a replica outside the ISR"),
    ):
        trouble.add_argument(f"--{state}", dest="trouble", action="store_const", const=state, help=doc)
    trouble.add_argument("--exclude-internal", action="store_true", help="omit the engine's own topics")
    described = command(
        "describe", "show the types of a topic, and its effective configs with their sources", reads=True
    )
    described.add_argument("name", metavar="NAME")
    create = command("create", "create a topic")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--partitions", metavar="N", type=count, help="default: the cluster's num.partitions")
    create.add_argument(
        "--replication-factor", metavar="N", type=count, help="default: the cluster's default.replication.factor"
    )
    create.add_argument("--key", metavar="TYPE", help=f"the type of keys, {_SCHEMA}")
    create.add_argument("--value", metavar="TYPE", help=f"the type of values, {_SCHEMA}")
    create.add_argument("--config", metavar="K=V", type=pair, action="append", default=[], help="repeatable")
    create.add_argument(
        "--if-not-exists",
        action="store_true",
        help="succeed if a topic of that name exists and has all that is requested",
    )
    more = command("create-partitions", "add partitions; new records of a key may go to other partitions")
    more.add_argument("name", metavar="NAME")
    more.add_argument("partitions", metavar="N", type=count, help="the new total")
    more.add_argument(
        "--if-not-exists", action="store_true", help="succeed if the topic has as many partitions, or more"
    )
    alter = command("alter", "add nullable fields at the end of the structs of declared types")
    alter.add_argument("name", metavar="NAME")
    alter.add_argument("--key", metavar="TYPE", help="the whole new type of keys (default: unchanged)")
    alter.add_argument(
        "--value", metavar="TYPE", help="the whole new type of values (default: unchanged); syntax as in `create`"
    )
    configs = command("alter-configs", "set configs of a topic or of the cluster, or reset them to their defaults")
    of = configs.add_mutually_exclusive_group(required=True)
    of.add_argument("topic", metavar="TOPIC", nargs="?")
    of.add_argument("--cluster-wide", action="store_true")
    configs.add_argument("--set", metavar="K=V", type=pair, action="append", default=[], help="repeatable")
    configs.add_argument("--unset", metavar="K", action="append", default=[], help="repeatable")
    delete = command("delete", "delete a topic and its data, in both tiers")
    add_yes(delete)
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--if-exists", action="store_true", help="succeed if the topic does not exist")
    delete.add_argument("--keep-remote", action="store_true", help="keep its Delta table")


def topics(job: Job) -> Report:
    cluster, given = job.cluster(), job.arguments
    if given.command == "delete":
        if given.if_exists and given.name not in cluster.image.topic_ids:
            absent = cluster.topics.delete(given.name, if_exists=True)
            return renamed(absent, "topics delete", dry_run=given.dry_run)
        what = "" if given.keep_remote else ", in both tiers"
        job.confirm(f"delete topic {cluster.image.topic(given.name).name!r} and its records{what}")
        deleted = cluster.topics.delete(
            given.name, keep_remote=given.keep_remote, dry_run=given.dry_run, check=False
        )
        return renamed(deleted, "topics delete", dry_run=given.dry_run)
    if given.command == "list":
        listed = (
            cluster.topics.list(exclude_internal=given.exclude_internal)
            if given.trouble is None
            else cluster.topics.troubled(given.trouble)
        )
        return renamed(listed, "topics list")
    if given.command == "describe":
        return renamed(cluster.topics.describe(given.name), f"topics describe {given.name}")
    with cluster.measured() as measure:
        if given.command == "create":
            rows = [_create(given, cluster)]
        elif given.command == "alter":
            key, value = _declared(given.key), _declared(given.value)
            added = cluster.topics.alter(given.name, key=key, value=value, dry_run=given.dry_run)
            rows = [{"topic": given.name, "added": name} for name in added]
        elif given.command == "create-partitions":
            rows = _create_partitions(given, cluster)
        else:
            rows = _configs(job, cluster)
    report = Report("", rows, seconds=measure.seconds, counts=measure.counts)
    return renamed(report, f"topics {given.command}", dry_run=given.dry_run)


def _create(given: argparse.Namespace, cluster: stratalog.Cluster) -> dict[str, Value]:
    made = cluster.topics.create(
        given.name,
        partitions=given.partitions,
        replication_factor=given.replication_factor,
        key=_declared(given.key),
        value=_declared(given.value),
        configs=dict(given.config),
        if_not_exists=given.if_not_exists,
        dry_run=given.dry_run,
    )
    return {
        "topic": given.name,
        "created": made.created,
        "partitions": made.partitions,
        "replication_factor": made.replication_factor,
        "topic_id": None if given.dry_run else made.topic_id,
    }


def _create_partitions(given: argparse.Namespace, cluster: stratalog.Cluster) -> list[dict[str, Value]]:
    made = cluster.topics.create_partitions(
        given.name, given.partitions, if_not_exists=given.if_not_exists, dry_run=given.dry_run
    )
    return [
        {"topic": given.name, "added": f"partition {partition} on brokers {', '.join(map(str, replicas))}"}
        for partition, replicas in made.added.items()
    ]


def _declared(text: str | None) -> str | None:
    """A type as given, or the content of its file. Raises: InvalidCallError."""
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidCallError(f"{text[1:]} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidCallError(f"{text[1:]} is not a UTF-8 text file: {error}") from error


def _configs(job: Job, cluster: stratalog.Cluster) -> list[dict[str, Value]]:
    given = job.arguments
    changes: dict[str, str | None] = dict(given.set)
    if both := changes.keys() & set(given.unset):
        raise InvalidCallError(f"{min(both)} is set and unset in one call")
    changes |= dict.fromkeys(given.unset)
    if changes:
        cluster.topics.alter_configs(given.topic, changes, dry_run=given.dry_run)
    present = _present(cluster.image, given.topic)
    after = {**present, **changes}
    return [
        {"config": key, "value": "(default)" if value is None else value, "changed": key in changes}
        for key, value in sorted(after.items())
    ]


def _present(image: ClusterImage, topic: str | None) -> Mapping[str, str]:
    """The configs that are set on a topic, or on the cluster if ``topic`` is None."""
    if topic == METADATA_TOPIC:
        from stratalog.engine.state.internal_topics import (
            METADATA_CONFIGS,  # imported here, because ``--help`` does not need it
        )

        return METADATA_CONFIGS
    return image.configs if topic is None else image.topic(topic).configs


main = JobMain("topics", __doc__, arguments, topics, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
