"""Kafka's protocol on the server's side, by ``aiokafka.protocol``: converts bytes to named fields, and back. Pure.

A request is a header (api key, version, correlation id, client id) and a body by version; an answer is the
correlation id and a body. The supported versions are those that aiokafka implements and that all clients since
Kafka 2.1 support. aiokafka's messages have fields by position. Here a struct is a dict, and a response leaves out
fields that the version does not have.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from aiokafka.protocol import admin, commit, coordination, fetch, group, metadata, offset, produce, transaction
from aiokafka.protocol.api import RequestHeader_v1
from aiokafka.protocol.types import Array, Schema, TaggedFields

from stratalog.bridges.serve.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    METADATA_BY_ID,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from stratalog.partitions.identity import TopicPartition

Fields = Mapping[str, Any]
"""A struct of the protocol, by the names of aiokafka."""


class ApiKey(IntEnum):
    """The supported requests, by Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    DELETE_GROUPS = 42
    CONSUMER_GROUP_HEARTBEAT = 68


_OF_AIOKAFKA: Mapping[int, Mapping[int, Any]] = {
    key: {version: getattr(module, f"{name}_v{version}") for version in range(first, last + 1)}
    for key, module, name, first, last in (
        (ApiKey.PRODUCE, produce, "ProduceRequest", 3, 8),
        (ApiKey.FETCH, fetch, "FetchRequest", 4, 11),
        (ApiKey.LIST_OFFSETS, offset, "OffsetRequest", 1, 3),
        (ApiKey.METADATA, metadata, "MetadataRequest", 1, 5),
        (ApiKey.OFFSET_COMMIT, commit, "OffsetCommitRequest", 2, 3),
        (ApiKey.OFFSET_FETCH, commit, "OffsetFetchRequest", 1, 3),
        (ApiKey.FIND_COORDINATOR, coordination, "FindCoordinatorRequest", 0, 1),
        (ApiKey.JOIN_GROUP, group, "JoinGroupRequest", 0, 2),  # aiokafka has no versions 3 and 4
        (ApiKey.HEARTBEAT, group, "HeartbeatRequest", 0, 1),
        (ApiKey.LEAVE_GROUP, group, "LeaveGroupRequest", 0, 1),
        (ApiKey.SYNC_GROUP, group, "SyncGroupRequest", 0, 1),
        # aiokafka encodes version 3 as if it were 2
        (ApiKey.DESCRIBE_GROUPS, admin, "DescribeGroupsRequest", 0, 2),
        (ApiKey.LIST_GROUPS, admin, "ListGroupsRequest", 0, 2),
        (ApiKey.API_VERSIONS, admin, "ApiVersionRequest", 0, 2),
        (ApiKey.INIT_PRODUCER_ID, transaction, "InitProducerIdRequest", 0, 0),
        (ApiKey.DESCRIBE_CONFIGS, admin, "DescribeConfigsRequest", 1, 2),
        (ApiKey.DELETE_GROUPS, admin, "DeleteGroupsRequest", 0, 1),
    )
}
REQUESTS: Mapping[int, Mapping[int, Any]] = {
    **_OF_AIOKAFKA,
    # aiokafka has an epoch of the wrong width in version 4
    ApiKey.LIST_OFFSETS: {**_OF_AIOKAFKA[ApiKey.LIST_OFFSETS], **LIST_OFFSETS},
    ApiKey.METADATA: {**_OF_AIOKAFKA[ApiKey.METADATA], **METADATA},
    ApiKey.OFFSET_COMMIT: {**_OF_AIOKAFKA[ApiKey.OFFSET_COMMIT], **OFFSET_COMMIT},
    ApiKey.OFFSET_FETCH: {**_OF_AIOKAFKA[ApiKey.OFFSET_FETCH], **OFFSET_FETCH},
    ApiKey.DESCRIBE_CONFIGS: {**_OF_AIOKAFKA[ApiKey.DESCRIBE_CONFIGS], **DESCRIBE_CONFIGS},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: CONSUMER_GROUP_HEARTBEAT,
}
"""The supported versions by api key. Some requests are advertised only to be refused with a reason:
InitProducerId, ConsumerGroupHeartbeat and Produce. (Without Produce, librdkafka would assume a broker without
batches of format 2.)
"""

