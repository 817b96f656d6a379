"""The one fold of the metadata: live path, recovery, snapshots and tests all call ``apply``.

A replay derives the ISRs and leaders that follow when a broker is registered, fenced or unfenced (protocol section
4). So each of these events is one small record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from stratalog.engine.metadata.image import BrokerImage, ClusterImage, Incarnation, PartitionImage, TopicImage
from stratalog.engine.metadata.overlay import Overlay
from stratalog.engine.metadata.partition_changes import first_candidate
from stratalog.engine.metadata.records import (
    ConfigRecord,
    ConfigResource,
    ErasedEverywhereRecord,
    ErasureRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionWrittenRecord,
    RegisterBrokerRecord,
    RemovalRuleRecord,
    RemoveTopicRecord,
    TopicRecord,
    TopicSchemaRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    VotersRecord,
)
from stratalog.partitions.erasure import Erasure, following, forgetting
from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.paths import incarnation_folder_of
from stratalog.partitions.removal import CommittedRule, still_needed

_OnPartition = (
    PartitionChangeRecord | PartitionWrittenRecord | RemovalRuleRecord | ErasureRecord | ErasedEverywhereRecord
)


def apply(image: ClusterImage, offset: int, records: Sequence[MetadataRecord]) -> ClusterImage:
    """The image after ``records``, the first of which has metadata offset ``offset``.

    ``image`` is unchanged, and shares unchanged parts with the result.

    Raises: LogGapError unless ``offset`` is the image's next offset; CorruptionError for a record that does not
    fit the image (no controller commits such a record).
    """
    if offset != image.next_offset:
        raise LogGapError(f"the metadata is known up to offset {image.next_offset}, but continues at {offset}")
    draft = _ImageDraft(image)
    for index, record in enumerate(records):
        draft.apply(offset + index, record)
    return draft.finish(offset + len(records))


class _ImageDraft:
    """An image being changed: it has its own mappings, and lists for topics with changed partitions."""

    def __init__(self, image: ClusterImage) -> None:
        self._cluster_id = image.cluster_id
        self._voters, self._replaced = image.voters, image.replaced
        self._brokers = dict(image.brokers)
        self._topics = Overlay(image.topics)
        self._topic_ids = Overlay(image.topic_ids)
        self._configs = dict(image.configs)
        self._changed: dict[str, list[PartitionImage]] = {}
        self._rules, self._erasures = image.rules, image.erasures

    def finish(self, next_offset: int) -> ClusterImage:
        """The image."""
        for topic_id, partitions in self._changed.items():
            self._topics[topic_id] = replace(self._topics[topic_id], partitions=tuple(partitions))
        self._topics.rebase()
        self._topic_ids.rebase()
        return ClusterImage(
            cluster_id=self._cluster_id,
            voters=self._voters,
            replaced=self._replaced,
            brokers=self._brokers,
            topics=self._topics,
            topic_ids=self._topic_ids,
            configs=self._configs,
            rules=self._rules,
            erasures=self._erasures,
            next_offset=next_offset,
        )

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Fold in one record. Raises: CorruptionError."""
        match record:
            case VotersRecord(cluster_id=cluster_id, voters=voters, replaced=replaced):
                self._cluster_id, self._voters, self._replaced = cluster_id, voters, replaced
            case NoOpRecord():
                pass
            case RegisterBrokerRecord():
                self._register(offset, record)
            case FenceBrokerRecord():
                self._fence(record)
            case UnfenceBrokerRecord():
                self._unfence(record)
            case UnregisterBrokerRecord(broker_id=broker_id):
                self._unregister(broker_id)
            case TopicRecord():
                self._create_topic(record)
            case TopicSchemaRecord(topic_id=topic_id, key_schema=key, value_schema=value):
                grown = replace(self._topic(topic_id), key_schema=key, value_schema=value)
                self._topics[topic_id] = grown
            case PartitionRecord():
                self._create_partition(offset, record)
            case PartitionChangeRecord():
                self._change_partition(offset, record)
            case PartitionWrittenRecord(topic_id=topic_id, high_watermark=reached):
                self._put(topic_id, replace(self._partition(record), written_to=reached))
            case RemovalRuleRecord(topic_id=topic_id, rule=rule, committed_ms=committed_ms):
                old = self._partition(record)
                self._put(topic_id, replace(old, partition_epoch=old.partition_epoch + 1))
                of_topic = dict(self._rules.get(topic_id, {}))
                earlier = still_needed(of_topic.get(record.partition, ()), rule)
                of_topic[record.partition] = (*earlier, CommittedRule(rule, committed_ms))
                self._rules = {**self._rules, topic_id: of_topic}
            case ErasureRecord(topic_id=topic_id, erasure=erasure):
                old = self._partition(record)
                self._put(topic_id, replace(old, partition_epoch=old.partition_epoch + 1))
                earlier_ones = self._erasures.get(topic_id, {}).get(record.partition, ())
                self._put_erasures(record, following(earlier_ones, erasure))
            case ErasedEverywhereRecord(topic_id=topic_id, generation=generation):
                self._partition(record)
                if known := self._erasures.get(topic_id, {}).get(record.partition):
                    self._put_erasures(record, forgetting(known, generation))
            case RemoveTopicRecord(topic_id=topic_id):
                self._changed.pop(topic_id, None)
                del self._topic_ids[self._topic(topic_id).name]
                del self._topics[topic_id]
                if topic_id in self._rules:
                    self._rules = {other: of for other, of in self._rules.items() if other != topic_id}
                if topic_id in self._erasures:
                    self._erasures = {other: one for other, one in self._erasures.items() if other != topic_id}
            case ConfigRecord():
                self._configure(record)
            case _:
                assert_never(record)

    def _put_erasures(self, record: ErasureRecord | ErasedEverywhereRecord, erasures: tuple[Erasure, ...]) -> None:
        of_topic = {**self._erasures.get(record.topic_id, {}), record.partition: erasures}
        self._erasures = {**self._erasures, record.topic_id: of_topic}

    # ------------------------------------------------------------------------------- brokers

    def _register(self, offset: int, record: RegisterBrokerRecord) -> None:
        broker_id, root = record.broker_id, record.root
        before = self._brokers.get(broker_id)
        if before is not None and before.directory_id == record.directory_id and not (root or record.trusted):
            root = (
                before.root
            )  # No root was inspected; the last known identity still distinguishes a copy from the original.
        registered = Incarnation(
            broker_id, record.directory_id, root, incarnation_folder_of(record.directory_id, root)
        )
        if before is not None and registered.is_same(before.incarnation, trusted=record.trusted):
            registered = registered._replace(incarnation_folder=before.incarnation_folder)
        # Partitions without an ISR may wait for this storage, or for the original of which it is a copy.
        lost = {one for _, partition in self._partitions_on(broker_id) for one in partition.lost}
        known = sorted(one.incarnation_folder for one in lost if registered.is_same(one, trusted=record.trusted))
        incarnation_folder = known[0] if known else registered.incarnation_folder
        now = self._brokers[broker_id] = BrokerImage(
            broker_id=broker_id,
            broker_epoch=offset,
            directory_id=record.directory_id,
            rack=record.rack,
            log_dir=record.log_dir,
            fenced=False,
            root=root,
            incarnation_folder=incarnation_folder,
        )
        if before is None:
            return  # No partition has a replica on a broker that is not registered.
        same = now.incarnation_folder == before.incarnation_folder
        for topic_id, partition in self._partitions_on(broker_id):
            # The old incarnation's data is gone: the broker leaves every ISR, even as the last member (protocol
            # V5).
            isr = partition.isr if same else _without(partition.isr, broker_id)
            if any(incarnation_folder == one.incarnation_folder for one in partition.lost):
                isr = (broker_id,)
            self._put_isr(topic_id, partition, isr, None if same else before.incarnation)

    def _fence(self, record: FenceBrokerRecord) -> None:
        broker = self._broker(record.broker_id)
        self._brokers[record.broker_id] = replace(
            broker, fenced=True, fenced_by_hand=broker.fenced_by_hand or record.by_hand
        )
        for topic_id, partition in self._partitions_on(record.broker_id):
            # The last member stays, because only it is known to have everything.
            isr = _without(partition.isr, record.broker_id) or partition.isr
            self._put_isr(topic_id, partition, isr, broker.incarnation)

    def _unfence(self, record: UnfenceBrokerRecord) -> None:
        broker = self._broker(record.broker_id)
        if broker.broker_epoch != record.broker_epoch:
            raise CorruptionError(f"{record} unfences a registration other than {broker}")
        self._brokers[record.broker_id] = replace(broker, fenced=False, fenced_by_hand=False)
        for topic_id, partition in self._partitions_on(record.broker_id):
            self._put_isr(topic_id, partition, partition.isr, None)

    def _unregister(self, broker_id: int) -> None:
        if any(self._partitions_on(broker_id)) or broker_id in {voter.broker_id for voter in self._voters}:
            raise CorruptionError(f"a metadata record unregisters broker {broker_id}, which is still in use")
        del self._brokers[self._broker(broker_id).broker_id]

    def _put_isr(
        self, topic_id: str, partition: PartitionImage, isr: tuple[int, ...], gone: Incarnation | None
    ) -> None:
        """Set the partition's ISR, and stop adding ``gone``. The leader keeps leading if it is in the ISR and
        unfenced. If it is not, the first replica in order of preference that is both becomes the leader. If no
        replica is both, there is no leader.
        """
        leader, leader_epoch = partition.leader, partition.leader_epoch
        adding = partition.adding if gone is None else _without(partition.adding, gone.broker_id)
        if leader is None or leader not in isr or self._brokers[leader].fenced:
            leader = first_candidate(partition.replicas, isr, self._brokers)
        if leader != partition.leader:
            leader_epoch, adding = leader_epoch + 1, ()
        if (leader, isr, adding) == (partition.leader, partition.isr, partition.adding):
            return
        lost = (
            (gone,) if gone is not None and not isr else ()
        )  # An ISR becomes empty only when its last member leaves.
        self._put(
            topic_id,
            replace(
                partition,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=isr,
                adding=adding,
                lost=lost,
                partition_epoch=partition.partition_epoch + 1,
            ),
        )

    # ------------------------------------------------------------------------------- topics

    def _create_topic(self, record: TopicRecord) -> None:
        if record.topic_id in self._topics or record.name in self._topic_ids:
            raise CorruptionError(f"{record} creates a topic that exists")
        self._topic_ids[record.name] = record.topic_id
        self._topics[record.topic_id] = TopicImage(
            name=record.name,
            topic_id=record.topic_id,
            key_schema=record.key_schema,
            value_schema=record.value_schema,
        )

    def _create_partition(self, offset: int, record: PartitionRecord) -> None:
        partitions = self._partitions(record.topic_id)
        if record.partition != len(partitions):
            count = len(partitions)
            raise CorruptionError(
                f"{record}: the topic has {count} partitions, so the next must be number {count}"
            )
        for broker_id in record.replicas:
            self._broker(broker_id)
        if record.added:
            self._topics[record.topic_id] = replace(self._topic(record.topic_id), grown=True)
        partitions.append(
            PartitionImage(
                partition=record.partition,
                replicas=record.replicas,
                assignments=(offset,) * len(record.replicas),
                leader=record.leader,
                leader_epoch=record.leader_epoch,
                isr=record.isr,
                adding=(),
                log_start_offset=record.log_start_offset,
                partition_epoch=0,
            )
        )

    def _change_partition(self, offset: int, record: PartitionChangeRecord) -> None:
        partitions, old = self._partitions(record.topic_id), self._partition(record)
        replicas = old.replicas if record.replicas is UNSET else record.replicas
        placed = {} if record.begins_again else dict(zip(old.replicas, old.assignments, strict=True))
        drops = record.unclean or record.begins_again
        election = record.leader is not UNSET
        adding = () if election else old.adding
        isr = old.isr if record.isr is UNSET else record.isr
        last = tuple(self._brokers[member].incarnation for member in old.isr) or old.lost
        leader_epoch = max(old.leader_epoch + 1, record.least_leader_epoch) if election else old.leader_epoch
        for broker_id in replicas:
            self._broker(broker_id)
        partitions[record.partition] = PartitionImage(
            partition=old.partition,
            replicas=replicas,
            assignments=tuple(placed.get(broker_id, offset) for broker_id in replicas),
            leader=old.leader if record.leader is UNSET else record.leader,
            leader_epoch=leader_epoch,
            isr=isr,
            adding=adding if record.adding is UNSET else record.adding,
            log_start_offset=(
                old.log_start_offset if record.log_start_offset is UNSET else record.log_start_offset
            ),
            partition_epoch=old.partition_epoch + 1,
            target=old.target if record.target is UNSET else record.target,
            joining=old.joining if record.joining is UNSET else record.joining,
            lost=() if isr else tuple(lost for lost in last if lost.broker_id in replicas),
            unclean_epoch=leader_epoch if drops else old.unclean_epoch,
            remote_epoch=leader_epoch if record.from_remote else old.remote_epoch,
            written_to=0 if drops or record.from_remote else old.written_to,
        )

    def _configure(self, record: ConfigRecord) -> None:
        match record.resource:
            case ConfigResource.CLUSTER:
                _set(self._configs, record)
            case ConfigResource.TOPIC:
                topic = self._topic(self._topic_ids.get(record.name, ""))
                configs = dict(topic.configs)
                _set(configs, record)
                self._topics[topic.topic_id] = replace(topic, configs=configs)
            case _:
                assert_never(record.resource)

    # ------------------------------------------------------------------------------ lookups

    def _broker(self, broker_id: int) -> BrokerImage:
        if broker_id not in self._brokers:
            raise CorruptionError(f"a metadata record names broker {broker_id}, which was never registered")
        return self._brokers[broker_id]

    def _topic(self, topic_id: str) -> TopicImage:
        if topic_id not in self._topics:
            raise CorruptionError(f"a metadata record names topic {topic_id!r}, which does not exist")
        return self._topics[topic_id]

    def _partitions(self, topic_id: str) -> list[PartitionImage]:
        """The topic's partitions, as a list that may be changed."""
        if topic_id not in self._changed:
            self._changed[topic_id] = list(self._topic(topic_id).partitions)
        return self._changed[topic_id]

    def _partition(self, record: _OnPartition) -> PartitionImage:
        """The partition that a record changes."""
        partitions = self._partitions(record.topic_id)
        if not 0 <= record.partition < len(partitions):
            raise CorruptionError(f"{record} changes a partition that does not exist")
        return partitions[record.partition]

    def _partitions_on(self, broker_id: int) -> Iterator[tuple[str, PartitionImage]]:
        """All partitions with a replica on the broker; the caller may replace the current partition."""
        for topic_id, topic in self._topics.items():
            for partition in self._changed.get(topic_id, topic.partitions):
                if broker_id in partition.replicas:
                    yield topic_id, partition

    def _put(self, topic_id: str, partition: PartitionImage) -> None:
        self._partitions(topic_id)[partition.partition] = partition


def _without(brokers: tuple[int, ...], broker_id: int) -> tuple[int, ...]:
    return tuple(other for other in brokers if other != broker_id)


def _set(configs: dict[str, str], record: ConfigRecord) -> None:
    if record.value is None:
        configs.pop(record.key, None)
    else:
        configs[record.key] = record.value
