"""Requests that no client of Kafka can send: encoded by Kafka's own classes, in a separate JVM."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from py4j.java_gateway import JavaGateway

from bench.kafka_server import PINS
from stratalog.jobs.jars import class_path, jar_folder
from stratalog.jobs.java import find_java
from tests.kafka.log import LATER_MS

_WAIT_S = 60.0
_TIMEOUT_MS = 30_000
_CONSUMER, _DEBUGGING = -1, -2
"""The requester of offsets, as a replica id."""
_PRODUCE_VERSION = 12
_LIST_OFFSETS_VERSION = 11


class KafkaWire:
    """Kafka's classes, and a connection that sends their bytes to a broker."""

    def __init__(self) -> None:
        java = str(find_java(os.environ).executable)
        self._gateway = JavaGateway.launch_gateway(
            classpath=class_path(jar_folder(), PINS, "kafka-broker"), die_on_exit=True, java_path=java
        )
        kafka = self._gateway.jvm.org.apache.kafka
        self._common, self._messages, self._server = kafka.common, kafka.common.message, kafka.server
        self._storage = kafka.storage

    def close(self) -> None:
        self._gateway.shutdown()

    def produce(
        self, server: str, topic: str, value: str, producer: tuple[int, int], sequence: int, acks: int = -1
    ) -> int:
        """Append one record to partition 0 as a producer of that id and epoch; returns its offset.

        Raises: KafkaException.
        """
        record = self._common.record.internal
        records = self._gateway.new_array(record.SimpleRecord, 1)
        records[0] = record.SimpleRecord(LATER_MS, value.encode())
        batch = record.MemoryRecords.withIdempotentRecords(
            self._common.compress.Compression.NONE, *producer, sequence, records
        )
        data = self._messages.ProduceRequestData
        partitions = self._list(data.PartitionProduceData().setIndex(0).setRecords(batch))
        topics = data.TopicProduceDataCollection()
        topics.add(data.TopicProduceData().setName(topic).setPartitionData(partitions))
        request = data().setAcks(acks).setTimeoutMs(_TIMEOUT_MS).setTopicData(topics)
        answer = self._ask(server, "PRODUCE", _PRODUCE_VERSION, request)
        found = answer.responses().iterator().next().partitionResponses().get(0)
        return self._answer(found.errorCode(), found.baseOffset())

    def list_offset(self, server: str, topic: str, partition: int, at: int, *, of_replica: bool = False) -> int:
        """ListOffsets of a time, or of a position by Kafka's number; ``of_replica``: the log of that broker,
        without a high watermark. Raises: KafkaException."""
        data = self._messages.ListOffsetsRequestData
        asked = data.ListOffsetsPartition().setPartitionIndex(partition).setTimestamp(at).setCurrentLeaderEpoch(-1)
        topics = self._list(data.ListOffsetsTopic().setName(topic).setPartitions(self._list(asked)))
        request = data().setReplicaId(_DEBUGGING if of_replica else _CONSUMER).setTopics(topics)
        answer = self._ask(server, "LIST_OFFSETS", _LIST_OFFSETS_VERSION, request)
        found = answer.topics().get(0).partitions().get(0)
        return self._answer(found.errorCode(), found.offset())

    def is_caught_up(self, behind_ms: int, lag_time_max_ms: int) -> bool:
        """Whether Kafka considers a replica in sync that lacks a record and was last in sync ``behind_ms`` ago."""
        end = self._storage.internals.log.LogOffsetMetadata(4)
        then_ms = 1_000_000
        nobody = self._gateway.jvm.java.util.Optional.empty()
        state = self._server.replica.ReplicaState(0, end, 5, then_ms, then_ms, nobody)
        return bool(state.isCaughtUp(5, then_ms + behind_ms, lag_time_max_ms))

    def _list(self, *items: Any) -> Any:
        made = self._gateway.jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made

    def _answer(self, code: int, offset: int) -> int:
        if code:
            raise KafkaException(KafkaError(code))
        return offset

    def _ask(self, server: str, what: str, version: int, data: Any) -> Any:
        requests = self._common.requests
        header = requests.RequestHeader(self._common.protocol.ApiKeys.valueOf(what), version, "tests", 1)
        encoded = requests.RequestUtils.serialize(header.data(), header.headerVersion(), data, version)
        sent = bytes(self._common.utils.Utils.toArray(encoded))
        host, _, port = server.partition(":")
        with socket.create_connection((host, int(port)), timeout=_WAIT_S) as connection:
            connection.sendall(struct.pack(">i", len(sent)) + sent)
            with connection.makefile("rb") as received:
                (size,) = struct.unpack(">i", received.read(4))
                body = received.read(size)
        buffer = self._gateway.jvm.java.nio.ByteBuffer.wrap(body)
        return requests.AbstractResponse.parseResponse(buffer, header).data()
