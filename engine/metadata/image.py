"""The state of the cluster as frozen values, made by ``stratalog.engine.metadata.fold``.

Broker, topic and partition images are ``msgspec`` structs, because a large cluster has a million of them: a struct
is built in a fraction of the time of a dataclass, and the garbage collector does not track topics and partitions.
Mappings of a finished image never change; a change makes new mappings that share entries with the old mappings
(``stratalog.engine.metadata.overlay``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from stratalog.engine.metadata.records import VoterId
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptionError, UnknownBrokerError, UnknownTopicOrPartitionError
from stratalog.partitions.html_table import head_line, html_table
from stratalog.partitions.identity import TopicIdPartition, same_root
from stratalog.partitions.numbers import Int64, whole
from stratalog.partitions.paths import topic_folder
from stratalog.partitions.removal import CommittedRule, Rule
from stratalog.partitions.spelling import did_you_mean

_TIERED = "remote.storage.enable"


class Incarnation(NamedTuple):
    """The identity of a broker's root at its registration."""

    broker_id: int
    directory_id: str
    root: str
    """The identity of the root's ``broker.json`` as an object; empty if unknown, which equals any identity. A
    restored older copy has the directory id of the original, but a different identity.
    """
    incarnation_folder: str
    """See ``BrokerImage``."""

    def is_same(self, other: Incarnation, *, trusted: bool = False) -> bool:
        """Whether this is the same storage as ``other``. ``trusted``: an operator vouches that a root with that
        directory id is a faithful copy.
        """
        return self[:2] == other[:2] and (trusted or same_root(self.root, other.root))


class BrokerImage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A registered broker. Raises: CorruptionError if it is not fenced, but marked as fenced by hand."""

    broker_id: Int64
    broker_epoch: Int64
    """The offset of its registration record (KIP-903)."""
    directory_id: str
    """The directory id of its root."""
    rack: str | None
    log_dir: str
    fenced: bool
    incarnation_folder: str = msgspec.field(name="home")
    """The folder below the root that holds the broker's replicas. Each incarnation has its own folder, so that
    late writers of an earlier incarnation write where no reader looks (protocol section 1).
    """
    root: str = ""
    """See ``Incarnation``."""
    fenced_by_hand: bool = msgspec.field(default=False, name="held")
    """Whether the broker stays fenced until an operator unfences it, even if its root answers."""

    def __post_init__(self) -> None:
        if self.fenced_by_hand and not self.fenced:
            raise CorruptionError(f"the metadata contains a broker that is fenced by hand but not fenced: {self}")

    @property
    def incarnation(self) -> Incarnation:
        """The identity of the broker's root at the broker's registration."""
        return Incarnation(self.broker_id, self.directory_id, self.root, self.incarnation_folder)


class PartitionImage(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """One partition; in JSON an array of these fields in this order. Raises: CorruptionError for a violated
    invariant of a field.
    """

    partition: Int64
    replicas: tuple[Int64, ...]
    """Distinct brokers in order of preference. During a reassignment: the original replicas, then ``joining``."""
    assignments: tuple[Int64, ...]
    """By replica, the metadata offset of the record that placed the replica on its broker. This offset is part of
    the name of the replica's folder.
    """
    leader: Int64 | None
    """A member of the ISR, or None."""
    leader_epoch: Int64
    """Starts at 1, and grows by one with every election and every change of leader, even if no leader follows."""
    isr: tuple[Int64, ...]
    """A subset of the replicas; empty only after the last member's storage was lost, or removed by force, and
    while a partition is being restored from the remote tier."""
    adding: tuple[Int64, ...]
    """Replicas outside the ISR that must already acknowledge appends; empty without a leader."""
    log_start_offset: Int64
    """Never decreases."""
    partition_epoch: Int64
    """Grows by one with every change of the partition, except a change of ``written_to``, and with every removal
    rule.
    """
    target: tuple[Int64, ...] = ()
    """The final replicas of the reassignment in progress, in order of preference: distinct, and a subset of
    ``replicas``. Empty without a reassignment.
    """
    joining: tuple[Int64, ...] = ()
    """The replicas that the reassignment has added: the last of ``replicas``, all in ``target``, and never all
    replicas. Empty if and only if ``target`` is empty.
    """
    lost: tuple[Incarnation, ...] = ()
    """The storages of the last members of the ISR, each on a broker in ``replicas``; only while the ISR is empty.
    If one of these storages registers again, it becomes the ISR and leads.
    """
    unclean_epoch: Int64 = 0
    """The latest leader epoch that began with a loss of records, by an unclean election, or after all records were
    lost; 0 if there is none.
    """
    remote_epoch: Int64 = 0
    """The latest leader epoch whose leader continued from the end of the remote log; 0 if there is none."""
    written_to: Int64 = 0
    """A high watermark that was above the log start when it was recorded: all members of the ISR have had records
    up to this offset. 0: unknown, or an election has abandoned those records.
    """

    def __post_init__(self) -> None:
        held = set(self.replicas)
        members = {*self.isr, *self.adding}
        whole = (
            len(held) == len(self.replicas) == len(self.assignments) > 0
            and members <= held
            and len(members) == len(self.isr) + len(self.adding)
            and (self.leader in self.isr if self.leader is not None else not self.adding)
        )
        if whole and (self.target or self.joining):
            whole = (
                0 < len(self.joining) < len(self.replicas)
                and self.replicas[len(self.original) :] == self.joining
                and set(self.joining) <= set(self.target) <= held
                and len(set(self.target)) == len(self.target)
            )
        if whole and self.lost:
            whole = not self.isr and {incarnation.broker_id for incarnation in self.lost} <= held
        if not whole:
            raise CorruptionError(f"the metadata contains a partition that contradicts itself: {self}")

    @property
    def original(self) -> tuple[Int64, ...]:
        """The replicas before the reassignment in progress; without a reassignment, the current replicas."""
        return self.replicas[: len(self.replicas) - len(self.joining)]


class TopicImage(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One topic. The image of a topic contains its configs, so the configs cannot outlive the topic."""

    name: str
    topic_id: str
    key_schema: str | None
    """Spark's JSON text of the key's type; None for binary. ``value_schema`` likewise."""
    value_schema: str | None
    partitions: tuple[PartitionImage, ...] = ()
    """Partition ``i`` at index ``i``."""
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The topic's own configs, as text; ``stratalog.engine.config.settings`` adds the defaults."""
    grown: bool = False
    """True if partitions may have been added after creation."""

    @property
    def folder(self) -> str:
        """The topic's folder, below a root or in the remote tier."""
        return topic_folder(self.name, self.topic_id)

    @property
    def first(self) -> PartitionImage:
        """The first partition. Raises: CorruptionError for a topic without partitions, which no command
        creates.
        """
        if not self.partitions:
            raise CorruptionError(
                f"the metadata contains topic {self.name!r} without partitions: delete the "
                "topic, and create it again"
            )
        return self.partitions[0]


