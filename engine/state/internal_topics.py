"""The engine's own topics: their names, configs, and the partition of a key (KIP-115). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.config.topic_config import SNAPSHOT
from stratalog.engine.state.operations import KEY_SCHEMA, VALUE_SCHEMA
from stratalog.partitions.errors import InvalidCallError, InvalidTopicError
from stratalog.partitions.paths import METADATA_TOPIC

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
OPERATIONS_TOPIC = "__operations"
INTERNAL_TOPICS = frozenset({METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, OPERATIONS_TOPIC})
"""Topics that only the engine creates, appends to, alters and deletes. A user may alter only the configs of
``__operations``.
"""

_OPERATIONS_REPLICAS = 3
_NINETY_DAYS_MS = 90 * 24 * 60 * 60 * 1000

_SMALLEST_INT = -(1 << 31)


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """The shape of an internal topic at its first use."""

    name: str
    partitions: int
    replication_factor: int
    factor_config: str | None
    """The cluster config of the replication factor, for errors."""
    configs: Mapping[str, str]
    key_schema: str | None = None
    value_schema: str | None = None


METADATA_CONFIGS: Mapping[str, str] = {"cleanup.policy": SNAPSHOT}
"""Configs of the metadata log, which are read-only (KIP-630, "Topic configuration")."""


def offsets_topic(config: ClusterConfig) -> InternalTopic:
    """The shape of ``__consumer_offsets`` under this cluster's configs."""
    return InternalTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        "offsets.topic.replication.factor",
        _configs(),
    )


def transactions_topic(config: ClusterConfig) -> InternalTopic:
    """The shape of ``__transaction_state`` under this cluster's configs."""
    factor = config.transaction_state_log_replication_factor
    return InternalTopic(
        TRANSACTIONS_TOPIC,
        config.transaction_state_log_num_partitions,
        factor,
        "transaction.state.log.replication.factor",
        {**_configs(), "min.insync.replicas": str(min(config.transaction_state_log_min_isr, factor))},
    )


def operations_topic(brokers: int, *, tiered: bool) -> InternalTopic:
    """The shape of ``__operations`` in a cluster with this number of brokers; ``tiered``: whether the cluster has
    a remote tier. A small cluster gets fewer replicas of the topic, so that a cluster of one broker also has a
    history.
    """
    return InternalTopic(
        OPERATIONS_TOPIC,
        1,
        max(1, min(brokers, _OPERATIONS_REPLICAS)),
        None,
        {
            "retention.ms": str(_NINETY_DAYS_MS),
            "remote.storage.enable": str(tiered).lower(),
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": "false",
            "message.timestamp.type": "CreateTime",
            "cleanup.policy": "delete",
        },
        KEY_SCHEMA,
        VALUE_SCHEMA,
    )


def _configs() -> dict[str, str]:
    """The topic's own configs, which override the cluster's defaults for users' topics."""
    return {
        "cleanup.policy": SNAPSHOT,
        "remote.storage.enable": "false",
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "CreateTime",
    }


def without_metadata(topics: Sequence[str] | None) -> tuple[Sequence[str] | None, bool]:
    """The given topics without the metadata log (None: all topics), and whether the metadata log was among the
    given topics.
    """
    if topics is None:
        return None, True
    return [name for name in topics if name != METADATA_TOPIC], METADATA_TOPIC in topics


def check_not_internal(topic: str, deed: str) -> None:
    """Refuse a user's call that targets one of the engine's own topics. Raises: InvalidTopicError."""
    if topic in INTERNAL_TOPICS:
        raise InvalidTopicError(
            f"topic {topic!r} is internal: it holds the engine's own state, so you cannot {deed} it; "
            "its configs are the cluster's, unless the topic overrides them"
        )


def check_name(name: object, kind: str, longest: int, error: type[InvalidCallError]) -> None:
    """Check a name that selects a partition (of a group, a transactional id): text of 1 to ``longest`` characters.

    Raises: ``error``.
    """
    if not isinstance(name, str) or not 0 < len(name) <= longest:
        long = isinstance(name, str) and name
        shown = f"{str(name)[:20]!r}... has {len(str(name))} characters" if long else repr(name)
        raise error(f"{kind} {shown}: give a name of 1 to {longest} characters")
    try:
        name.encode()
    except UnicodeEncodeError as reason:
        raise error(f"{kind} {name!r}: its name is not valid Unicode text") from reason


def partition_for(key: str, partitions: int) -> int:
    """The partition of an internal topic for ``key`` (a group, a transactional id), as Kafka's coordinators choose
    it: the absolute value of Java's ``String.hashCode``, modulo the number of partitions. (The smallest 32-bit
    integer has no absolute value; Kafka takes 0.)
    """
    hashed = java_hash(key)
    return (0 if hashed == _SMALLEST_INT else abs(hashed)) % partitions


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, in signed 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for index in range(0, len(units), 2):
        total = (31 * total + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return total - (1 << 32) if total & 0x80000000 else total
