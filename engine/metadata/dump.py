"""Converts an image to records of a snapshot, and back: exactly, in one pass each way, at any size. Pure.

A snapshot replaces the log up to its end (KIP-630, "Overview"), so an image that is loaded from a snapshot equals
the image folded from the log. The records of a snapshot may differ from the log's records (KIP-630, "Snapshot
Format"): they contain the values of ``stratalog.engine.metadata.image`` themselves. So no field is forgotten,
nothing is derived twice, and loading is decoding. Two record types are taken from the log unchanged:
``VotersRecord``, which comes first, and one ``ConfigRecord`` per cluster config.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec
from msgspec.structs import replace

from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from stratalog.engine.metadata.records import ConfigRecord, ConfigResource, VotersRecord
from stratalog.partitions.bounded import decode_json
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.numbers import Int64
from stratalog.partitions.removal import CommittedRule
from stratalog.snapshots.state_machine import Codec

PARTITIONS_PER_RECORD = 512
"""The maximum number of partitions per record; a larger topic continues in more records."""


class _SnapshotRecord(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type", forbid_unknown_fields=True
):
    """A tagged JSON object, as in the log."""


class BrokerRecord(_SnapshotRecord, frozen=True):
    """A registered broker."""

    broker: BrokerImage


class TopicStateRecord(_SnapshotRecord, frozen=True):
    """A topic with its configs. The next ``PartitionsRecord`` have its partitions."""

    topic: TopicImage


class PartitionsRecord(_SnapshotRecord, frozen=True):
    """More partitions of the preceding topic."""

    topic_id: str
    partitions: tuple[PartitionImage, ...]


class RemovalRulesRecord(_SnapshotRecord, frozen=True):
    """The removal rules of a partition of the preceding topic, if it has any."""

    topic_id: str
    partition: Int64
    rules: tuple[CommittedRule, ...]


class ErasuresRecord(_SnapshotRecord, frozen=True):
    """The erasures of a partition of the preceding topic, if it has any."""

    topic_id: str
    partition: Int64
    erasures: tuple[Erasure, ...]


SnapshotRecord = (
    VotersRecord
    | ConfigRecord
    | BrokerRecord
    | TopicStateRecord
    | PartitionsRecord
    | RemovalRulesRecord
    | ErasuresRecord
)

_encoder = msgspec.json.Encoder()


def encode(record: SnapshotRecord) -> bytes:
    """The record's JSON."""
    return _encoder.encode(record)


def decode(data: bytes) -> SnapshotRecord:
    """The record of a JSON text.

    Raises: CorruptionError for a text that is not such a record, is of a later version, or contradicts itself.
    """
    found: SnapshotRecord = decode_json(
        data,
        SnapshotRecord,
        f"not a record of a metadata snapshot, or a record of a later version: {data[:120]!r}",
    )
    return found


def _decode_row(key: bytes | None, value: bytes | None) -> SnapshotRecord:
    if key is not None or value is None:
        raise CorruptionError(
            f"a record of a metadata snapshot must be a value without a key, not {key!r}: {value!r}"
        )
    return decode(value)


CODEC: Codec[SnapshotRecord] = Codec(encode=lambda record: (None, encode(record)), decode=_decode_row)
"""Records of metadata snapshots are values without keys."""


def dump(image: ClusterImage) -> Iterator[SnapshotRecord]:
    """The records of ``image``, made one at a time. Equal images have equal dumps."""
    yield VotersRecord(cluster_id=image.cluster_id, voters=image.voters, replaced=image.replaced)
    for key, value in sorted(image.configs.items()):
        yield ConfigRecord(resource=ConfigResource.CLUSTER, name="", key=key, value=value)
    for broker_id in sorted(image.brokers):
        yield BrokerRecord(broker=image.brokers[broker_id])
    for topic_id in sorted(image.topics):
        topic = image.topics[topic_id]
        yield TopicStateRecord(topic=replace(topic, partitions=(), configs=dict(sorted(topic.configs.items()))))
        for start in range(0, len(topic.partitions), PARTITIONS_PER_RECORD):
            some = topic.partitions[start : start + PARTITIONS_PER_RECORD]
            yield PartitionsRecord(topic_id=topic.topic_id, partitions=some)
        for partition, rules in sorted(image.rules.get(topic_id, {}).items()):
            yield RemovalRulesRecord(topic_id=topic_id, partition=partition, rules=rules)
        for partition, erasures in sorted(image.erasures.get(topic_id, {}).items()):
            yield ErasuresRecord(topic_id=topic_id, partition=partition, erasures=erasures)


def load(records: Iterable[SnapshotRecord], next_offset: int) -> ClusterImage:
    """The image at metadata offset ``next_offset`` from the records of its ``dump``.

    Raises: CorruptionError for records that no image dumps to.
    """
    loading = _Loading()
    for record in records:
        loading.add(record)
    return loading.finish(next_offset)


