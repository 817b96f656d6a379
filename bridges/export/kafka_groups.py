"""The consumer groups of the Kafka cluster to which an export writes, by ``confluent-kafka``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from stratalog.bridges.mirror.kafka_source import TIMEOUT_S, translated
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import NonEmptyGroupError, RetriableError, StratalogError
from stratalog.partitions.identity import TopicPartition

R = TypeVar("R")


class KafkaGroups:
    """Reads and commits groups' offsets through a consumer that is not a member of the group. (An admin client of
    librdkafka crashes if there is no coordinator yet.) Both methods raise NonEmptyGroupError, and errors from
    ``translated``.
    """

    def __init__(self, configs: Mapping[str, Any], clock: Clock) -> None:
        """``configs`` are librdkafka's configs for the cluster."""
        self._configs = configs
        self._clock = clock

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """The group's committed offsets by partition; omits partitions without a committed offset."""
        from confluent_kafka import TopicPartition as Asked

        asked = [Asked(topic, partition) for partition in range(partitions)]

        def ask(consumer: Any) -> dict[int, int]:
            found = consumer.committed(asked, TIMEOUT_S)
            _check_each(found, group)
            return {one.partition: one.offset for one in found if one.offset >= 0}

        return self._as_group(group, ask)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for the group."""
        from confluent_kafka import TopicPartition as Committed

        wanted = [
            Committed(topic, partition, given.offset, given.metadata)
            for (topic, partition), given in offsets.items()
        ]

        def ask(consumer: Any) -> None:
            _check_each(consumer.commit(offsets=wanted, asynchronous=False), group)

        self._as_group(group, ask)

    def _as_group(self, group: str, ask: Callable[[Any], R]) -> R:
        """Return the answer of the group's coordinator. If a new cluster has no coordinator yet, wait for it."""
        began_s = self._clock.monotonic_s()
        while True:
            try:
                return self._once(group, ask)
            except RetriableError:
                if self._clock.monotonic_s() - began_s > TIMEOUT_S:
                    raise
            self._clock.sleep(0.1)

    def _once(self, group: str, ask: Callable[[Any], R]) -> R:
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer({**self._configs, "group.id": group, "enable.auto.commit": False})
        try:
            return ask(consumer)
        except KafkaException as error:
            raise _translated(error.args[0], group) from error
        finally:
            consumer.close()


def _check_each(answers: Iterable[Any], group: str) -> None:
    """Raises: the error of the first partition that has one: its offset is unknown, which is not *no commit*."""
    for one in answers:
        if one.error is not None:
            raise _translated(one.error, group)


def _translated(error: Any, group: str) -> StratalogError:
    """Converts an error of librdkafka to an error of stratalog."""
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION):
        return NonEmptyGroupError(f"group {group!r} has members in the target, and keeps its own commits")
    return translated(error, f"group {group!r} of the target")
