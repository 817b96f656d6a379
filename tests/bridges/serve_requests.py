"""Requests of every API that the endpoint answers, and the batches in its answers."""

from __future__ import annotations

import struct
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch

from stratalog.bridges.serve.protocol import ApiKey

EARLIEST, LATEST = -2, -1
OK, OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_MEMBER, UNSUPPORTED, NO_SESSION = 0, 1, 3, 25, 35, 70
LONG_MS = 600_000


def fetch(
    asked: dict[tuple[str, int], int], *, version: int = 11, max_bytes: int = 1 << 20, **others: Any
) -> dict[str, Any]:
    """The fields of a Fetch from these offsets."""
    given: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_time": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
        "rack_id": "",
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "offset": offset,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "max_bytes": max_bytes,
                    }
                ],
            }
            for (topic, partition), offset in asked.items()
        ],
    }
    return {**given, **others}


def parts(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for topic in answer["topics"] for part in topic["partitions"]]


def values(part: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Offsets and values in the batches of a partition, whose checksums must be right."""
    data, found = part["message_set"], []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        batch = DefaultRecordBatch(bytearray(data[:size]))
        assert batch.validate_crc()
        found += [(one.offset, one.value) for one in batch]
        data = data[size:]
    return found


STRANGER = {"group": "g", "generation_id": 1, "member_id": "nobody"}
REQUESTED: dict[int, dict[str, Any]] = {
    ApiKey.PRODUCE: {
        "transactional_id": None,
        "required_acks": -1,
        "timeout": 1000,
        "topics": [{"topic": "t", "partitions": [{"partition": 0, "messages": b"x"}]}],
    },
    ApiKey.FETCH: fetch({("t", 0): 0}),
    ApiKey.LIST_OFFSETS: {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": -1, "timestamp": LATEST}]}
        ],
        "timeout_ms": 1000,
    },
    ApiKey.METADATA: {
        "topics": ["t"],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    },
    ApiKey.OFFSET_COMMIT: {
        "consumer_group": "g",
        "consumer_group_generation_id": -1,
        "consumer_id": "",
        "retention_time": -1,
        "topics": [
            {"topic": "t", "partitions": [{"partition": 0, "offset": 2, "leader_epoch": 5, "metadata": "so far"}]}
        ],
    },
    ApiKey.OFFSET_FETCH: {"consumer_group": "g", "topics": [{"topic": "t", "partitions": [0]}]},
    ApiKey.FIND_COORDINATOR: {"consumer_group": "g", "coordinator_key": "g", "coordinator_type": 0},
    ApiKey.API_VERSIONS: {},
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": "t", "config_names": None}],
        "include_synonyms": True,
        "include_documentation": True,
    },
    ApiKey.JOIN_GROUP: {
        **STRANGER,
        "session_timeout": LONG_MS,
        "rebalance_timeout": LONG_MS,
        "protocol_type": "consumer",
        "group_protocols": [],
    },
    ApiKey.HEARTBEAT: STRANGER,
    ApiKey.LEAVE_GROUP: STRANGER,
    ApiKey.SYNC_GROUP: {**STRANGER, "group_assignment": []},
    ApiKey.LIST_GROUPS: {},
    ApiKey.DESCRIBE_GROUPS: {"groups": ["g"]},
    ApiKey.DELETE_GROUPS: {"groups_names": ["nobody"]},
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout_ms": 1000},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {
        "group": "g",
        "member_id": "",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": LONG_MS,
        "subscribed_topics": ["t"],
        "server_assignor": None,
        "subscribed_regex": None,
        "owned": [{"topic_id_high": 1, "topic_id_low": 2, "partitions": [0, 1]}],
    },
}


def requested(key: int, version: int) -> dict[str, Any]:
    """The fields of a request; flexible versions of Metadata name topics in structs."""
    fields = REQUESTED[key]
    if key == ApiKey.METADATA and version >= 9:
        fields = {**fields, "topics": [asked(topic="t")]}
    return fields


def asked(topic: str | None = None, topic_id: str = "0" * 32) -> dict[str, Any]:
    high, low = struct.unpack(">qq", bytes.fromhex(topic_id))
    return {"topic": topic, "topic_id_high": high, "topic_id_low": low}
