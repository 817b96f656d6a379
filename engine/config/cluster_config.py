"""The configs of the cluster: each key stated once, with Kafka's name. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.config.definition import (
    PLAIN_NAME,
    TRUE_OR_FALSE,
    Scope,
    at_least,
    between,
    key,
    keys_of,
)
from stratalog.tiering.schedule import Intervals

NO_LIMIT = 2**63 - 1
"""Of a rate: none. Kafka's default."""

_SEVEN_DAYS_MS = 7 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The configs that apply to the cluster."""

    auto_leader_rebalance_enable: bool = key(
        True,
        TRUE_OR_FALSE,
        doc="maintain lets preferred replicas lead again where others do.",
    )
    broker_session_timeout_ms: int = key(
        9_000,
        at_least(1),
        unit="ms",
        doc="A broker whose root has not answered for this long at the start of a run is fenced. Kafka waits "
        "as long for a broker's heartbeat.",
    )
    follower_fetch_last_tiered_offset_enable: bool = key(
        False,
        TRUE_OR_FALSE,
        doc="An empty follower of a tiered topic starts at the earliest pending upload offset (KIP-1023).",
    )
    follower_fetch_last_tiered_offset_always_enable: bool = key(
        False,
        TRUE_OR_FALSE,
        doc="With follower.fetch.last.tiered.offset.enable: an empty follower does so even where the leader "
        "still holds the whole log. Kafka copies all of it then.",
    )
    health_consumer_max_lag_records: int = key(
        -1,
        at_least(-1),
        unit="records",
        doc="health reports a consumer group that is further behind in a topic. -1: none.",
    )
    health_log_dir_max_used_ratio: float = key(
        0.85,
        between(0, 1),
        doc="health warns of a broker whose file system is fuller; from halfway between this and 1 on, it is an "
        "error.",
    )
    health_replication_max_lag_ms: int = key(
        15 * 60 * 1000,
        at_least(0),
        unit="ms",
        doc="health reports a follower that lacks records of its leader for longer.",
    )
    health_upkeep_max_delay_ms: int = key(
        60 * 60 * 1000,
        at_least(0),
        unit="ms",
        doc="health reports what should have been done for longer: a step of maintain, a segment for the remote "
        "tier, records that have expired, a transaction that has run into its timeout.",
    )
    replica_lag_time_max_ms: int = key(
        30_000,
        at_least(1),
        unit="ms",
        doc="A follower that has not caught up for this long leaves the ISR.",
    )
    replica_selector_class: str = key(
        "",
        PLAIN_NAME,
        doc="Which replica serves a reader (KIP-392). Nothing: the leader. "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector: one in the reader's rack "
        "(client.rack). Any other name: the selector that the reading process offers by it "
        "(Cluster.open(selectors=...), or an entry point of stratalog.replica_selectors); where it offers "
        "none: the leader, and the log says so.",
    )
    default_replication_factor: int = key(
        1,
        at_least(1),
        unit="replicas",
        doc="Replicas of a new topic whose creator names no number. `format` sets it to 3, or to the number of "
        "brokers where there are fewer.",
    )
    leader_imbalance_check_interval_seconds: int = key(
        300,
        at_least(1),
        unit="s",
        doc="How often maintain looks for leaders that are not the preferred ones.",
    )
    log_retention_check_interval_ms: int = key(
        5 * 60 * 1000,
        at_least(1),
        unit="ms",
        doc="How often maintain merges, applies retention, and looks for snapshots to take.",
    )
    num_partitions: int = key(
        1,
        at_least(1),
        unit="partitions",
        doc="Default for new topics.",
    )
    offset_metadata_max_bytes: int = key(
        4096,
        at_least(0),
        unit="bytes",
        doc="Upper bound of the text that a committed offset carries.",
    )
    offsets_retention_minutes: int = key(
        7 * 24 * 60,
        at_least(1),
        unit="minutes",
        doc="A group and its committed offsets are forgotten this long after its latest commit, by the job "
        "snapshot.",
    )
    offsets_topic_num_partitions: int = key(
        50,
        at_least(1),
        unit="partitions",
        doc="Partitions of __consumer_offsets, when the first commit of an offset creates it.",
    )
    offsets_topic_replication_factor: int = key(
        3,
        at_least(1),
        unit="replicas",
        doc="Replicas of __consumer_offsets, when it is created; with fewer unfenced brokers it is not.",
    )
    remote_log_manager_copy_max_bytes_per_second: int = key(
        NO_LIMIT,
        at_least(1),
        unit="bytes/s",
        doc="Bound on the copies of one run to the remote tier, all its tasks together (KIP-956). The default "
        "is no limit.",
    )
    remote_log_manager_copy_timeout_ms: int = key(
        10 * 60 * 1000,
        at_least(1),
        unit="ms",
        doc="A copy of one segment to the remote tier that takes longer is given up, and is a failure.",
    )
    remote_log_manager_fetch_max_bytes_per_second: int = key(
        NO_LIMIT,
        at_least(1),
        unit="bytes/s",
        doc="Bound on the reads of the remote tier by all fetches of one driver together (KIP-956). The "
        "default is no limit.",
    )
    remote_log_manager_task_interval_ms: int = key(
        30_000,
        at_least(1),
        unit="ms",
        doc="How long after its segments were copied to the remote tier a partition is due again.",
    )
    remote_log_manager_task_retry_backoff_max_ms: int = key(
        30_000,
        at_least(1),
        unit="ms",
        doc="Upper bound of the retry back-off.",
    )
    remote_log_manager_task_retry_backoff_ms: int = key(
        500,
        at_least(1),
        unit="ms",
        doc="How long after a first failed copy to the remote tier a partition is due again; twice as long "
        "after each further failure.",
    )
    remote_log_manager_task_retry_jitter: float = key(
        0.2,
        between(0, 0.5),
        doc="Jitter: the fraction by which the back-off varies at random.",
    )
    scrub_interval_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(1),
        unit="ms",
        doc="maintain reads every byte of every copy once in so long, and heals what it finds damaged.",
    )
    scrub_max_bytes: int = key(
        1024**3,
        at_least(1),
        unit="bytes",
        doc="The bound on what a run of maintain reads to find damage; it reads one partition at least.",
    )
    transaction_max_timeout_ms: int = key(
        15 * 60 * 1000,
        at_least(1),
        unit="ms",
        doc="The longest timeout that a transactional producer may ask for.",
    )
    transaction_state_log_min_isr: int = key(
        2,
        at_least(1),
        unit="replicas",
        doc="min.insync.replicas of __transaction_state, when it is created; never more than its replicas.",
    )
    transaction_state_log_num_partitions: int = key(
        50,
        at_least(1),
        unit="partitions",
        doc="Partitions of __transaction_state, when the first transactional producer creates it.",
    )
    transaction_state_log_replication_factor: int = key(
        3,
        at_least(1),
        unit="replicas",
        doc="Replicas of __transaction_state, when it is created; with fewer unfenced brokers it is not.",
    )
    transactional_id_expiration_ms: int = key(
        _SEVEN_DAYS_MS,
        at_least(1),
        unit="ms",
        doc="A transactional id that has not been used for this long is forgotten, by the job snapshot.",
    )

    vacuum_interval_ms: int = key(
        24 * 60 * 60 * 1000,
        at_least(1),
        unit="ms",
        doc="How often maintain deletes litter.",
    )

    @property
    def tier_intervals(self) -> Intervals:
        """When a partition is due for the remote log manager again."""
        return Intervals(
            interval_ms=self.remote_log_manager_task_interval_ms,
            retry_ms=self.remote_log_manager_task_retry_backoff_ms,
            retry_max_ms=self.remote_log_manager_task_retry_backoff_max_ms,
            jitter=self.remote_log_manager_task_retry_jitter,
        )


CLUSTER_CONFIGS = keys_of(ClusterConfig, Scope.CLUSTER)
