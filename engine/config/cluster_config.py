"""The configs of the cluster, each defined once, with Kafka's name. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.config.definition import PLAIN_NAME, Scope, at_least, between, key, keys_of
from stratalog.tiering.schedule import Intervals

NO_LIMIT = 2**63 - 1
"""The value of a rate without a limit, Kafka's default."""

_SEVEN_DAYS_MS = 7 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The configs that apply to the cluster."""

    auto_leader_rebalance_enable: bool = key(
        True,
        doc="maintain makes the preferred replica the leader again if another replica leads.",
    )
    broker_session_timeout_ms: int = key(
        9_000,
        at_least(1),
        doc="If a broker's root has not answered for this long when a run starts, the run fences the broker. "
        "Kafka waits this long for a broker's heartbeat.",
    )
    follower_fetch_last_tiered_offset_enable: bool = key(
        False,
        doc="An empty follower of a tiered topic starts at the earliest pending upload offset (KIP-1023).",
    )
    follower_fetch_last_tiered_offset_always_enable: bool = key(
        False,
        doc="With follower.fetch.last.tiered.offset.enable, an empty follower starts at the earliest pending "
        "upload offset even if the leader still has the complete log. Kafka copies the complete log in this "
        "case.",
    )
    follower_replication_throttled_rate: int = key(
        NO_LIMIT,
        at_least(1),
        unit="bytes/s",
        doc="The bytes per second that all drivers together may copy to one broker for replicas that join by a "
        "reassignment. reassign --throttle sets this limit, and the end of the last reassignment removes it. The "
        "default is no limit.",
    )
    health_consumer_max_lag_ms: int = key(
        60 * 60 * 1000,
        at_least(-1),
        doc=(
            "health warns of a consumer group whose oldest unprocessed record has been in the log for longer "
            "than this time. -1: never."
        ),
    )
    health_consumer_max_lag_records: int = key(
        -1,
        at_least(-1),
        doc="health reports a consumer group whose lag in a topic is above this number of records. -1: no limit.",
    )
    health_log_dir_max_used_ratio: float = key(
        0.85,
        between(0, 1),
        doc="health warns of a broker whose file system is fuller than this fraction. Above the midpoint "
        "between this fraction and 1, health reports an error.",
    )
    health_replication_max_lag_ms: int = key(
        15 * 60 * 1000,
        at_least(0),
        doc="health reports a follower that has lacked records of its leader for longer than this time.",
    )
    health_upkeep_max_delay_ms: int = key(
        60 * 60 * 1000,
        at_least(0),
        doc="health reports work that has been due for longer than this time: a step of maintain, a segment for "
        "the remote tier, expired records, a compaction, a transaction past its timeout.",
    )
    replica_lag_time_max_ms: int = key(
        30_000,
        at_least(1),
        doc="A follower that has not caught up with its leader for this long leaves the ISR.",
    )
    replica_selector_class: str = key(
        "",
        PLAIN_NAME,
        doc="Selects the replica that serves a reader (KIP-392). Empty: the leader. "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector: a replica in the reader's rack "
        "(client.rack). Any other name: a selector that the reading process offers under this name "
        "(Cluster.open(selectors=...), or an entry point of stratalog.replica_selectors). If the process does "
        "not offer this selector, the leader serves the reader, and a warning is logged.",
    )
    default_replication_factor: int = key(
        1,
        at_least(1),
        unit="replicas",
        doc="The number of replicas of a new topic, unless its creator gives one. `format` sets it to 3, or to "
        "the number "
        "of brokers if that is lower.",
    )
    leader_imbalance_check_interval_seconds: int = key(
        300,
        at_least(1),
        unit="s",
        doc="How often maintain checks for partitions whose leader is not the preferred replica.",
    )
    log_retention_check_interval_ms: int = key(
        5 * 60 * 1000,
        at_least(1),
        doc="How often maintain merges, applies retention, and checks whether snapshots are due.",
    )
    num_partitions: int = key(
        1,
        at_least(1),
        doc="The number of partitions of a new topic, unless its creator gives one.",
    )
    offset_metadata_max_bytes: int = key(
        4096,
        at_least(0),
        doc="Maximum size of the metadata string of a committed offset.",
    )
    offsets_retention_minutes: int = key(
        7 * 24 * 60,
        at_least(1),
        doc="The job snapshot deletes a group and its committed offsets this long after the group's "
        "latest commit.",
    )
    offsets_topic_num_partitions: int = key(
        50,
        at_least(1),
        doc="The number of partitions of __consumer_offsets. The first offset commit creates the topic.",
    )
    offsets_topic_replication_factor: int = key(
        3,
        at_least(1),
        unit="replicas",
        doc="The number of replicas of __consumer_offsets. The topic cannot be created with fewer unfenced "
        "brokers.",
    )
    remote_log_manager_copy_max_bytes_per_second: int = key(
        NO_LIMIT,
        at_least(1),
        unit="bytes/s",
        doc="The bytes per second that one run may copy to the remote tier in total (KIP-956), including "
        "segments that `compact` rewrites there. The default is no limit.",
    )
    remote_log_manager_copy_timeout_ms: int = key(
        10 * 60 * 1000,
        at_least(1),
        doc="If a copy of a segment to the remote tier takes longer than this, the copy is stopped and has "
        "failed.",
    )
    remote_log_manager_fetch_max_bytes_per_second: int = key(
        NO_LIMIT,
        at_least(1),
        unit="bytes/s",
        doc="The bytes per second that one driver may fetch from the remote tier in total (KIP-956). The default "
        "is no limit.",
    )
    remote_log_manager_task_interval_ms: int = key(
        30_000,
        at_least(1),
        doc="A partition is due for tiering again this long after its segments were last copied to the remote "
        "tier.",
    )
    remote_log_manager_task_retry_backoff_max_ms: int = key(
        30_000,
        at_least(1),
        doc="The maximum of remote.log.manager.task.retry.backoff.ms after repeated failures.",
    )
    remote_log_manager_task_retry_backoff_ms: int = key(
        500,
        at_least(1),
        doc="A partition is due for tiering again this long after its first failed copy to the remote tier. "
        "Each further failure doubles this time.",
    )
    remote_log_manager_task_retry_jitter: float = key(
        0.2,
        between(0, 0.5),
        doc="Jitter: the fraction by which remote.log.manager.task.retry.backoff.ms varies randomly.",
    )
    scrub_interval_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(1),
        doc="maintain reads every byte of every copy once per interval, and heals the damage that it finds.",
    )
    scrub_max_bytes: int = key(
        1024**3,
        at_least(1),
        doc="The maximum number of bytes that one run of maintain reads to find damage. A run always reads at "
        "least one partition.",
    )
    transaction_max_timeout_ms: int = key(
        15 * 60 * 1000,
        at_least(1),
        doc="The longest timeout that a transactional producer may request.",
    )
    transaction_state_log_min_isr: int = key(
        2,
        at_least(1),
        unit="replicas",
        doc="The value of min.insync.replicas for __transaction_state when this topic is created; at most the "
        "number of its replicas.",
    )
    transaction_state_log_num_partitions: int = key(
        50,
        at_least(1),
        doc="The number of partitions of __transaction_state. The first transactional producer creates the topic.",
    )
    transaction_state_log_replication_factor: int = key(
        3,
        at_least(1),
        unit="replicas",
        doc="The number of replicas of __transaction_state. The topic cannot be created with fewer unfenced "
        "brokers.",
    )
    transactional_id_expiration_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(1),
        doc="The job snapshot deletes a transactional id that has not been used for this long.",
    )

    vacuum_interval_ms: int = key(
        24 * 60 * 60 * 1000,
        at_least(1),
        doc="How often maintain deletes unused files.",
    )

    @property
    def tier_intervals(self) -> Intervals:
        """Return the intervals of the remote log manager for a partition."""
        return Intervals(
            interval_ms=self.remote_log_manager_task_interval_ms,
            retry_ms=self.remote_log_manager_task_retry_backoff_ms,
            retry_max_ms=self.remote_log_manager_task_retry_backoff_max_ms,
            jitter=self.remote_log_manager_task_retry_jitter,
        )


CLUSTER_CONFIGS = keys_of(ClusterConfig, Scope.CLUSTER)
