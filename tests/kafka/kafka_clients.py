"""Clients of a Kafka broker: librdkafka with short waits, and the meaning of its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka.kafka_wire import KafkaWire
from tests.kafka.log import LATER_MS, Code

P = ParamSpec("P")
R = TypeVar("R")

WAIT_S = 180.0
"""The time limit of all waits."""
_SILENT = logging.getLogger("tests.kafka.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

CLIENT: dict[str, Any] = {"logger": _SILENT, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20}
PRODUCER: dict[str, Any] = {**CLIENT, "linger.ms": 50, "acks": "all"}
CONSUMER: dict[str, Any] = {
    **CLIENT,
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 5,
    "fetch.error.backoff.ms": 5,
    "fetch.queue.backoff.ms": 5,
    "allow.auto.create.topics": False,
}
_OF_BROKER = {
    KafkaError._AUTO_OFFSET_RESET: "OFFSET_OUT_OF_RANGE",
    KafkaError._FENCED: "PRODUCER_FENCED",
    KafkaError._NOENT: "UNKNOWN_TOPIC_OR_PARTITION",
    KafkaError._UNKNOWN_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
    KafkaError._UNKNOWN_TOPIC: "UNKNOWN_TOPIC_OR_PARTITION",
}
"""librdkafka's code for a broker's answer, and that answer."""
_ALSO = {
    "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION",
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
}
"""Names of librdkafka that differ from Kafka's."""


def _code_of(error: KafkaError) -> Code:
    """Kafka's name of an error."""
    name: str = error.name()
    return _OF_BROKER.get(error.code(), _ALSO.get(name, name))


def answers(operation: Callable[P, R]) -> Callable[P, R | Code]:
    """An error's code becomes the answer."""

    @wraps(operation)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R | Code:
        try:
            return operation(*args, **kwargs)
        except KafkaException as error:
            return _code_of(error.args[0])

    return answer


class KafkaClients:
    """Clients of one broker, shared by all logs on it because they are slow to create."""

    def __init__(self, server: str, wire: KafkaWire) -> None:
        self.address, self.wire = server, wire
        self.server = {"bootstrap.servers": server}
        self.admin = AdminClient({**self.server, **CLIENT})
        self.producer = Producer({**self.server, **PRODUCER})
        self._consumers: dict[str, Consumer] = {}

    @contextmanager
    def consumer(self, isolation: str) -> Iterator[Consumer]:
        """A consumer of that isolation level. A consumer is discarded after an error, because librdkafka may
        repeat the error in the next read."""
        if isolation not in self._consumers:
            level = {"group.id": "none", "isolation.level": isolation}
            self._consumers[isolation] = Consumer({**self.server, **CONSUMER, **level})
        try:
            yield self._consumers[isolation]
        except KafkaException:
            self._consumers.pop(isolation).close()
            raise
        else:
            self._consumers[isolation].unassign()

    def close(self) -> None:
        """Close the consumers; nothing else needs to be closed."""
        for consumer in self._consumers.values():
            consumer.close()


def produce(
    producer: Producer, topic: str, values: Sequence[str], partition: int, times_ms: Sequence[int]
) -> list[int]:
    """Append records in one batch and return their offsets. Raises: KafkaException."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            offsets.append(message.offset())
        else:
            errors.append(error)

    times = times_ms or range(LATER_MS, LATER_MS + len(values))
    for value, time_ms in zip(values, times, strict=True):
        producer.produce(topic, value, partition=partition, timestamp=time_ms, on_delivery=delivered)
    producer.flush(WAIT_S)  # a flush sends immediately
    if errors:
        raise KafkaException(errors[0])
    return offsets


def only(asked: Mapping[Any, Any]) -> Any:
    """The single answer. Raises: KafkaException."""
    (answer,) = asked.values()
    return answer.result(WAIT_S)


def check(partitions: Sequence[TopicPartition]) -> None:
    """Raises: KafkaException."""
    for one in partitions:
        if one.error is not None:
            raise KafkaException(one.error)


def wait_until(done: Callable[[], bool], every_s: float = 0.002) -> None:
    give_up = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > give_up:
            raise AssertionError(f"Kafka has not done it within {WAIT_S} s")
        time.sleep(every_s)
