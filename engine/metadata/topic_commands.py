"""Commands on topics and configs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stratalog.engine.config.definition import Scope
from stratalog.engine.config.mirrored import mirrored_topic
from stratalog.engine.config.settings import (
    check_config,
    check_disabling,
    check_iceberg_kept,
    check_partitioner,
    check_removed,
    check_snapshots_kept,
    cluster_config,
    find_config,
    topic_config,
)
from stratalog.engine.config.topic_config import MIRROR_SOURCE, MIRROR_SOURCE_TOPIC, TopicConfig
from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.description import TopicDescription
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.placement import Placer, place_replicas
from stratalog.engine.metadata.records import (
    EPOCH_GAP,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    TopicSchemaRecord,
)
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS, OPERATIONS_TOPIC, check_not_internal
from stratalog.engine.state.latest_by_key import check_key
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
)
from stratalog.partitions.growth import grown_schema, not_in_iceberg
from stratalog.partitions.identity import is_id
from stratalog.partitions.paths import METADATA_TOPIC, check_topic_name
from stratalog.partitions.records import leaf_types, schema_of, type_from_json


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """The topic exists."""

    topic_id: str
    partitions: int
    replication_factor: int
    created: bool = True
    """False if the topic existed before, with this shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic. ``topic_id`` is a new id from the caller. It identifies a retry of the caller, and seeds the
    placement of replicas.
    """

    name: str
    topic_id: str
    partitions: int | None = None
    """None selects the cluster's ``num.partitions``."""
    replication_factor: int | None = None
    """None selects the cluster's ``default.replication.factor``."""
    key_schema: str | None = None
    """Spark's JSON text of the key's type; None for binary. ``value_schema`` likewise."""
    value_schema: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    """Return an existing topic of this name if it has this shape (``_shape_differs``)."""
    log_starts: Sequence[int] = ()
    """The log starts of the first partitions; all other partitions start at 0."""
    internal: bool = False
    """Whether the topic is one of ``stratalog.engine.state.internal_topics``, which only the engine creates."""

    def decide(self, image: ClusterImage) -> Decision[TopicCreated]:
        """Raises: InvalidTopicError, InvalidPartitionsError, InvalidCallError (schemas, ids), InvalidConfigError,
        InvalidReplicationFactorError, TopicAlreadyExistsError.
        """
        what = f"topic {self.name!r}"
        check_topic_name(self.name)
        if self.name == METADATA_TOPIC:
            raise InvalidCallError(f"{what}: that name is reserved for the metadata log")
        if not self.internal:
            check_not_internal(self.name, "create")
        if self.name in image.topic_ids:
            return self._exists_already(image)
        if not is_id(self.topic_id) or self.topic_id in image.topics:
            raise InvalidCallError(f"{what}: {self.topic_id!r} is not a new topic id")
        defaults = cluster_config(image.configs)
        partitions = defaults.num_partitions if self.partitions is None else self.partitions
        factor = (
            defaults.default_replication_factor if self.replication_factor is None else self.replication_factor
        )
        if partitions < 1:
            raise InvalidPartitionsError(f"{what}: {partitions} partitions; use at least 1")
        configs = {name: check_config(Scope.TOPIC, name, text, what) for name, text in self.configs.items()}
        config = topic_config(configs, image.configs, what)
        if config.keys_required:
            check_key(self.key_schema, config.cleanup_policy, what)
        if MIRROR_SOURCE in configs:
            self._check_first_mirror(image, configs)
        leaf_types(schema_of(self.key_schema, self.value_schema))
        racks = {broker.broker_id: broker.rack for broker in image.brokers.values() if not broker.fenced}
        placed = place_replicas(racks, partitions, factor, random.Random(self.topic_id))
        records = _topic_records(self.name, self.topic_id, self.key_schema, self.value_schema, configs)
        starts = (*self.log_starts, *[0] * (partitions - len(self.log_starts)))
        records += (
            _new_partition(self.topic_id, number, replicas, log_start=starts[number])
            for number, replicas in enumerate(placed)
        )
        return Decision(tuple(records), TopicCreated(self.topic_id, partitions, factor))

    def _check_first_mirror(self, image: ClusterImage, configs: Mapping[str, str]) -> None:
        """If two mirrors of one topic begin at the same time under two names, only one continues.

        Raises: TopicAlreadyExistsError when another topic mirrors the same source topic.
        """
        source = mirrored_topic(self.name, configs)
        for topic in image.topics.values():
            if MIRROR_SOURCE in topic.configs and mirrored_topic(topic.name, topic.configs) == source:
                raise TopicAlreadyExistsError(
                    f"topic {topic.name!r} already mirrors {source}, and {self.name!r} would be a second copy: "
                    "omit --as, or end that mirror first"
                )

    def _exists_already(self, image: ClusterImage) -> Decision[TopicCreated]:
        """The answer for an existing topic, if this command created it, or the caller accepts an existing topic of
        this shape.
        """
        topic = image.topic(self.name)
        own = topic.topic_id == self.topic_id
        if not own and not self.if_not_exists:
            raise TopicAlreadyExistsError(
                f"topic {self.name!r} already exists, with id {topic.topic_id}: choose another name, or accept "
                "the existing topic with if_not_exists (a job: --if-not-exists)"
            )
        if not own and (differs := self._shape_differs(topic)):
            raise TopicAlreadyExistsError(
                f"topic {self.name!r} already exists, but differs: {'; '.join(differs)}. Request "
                "the existing settings, alter the topic, or choose another name"
            )
        factor = len(topic.first.replicas)
        return Decision((), TopicCreated(topic.topic_id, len(topic.partitions), factor, created=own))

    def _shape_differs(self, topic: TopicImage) -> list[str]:
        """Differences of the topic from the requested shape: both types, and requested partitions, replication
        factor and configs. The topic may also have other configs.

        Raises: InvalidConfigError.
        """
        what = f"topic {self.name!r}"
        asked: dict[str, tuple[object, object]] = {
            "partitions": (self.partitions, len(topic.partitions)),
            "replication_factor": (self.replication_factor, len(topic.first.replicas)),
            "key": (_type(self.key_schema), _type(topic.key_schema)),
            "value": (_type(self.value_schema), _type(topic.value_schema)),
        }
        for name, text in self.configs.items():
            asked[name] = check_config(Scope.TOPIC, name, text, what), topic.configs.get(name, "not set")
        return [
            f"{name} is {found}, not {wanted}"
            for name, (wanted, found) in asked.items()
            if wanted not in (None, found)
        ]


