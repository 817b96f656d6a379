"""List, create, alter, configure and delete topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import stratalog
from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.engine.metadata.image import ClusterImage
from stratalog.jobs.arguments import add_common, add_dry_run, count, pair
from stratalog.jobs.run import Job, JobMain, renamed
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.paths import METADATA_TOPIC

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Declared: TypeAlias = "DataType | str | None"
"""A type as ``cluster.topics.create`` takes it."""

_SCHEMA = (
    'as DDL ("carrier STRING, distance INT"; "STRING"; parsed by Spark), or @FILE with Spark\'s JSON text of the '
    "type; binary when left out"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, doc: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        add_common(added)
        add_dry_run(added, "only check" if name != "list" else "the same: this only reads")
        return added

    command("list", "every topic: partitions, types, configs")
    create = command("create", "create a topic")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--partitions", metavar="N", type=count, help="default: the cluster's num.partitions")
    create.add_argument(
        "--replication-factor", metavar="N", type=count, help="default: the cluster's default.replication.factor"
    )
    create.add_argument("--key", metavar="TYPE", help=f"the type of keys, {_SCHEMA}")
    create.add_argument("--value", metavar="TYPE", help=f"the type of values, {_SCHEMA}")
    create.add_argument("--config", metavar="K=V", type=pair, action="append", default=[], help="repeatable")
    alter = command("alter", "more partitions; declared types that grow by nullable fields at the end of a struct")
    alter.add_argument("name", metavar="NAME")
    alter.add_argument(
        "--partitions", metavar="N", type=count, help="N in all; new records of a key may go to other partitions"
    )
    alter.add_argument("--key", metavar="TYPE", help="the whole type of keys as it is to be; stays when left out")
    alter.add_argument("--value", metavar="TYPE", help="the same of values; both are given as to `create`")
    configs = command("configs", "set configs of a topic or of the cluster, or take them back to their defaults")
    of = configs.add_mutually_exclusive_group(required=True)
    of.add_argument("--topic", metavar="NAME")
    of.add_argument("--cluster-wide", action="store_true")
    configs.add_argument("--set", metavar="K=V", type=pair, action="append", default=[], help="repeatable")
    configs.add_argument("--unset", metavar="K", action="append", default=[], help="repeatable")
    delete = command("delete", "delete a topic and its data, in both tiers")
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--keep-remote", action="store_true", help="leave its Delta table as it is")


def topics(job: Job) -> Report:
    cluster, given = job.cluster(), job.arguments
    if given.command == "delete":
        deleted = cluster.topics.delete(given.name, keep_remote=given.keep_remote, dry_run=given.dry_run)
        return renamed(deleted, "topics delete", dry_run=given.dry_run)
    if given.command == "list":
        return renamed(cluster.topics.list(), "topics list")
    key, value = _types(job, cluster) if given.command == "create" else (None, None)
    with cluster.measured() as measure:
        if given.command == "create":
            rows = [_create(given, cluster, key, value)]
        elif given.command == "alter":
            rows = _alter(given, cluster, _declared(job, given.key), _declared(job, given.value))
        else:
            rows = _configs(job, cluster)
    report = Report("", rows, seconds=measure.seconds, counts=measure.counts)
    return renamed(report, f"topics {given.command}", dry_run=given.dry_run)


def _types(job: Job, cluster: stratalog.Cluster) -> tuple[Declared, Declared]:
    """The declared types, once everything else about the new topic is found to be right: Spark may have to
    be started to parse them.
    """
    given = job.arguments
    cluster.topics.create(
        given.name,
        partitions=given.partitions,
        replication_factor=given.replication_factor,
        configs=dict(given.config),
        dry_run=True,
    )
    return _declared(job, given.key), _declared(job, given.value)


def _create(
    given: argparse.Namespace, cluster: stratalog.Cluster, key: Declared, value: Declared
) -> dict[str, Value]:
    made = cluster.topics.create(
        given.name,
        partitions=given.partitions,
        replication_factor=given.replication_factor,
        key=key,
        value=value,
        configs=dict(given.config),
        dry_run=given.dry_run,
    )
    return {
        "topic": given.name,
        "partitions": made.partitions,
        "replication_factor": made.replication_factor,
        "topic_id": None if given.dry_run else made.topic_id,
    }


def _alter(
    given: argparse.Namespace, cluster: stratalog.Cluster, key: Declared, value: Declared
) -> list[dict[str, Value]]:
    rows: list[dict[str, Value]] = []
    grows = key is not None or value is not None or given.partitions is None
    if grows:  # a wrong config is found before partitions are added
        cluster.topics.alter(given.name, key=key, value=value, dry_run=True)
    if given.partitions is not None:
        made = cluster.topics.create_partitions(given.name, given.partitions, dry_run=given.dry_run)
        rows += [
            {"topic": given.name, "added": f"partition {partition} on brokers {', '.join(map(str, replicas))}"}
            for partition, replicas in made.added.items()
        ]
    if grows:
        added = cluster.topics.alter(given.name, key=key, value=value, dry_run=given.dry_run)
        rows += [{"topic": given.name, "added": name} for name in added]
    return rows


def _declared(job: Job, text: str | None) -> Declared:
    """DDL needs Spark's parser, and with it a session."""
    if text is None:
        return None
    if not text.startswith("@"):
        job.session()
        return text
    from stratalog.engine.spark.types import spark_type

    try:
        return spark_type(Path(text[1:]).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCallError(f"{text[1:]} cannot be read: {error.strerror}") from error
    except (InvalidCallError, UnicodeDecodeError) as error:
        raise InvalidCallError(
            f"{text[1:]} holds no JSON text of a type that a topic can have: {error}"
        ) from error


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
    """The configs that are set on a topic; on the cluster when None."""
    if topic == METADATA_TOPIC:
        from stratalog.engine.state.internal_topics import (
            METADATA_CONFIGS,  # here: ``--help`` does without what this loads
        )

        return METADATA_CONFIGS
    return image.configs if topic is None else image.topic(topic).configs


main = JobMain("topics", __doc__, arguments, topics, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
