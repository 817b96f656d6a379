"""Kafka's configs of topics and brokers without a meaning here, and why: the error for one tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_NO_BUFFER = "whatever is acknowledged has been synced to storage"
_NO_INDEX = "a segment is a Parquet file, whose page index has a size of its own"
_NO_LIMIT = (
    "an append is one file a partition, however large, and no fetch has to hold it whole; a record may "
    "take 96 MiB, for readers make room for that: refuse larger ones, if you must, before you append them"
)
_ANY_TIME = "timestamps are taken as they are; one in the future does not keep its file from deletion"
_NO_COMPACTION = "logs are not compacted in place: cleanup.policy=snapshot keeps the latest record of each key"
_JOINING = "replicas that are joining by a reassignment are throttled, by follower.replication.throttled.rate"

ABSENT: Mapping[str, str] = {
    "max.message.bytes": _NO_LIMIT,
    "message.max.bytes": _NO_LIMIT,
    "flush.messages": _NO_BUFFER,
    "flush.ms": _NO_BUFFER,
    "index.interval.bytes": _NO_INDEX,
    "segment.index.bytes": _NO_INDEX,
    "min.cleanable.dirty.ratio": f"{_NO_COMPACTION}, by metadata.snapshot.min.changed_records.ratio",
    "min.compaction.lag.ms": _NO_COMPACTION,
    "max.compaction.lag.ms": f"{_NO_COMPACTION}, by metadata.log.max.snapshot.interval.ms",
    "message.timestamp.before.max.ms": _ANY_TIME,
    "message.timestamp.after.max.ms": _ANY_TIME,
    "message.format.version": "there is one format",
    "message.downconversion.enable": "there is one format",
    "preallocate": "a file is written once, at its size",
    "segment.jitter.ms": "sealing a segment writes nothing, so that many at once are no burst",
    "compression.gzip.level": "the level is the codec's default",
    "compression.lz4.level": "the codecs are gzip, snappy, zstd and uncompressed",
    "compression.zstd.level": "the level is the codec's default",
    "leader.replication.throttled.replicas": _JOINING,
    "follower.replication.throttled.replicas": _JOINING,
    "leader.replication.throttled.rate": "no process of a leader sends records that it could send more slowly: "
    "followers are copied to, and follower.replication.throttled.rate bounds that; write it instead",
    "log.retention.hours": "write retention.ms",
    "log.retention.minutes": "write retention.ms",
    "log.retention.ms": "write retention.ms",
    "log.retention.bytes": "write retention.bytes",
    "log.segment.bytes": "write segment.bytes",
    "log.cleanup.policy": "write cleanup.policy",
}
"""The remedy, or why none is needed, by Kafka's name."""
