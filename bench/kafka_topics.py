"""Writes and reads topics of a Kafka broker with ``confluent-kafka``, for comparisons."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import count
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

WAIT_S = 60.0
_ASKED_S = 5.0
Places = dict[bytes, list[tuple[int, int]]]
"""The partition and offset of each record with a key. Each key must occur once."""


def _client(server: str) -> dict[str, Any]:
    """A client that logs nothing, because brokers stop and start."""
    return {"bootstrap.servers": server, "log_level": 0}


@cache
def _admin(server: str) -> AdminClient:
    return AdminClient(_client(server))


def create(server: str, topic: str, partitions: int) -> None:
    """Create a topic with one replica."""
    (made,) = _admin(server).create_topics([NewTopic(topic, partitions, 1)]).values()
    made.result(WAIT_S)


def delete(server: str, topic: str) -> None:
    """Delete a topic; the broker frees its disk some time later."""
    (gone,) = _admin(server).delete_topics([topic]).values()
    gone.result(WAIT_S)


def fill(server: str, topic: str, partitions: int, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Write keys and values, to one partition after the other in turn."""
    producer = Producer(producing(server))
    for number, (key, value) in enumerate(records):
        send(producer, topic, number % partitions, key, value)
    producer.flush(WAIT_S)


def producing(server: str) -> dict[str, Any]:
    """The configs of a producer of many records."""
    return {**_client(server), "linger.ms": 50, "queue.buffering.max.kbytes": 256 * 1024}


def send(producer: Producer, topic: str, partition: int, key: bytes, value: bytes) -> None:
    """Pass a record to the producer, as soon as it has room."""
    while True:
        try:
            producer.produce(topic, value, key, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)


def fill_by_transactions(server: str, topic: str, partitions: int, size: int, transactions: int) -> int:
    """Append transactions of ``size`` small records each, every fourth of them aborted; returns the number of
    committed records. Keys are numbers."""
    producer = Producer({**_client(server), "linger.ms": 5, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    numbers, committed = count(), 0
    for transaction in range(transactions):
        producer.begin_transaction()
        for number, _ in zip(numbers, range(size), strict=False):
            producer.produce(topic, b"x" * 100, b"%d" % number, partition=number % partitions)
        producer.flush(WAIT_S)
        if transaction % 4 == 3:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            committed += size
    return committed


def log_ends(server: str, topic: str, partitions: int) -> list[int]:
    """The ends of the partitions' logs for readers; empty while the topic does not exist."""
    there = _admin(server).list_topics(timeout=WAIT_S).topics.get(topic)
    if there is None or len(there.partitions) < partitions:
        return []
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    try:
        answers = _admin(server).list_offsets(asked, request_timeout=_ASKED_S).values()
        return [answer.result(2 * _ASKED_S).offset for answer in answers]
    except KafkaException:  # the partitions' leaders are not known yet
        return []


def places(server: str, topic: str, partitions: int) -> Places:
    """The places of all committed records of a topic."""
    found: Places = defaultdict(list)
    consumer = Consumer(
        {
            **_client(server),
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        ended, give_up = 0, time.monotonic() + WAIT_S
        while ended < partitions and time.monotonic() < give_up:
            for message in consumer.consume(5000, 1.0):
                if message.error() is not None:
                    ended += 1
                else:
                    found[message.key()].append((message.partition(), message.offset()))
    finally:
        consumer.close()
    return found
