"""A Kafka broker as a ``Log``, through librdkafka in Kafka's own protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka.kafka_clients import (
    CONSUMER,
    PRODUCER,
    WAIT_S,
    KafkaClients,
    answers,
    check,
    only,
    produce,
    wait_until,
)
from tests.kafka.log import At, Committed, Found, Got, Log, Transaction

_NOTHING_COMES_S = 0.2
_NAMED = {
    At.EARLIEST: OffsetSpec.earliest(),
    At.LATEST: OffsetSpec.latest(),
    At.MAX_TIMESTAMP: OffsetSpec.max_timestamp(),
}
_ON_THE_WIRE = {At.EARLIEST_LOCAL: -4, At.LATEST_TIERED: -5, At.EARLIEST_PENDING_UPLOAD: -6}
"""Kafka's numbers of positions for which librdkafka has no name."""
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""By default Kafka accepts no times more than an hour ahead."""


class KafkaLog(Log):
    """Topics, groups and transactional ids on a broker, whose names begin with ``prefix``."""

    def __init__(self, clients: KafkaClients, prefix: str) -> None:
        self._clients, self._prefix = clients, prefix
        self._admin = clients.admin
        self._producers: dict[str, Producer] = {}

    def name(self, name: str) -> str:
        """The name on the broker. Internal topics have no prefix."""
        return name if name.startswith("__") else f"{self._prefix}{name}"

    @answers
    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        new = NewTopic(self.name(topic), partitions, replication_factor, config={**ANY_TIME, **(configs or {})})
        only(self._admin.create_topics([new]))
        self._wait_for(topic, partitions)

    @answers
    def create_partitions(self, topic: str, partitions: int) -> None:
        only(self._admin.create_partitions([NewPartitions(self.name(topic), partitions)]))
        self._wait_for(topic, partitions)

    @answers
    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name(topic), incremental_configs=entries)
        only(self._admin.incremental_alter_configs([resource]))

    @answers
    def delete_topic(self, topic: str) -> None:
        only(self._admin.delete_topics([self.name(topic)]))

    @answers
    def append(
        self, topic: str, values: Sequence[str], partition: int = 0, times_ms: Sequence[int] = ()
    ) -> list[int]:
        self.end(topic, partition)  # librdkafka waits for a partition that is missing
        return produce(self._clients.producer, self.name(topic), values, partition, times_ms)

    @answers
    def append_as(
        self, producer: int, sequence: int, value: str, topic: str = "t", *, epoch: int = 0
    ) -> list[int]:
        clients, name = self._clients, self.name(topic)
        return [clients.wire.produce(clients.address, name, value, (producer, epoch), sequence)]

    @answers
    def read(self, topic: str, start: int = 0, partition: int = 0, *, committed: bool = False) -> Got:
        waits = self.end(topic, partition, committed=committed) < start <= self.end(topic, partition)
        with self._clients.consumer("read_committed" if committed else "read_uncommitted") as consumer:
            consumer.assign([TopicPartition(self.name(topic), partition, start)])
            # This refresh saves the wait for the next one.
            consumer.list_topics(self.name(topic), WAIT_S)
            records: dict[int, str] = {}
            while True:
                messages = consumer.consume(1, _NOTHING_COMES_S if waits else WAIT_S)
                if waits and not messages:
                    return Got({}, start)
                (message,) = messages
                offset, error = message.offset(), message.error()
                if error is None:
                    records[offset] = message.value().decode()
                elif error.code() == KafkaError._PARTITION_EOF:
                    return Got(records, offset)
                else:
                    raise KafkaException(error)

    @answers
    def list_offsets(self, topic: str, at: At | int, *, committed: bool = False) -> dict[int, int | Found | None]:
        described = only(self._admin.describe_topics(TopicCollection([self.name(topic)])))
        if at in _ON_THE_WIRE:
            return {one.id: self._on_the_wire(topic, one.id, _ON_THE_WIRE[at]) for one in described.partitions}
        spec = _NAMED[at] if isinstance(at, At) else OffsetSpec.for_timestamp(at)
        found = self._ask(topic, (partition.id for partition in described.partitions), spec, committed)
        return {partition: _position(answer) for partition, answer in sorted(found.items())}

    @answers
    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        wanted = [TopicPartition(self.name(topic), partition, offset) for partition, offset in before.items()]
        asked = self._admin.delete_records(wanted)
        return {where.partition: answer.result(WAIT_S).low_watermark for where, answer in asked.items()}

    def retain(self) -> None:
        """Wait for retention. A broker checks its logs one after the other, so between two expirations of a record
        of 1970 it has checked this one.
        """
        canary = "canary"
        if self.list_offsets(canary, At.EARLIEST) == "UNKNOWN_TOPIC_OR_PARTITION":
            self.create_topic(canary, configs={"retention.ms": "1"})
        for _ in range(2):
            self.append(canary, ["v"], times_ms=[1])
            wait_until(lambda: self.list_offsets(canary, At.EARLIEST) == self.list_offsets(canary, At.LATEST))

    def tier(self, topic: str, until: tuple[At, int]) -> None:
        at, offset = until
        wait_until(lambda: self.list_offsets(topic, at) == {0: offset})
        self.retain()

    def pass_time(self, ms: int) -> None:
        """Append a later record: the broker uses the times of records, not a clock."""

    def transaction(self, transactional_id: str, *, anew: bool = False, timeout_ms: int = 60_000) -> Transaction:
        if anew or transactional_id not in self._producers:
            settings = {"transactional.id": self.name(transactional_id), "transaction.timeout.ms": timeout_ms}
            producer = Producer({**self._clients.server, **PRODUCER, **settings})
            producer.init_transactions(WAIT_S)
            self._producers[transactional_id] = producer
        return _KafkaTransaction(self, self._producers[transactional_id])

    @answers
    def commit(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        metadata: str = "",
        leader_epoch: int | None = None,
    ) -> None:
        epoch = {} if leader_epoch is None else {"leader_epoch": leader_epoch}
        wanted = [
            TopicPartition(self.name(topic), partition, offset, metadata, **epoch)
            for partition, offset in offsets.items()
        ]
        done = only(self._admin.alter_consumer_group_offsets([_of_group(self.name(group), wanted)]))
        check(done.topic_partitions)

    @answers
    def committed(
        self, group: str, topic: str, partitions: Sequence[int] = (0,), *, require_stable: bool = False
    ) -> dict[int, Committed]:
        wanted = [TopicPartition(self.name(topic), partition) for partition in partitions]
        request = [_of_group(self.name(group), wanted)]
        found = only(self._admin.list_consumer_group_offsets(request, require_stable=require_stable))
        check(found.topic_partitions)
        return {
            one.partition: Committed(one.offset, one.metadata or "", one.leader_epoch)
            for one in found.topic_partitions
            if one.offset >= 0
        }

    @answers
    def delete_group(self, group: str) -> None:
        only(self._admin.delete_consumer_groups([self.name(group)]))

    def groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result(WAIT_S).valid
        return {
            group.group_id.removeprefix(self._prefix)
            for group in listed
            if group.group_id.startswith(self._prefix)
        }

    def _wait_for(self, topic: str, partitions: int) -> None:
        """Wait for new partitions, which a broker knows a moment after their creation."""

        def known() -> bool:
            ends = self.list_offsets(topic, At.LATEST)
            return isinstance(ends, dict) and len(ends) == partitions

        wait_until(known)

    def _on_the_wire(self, topic: str, partition: int, at: int) -> int | None:
        clients, name = self._clients, self.name(topic)
        offset = clients.wire.list_offset(clients.address, name, partition, at)
        return None if offset < 0 else offset

    def group_metadata(self, group: str) -> Any:
        """The group metadata that a consumer passes to its producer."""
        consumer = Consumer({**self._clients.server, **CONSUMER, "group.id": self.name(group)})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def end(self, topic: str, partition: int, *, committed: bool = False) -> int:
        """The high watermark, or the last stable offset. Raises: KafkaException."""
        asked = self._ask(topic, [partition], OffsetSpec.latest(), committed)
        end: int = asked[partition].offset
        return end

    def _ask(self, topic: str, partitions: Iterable[int], spec: OffsetSpec, committed: bool) -> dict[int, Any]:
        """Send ListOffsets; the answers are by partition. Raises: KafkaException."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(self.name(topic), partition): spec for partition in partitions}
        asked = self._admin.list_offsets(wanted, isolation_level=level)
        return {where.partition: answer.result(WAIT_S) for where, answer in asked.items()}