class _Loading:
    """An image being loaded; a topic is added when its partitions are complete."""

    def __init__(self) -> None:
        self._voters: VotersRecord | None = None
        self._brokers: dict[int, BrokerImage] = {}
        self._topics: dict[str, TopicImage] = {}
        self._topic_ids: dict[str, str] = {}
        self._configs: dict[str, str] = {}
        self._rules: dict[str, dict[int, tuple[CommittedRule, ...]]] = {}
        self._erasures: dict[str, dict[int, tuple[Erasure, ...]]] = {}
        self._topic: TopicImage | None = None
        self._partitions: tuple[PartitionImage, ...] | list[PartitionImage] = ()

    def add(self, record: SnapshotRecord) -> None:
        """Raises: CorruptionError."""
        match record:
            case PartitionsRecord(topic_id=topic_id, partitions=partitions):
                if self._topic is None or topic_id != self._topic.topic_id:
                    raise CorruptionError(
                        f"a metadata snapshot has partitions of {topic_id!r} without their topic"
                    )
                if not self._partitions:
                    self._partitions = partitions
                else:
                    if isinstance(self._partitions, tuple):
                        self._partitions = list(self._partitions)
                    self._partitions += partitions
            case RemovalRulesRecord(topic_id=topic_id, partition=partition, rules=rules):
                self._check_place(record, bool(rules))
                self._rules.setdefault(topic_id, {})[partition] = rules
            case ErasuresRecord(topic_id=topic_id, partition=partition, erasures=erasures):
                self._check_place(record, bool(erasures))
                self._erasures.setdefault(topic_id, {})[partition] = erasures
            case TopicStateRecord(topic=topic):
                self._end_topic()
                self._topic = topic
            case BrokerRecord(broker=broker):
                if broker.broker_id in self._brokers:
                    raise CorruptionError(f"a metadata snapshot holds broker {broker.broker_id} twice")
                self._brokers[broker.broker_id] = broker
            case ConfigRecord(resource=ConfigResource.CLUSTER, key=key, value=str(value)):
                self._configs[key] = value
            case VotersRecord() if self._voters is None:
                self._voters = record
            case VotersRecord() | ConfigRecord():
                raise CorruptionError(f"a metadata snapshot holds {record}, which does not belong there")
            case _:
                assert_never(record)

    def _check_place(self, record: RemovalRulesRecord | ErasuresRecord, has_rules: bool) -> None:
        there = self._topic is not None and record.topic_id == self._topic.topic_id
        if not there or not has_rules or not 0 <= record.partition < len(self._partitions):
            raise CorruptionError(f"a metadata snapshot holds {record}, which does not belong there")

    def _end_topic(self) -> None:
        topic, partitions = self._topic, self._partitions
        if topic is None:
            return
        if topic.topic_id in self._topics or topic.name in self._topic_ids:
            raise CorruptionError(f"a metadata snapshot holds topic {topic.name!r} twice")
        if any(partition.partition != index for index, partition in enumerate(partitions)):
            raise CorruptionError(f"a metadata snapshot holds partitions of topic {topic.name!r} out of order")
        self._topics[topic.topic_id] = replace(topic, partitions=tuple(partitions))
        self._topic_ids[topic.name] = topic.topic_id
        self._topic, self._partitions = None, ()

    def finish(self, next_offset: int) -> ClusterImage:
        """The loaded image. Raises: CorruptionError when the first record of every snapshot is missing."""
        self._end_topic()
        if self._voters is None:
            raise CorruptionError("a metadata snapshot lacks its voters")
        return ClusterImage(
            cluster_id=self._voters.cluster_id,
            voters=self._voters.voters,
            replaced=self._voters.replaced,
            brokers=self._brokers,
            topics=self._topics,
            topic_ids=self._topic_ids,
            configs=self._configs,
            rules=self._rules,
            erasures=self._erasures,
            next_offset=next_offset,
        )


def count_changes(before: ClusterImage, after: ClusterImage) -> tuple[int, int]:
    """The number of items (brokers, topics, partitions, configs) in the image ``before``, and the number of them
    that differ in ``after`` or are gone. New items are left out (KIP-630, "When to Snapshot").
    """
    held = len(before.configs) + len(before.brokers)
    changed = sum(after.configs.get(key) != value for key, value in before.configs.items())
    changed += sum(after.brokers.get(broker_id) != broker for broker_id, broker in before.brokers.items())
    for topic_id, topic in before.topics.items():
        held += 1 + len(topic.partitions)
        now = after.topics.get(topic_id)
        if now is None:
            changed += 1 + len(topic.partitions)
            continue
        before_it, after_it = ((t.configs, t.key_schema, t.value_schema) for t in (topic, now))
        changed += before_it != after_it
        if now.partitions != topic.partitions:  # a removal rule changes the partition's epoch
            changed += sum(one != other for one, other in zip(topic.partitions, now.partitions, strict=False))
    return held, changed
