"""The state of the cluster as frozen values. How it comes about stands in ``stratalog.engine.metadata.fold``.

Broker, topic and partition images are ``msgspec`` structs, because a large cluster has a million of
them: built in a fraction of a dataclass's time, and topics and partitions are not tracked by the garbage
collector, which would look at each of them again and again. Mappings are never changed after an image is out; a
change makes new ones, which share with the old ones what they can (``stratalog.engine.metadata.overlay``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from stratalog.engine.metadata.records import VoterId
from stratalog.partitions.errors import CorruptionError, UnknownBrokerError, UnknownTopicOrPartitionError
from stratalog.partitions.html_table import head_line, html_table
from stratalog.partitions.identity import TopicIdPartition, same_root
from stratalog.partitions.numbers import Int64, whole
from stratalog.partitions.spelling import did_you_mean

_TIERED = "remote.storage.enable"


class Incarnation(NamedTuple):
    """The identity of a broker's root at its registration."""

    broker_id: int
    directory_id: str
    root: str
    """Identity of the root's ``broker.json`` as an object; empty: not known, which equals any.

    A restored older copy has the directory id of the original, and another one of these.
    """
    incarnation_folder: str
    """See ``BrokerImage``."""

    def is_same(self, other: Incarnation, *, trusted: bool = False) -> bool:
        """Whether this is the storage that ``other`` was. ``trusted``: an operator says that a root with that
        directory id is a faithful copy.
        """
        return self[:2] == other[:2] and (trusted or same_root(self.root, other.root))


class BrokerImage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A registered broker. Raises: CorruptionError when it is fenced by hand and not fenced."""

    broker_id: Int64
    broker_epoch: Int64
    """The offset of its registration record (KIP-903)."""
    directory_id: str
    """Of its root."""
    rack: str | None
    log_dir: str
    fenced: bool
    incarnation_folder: str = msgspec.field(name="home")
    """The folder below the root in which its replicas are. Each incarnation has its own, so that late writers of
    an earlier one write where nobody reads (protocol section 1)."""
    root: str = ""
    """See ``Incarnation``."""
    fenced_by_hand: bool = msgspec.field(default=False, name="held")
    """It stays fenced until an operator unfences it, however well its root answers."""

    def __post_init__(self) -> None:
        if self.fenced_by_hand and not self.fenced:
            raise CorruptionError(f"the metadata contains a broker that is fenced by hand but not fenced: {self}")

    @property
    def incarnation(self) -> Incarnation:
        """The identity of its root at its registration."""
        return Incarnation(self.broker_id, self.directory_id, self.root, self.incarnation_folder)


class PartitionImage(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """One partition; an array in JSON, of these fields in this order. Raises: CorruptionError when an invariant
    beside a field does not hold.
    """

    partition: Int64
    replicas: tuple[Int64, ...]
    """Brokers in order of preference; distinct. While a reassignment goes on: the original ones, ``joining``."""
    assignments: tuple[Int64, ...]
    """Per replica the metadata offset of the record that placed it here, part of its folder's name."""
    leader: Int64 | None
    """In the ISR, or None."""
    leader_epoch: Int64
    """From 1; grows by one with every election and whenever the leader changes, also to none."""
    isr: tuple[Int64, ...]
    """Among the replicas; empty only after the last member's storage was lost, or removed by force, and where a
    partition is being restored from the remote tier."""
    adding: tuple[Int64, ...]
    """Replicas outside the ISR whose acknowledgement appends need already; only while there is a leader."""
    log_start_offset: Int64
    """Only grows."""
    partition_epoch: Int64
    """Grows by one on every change of this value, but of ``written_to``."""
    target: tuple[Int64, ...] = ()
    """The replicas, in order of preference, that the reassignment in progress leads to; empty without one.
    Among ``replicas``; distinct."""
    joining: tuple[Int64, ...] = ()
    """The replicas that are here only because of the reassignment: the last ones of ``replicas``, all of them
    in ``target``. Never all replicas; empty exactly where ``target`` is."""
    lost: tuple[Incarnation, ...] = ()
    """While the ISR is empty: the storages that were its last members, each of a broker in ``replicas``. One of
    them, registered again, is the ISR and leads."""
    unclean_epoch: Int64 = 0
    """The latest leader epoch that began after records were given up: by an unclean election, or when all of them
    were lost; 0 without any."""
    remote_epoch: Int64 = 0
    """The latest leader epoch whose leader was to go on from the end of the remote log; 0 without any."""
    written_to: Int64 = 0
    """A high watermark that was reached, above the log start of then: all members of the ISR have had records up
    to there. 0: that is not known, or an election has given them up."""

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
        """The replicas as they were before the reassignment in progress; without one, the replicas."""
        return self.replicas[: len(self.replicas) - len(self.joining)]