class _KafkaTransaction(Transaction):
    """A broker answers the end of a transaction as soon as the outcome is decided, and writes the markers
    afterwards; this method waits until they are written. Two transactions with offsets of groups may not end at
    the same time.
    """

    def __init__(self, log: KafkaLog, producer: Producer) -> None:
        self._log, self._producer = log, producer
        self._partitions: set[tuple[str, int]] = set()
        self._has_offsets = False
        producer.begin_transaction()

    @answers
    def append(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        self._log.end(topic, partition)  # as ``KafkaLog.append``
        offsets = produce(self._producer, self._log.name(topic), values, partition, ())
        self._partitions.add((topic, partition))
        return offsets

    @answers
    def commit_offsets(self, group: str, offsets: Mapping[int, int], topic: str) -> None:
        wanted = [TopicPartition(self._log.name(topic), number, offset) for number, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(wanted, self._log.group_metadata(group), WAIT_S)
        self._has_offsets = True

    @answers
    def commit(self) -> None:
        self._end(self._producer.commit_transaction)

    @answers
    def abort(self) -> None:
        self._end(self._producer.abort_transaction)

    def time_out(self) -> None:
        self._end(lambda _: None)

    def _end(self, end: Callable[[float], None]) -> None:
        before = self._ends()
        end(WAIT_S)
        wait_until(lambda: all(now > then for now, then in zip(self._ends(), before, strict=True)))

    def _ends(self) -> list[int]:
        """The ends of the transaction's partitions. The markers for a group's offsets may be in any partition of
        ``__consumer_offsets``.
        """
        ends = [self._log.end(*one) for one in sorted(self._partitions)]
        if self._has_offsets:
            offsets = self._log.list_offsets("__consumer_offsets", At.LATEST)
            assert isinstance(offsets, dict)
            ends.append(sum(end for end in offsets.values() if isinstance(end, int)))
        return ends


def _of_group(group: str, partitions: Sequence[TopicPartition]) -> ConsumerGroupTopicPartitions:
    return ConsumerGroupTopicPartitions(group, list(partitions))


def _position(answer: Any) -> int | Found | None:
    if answer.offset < 0:
        return None
    return answer.offset if answer.timestamp < 0 else Found(answer.offset, answer.timestamp)
