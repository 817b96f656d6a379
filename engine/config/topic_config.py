"""The configs of a topic, each defined once, with Kafka's name, and the policies that follow from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratalog.engine.config.definition import (
    ICEBERG_NAME,
    SOURCE_TOPIC,
    TOPIC_OF_CLUSTER,
    Scope,
    at_least,
    between,
    key,
    keys_of,
    one_of,
)
from stratalog.partitions.retention import UNLIMITED, RetentionLimits
from stratalog.partitions.rewrites.compaction import CompactionPolicy
from stratalog.partitions.rewrites.merge import FEW, MergePolicy
from stratalog.snapshots.policy import SnapshotPolicy
from stratalog.tiering.plan import CopyLag

AS_TOTAL = -2
"""The value of a local retention limit that means: the same as total retention."""
AS_LOCAL = -1
"""The value of a copy lag limit that means: the same as local retention."""
SNAPSHOT, COMPACT, COMPACT_DELETE = "snapshot", "compact", "compact,delete"
"""Values of cleanup.policy."""
SPARK_HASH, MURMUR2, CRC32 = PARTITIONERS = ("spark_hash", "murmur2", "crc32")
"""The values of partitioner."""
PARTITIONER = "partitioner"
"""The key of ``TopicConfig.partitioner``."""
MIRROR_SOURCE = "mirror.source"
"""The key of ``TopicConfig.mirror_source``."""
MIRROR_SOURCE_TOPIC = "mirror.source.topic"
"""The key of ``TopicConfig.mirror_source_topic``."""

_DAY_MS = 24 * 60 * 60 * 1000
_SEVEN_DAYS_MS = 7 * _DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The configs in force for a topic. A limit of -1 means unlimited.

    ``stratalog.engine.config.settings.topic_config`` makes this object, and resolves two values. Local retention
    is never -2, and is at most total retention. The copy lag is never -1, and exceeds local retention only if
    local retention has no limit.
    """

    segment_bytes: int = key(1024**3, at_least(1), doc="Small appends are merged into segments of this size.")
    segment_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(1),
        doc=(
            "A segment whose first record is older than this is sealed, whatever its size, and may then be tiered."
        ),
    )
    segment_merge_min_files: int = key(
        16,
        at_least(2),
        doc="This many adjacent appends are merged even if they do not fill a segment yet. An append of at least "
        "1/64 of a segment is only merged once it fills a segment together with its neighbors.",
    )
    segment_merge_inline_bytes: int = key(
        64 * 1024**2,
        at_least(0),
        doc="After an append is acknowledged, its driver shortens the log: it merges small appends into segments "
        "of up to this size, and deletes the replaced files after file.delete.delay.ms. 0: only merge and "
        "retain do this. In a tiered topic without a copy lag, merge also stops at this size, and the upload "
        "reads these files. If this size is less than 1/64 of segment.bytes, merge leaves at most 64 files "
        "per upload.",
    )
    retention_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(UNLIMITED),
        doc="Records older than this are deleted from the log, in both tiers. -1: never.",
    )
    retention_bytes: int = key(
        UNLIMITED,
        at_least(UNLIMITED),
        doc="If a partition is larger than this in both tiers together, its oldest records are deleted. -1: "
        "never.",
    )
    protect_until_ms: int = key(
        UNLIMITED,
        at_least(UNLIMITED),
        unit="ms since 1970",
        doc="Until this time no driver deletes the topic or its records, whether by retention, compaction, "
        "delete_records, snapshots, or turning off tiering. You can set a later time, never an earlier one. -1: "
        "no protection.",
    )
    local_retention_ms: int = key(
        AS_TOTAL,
        at_least(AS_TOTAL),
        doc="Tiered records older than this are deleted from the brokers. -2: same as retention.ms; -1: never.",
    )
    local_retention_bytes: int = key(
        AS_TOTAL,
        at_least(AS_TOTAL),
        doc=(
            "If a partition has more bytes than this on a broker, tiered records are deleted from the broker. "
            "Even with 0, the last file is kept for readers at the end of the log (Kafka also uploads and deletes "
            "that file). "
            "-2: same as retention.bytes; -1: never."
        ),
    )
    remote_storage_enable: bool = key(False, doc="Copy sealed segments to the remote tier.")
    remote_log_copy_disable: bool = key(
        False,
        doc="Stop copying segments to the remote tier. Records there can still be read, and expire as before "
        "(KIP-950). Local retention must equal total retention.",
    )
    remote_log_delete_on_disable: bool = key(
        False,
        doc="Allows you to turn off remote.storage.enable. This deletes the topic's records in the remote tier, "
        "so the log then starts at the local log start (KIP-950).",
    )
    remote_copy_lag_ms: int = key(
        0,
        at_least(AS_LOCAL),
        doc="A sealed segment is copied to the remote tier once its latest record is this old, or once "
        "remote.copy.lag.bytes allows the copy. 0: immediately; -1: same as local.retention.ms (KIP-1241).",
    )
    remote_copy_lag_bytes: int = key(
        AS_LOCAL,
        at_least(AS_LOCAL),
        doc="A sealed segment is copied to the remote tier once the log has this many bytes after the segment, "
        "or once remote.copy.lag.ms allows the copy. 0: immediately; -1: same as local.retention.bytes "
        "(KIP-1241).",
    )
    remote_iceberg_table: str = key(
        "",
        ICEBERG_NAME,
        doc="Also publish the topic's segments in the remote tier as an Iceberg table of this name: a catalog "
        "that pyiceberg is configured for, a namespace, a table. Empty: no Iceberg table.",
    )
    remote_snapshot_table_enable: bool = key(
        False,
        doc="For cleanup.policy=snapshot: publish the latest record of each key as a Delta table in the remote "
        "tier; each snapshot replaces the table's content. If you turn this off, vacuum deletes the table.",
    )
    file_delete_delay_ms: int = key(
        60_000,
        at_least(0),
        doc="How long unused files of a log are kept for running readers. In the remote tier, this time is "
        "rounded up to whole hours.",
    )
    min_insync_replicas: int = key(
        1,
        at_least(1),
        doc="An append with acks=all needs an ISR of at least this size; with a smaller ISR no further records "
        "are committed (KIP-966). A partition with fewer replicas than this needs all its replicas in the "
        "ISR.",
    )
    message_timestamp_type: str = key(
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        doc="Whether the producer (CreateTime) or the append (LogAppendTime) sets a record's timestamp.",
    )
    partitioner: str = key(
        SPARK_HASH,
        one_of(*PARTITIONERS),
        doc=(
            "The hash of a key that chooses its partition. spark_hash: Spark's function hash. murmur2: the hash "
            "of Kafka's Java producers and of librdkafka's murmur2_random. crc32: the hash of librdkafka's "
            "default, consistent_random. For a key that is not BINARY, murmur2 and crc32 hash the bytes that "
            "export writes. "
            "Mirrors of Kafka's topics have murmur2. Choose the hash when you create the topic; later you can "
            "change it only while the topic is a mirror."
        ),
    )
    cleanup_policy: str = key(
        "delete",
        one_of("delete", SNAPSHOT, COMPACT, COMPACT_DELETE),
        doc="delete: retention.* deletes old records. snapshot: records are deleted once a snapshot has the "
        "latest record of each key (KIP-630). compact: the latest record of each key keeps its offset; older "
        "records of the key are removed, and so are records without a key that were written before compaction "
        "was enabled. In a compacted topic, retention.* applies only with compact,delete.",
    )
    compression_type: str = key(
        "zstd", one_of("zstd", "snappy", "lz4", "gzip", "uncompressed"), doc="The codec of new segments."
    )
    unclean_leader_election_enable: bool = key(
        False,
        doc="If no member of the ISR can lead, a replica outside the ISR may lead; this loses acknowledged "
        "records.",
    )
    leader_election_short_local_log_last_enable: bool = key(
        False,
        doc="A replica of a tiered topic is elected only as the last choice if its local log has less than half "
        "the bytes of another candidate's local log (KIP-1023, 'Motivation'). With such a leader, readers "
        "would get the missing records from the remote tier.",
    )
    producer_id_expiration_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(1),
        doc="If a producer has not appended for this long, the log deletes its state, and no longer recognizes "
        "its retries. Kafka's default is a day. This default is longer, because a restarted job or stream "
        "repeats its last batch, perhaps after an outage of a week.",
    )
    delete_retention_ms: int = key(
        _DAY_MS,
        at_least(0),
        doc="For cleanup.policy=snapshot: a snapshot leaves out tombstones whose timestamps are older than this "
        "when the snapshot's last record is appended. For compact: a tombstone is kept for this long after the "
        "remote tier, if there is one, and all replicas of the ISR have completed the first compaction that "
        "covers it (KIP-534). The next compaction of the partition detects this, and then the time begins. A log "
        "without new records is not compacted, so its tombstones are kept.",
    )
    min_cleanable_dirty_ratio: float = key(
        0.5,
        between(0, 1),
        doc="For cleanup.policy=compact: a partition is compacted once this fraction of its sealed bytes has "
        "not been compacted.",
    )
    min_compaction_lag_ms: int = key(
        0,
        at_least(0),
        doc="For cleanup.policy=compact: a file with a record younger than this is not compacted (KIP-58).",
    )
    max_compaction_lag_ms: int = key(
        2**63 - 1,
        at_least(1),
        doc="For cleanup.policy=compact: a partition with a record that has not been compacted for this long is "
        "compacted at any dirty ratio. If segment.ms is longer than this, segments are sealed after this time "
        "instead (KIP-354).",
    )
    metadata_snapshot_min_changed_records_ratio: float = key(
        0.5,
        between(0, 1),
        name="metadata.snapshot.min.changed_records.ratio",
        doc="A new snapshot is taken once this fraction of the latest snapshot's records has been changed or "
        "deleted. New records do not count until they are changed or deleted (KIP-630). The "
        "metadata log uses the value of the cluster.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = key(
        20 * 1024 * 1024,
        at_least(1),
        unit="bytes",
        doc="A new snapshot is taken once the log has this many bytes between the latest snapshot and the high "
        "watermark (KIP-630). The metadata log uses the value of the cluster.",
    )
    metadata_log_max_snapshot_interval_ms: int = key(
        60 * 60 * 1000,
        at_least(0),
        doc=(
            "A new snapshot is taken once the latest snapshot is this old, if the log has new records (KIP-876). "
            "0: age is ignored. The metadata log uses the value of the cluster."
        ),
    )
    metadata_start_offset_lag_time_max_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(0),
        doc="How long the log start waits for available replicas that have not fetched a snapshot yet (KIP-630). "
        "The metadata log uses the value of the cluster.",
    )

    mirror_source: str = key(
        "",
        SOURCE_TOPIC,
        doc="The topic of a Kafka cluster that this topic mirrors: cluster id and topic id. While this config is "
        "set, only `stratalog mirror` appends. The creation of the topic sets it, and `mirror --end` removes "
        "it.",
    )
    mirror_source_topic: str = key(
        "",
        TOPIC_OF_CLUSTER,
        doc=(
            "For a mirror whose source has another name: the source's cluster id and topic name, which `mirror` "
            "and `compare` use. The creation of the topic sets this config. It remains set after `mirror --end`, "
            "so that only a run with `--as` mirrors the source again."
        ),
    )
    mirror_archive_enable: bool = key(
        False,
        doc="For a mirror: keep records that the source deletes. The log start then does not move with the log "
        "start of the source.",
    )

    @property
    def snapshots(self) -> bool:
        """Whether snapshots replace records that are deleted from the log (cleanup.policy=snapshot)."""
        return self.cleanup_policy == SNAPSHOT

    @property
    def compacts(self) -> bool:
        """Whether only the last record of each key stays (cleanup.policy=compact)."""
        return self.cleanup_policy in (COMPACT, COMPACT_DELETE)

    @property
    def keys_required(self) -> bool:
        """Whether every record needs a key."""
        return self.snapshots or self.compacts

    @property
    def snapshot_table(self) -> bool:
        """Whether snapshots are also published as a table."""
        return self.snapshots and self.remote_snapshot_table_enable

    def is_protected(self, now_ms: int | None) -> bool:
        """Whether records are protected from deletion now. If ``now_ms`` is None, the time is unknown, and every
        protection is in effect.
        """
        return self.protect_until_ms != UNLIMITED if now_ms is None else now_ms < self.protect_until_ms

    def retention(self, now_ms: int | None) -> RetentionLimits:
        """The retention of the complete log now; no retention while the topic is protected. If ``now_ms`` is None,
        the time is unknown, and nothing expires.
        """
        if self.is_protected(now_ms) or self.cleanup_policy == COMPACT:
            return RetentionLimits(UNLIMITED, UNLIMITED)
        return RetentionLimits(UNLIMITED if now_ms is None else self.retention_ms, self.retention_bytes)

    @property
    def local_retention(self) -> RetentionLimits:
        """The retention of a tiered topic on brokers."""
        return RetentionLimits(self.local_retention_ms, self.local_retention_bytes)

    @property
    def local_expires_ms(self) -> int:
        """The local retention time if the remote tier keeps records longer than the brokers, otherwise -1."""
        return UNLIMITED if self.local_retention_ms == self.retention_ms else self.local_retention_ms

    @property
    def copies_to_remote(self) -> bool:
        """Whether segments are copied to the remote tier."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def copy_lag(self) -> CopyLag:
        """The allowed lag of the remote tier."""
        return CopyLag(self.remote_copy_lag_ms, self.remote_copy_lag_bytes)

    @property
    def merging(self) -> MergePolicy:
        """The policy of merging appends into segments."""
        longest_ms = min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        return MergePolicy(self.segment_bytes, longest_ms, self.segment_merge_min_files)

    @property
    def merging_on_brokers(self) -> MergePolicy:
        """The policy of ``merge``. If ``tier`` may upload segments without a copy lag, it writes them directly
        from the unmerged files. So ``merge`` only merges appends as far as their driver does after an
        acknowledgement, and as far as is necessary for ``tier`` to read few files per segment.
        """
        at_once = self.copies_to_remote and not self.compacts and 0 in (self.copy_lag.ms, self.copy_lag.size_bytes)
        if not at_once:
            return self.merging
        if self.segment_merge_inline_bytes * FEW >= self.segment_bytes:
            return self.merging_inline
        return replace(self.merging, leaves_sealed=True)

    @property
    def merging_inline(self) -> MergePolicy:
        """The policy of merging directly after an acknowledgement: up to a bounded size."""
        return replace(self.merging, segment_bytes=min(self.segment_bytes, self.segment_merge_inline_bytes))

    @property
    def compaction(self) -> CompactionPolicy:
        return CompactionPolicy(
            min_dirty_ratio=self.min_cleanable_dirty_ratio,
            min_lag_ms=self.min_compaction_lag_ms,
            max_lag_ms=self.max_compaction_lag_ms,
            delete_retention_ms=self.delete_retention_ms,
        )

    @property
    def snapshotting(self) -> SnapshotPolicy:
        return SnapshotPolicy(
            min_changed_records_ratio=self.metadata_snapshot_min_changed_records_ratio,
            max_record_bytes_between_snapshots=self.metadata_log_max_record_bytes_between_snapshots,
            max_snapshot_interval_ms=self.metadata_log_max_snapshot_interval_ms,
        )


TOPIC_CONFIGS = keys_of(TopicConfig, Scope.TOPIC)
