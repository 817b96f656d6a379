"""Messages of Kafka's protocol that aiokafka lacks: Metadata from version 6 on, with topic ids; ListOffsets from
version 4 on; OffsetCommit and OffsetFetch from version 4 on, with leader epochs; DescribeConfigs from version 3
on, with types and documentation; and the refusal of ConsumerGroupHeartbeat. Pure.

Most are flexible (KIP-482): lengths are varints, and every struct ends in tagged fields, which are all ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
)
from aiokafka.protocol.types import TaggedFields as Tags

_FLEXIBLE = 6
_WITH_TIMEOUT = 10
_FIRST, LAST_LIST_OFFSETS = 4, 11
"""Version 11 can request the earliest offset that is not yet uploaded (KIP-1023)."""


@dataclass(frozen=True, slots=True)
class OwnMessage:
    """A message, with attributes as in aiokafka."""

    SCHEMA: Schema
    FLEXIBLE_VERSION: bool
    RESPONSE_TYPE: OwnMessage | None = None


def _list_offsets(version: int) -> OwnMessage:
    flexible = version >= _FLEXIBLE
    array, text = (CompactArray, CompactString) if flexible else (Array, String)
    tags = [("tags", Tags)] if flexible else []
    timeout = [("timeout_ms", Int32)] if version >= _WITH_TIMEOUT else []
    asked = array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64), *tags)
    answered = array(
        ("partition", Int32),
        ("error_code", Int16),
        ("timestamp", Int64),
        ("offset", Int64),
        ("leader_epoch", Int32),
        *tags,
    )
    request = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        ("topics", array(("topic", text("utf-8")), ("partitions", asked), *tags)),
        *timeout,
        *tags,
    )
    answer = Schema(
        ("throttle_time_ms", Int32),
        ("topics", array(("topic", text("utf-8")), ("partitions", answered), *tags)),
        *tags,
    )
    return OwnMessage(request, flexible, OwnMessage(answer, flexible))


LIST_OFFSETS = {version: _list_offsets(version) for version in range(_FIRST, LAST_LIST_OFFSETS + 1)}
"""By version."""


_ID = (("topic_id_high", Int64), ("topic_id_low", Int64))
"""A UUID: two signed numbers."""
METADATA_WITH_IDS, METADATA_BY_ID = 10, 12
"""Versions of Metadata: from these on, responses have topic ids, and a topic may be requested by its id alone."""


def _metadata(version: int) -> OwnMessage:
    flexible = version >= 9
    array, text = (CompactArray, CompactString) if flexible else (Array, String)
    tags = [("tags", Tags)] if flexible else []
    topic_id = _ID if version >= METADATA_WITH_IDS else ()
    epoch = [("leader_epoch", Int32)] if version >= 7 else []
    of_topic = [("topic_authorized_operations", Int32)] if version >= 8 else []
    of_cluster = [("cluster_authorized_operations", Int32)] if 8 <= version <= 10 else []
    with_cluster = [("include_cluster_authorized_operations", Boolean)] if of_cluster else []
    with_topics = [("include_topic_authorized_operations", Boolean)] if of_topic else []
    asked = array(*topic_id, ("topic", text("utf-8")), *tags) if flexible else array(text("utf-8"))
    request = Schema(("topics", asked), ("allow_auto_topic_creation", Boolean), *with_cluster, *with_topics, *tags)
    broker = array(("node_id", Int32), ("host", text("utf-8")), ("port", Int32), ("rack", text("utf-8")), *tags)
    partition = array(
        ("error_code", Int16),
        ("partition", Int32),
        ("leader", Int32),
        *epoch,
        ("replicas", array(Int32)),
        ("isr", array(Int32)),
        ("offline_replicas", array(Int32)),
        *tags,
    )
    topic = array(
        ("error_code", Int16),
        ("topic", text("utf-8")),
        *topic_id,
        ("is_internal", Boolean),
        ("partitions", partition),
        *of_topic,
        *tags,
    )
    answer = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", broker),
        ("cluster_id", text("utf-8")),
        ("controller_id", Int32),
        ("topics", topic),
        *of_cluster,
        *tags,
    )
    return OwnMessage(request, flexible, OwnMessage(answer, flexible))


METADATA = {version: _metadata(version) for version in range(6, METADATA_BY_ID + 1)}
"""By version."""


_FLEXIBLE_CONFIGS = 4


def _describe_configs(version: int) -> OwnMessage:
    flexible = version >= _FLEXIBLE_CONFIGS
    array, text = (CompactArray, CompactString) if flexible else (Array, String)
    tags = [("tags", Tags)] if flexible else []
    asked = array(
        ("resource_type", Int8), ("resource_name", text("utf-8")), ("config_names", array(text("utf-8"))), *tags
    )
    synonym = array(
        ("config_name", text("utf-8")), ("config_value", text("utf-8")), ("config_source", Int8), *tags
    )
    entry = array(
        ("config_names", text("utf-8")),
        ("config_value", text("utf-8")),
        ("read_only", Boolean),
        ("config_source", Int8),
        ("is_sensitive", Boolean),
        ("config_synonyms", synonym),
        ("config_type", Int8),
        ("documentation", text("utf-8")),
        *tags,
    )
    answered = array(
        ("error_code", Int16),
        ("error_message", text("utf-8")),
        ("resource_type", Int8),
        ("resource_name", text("utf-8")),
        ("config_entries", entry),
        *tags,
    )
    request = Schema(
        ("resources", asked), ("include_synonyms", Boolean), ("include_documentation", Boolean), *tags
    )
    answer = Schema(("throttle_time_ms", Int32), ("resources", answered), *tags)
    return OwnMessage(request, flexible, OwnMessage(answer, flexible))


DESCRIBE_CONFIGS = {version: _describe_configs(version) for version in range(3, _FLEXIBLE_CONFIGS + 1)}
"""By version."""


_COMMIT_WITH_EPOCH, _FETCH_WITH_EPOCH = 6, 5
"""Versions of OffsetCommit and OffsetFetch: from these on, offsets have the leader epoch of the previous
record.
"""


def _offset_commit(version: int) -> OwnMessage:
    text = String("utf-8")
    epoch = [("leader_epoch", Int32)] if version >= _COMMIT_WITH_EPOCH else []
    retention = [("retention_time", Int64)] if version < 5 else []
    asked = Array(("partition", Int32), ("offset", Int64), *epoch, ("metadata", text))
    request = Schema(
        ("consumer_group", text),
        ("consumer_group_generation_id", Int32),
        ("consumer_id", text),
        *retention,
        ("topics", Array(("topic", text), ("partitions", asked))),
    )
    answered = Array(("partition", Int32), ("error_code", Int16))
    answer = Schema(("throttle_time_ms", Int32), ("topics", Array(("topic", text), ("partitions", answered))))
    return OwnMessage(request, False, OwnMessage(answer, False))


def _offset_fetch(version: int) -> OwnMessage:
    text = String("utf-8")
    epoch = [("leader_epoch", Int32)] if version >= _FETCH_WITH_EPOCH else []
    asked = Array(("topic", text), ("partitions", Array(Int32)))
    answered = Array(("partition", Int32), ("offset", Int64), *epoch, ("metadata", text), ("error_code", Int16))
    answer = Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", text), ("partitions", answered))),
        ("error_code", Int16),
    )
    return OwnMessage(Schema(("consumer_group", text), ("topics", asked)), False, OwnMessage(answer, False))


OFFSET_COMMIT = {version: _offset_commit(version) for version in range(4, _COMMIT_WITH_EPOCH + 1)}
OFFSET_FETCH = {version: _offset_fetch(version) for version in range(4, _FETCH_WITH_EPOCH + 1)}
"""By version."""


def _consumer_group_heartbeat(version: int) -> OwnMessage:
    text, tags = CompactString("utf-8"), ("tags", Tags)
    regex = [("subscribed_regex", text)] if version else []
    owned = CompactArray(
        ("topic_id_high", Int64), ("topic_id_low", Int64), ("partitions", CompactArray(Int32)), tags
    )
    request = Schema(
        ("group", text),
        ("member_id", text),
        ("member_epoch", Int32),
        ("instance_id", text),
        ("rack_id", text),
        ("rebalance_timeout", Int32),
        ("subscribed_topics", CompactArray(text)),
        *regex,
        ("server_assignor", text),
        ("owned", owned),
        tags,
    )
    answer = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", text),
        ("member_id", text),
        ("member_epoch", Int32),
        ("heartbeat_interval_ms", Int32),
        ("assignment", Int8),  # a null struct would be -1, but never occurs
        tags,
    )
    return OwnMessage(request, True, OwnMessage(answer, True))


CONSUMER_GROUP_HEARTBEAT = {version: _consumer_group_heartbeat(version) for version in range(2)}
"""By version."""