def partition_of(topic: TopicImage, partition: int) -> PartitionImage:
    """The partition of that number. Raises: UnknownTopicOrPartitionError; InvalidCallError for a value that is not
    a whole number.
    """
    if not 0 <= whole(partition, f"topic {topic.name!r}: partition") < len(topic.partitions):
        raise UnknownTopicOrPartitionError(
            f"topic {topic.name!r} has no partition {partition}: it has {len(topic.partitions)}, numbered from 0"
        )
    return topic.partitions[partition]


def last_generation(rules: Sequence[CommittedRule], erasures: Sequence[Erasure]) -> int:
    """The generation of the last rule or erasure of a partition; 0 without any."""
    return max(rules[-1].rule.generation if rules else 0, last_erasure(erasures))


def last_erasure(erasures: Sequence[Erasure]) -> int:
    """The generation of the last erasure of a partition; 0 without any."""
    return erasures[-1].generation if erasures else 0


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition with its brokers, from one read of the metadata, for replication.

    Small and picklable. It may be outdated at any time: the protocol checks ``partition_epoch`` and the brokers'
    directory ids.
    """

    topic: str
    topic_id: str
    partition: int
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    replicas: tuple[int, ...]
    """In order of preference."""
    assignments: Mapping[int, int]
    """By broker id, the metadata offset of the record that placed the broker's replica."""
    partition_epoch: int
    log_start_offset: int
    brokers: Mapping[int, BrokerImage]
    """The brokers of ``replicas``."""
    target: tuple[int, ...] = ()
    """See ``PartitionImage``; also for the next four fields."""
    joining: tuple[int, ...] = ()
    unclean_epoch: int = 0
    remote_epoch: int = 0
    written_to: int = field(default=0, compare=False)
    tiered: bool = False
    """Whether remote.storage.enable is set for the topic."""
    rules: tuple[CommittedRule, ...] = ()
    """See ``ClusterImage.rules``."""
    erasures: tuple[Erasure, ...] = ()
    """See ``ClusterImage.erasures``."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def generation(self) -> int:
        """The generation of the last removal rule; 0: none."""
        return last_generation(self.rules, self.erasures)

    @property
    def last_erasure(self) -> int:
        """The generation of the last erasure; 0: none."""
        return last_erasure(self.erasures)

    @property
    def compaction(self) -> Rule | None:
        """The rule of the last compaction, if there is one."""
        return self.rules[-1].rule if self.rules else None

    @property
    def compacted_to(self) -> int:
        """The bound of the last compaction; 0: none."""
        return 0 if self.compaction is None else self.compaction.bound

    @property
    def key(self) -> TopicIdPartition:
        """The id of the topic, and the partition number."""
        return TopicIdPartition(self.topic_id, self.partition)

    def has_min_isr(self, min_insync_replicas: int) -> bool:
        """Whether the ISR is large enough to acknowledge and commit records; for a partition with fewer replicas
        than ``min.insync.replicas``, whether the ISR contains all replicas (KIP-966).
        """
        return len(self.isr) >= min(min_insync_replicas, len(self.replicas))


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The state of the cluster at ``next_offset``."""

    cluster_id: str = ""
    """Empty before the first record."""
    voters: tuple[VoterId, ...] = ()
    replaced: tuple[int, ...] = ()
    """See ``VotersRecord``."""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    """By topic id."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name; the names are exactly those of ``topics``."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """The dynamic configs of the cluster: its own configs, and the defaults of topic configs."""
    rules: Mapping[str, Mapping[int, tuple[CommittedRule, ...]]] = field(default_factory=dict)
    """By topic id and partition: the rules that remove records at unchanged offsets
    (``stratalog.partitions.removal``), ascending. These are the last rule, and the earlier rules that the next
    rule needs. Partitions without a rule are absent.
    """
    erasures: Mapping[str, Mapping[int, tuple[Erasure, ...]]] = field(default_factory=dict)
    """By topic id and partition, ascending: the last erasure, and all erasures that some replica has not applied
    (``stratalog.partitions.erasure``). Partitions that never had an erasure are absent.
    """
    next_offset: int = 0
    """The metadata offset up to which (exclusive) records are folded in."""

    def __repr__(self) -> str:
        return (
            f"ClusterImage({self.cluster_id!r}, {len(self.brokers)} brokers, {len(self.topics)} topics, "
            f"next_offset={self.next_offset})"
        )

    def _repr_html_(self) -> str:
        brokers = [
            [str(one.broker_id), one.rack or "-", "fenced" if one.fenced else "in service", one.log_dir]
            for _, one in sorted(self.brokers.items())
        ]
        topics = [
            [
                *(name, str(len(of.partitions)), str(len(of.first.replicas))),
                " ".join(f"{key}={value}" for key, value in sorted(of.configs.items())),
            ]
            for name, of in ((name, self.topics[self.topic_ids[name]]) for name in sorted(self.topic_ids))
        ]
        summary = f"metadata of {self.cluster_id!r} up to offset {self.next_offset:,}, voters "
        return "".join(
            [
                head_line(summary + ", ".join(str(voter.broker_id) for voter in self.voters)),
                html_table(["broker", "rack", "state", "log_dir"], brokers),
                html_table(["topic", "partitions", "replication_factor", "configs"], topics),
            ]
        )

    def broker(self, broker_id: int) -> BrokerImage:
        """The broker. Raises: UnknownBrokerError."""
        try:
            return self.brokers[broker_id]
        except KeyError:
            known = ", ".join(map(str, sorted(self.brokers))) or "none"
            raise UnknownBrokerError(
                f"broker {broker_id} is not registered (registered: {known}): correct the number, or add it to "
                "the cluster file and register it with brokers add"
            ) from None

    def topic(self, name: str) -> TopicImage:
        """The topic of that name. Raises: UnknownTopicOrPartitionError."""
        try:
            return self.topics[self.topic_ids[name]]
        except KeyError:
            hint = did_you_mean(name, self.topic_ids)
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist, or was deleted{hint}") from None

    def partition(self, topic_id: str, partition: int) -> PartitionImage:
        """The partition. Raises: UnknownTopicOrPartitionError; InvalidCallError for a value that is not a whole
        number.
        """
        topic = self.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"no topic has id {topic_id}; it was deleted")
        return partition_of(topic, partition)

    def view(self, topic_id: str, partition: int) -> PartitionView:
        """The view of a partition, for replication.

        Raises: UnknownTopicOrPartitionError, also when the name now belongs to a topic with another id.
        """
        image, topic = self.partition(topic_id, partition), self.topics[topic_id]
        tiered = topic.configs.get(_TIERED) or self.configs.get(_TIERED)
        return PartitionView(
            topic=topic.name,
            topic_id=topic_id,
            partition=image.partition,
            leader=image.leader,
            leader_epoch=image.leader_epoch,
            isr=image.isr,
            adding=image.adding,
            replicas=image.replicas,
            assignments=dict(zip(image.replicas, image.assignments, strict=True)),
            partition_epoch=image.partition_epoch,
            log_start_offset=image.log_start_offset,
            brokers={broker_id: self.brokers[broker_id] for broker_id in image.replicas},
            target=image.target,
            joining=image.joining,
            unclean_epoch=image.unclean_epoch,
            remote_epoch=image.remote_epoch,
            written_to=image.written_to,
            tiered=tiered == "true",
            rules=self.rules_of(TopicIdPartition(topic_id, image.partition)),
            erasures=self.erasures_of(TopicIdPartition(topic_id, image.partition)),
        )

    def rules_of(self, key: TopicIdPartition) -> tuple[CommittedRule, ...]:
        """The removal rules of a partition."""
        return self.rules.get(key.topic_id, {}).get(key.partition, ())

    def erasures_of(self, key: TopicIdPartition) -> tuple[Erasure, ...]:
        """The erasures of a partition."""
        return self.erasures.get(key.topic_id, {}).get(key.partition, ())

    def generation_of(self, key: TopicIdPartition) -> int:
        """The generation of the last removal rule of a partition; 0: none."""
        return last_generation(self.rules_of(key), self.erasures_of(key))

    def views(self, topic: str) -> list[PartitionView]:
        """Views of all partitions of a topic, by its name. Raises: UnknownTopicOrPartitionError."""
        image = self.topic(topic)
        return [self.view(image.topic_id, partition.partition) for partition in image.partitions]