def _topic_records(
    name: str, topic_id: str, key_schema: str | None, value_schema: str | None, configs: Mapping[str, str]
) -> list[MetadataRecord]:
    topic = TopicRecord(name=name, topic_id=topic_id, key_schema=key_schema, value_schema=value_schema)
    set_configs = (
        ConfigRecord(resource=ConfigResource.TOPIC, name=name, key=key, value=value)
        for key, value in configs.items()
    )
    return [topic, *set_configs]


def _type(schema: str | None) -> str:
    """The readable type that a schema declares."""
    return "binary" if schema is None else str(type_from_json(schema))


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Grow a topic to ``partitions`` partitions (Kafka's CreatePartitions). New replicas go to brokers with few
    replicas of the topic. Existing records remain in their partitions, and new records of a key may go to another
    partition. A retried append goes to the partitions of its first try.
    """

    name: str
    partitions: int

    def decide(self, image: ClusterImage) -> Decision[Mapping[int, tuple[int, ...]]]:
        """Answers with the replicas of each new partition.

        Raises: UnknownTopicOrPartitionError, InvalidTopicError; InvalidPartitionsError for fewer partitions
        than the topic has; InvalidCallError for a topic with snapshots; InvalidReplicationFactorError with too few
        brokers.
        """
        topic = image.topic(self.name)
        check_not_internal(self.name, "add partitions to")
        what, present = f"topic {self.name!r}", len(topic.partitions)
        if self.partitions < present:
            raise InvalidPartitionsError(
                f"{what} has {present} partitions, and cannot have {self.partitions}: the number of partitions "
                "cannot shrink"
            )
        if self.partitions == present:
            return Decision((), {})
        config = topic_config(topic.configs, image.configs, what)
        if config.keys_required:
            raise InvalidCallError(
                f"{what}: with cleanup.policy = {config.cleanup_policy} all records of a key must stay in one "
                "partition; create another topic with more partitions, and append the records there"
            )
        factor = len(topic.first.replicas)
        racks = {broker.broker_id: broker.rack for broker in image.brokers.values() if not broker.fenced}
        if factor > len(racks):
            raise InvalidReplicationFactorError(
                f"{what} has {factor} replicas of each partition, but only {len(racks)} brokers are unfenced"
            )
        fenced = {broker.broker_id: broker.rack for broker in image.brokers.values() if broker.fenced}
        placer = Placer(racks, random.Random(f"{topic.topic_id} {present}"), fenced)
        for partition in topic.partitions:
            placer.count(partition.replicas)
        added = {partition: placer.place(factor) for partition in range(present, self.partitions)}
        records = tuple(
            _new_partition(topic.topic_id, number, replicas, added=True) for number, replicas in added.items()
        )
        return Decision(records, added)


def _new_partition(
    topic_id: str, partition: int, replicas: tuple[int, ...], *, added: bool = False, log_start: int = 0
) -> PartitionRecord:
    """A new partition, led by its preferred replica. All replicas are in sync: there are no records yet."""
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        added=added,
        log_start_offset=log_start,
    )


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Remove a topic from the metadata; its files are deleted afterwards. Answer: its topic id."""

    name: str

    def decide(self, image: ClusterImage) -> Decision[str]:
        """Raises: UnknownTopicOrPartitionError, InvalidTopicError."""
        topic_id = image.topic(self.name).topic_id
        check_not_internal(self.name, "delete")
        return Decision((RemoveTopicRecord(topic_id=topic_id),), topic_id)


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Grow the declared schemas of a topic (``stratalog.partitions.growth``). Answer: the added and widened
    fields, such as ``value.gate``; empty when the topic already has all of them.
    """

    name: str
    key_schema: str | None = None
    """Spark's JSON text of the complete new type; None: unchanged. ``value_schema`` likewise."""
    value_schema: str | None = None

    def decide(self, image: ClusterImage) -> Decision[tuple[str, ...]]:
        """Raises: UnknownTopicOrPartitionError, InvalidTopicError; InvalidCallError for any change other than
        growth; InvalidConfigError when the keys of a topic with snapshots would no longer be comparable.
        """
        topic = image.topic(self.name)
        check_not_internal(self.name, "alter")
        what = f"topic {self.name!r}"
        key, new_in_key = _grown(what, "key", topic.key_schema, self.key_schema)
        value, new_in_value = _grown(what, "value", topic.value_schema, self.value_schema)
        added = (*new_in_key, *new_in_value)
        if not added:
            return Decision((), ())
        config = topic_config(topic.configs, image.configs, what)
        if config.keys_required:
            check_key(key, config.cleanup_policy, what)
        if config.remote_iceberg_table and (changes := not_in_iceberg(topic.value_schema, value)):
            raise InvalidCallError(
                f"{what}: Iceberg (remote.iceberg.table) does not widen {', '.join(changes)}; add a field instead"
            )
        leaf_types(schema_of(key, value))
        grown = TopicSchemaRecord(topic_id=topic.topic_id, key_schema=key, value_schema=value)
        return Decision((grown,), added)


def _grown(what: str, column: str, present: str | None, wanted: str | None) -> tuple[str | None, list[str]]:
    """Raises: InvalidCallError."""
    if wanted is None:
        return present, []
    if present is None:
        raise InvalidCallError(f"{what}: its {column} is binary, which cannot change; create another topic")
    try:
        return grown_schema(present, wanted, column)
    except InvalidCallError as error:
        raise InvalidCallError(f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Set configs of a topic (``topic`` None: of the cluster); a value of None deletes the key, so that the
    default applies again.
    """

    topic: str | None
    changes: Mapping[str, str | None]

    def decide(self, image: ClusterImage) -> Decision[Mapping[str, str]]:
        """Answers with the configs that are set afterwards.

        Raises: UnknownTopicOrPartitionError, InvalidTopicError; InvalidConfigError, also when another topic's
            configs would contradict a new default.
        """
        if self.topic is None:
            what, scope, present = "cluster", Scope.CLUSTER, image.configs
        else:
            if self.topic != OPERATIONS_TOPIC:  # the readers of a history decide about its retention and tiering
                check_not_internal(self.topic, "alter")
            what, scope, present = f"topic {self.topic!r}", Scope.TOPIC, image.topic(self.topic).configs
        after = dict(present)
        for name, text in self.changes.items():
            if text is None:
                find_config(scope, name, what)
                after.pop(name, None)
            else:
                after[name] = check_config(scope, name, text, what)
        for name in (MIRROR_SOURCE, MIRROR_SOURCE_TOPIC):
            if (source := after.get(name, "")) not in ("", present.get(name, "")):
                raise InvalidConfigError(
                    f"{what}: {name} = {source!r}: a mirror must start at the creation of the topic; "
                    "create it with stratalog mirror"
                )
        if after.get(MIRROR_SOURCE) and after.get(MIRROR_SOURCE_TOPIC, "") != present.get(MIRROR_SOURCE_TOPIC, ""):
            raise InvalidConfigError(
                f"{what}: {MIRROR_SOURCE_TOPIC} cannot be removed from a mirror, which depends "
                "on it: end the mirror first"
            )
        if self.topic is None:
            topic_config({}, after, what)
            # Check one topic for each distinct set of configs and key type: there are many topics, but few sets.
            kinds = {
                (
                    frozenset(topic.configs.items()),
                    topic.name in INTERNAL_TOPICS,
                    topic_id in image.rules,
                    topic_id in image.erasures,
                    _erases(image, topic_id),
                    topic.key_schema,
                ): topic
                for topic_id, topic in image.topics.items()
            }
            for topic in kinds.values():
                whose = f"{what}: topic {topic.name!r}"
                was, becomes = (topic_config(topic.configs, configs, whose) for configs in (image.configs, after))
                _check_change(image, topic, was, becomes, whose)
                if (
                    topic.name not in INTERNAL_TOPICS
                ):  # the engine itself partitions the records of internal topics
                    check_partitioner(was, becomes, whose)
        else:
            was, becomes = (topic_config(configs, image.configs, what) for configs in (present, after))
            _check_change(image, image.topic(self.topic), was, becomes, what)
            check_partitioner(was, becomes, what)
        records = tuple(
            ConfigRecord(
                resource=ConfigResource.CLUSTER if self.topic is None else ConfigResource.TOPIC,
                name="" if self.topic is None else self.topic,
                key=name,
                value=after.get(name),
            )
            for name in self.changes
            if after.get(name) != present.get(name)
        )
        return Decision(records, after)


def _check_change(
    image: ClusterImage, topic: TopicImage, before: TopicConfig, after: TopicConfig, what: str
) -> None:
    """Raises: InvalidConfigError if the topic cannot change from one config to the other."""
    check_disabling(before, after, what)
    if after.keys_required:
        check_key(topic.key_schema, after.cleanup_policy, what)
    compacted, erased = topic.topic_id in image.rules, topic.topic_id in image.erasures
    check_removed(before, after, what, compacted=compacted, erased=erased)
    unfinished = _erases(image, topic.topic_id)
    check_iceberg_kept(before, after, what, unfinished=unfinished)
    check_snapshots_kept(before, after, what, unfinished=unfinished)


def _erases(image: ClusterImage, topic_id: str) -> bool:
    """Whether an erasure of the topic's records is not finished."""
    return any(one.offsets for each in image.erasures.get(topic_id, {}).values() for one in each)


@dataclass(frozen=True, slots=True)
class RestoreTopic:
    """Create a topic with the id and configs of a description (``stratalog.engine.metadata.description``). Its
    partitions have neither ISR nor leader, so no append succeeds before an unclean election makes a replica begin
    at the end of the remote log. Does nothing when the topic exists with this id. Answer: the number of replicas
    of each partition.
    """

    topic: TopicDescription
    """The topic's description, with the known leader epochs and log starts of its partitions."""

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Raises: InvalidCallError, InvalidTopicError, InvalidConfigError; TopicAlreadyExistsError when another
        topic has the name; InvalidReplicationFactorError without an unfenced broker.
        """
        topic = self.topic
        what = f"topic {topic.name!r}"
        check_topic_name(topic.name)
        check_not_internal(topic.name, "restore")
        if topic.topic_id in image.topics and image.topics[topic.topic_id].name == topic.name:
            return Decision((), len(image.topics[topic.topic_id].first.replicas))
        if topic.name in image.topic_ids or topic.topic_id in image.topics:
            raise TopicAlreadyExistsError(f"{what} already exists, but differs from the topic to restore")
        if not topic.partitions:
            raise InvalidCallError(f"{what} is described without partitions")
        configs = {name: check_config(Scope.TOPIC, name, text, what) for name, text in topic.configs.items()}
        topic_config(configs, image.configs, what)
        racks = {broker.broker_id: broker.rack for broker in image.brokers.values() if not broker.fenced}
        factor = min(topic.replication_factor, len(racks))
        placed = place_replicas(racks, len(topic.partitions), factor, random.Random(topic.topic_id))
        records = _topic_records(topic.name, topic.topic_id, topic.key_schema, topic.value_schema, configs)
        records += (
            PartitionRecord(
                topic_id=topic.topic_id,
                partition=number,
                replicas=replicas,
                isr=(),
                leader_epoch=partition.leader_epoch + EPOCH_GAP,
                log_start_offset=partition.log_start_offset,
                added=True,  # the description does not say whether partitions were added
            )
            for number, (replicas, partition) in enumerate(zip(placed, topic.partitions, strict=True))
        )
        return Decision(tuple(records), factor)