_PADDED = METADATA[METADATA_BY_ID].SCHEMA
"""librdkafka pads this request: for all topics, it writes a null of four bytes instead of one. Kafka ignores the
remaining bytes.
"""
UNSUPPORTED_VERSION = 35


class MalformedRequestError(Exception):
    """Bytes that are not a request, or an unsupported request: the connection is closed, as by Kafka."""


@dataclass(frozen=True, slots=True)
class KafkaRequest:
    """A decoded request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Fields
    host: str
    """The host of the client."""

    def answer(self, fields: Fields) -> bytes:
        """The frame of the answer, with its length before it."""
        kind = REQUESTS[self.api_key][self.version].RESPONSE_TYPE
        tags = TaggedFields.encode({}) if REQUESTS[self.api_key][self.version].FLEXIBLE_VERSION else b""
        return _frame(self.correlation_id, tags + kind.SCHEMA.encode(placed(kind.SCHEMA, fields)))


def read_request(frame: bytes, host: str) -> KafkaRequest | bytes:
    """Decode the request in a frame from a host; the frame has no length. If a client requests ApiVersions in an
    unknown version, return the response of version 0, after which the client requests again (KIP-511).

    Raises: MalformedRequestError.
    """
    data = io.BytesIO(frame)
    try:
        header = RequestHeader_v1.SCHEMA.decode(data)
        key, version, correlation_id, client_id = header
        of_key = REQUESTS.get(key, {})
        if key == ApiKey.API_VERSIONS and version not in of_key:
            kind = of_key[0].RESPONSE_TYPE.SCHEMA
            known = {"error_code": UNSUPPORTED_VERSION, "api_versions": api_versions()}
            return _frame(correlation_id, kind.encode(placed(kind, known)))
        if version not in of_key:
            raise MalformedRequestError(f"version {version} of api key {key} is not supported")
        if of_key[version].FLEXIBLE_VERSION:
            TaggedFields.decode(data)
        schema = of_key[version].SCHEMA
        body = named(schema, schema.decode(data))
        if data.read(1) and schema is not _PADDED:
            raise MalformedRequestError(f"api key {key}, version {version}: bytes after its end")
        return KafkaRequest(key, version, correlation_id, client_id or "", body, host)
    except (ValueError, IndexError, OverflowError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise MalformedRequestError(f"not a Kafka request: {type(error).__name__}") from error


def api_versions() -> list[Fields]:
    """The versions in ApiVersions by api key."""
    return [
        {"api_key": key, "min_version": min(versions), "max_version": max(versions)}
        for key, versions in sorted(REQUESTS.items())
    ]


def partitions_of(body: Fields) -> dict[TopicPartition, Fields]:
    """The requested partitions, each with its last entry. A repeated partition is returned once, because otherwise
    few bytes could cause much work.
    """
    topics = body["topics"] or ()
    return {(topic["topic"], one["partition"]): one for topic in topics for one in topic["partitions"] or ()}


def topics_of(partitions: Mapping[TopicPartition, Fields], name: str = "topic") -> list[Fields]:
    """The partitions of an answer, below their topics; ``name`` is the field that has a topic's name."""
    found: dict[str, list[Fields]] = {}
    for (topic, partition), fields in partitions.items():
        found.setdefault(topic, []).append({"partition": partition, **fields})
    return [{name: topic, "partitions": of_topic} for topic, of_topic in found.items()]


def _frame(correlation_id: int, body: bytes) -> bytes:
    return b"".join(
        (
            (len(body) + 4).to_bytes(4, "big"),
            correlation_id.to_bytes(4, "big", signed=True),
            body,
        )
    )


def placed(kind: Any, value: Any) -> Any:
    """Fields in the order of this version, from a dict by name; without tagged fields."""
    if isinstance(kind, Schema):
        fields = zip(kind.names, kind.fields, strict=True)
        return tuple({} if field is TaggedFields else placed(field, value[name]) for name, field in fields)
    if isinstance(kind, Array) and value is not None:
        return [placed(kind.array_of, one) for one in value]
    return value


def named(kind: Any, value: Any) -> Any:
    """Fields by name, from a sequence in order."""
    if isinstance(kind, Schema):
        fields = zip(kind.names, kind.fields, value, strict=True)
        return {name: named(field, one) for name, field, one in fields}
    if isinstance(kind, Array) and value is not None:
        return [named(kind.array_of, one) for one in value]
    return value
