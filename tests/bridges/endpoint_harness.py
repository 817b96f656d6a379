"""A cluster's endpoint for clients of Kafka on a free port of 127.0.0.1, its raw protocol, and librdkafka."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from aiokafka.protocol.api import RequestHeader_v1
from aiokafka.protocol.types import TaggedFields
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from stratalog import Cluster
from stratalog.bridges.serve.protocol import REQUESTS, named, placed

TIMEOUT_S = 60.0
ANYWHERE = "127.0.0.1:0"

Seen = list[tuple[int, int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]
"""Offset, timestamp, key, value, headers."""


class Wire:
    """A connection that sends arbitrary bytes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.client_id = "test"

    def close(self) -> None:
        self.socket.close()

    def ask(self, key: int, version: int, **fields: Any) -> dict[str, Any]:
        """Send a request of that API and return the answer's fields by name; the fields must use all bytes."""
        kind = REQUESTS[key][version]
        header = RequestHeader_v1.SCHEMA.encode((key, version, 7, self.client_id))
        tags = TaggedFields.encode({}) if kind.FLEXIBLE_VERSION else b""
        self.send(header + tags + kind.SCHEMA.encode(placed(kind.SCHEMA, fields)))
        return self.answer(kind.RESPONSE_TYPE.SCHEMA, tags)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def answer(self, schema: Any, tags: bytes = b"") -> dict[str, Any]:
        """The fields after the header, which ends with ``tags``."""
        frame = self.exactly(int.from_bytes(self.exactly(4), "big"))
        data = io.BytesIO(frame)
        assert int.from_bytes(data.read(4), "big") == 7
        assert data.read(len(tags)) == tags
        found: dict[str, Any] = named(schema, schema.decode(data))
        assert data.read() == b""
        return found

    def exactly(self, size: int) -> bytes:
        """Raises: EOFError if the endpoint has closed the connection."""
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def is_closed(self) -> bool:
        """Whether the endpoint closes the connection without sending anything."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def served(cluster: Cluster, **options: Any) -> Iterator[tuple[str, int]]:
    """Serve the cluster; yields the address."""
    with cluster.serve(ANYWHERE, poll_s=0.01, **options) as endpoint:
        yield endpoint.address


@contextmanager
def wire(address: tuple[str, int]) -> Iterator[Wire]:
    with closing(Wire(address)) as made:
        yield made


@contextmanager
def consumer(address: tuple[str, int], **configs: Any) -> Iterator[Consumer]:
    """A consumer of librdkafka that reports the end of each partition."""
    settings = {
        "bootstrap.servers": "{}:{}".format(*address),
        "group.id": "g",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    made = Consumer({**settings, **{name.replace("_", "."): value for name, value in configs.items()}})
    try:
        yield made
    finally:
        made.close()


def consumed(
    address: tuple[str, int], topic: str = "t", partition: int = 0, offset: int = 0, **configs: Any
) -> Seen:
    """All records from an offset to the end of a partition."""
    found: Seen = []
    with consumer(address, **configs) as made:
        made.assign([TopicPartition(topic, partition, offset)])
        while True:
            message = made.poll(TIMEOUT_S)
            assert message is not None, "neither a record nor the end"
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(error)
            kind, time = message.timestamp()
            found.append(
                (
                    message.offset(),
                    None if kind == TIMESTAMP_NOT_AVAILABLE else time,
                    message.key(),
                    message.value(),
                    message.headers() or [],
                )
            )
