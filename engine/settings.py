"""What applies to a topic and to the cluster: dynamic configs, resolved and checked. Pure.

Values travel as text in the metadata. A topic's value is its own, else the cluster's for the same key,
else the default in the table of ``engine.config_keys``. ``TopicConfig`` and ``ClusterConfig`` are what the
engine works with.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config_def import ConfigDef, Scope
from engine.config_keys import AS_LOCAL, AS_TOTAL, CLUSTER_CONFIGS, TOPIC_CONFIGS
from engine.kafka_keys import ABSENT
from partitions.errors import InvalidConfigError
from partitions.merge import MergePolicy
from partitions.retention import UNLIMITED, RetentionLimits
from snapshots.policy import SnapshotPolicy
from tiering.plan import CopyLag
from tiering.schedule import Intervals

SNAPSHOT = "snapshot"
"""The value of cleanup.policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What applies to a topic. A limit of -1 is none."""

    segment_bytes: int
    segment_ms: int
    segment_merge_min_files: int
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    """What applies to the brokers' storage (-2 is resolved); never above the total."""
    local_retention_bytes: int
    remote_storage_enable: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_copy_lag_ms: int
    """What applies (-1 is resolved); above local retention only where that is none."""
    remote_copy_lag_bytes: int
    file_delete_delay_ms: int
    min_insync_replicas: int
    message_timestamp_type: str
    cleanup_policy: str
    compression_type: str
    unclean_leader_election_enable: bool
    leader_election_thin_replica_last_enable: bool
    producer_id_expiration_ms: int
    delete_retention_ms: int
    metadata_snapshot_min_changed_records_ratio: float
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    metadata_start_offset_lag_time_max_ms: int

    @property
    def snapshots(self) -> bool:
        """Whether snapshots stand for what leaves the log (cleanup.policy=snapshot)."""
        return self.cleanup_policy == SNAPSHOT

    @property
    def retention(self) -> RetentionLimits:
        """Of the whole log."""
        return RetentionLimits(self.retention_ms, self.retention_bytes)

    @property
    def local_retention(self) -> RetentionLimits:
        """Of what brokers hold of a tiered topic."""
        return RetentionLimits(self.local_retention_ms, self.local_retention_bytes)

    @property
    def local_expires_ms(self) -> int:
        """How long brokers keep what the remote tier keeps for longer; -1 where there is nothing of that kind."""
        return UNLIMITED if self.local_retention_ms == self.retention_ms else self.local_retention_ms

    @property
    def copies_to_remote(self) -> bool:
        """Whether segments are copied to the remote tier."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def copy_lag(self) -> CopyLag:
        """How far the remote tier stays behind."""
        return CopyLag(self.remote_copy_lag_ms, self.remote_copy_lag_bytes)

    @property
    def merging(self) -> MergePolicy:
        """When small appends become segments."""
        return MergePolicy(self.segment_bytes, self.segment_ms, self.segment_merge_min_files)

    @property
    def snapshotting(self) -> SnapshotPolicy:
        """When snapshots are made."""
        return SnapshotPolicy(
            min_changed_records_ratio=self.metadata_snapshot_min_changed_records_ratio,
            max_record_bytes_between_snapshots=self.metadata_log_max_record_bytes_between_snapshots,
            max_snapshot_interval_ms=self.metadata_log_max_snapshot_interval_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What applies to the cluster."""

    broker_session_timeout_ms: int
    follower_fetch_last_tiered_offset_enable: bool
    follower_fetch_last_tiered_offset_always_enable: bool
    replica_lag_time_max_ms: int
    replica_selector_class: str
    """Empty: the leader's."""
    default_replication_factor: int
    num_partitions: int
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_timeout_ms: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_task_interval_ms: int
    remote_log_manager_task_retry_backoff_max_ms: int
    remote_log_manager_task_retry_backoff_ms: int
    remote_log_manager_task_retry_jitter: float
    transaction_max_timeout_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transactional_id_expiration_ms: int

    @property
    def tier_intervals(self) -> Intervals:
        """When a partition is due for the remote log manager again."""
        return Intervals(
            interval_ms=self.remote_log_manager_task_interval_ms,
            retry_ms=self.remote_log_manager_task_retry_backoff_ms,
            retry_max_ms=self.remote_log_manager_task_retry_backoff_max_ms,
            jitter=self.remote_log_manager_task_retry_jitter,
        )


