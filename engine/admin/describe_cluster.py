"""Describe: the brokers and the topics of a cluster, as tables."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.brokers.probe import probe_roots
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.known_image import known_image
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, TopicImage
from stratalog.engine.metadata.probed_roots import Another, Finding, NotOurs, Unreachable
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.identity import TopicIdPartition
from stratalog.tiering.schedule import Entry


def describe_brokers(context: Context) -> Report:
    """One row per broker of the cluster file: whether it is fenced, and how its root is found. A root that does
    not answer, or is damaged, or somebody else's, is a failure in the report.
    """
    with context.run("describe brokers") as run:
        image = known_image(context, run)
        findings = {found.broker_id: found.finding for found in probe_roots(context, image)}
        partitions = [p for topic in image.topics.values() for p in topic.partitions]
        for broker_id, store in sorted(context.stores.items()):
            registered = image.brokers.get(broker_id)
            finding = findings.get(broker_id)
            match finding:
                case NotOurs(error) | Unreachable(error):
                    run.fail(f"broker {broker_id}", error)
            run.rows.append(
                {
                    "broker": broker_id,
                    "rack": None if registered is None else registered.rack,
                    "state": "not registered" if registered is None else broker_state(registered, finding),
                    "broker_epoch": None if registered is None else registered.broker_epoch,
                    "replicas": sum(broker_id in p.replicas for p in partitions),
                    "leads": sum(broker_id == p.leader for p in partitions),
                    "log_dir": store.uri,
                }
            )
    return run.report()


def broker_state(registered: BrokerImage, finding: Finding | None) -> str:
    """``ok``, or the words for all that is not as it should be."""
    words = []
    if registered.fenced:
        words.append("fenced by hand" if registered.fenced_by_hand else "fenced")
    match finding:
        case Another():
            words.append("another incarnation: bootstrap it")
        case NotOurs(error):
            words.append(error.code)
        case Unreachable():
            words.append("unreachable")
        case _:
            pass
    return ", ".join(words) or "ok"


def describe_topics(context: Context) -> Report:
    """One row per topic: partitions, types, configs; of a tiered one the address of its Delta table, and up to
    which offset that goes in each partition, as the last run of ``tier`` saw it (``0:100 1:98``).
    """
    with context.run("describe topics") as run:
        image = known_image(context, run)
        tiered = _tiered(context, image)
        due = load_schedule(context, image).schedule.entries if tiered else {}
    run.rows += [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max(len(partition.replicas) for partition in topic.partitions),
            "key": _type_name(topic.key_schema),
            "value": _type_name(topic.value_schema),
            "configs": " ".join(f"{key}={value}" for key, value in sorted(topic.configs.items())),
            "topic_id": topic.topic_id,
            "table": tiered.get(topic.topic_id),
            "table_end": _table_end(topic, due) if topic.topic_id in tiered else None,
        }
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
    ]
    return run.report()


def _tiered(context: Context, image: ClusterImage) -> dict[str, str]:
    """The addresses of the tables of tiered topics, by topic id."""
    return {
        topic.topic_id: context.remote.uri_of(context.remote_folder(topic))
        for topic in image.topics.values()
        if context.remote is not None and context.topic_config(image, topic).remote_storage_enable
    }


def _table_end(topic: TopicImage, due: Mapping[TopicIdPartition, Entry]) -> str | None:
    """The remote end of each partition that has one."""
    ends = (
        (number, entry.remote_end)
        for number in range(len(topic.partitions))
        if (entry := due.get(TopicIdPartition(topic.topic_id, number))) is not None
    )
    return " ".join(f"{number}:{end}" for number, end in ends if end is not None) or None


def _type_name(schema: str | None) -> str:
    if schema is None:
        return "binary"
    try:
        found = parse_json(schema)
        if isinstance(found, dict) and found["type"] == "struct":
            return f"struct of {', '.join(field['name'] for field in found['fields'])}"
        return found if isinstance(found, str) else str(found["type"])
    except (ValueError, KeyError, TypeError):  # of foreign origin: ``create_topic`` only declares readable types
        return "unreadable"