class TopicImage(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One topic. Its configs are here, not beside it: they cannot outlive it."""

    name: str
    topic_id: str
    key_schema: str | None
    """Spark's JSON text of the key's type; None for binary. ``value_schema`` likewise."""
    value_schema: str | None
    partitions: tuple[PartitionImage, ...] = ()
    """Partition ``i`` at index ``i``."""
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The configs of the topic itself, as text; ``stratalog.engine.config.settings`` adds the defaults."""
    grown: bool = False
    """True if partitions may have been added after creation."""

    @property
    def first(self) -> PartitionImage:
        """Its first partition. Raises: CorruptionError for a topic without partitions, which no command makes."""
        if not self.partitions:
            raise CorruptionError(
                f"the metadata contains topic {self.name!r} without partitions: delete the "
                "topic, and create it again"
            )
        return self.partitions[0]


def partition_of(topic: TopicImage, partition: int) -> PartitionImage:
    """Raises: UnknownTopicOrPartitionError; InvalidCallError for a value that is no whole number."""
    if not 0 <= whole(partition, f"topic {topic.name!r}: partition") < len(topic.partitions):
        raise UnknownTopicOrPartitionError(
            f"topic {topic.name!r} has no partition {partition}: it has {len(topic.partitions)}, numbered from 0"
        )
    return topic.partitions[partition]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition with its brokers, as of one read of the metadata: what replication works with.

    Small and picklable. It may be out of date at any time: the protocol's checks are against
    ``partition_epoch`` and the brokers' directory ids.
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
    """Broker id to the metadata offset that placed its replica here."""
    partition_epoch: int
    log_start_offset: int
    brokers: Mapping[int, BrokerImage]
    """The brokers of ``replicas``."""
    target: tuple[int, ...] = ()
    """As in ``PartitionImage``; the next four likewise."""
    joining: tuple[int, ...] = ()
    unclean_epoch: int = 0
    remote_epoch: int = 0
    written_to: int = field(default=0, compare=False)
    tiered: bool = False
    """remote.storage.enable of the topic."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def key(self) -> TopicIdPartition:
        """Which partition this is a view of."""
        return TopicIdPartition(self.topic_id, self.partition)

    def has_min_isr(self, min_insync_replicas: int) -> bool:
        """Whether the ISR is large enough that what it holds may be acknowledged, and counts as committed: of a
        partition with fewer replicas than ``min.insync.replicas`` it is all of them (KIP-966).
        """
        return len(self.isr) >= min(min_insync_replicas, len(self.replicas))


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole cluster as of ``next_offset``."""

    cluster_id: str = ""
    """Empty before the first record."""
    voters: tuple[VoterId, ...] = ()
    replaced: tuple[int, ...] = ()
    """As in ``VotersRecord``."""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    """By topic id."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name; exactly the names of ``topics``."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """The configs of the cluster: its own, and defaults of topics."""
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
        said = f"metadata of {self.cluster_id!r} up to offset {self.next_offset:,}, voters "
        return "".join(
            [
                head_line(said + ", ".join(str(voter.broker_id) for voter in self.voters)),
                html_table(["broker", "rack", "state", "log_dir"], brokers),
                html_table(["topic", "partitions", "replication_factor", "configs"], topics),
            ]
        )

    def broker(self, broker_id: int) -> BrokerImage:
        """Raises: UnknownBrokerError."""
        try:
            return self.brokers[broker_id]
        except KeyError:
            raise UnknownBrokerError(f"broker {broker_id} is not registered; register it first") from None

    def topic(self, name: str) -> TopicImage:
        """Raises: UnknownTopicOrPartitionError."""
        try:
            return self.topics[self.topic_ids[name]]
        except KeyError:
            hint = did_you_mean(name, self.topic_ids)
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist, or was deleted{hint}") from None

    def partition(self, topic_id: str, partition: int) -> PartitionImage:
        """Raises: UnknownTopicOrPartitionError; InvalidCallError for a value that is no whole number."""
        topic = self.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"no topic has id {topic_id}; it was deleted")
        return partition_of(topic, partition)

    def view(self, topic_id: str, partition: int) -> PartitionView:
        """The view of a partition, for replication.

        Raises: UnknownTopicOrPartitionError, also when the name has a new topic with another id.
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
        )

    def views(self, topic: str) -> list[PartitionView]:
        """All partitions of a topic, by its name. Raises: UnknownTopicOrPartitionError."""
        image = self.topic(topic)
        return [self.view(image.topic_id, partition.partition) for partition in image.partitions]
