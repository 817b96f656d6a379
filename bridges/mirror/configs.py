"""The configs of a mirrored topic: the source's configs that have the same meaning here. Pure.

Retention is copied, except in an archive and if the source deletes nothing by age or size (because it compacts).
``cleanup.policy=compact`` is copied with its lags, except in an archive, which keeps all records. The mirrored log
is compacted by its own rules (``partitions.removal``). These rules are also correct for a mirror: a record is
removed only if the log here has a later record of the same key, which the source also had.

Limits of Kafka's brokers and buffers (``engine.config.settings``) are not copied, nor is ``min.insync.replicas``,
which depends on the brokers. The partitioner is that of Java's producers, so that keys keep their partitions when
producers append here. Kafka has no config for the partitioner, but a source that ``serve`` serves has one.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.bridges.mirror.source import SourceTopic
from stratalog.engine.config.topic_config import (
    COMPACT,
    COMPACT_DELETE,
    MIRROR_SOURCE,
    MIRROR_SOURCE_TOPIC,
    MURMUR2,
    PARTITIONER,
)

_SAME = ("retention.ms", "retention.bytes", "segment.bytes", "segment.ms")
_OF_COMPACTION = (
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
)
_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "uncompressed")
"""``producer``, Kafka's default, has no meaning here, because segments are encoded again."""
_UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}


def configs_here(topic: SourceTopic, *, archive: bool) -> dict[str, str]:
    """The configs that the topic is created with."""
    there = topic.configs
    found = {name: there[name] for name in _SAME if name in there}
    if there.get("compression.type") in _COMPRESSIONS:
        found["compression.type"] = there["compression.type"]
    if archive or not deletes(there):
        found |= _UNLIMITED
    if compacts(there) and not archive:
        found["cleanup.policy"] = COMPACT_DELETE if deletes(there) else COMPACT
        found |= {name: there[name] for name in _OF_COMPACTION if name in there}
    if topic.renamed is not None:
        found[MIRROR_SOURCE_TOPIC] = topic.name_there
    found |= {
        MIRROR_SOURCE: topic.source,
        PARTITIONER: there.get(PARTITIONER, MURMUR2),
        "message.timestamp.type": "CreateTime",
    }
    return {**found, "mirror.archive.enable": "true"} if archive else found


def deletes(there: Mapping[str, str]) -> bool:
    """Whether the source deletes old records by age or size."""
    return "delete" in policies(there)


def compacts(there: Mapping[str, str]) -> bool:
    """Whether the source may delete single records."""
    return "compact" in policies(there)


def policies(there: Mapping[str, str]) -> frozenset[str]:
    """The values of cleanup.policy; there may be several."""
    return frozenset(one.strip() for one in there.get("cleanup.policy", "delete").split(","))
