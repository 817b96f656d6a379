"""Describes the brokers and topics of a cluster, one topic, and partitions in trouble, as tables."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stratalog.engine.brokers.probe import probe_roots
from stratalog.engine.config.settings import configs_in_force
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.known_image import known_image
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import PartitionRow, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionView, TopicImage
from stratalog.engine.metadata.probed_roots import Another, Blocked, Finding, NotOurs, Same, Unreachable
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.declared import ddl, fields_of
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.store.local_space import takes_no_files
from stratalog.tiering.schedule import Entry


class BrokerRow(Row, frozen=True, kw_only=True):
    """A broker. For an unregistered broker, some columns are None."""

    broker: int
    rack: str | None
    state: str
    broker_epoch: int | None
    replicas: int
    leads: int
    log_dir: str


class TopicRow(Row, frozen=True, kw_only=True):
    """A topic. For a topic that is not tiered, some columns are None."""

    topic: str
    partitions: int
    replication_factor: int
    key: str
    value: str
    configs: str
    topic_id: str
    table_uri: str | None
    table_end: str | None


class TroubleRow(PartitionRow, frozen=True, kw_only=True):
    """A partition in one of ``TROUBLES``."""

    state: str
    leader: int | None
    replicas: str
    isr: str


class PropertyRow(Row, frozen=True, kw_only=True):
    """A property of a topic, with its source."""

    name: str
    source: str = msgspec.field(name="from")
    value: Value


def describe_brokers(metadata: MetadataClient, storage: Storage, execution: Execution) -> Report:
    """Describe the brokers of the cluster file, one row per broker: whether it is fenced, and the state of its
    root. An unreachable, damaged or foreign root is a failure in the report.
    """
    with execution.run("brokers list") as run:
        image = known_image(metadata, run)
        findings = {found.broker_id: found.finding for found in probe_roots(storage, image)}
        partitions = [p for topic in image.topics.values() for p in topic.partitions]
        for broker_id, store in sorted(storage.stores.items()):
            registered = image.brokers.get(broker_id)
            finding = findings.get(broker_id)
            match finding:
                case NotOurs(error) | Unreachable(error) | Blocked(error):
                    run.fail(f"broker {broker_id}", error)
                case Same() if (unwritable := takes_no_files(store.uri)) is not None:
                    finding = Blocked(unwritable.of_broker(broker_id))
                    run.fail(f"broker {broker_id}", unwritable)
            row = BrokerRow(
                broker=broker_id,
                rack=None if registered is None else registered.rack,
                state="not registered" if registered is None else broker_state(registered, finding),
                broker_epoch=None if registered is None else registered.broker_epoch,
                replicas=sum(broker_id in p.replicas for p in partitions),
                leads=sum(broker_id == p.leader for p in partitions),
                log_dir=store.uri,
            )
            run.add([row])
    return run.report()


def broker_state(registered: BrokerImage, finding: Finding | None) -> str:
    """Return ``ok``, or the words for all problems of the broker."""
    words = []
    if registered.fenced:
        words.append("fenced by hand" if registered.fenced_by_hand else "fenced")
    match finding:
        case Another():
            words.append("its root was replaced: bootstrap the broker")
        case NotOurs(error):
            words.append(error.code)
        case Unreachable():
            words.append("unreachable")
        case Blocked():
            words.append("refuses writes")
        case _:
            pass
    return ", ".join(words) or "ok"


def describe_topics(
    metadata: MetadataClient, storage: Storage, execution: Execution, *, exclude_internal: bool = False
) -> Report:
    """Describe the topics, one row per topic: partitions, types, configs. A tiered topic also has the address of
    its Delta table, and the end offset of each partition in this table (``0:100 1:98``), as of the last run of
    ``tier``.
    """
    with execution.run("topics list") as run:
        image = known_image(metadata, run)
        tiered = _tiered(storage, image)
        due = load_schedule(storage, image).schedule.entries if tiered else {}
    run.add(
        TopicRow(
            topic=topic.name,
            partitions=len(topic.partitions),
            replication_factor=max((len(partition.replicas) for partition in topic.partitions), default=0),
            key=_type_name(topic.key_schema),
            value=_type_name(topic.value_schema),
            configs=" ".join(f"{key}={value}" for key, value in sorted(topic.configs.items())),
            topic_id=topic.topic_id,
            table_uri=tiered.get(topic.topic_id),
            table_end=_table_end(topic, due) if topic.topic_id in tiered else None,
        )
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
        if not (exclude_internal and topic.name in INTERNAL_TOPICS)
    )
    return run.report()


def _tiered(storage: Storage, image: ClusterImage) -> dict[str, str]:
    """The addresses of the tables of tiered topics, by topic id."""
    return {
        topic.topic_id: storage.remote.uri_of(topic.folder)
        for topic in image.topics.values()
        if storage.remote is not None and topic_config_of(image, topic).remote_storage_enable
    }


def _table_end(topic: TopicImage, due: Mapping[TopicIdPartition, Entry]) -> str | None:
    """The end of the remote log of each partition that has a remote log."""
    ends = (
        (number, entry.remote_end)
        for number in range(len(topic.partitions))
        if (entry := due.get(TopicIdPartition(topic.topic_id, number))) is not None
    )
    return " ".join(f"{number}:{end}" for number, end in ends if end is not None) or None


def _type_name(schema: str | None) -> str:
    try:
        return ddl(schema)
    except InvalidCallError:  # ``create_topic`` only declares readable types, so another program has set this type
        return "unreadable"


TROUBLES = ("unavailable", "under-min-isr", "under-replicated")
"""The states of ``troubled_partitions``, worst first."""


def troubled_partitions(metadata: MetadataClient, execution: Execution, trouble: str) -> Report:
    """List the partitions in this state or a worse state, one row per partition. Only the metadata is read.
    ``unavailable``: the partition has no leader. ``under-min-isr``: its ISR is below ``min.insync.replicas``, so
    appends with acks=all are refused. ``under-replicated``: a replica is not in the ISR.

    Raises: InvalidCallError for another state.
    """
    if trouble not in TROUBLES:
        raise InvalidCallError(f"partitions are {', '.join(TROUBLES)}, not {trouble!r}")
    with execution.run("topics troubled") as run:
        image = known_image(metadata, run)
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
            least = topic_config_of(image, topic).min_insync_replicas
            for view in image.views(topic.name):
                found = state_of(view, least)
                if found is not None and TROUBLES.index(found) <= TROUBLES.index(trouble):
                    row = TroubleRow(
                        topic=topic.name,
                        partition=view.partition,
                        state=found,
                        leader=view.leader,
                        replicas=",".join(map(str, view.replicas)),
                        isr=",".join(map(str, view.isr)),
                    )
                    run.add([row])
    return run.report()


def state_of(view: PartitionView, min_insync_replicas: int) -> str | None:
    """Return the worst of ``TROUBLES`` that applies to a partition; None if none applies."""
    if view.leader is None:
        return "unavailable"
    if not view.has_min_isr(min_insync_replicas):
        return "under-min-isr"
    return "under-replicated" if len(view.isr) < len(view.replicas) else None


def describe_topic(metadata: MetadataClient, storage: Storage, execution: Execution, name: str) -> Report:
    """Describe a topic: its partitions, replication factor, types and effective configs. Each has one row, with
    its value and the source of the value (``topic``, ``cluster`` or ``default``).

    Raises: UnknownTopicOrPartitionError.
    """
    with execution.run("topics describe") as run:
        image = known_image(metadata, run)
        topic = image.topic(name)
        shape: dict[str, Value] = {
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(partition.replicas) for partition in topic.partitions), default=0),
            **_fields("key", topic.key_schema),
            **_fields("value", topic.value_schema),
        }
        if (table := _tiered(storage, image).get(topic.topic_id)) is not None:
            shape["table_uri"] = table
        run.add(PropertyRow(name=key, source="topic", value=value) for key, value in shape.items())
        in_force = configs_in_force(topic.configs, image.configs)
        run.add(PropertyRow(name=key, source=source, value=value) for key, value, source in in_force)
        run.totals["topic"] = name
    return run.report()


def _fields(column: str, schema: str | None) -> dict[str, Value]:
    """The type of a column, one line per field of a struct."""
    try:
        return {f"{column}.{name}": kind for name, kind in fields_of(schema).items()} or {column: ddl(schema)}
    except InvalidCallError:
        return {column: "unreadable"}