def check_config(scope: Scope, name: str, text: str, what: str) -> str:
    """The canonical text of a value that is to be set; ``what`` says on what, as in "topic 'flights'".

    Raises: InvalidConfigError for an unknown key (naming the nearest), a key of the cluster on a topic,
        or a value that the key does not take.
    """
    definition = find_config(scope, name, what)
    return definition.text(definition.parse(text, what))


def find_config(scope: Scope, name: str, what: str) -> ConfigDef:
    """The definition of a key that may be set at ``scope``. Raises: InvalidConfigError."""
    allowed = TOPIC_CONFIGS if scope is Scope.TOPIC else {**CLUSTER_CONFIGS, **TOPIC_CONFIGS}
    if name in allowed:
        return allowed[name]
    if name in CLUSTER_CONFIGS:
        raise InvalidConfigError(f"{what}: {name} is a config of the cluster, not of a topic")
    if name in ABSENT:
        raise InvalidConfigError(f"{what}: Kafka's {name} is no config here: {ABSENT[name]}")
    nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; conf/reference.toml lists them all"
    raise InvalidConfigError(f"{what}: unknown config {name!r}{hint}")


def topic_config(topic: Mapping[str, str], cluster: Mapping[str, str], what: str = "topic") -> TopicConfig:
    """What applies to a topic with these configs of its own, on a cluster with those.

    Raises: InvalidConfigError when values contradict each other.
    """
    values = _resolved(TOPIC_CONFIGS, {**cluster, **topic}, what)
    for unit in ("ms", "bytes"):
        total, local = values[f"retention_{unit}"], values[f"local_retention_{unit}"]
        local = total if local == AS_TOTAL else local
        if total != UNLIMITED and (local == UNLIMITED or local > total):
            raise InvalidConfigError(
                f"{what}: local.retention.{unit} = {local} keeps more than retention.{unit} = {total}: "
                "brokers cannot keep what the log drops"
            )
        if values["remote_storage_enable"] and values["remote_log_copy_disable"] and local != total:
            raise InvalidConfigError(
                f"{what}: local.retention.{unit} = {local} and retention.{unit} = {total} have to be the same "
                "where remote.log.copy.disable = true: what is not copied must not leave the brokers sooner"
            )
        values[f"local_retention_{unit}"] = local
        lag = values[f"remote_copy_lag_{unit}"]
        if local != UNLIMITED and lag > local:
            raise InvalidConfigError(
                f"{what}: remote.copy.lag.{unit} = {lag} is above local.retention.{unit} = {local}: brokers would "
                "have to keep what is not copied yet for longer than that"
            )
        values[f"remote_copy_lag_{unit}"] = local if lag == AS_LOCAL else lag
    if values["cleanup_policy"] == SNAPSHOT and values["remote_storage_enable"]:
        raise InvalidConfigError(
            f"{what}: cleanup.policy = {SNAPSHOT} and remote.storage.enable = true: what leaves the log of such a "
            "topic is in its snapshots, not in the remote tier; choose one of the two"
        )
    return TopicConfig(**values)


def check_disabling(before: TopicConfig, after: TopicConfig, what: str) -> None:
    """Tiering may be switched off only by saying what becomes of the remote data (KIP-950).

    Raises: InvalidConfigError.
    """
    off = before.remote_storage_enable and not after.remote_storage_enable
    if off and not after.remote_log_delete_on_disable:
        raise InvalidConfigError(
            f"{what}: remote.storage.enable cannot be switched off and the remote data be kept. To keep it, and "
            "copy no more, set remote.log.copy.disable = true; to delete it set remote.storage.enable = false "
            "together with remote.log.delete.on.disable = true"
        )


def cluster_config(cluster: Mapping[str, str]) -> ClusterConfig:
    """What applies to a cluster with these configs. Raises: InvalidConfigError."""
    return ClusterConfig(**_resolved(CLUSTER_CONFIGS, cluster, "cluster"))


def _resolved(table: Mapping[str, ConfigDef], given: Mapping[str, str], what: str) -> dict[str, Any]:
    return {
        key.field_name: key.parse(given[name], what) if name in given else key.default
        for name, key in table.items()
    }
