"""The dynamic configs in force for a topic and for the cluster, resolved and checked. Pure.

The metadata stores values as text. A topic's own value of a key applies first, then the cluster's value of the
key, then the default in the key's definition (``TopicConfig`` or ``ClusterConfig``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from stratalog.engine.config.cluster_config import CLUSTER_CONFIGS, ClusterConfig
from stratalog.engine.config.definition import ConfigDef, Scope
from stratalog.engine.config.topic_config import (
    AS_LOCAL,
    AS_TOTAL,
    COMPACT,
    COMPACT_DELETE,
    PARTITIONER,
    SNAPSHOT,
    TOPIC_CONFIGS,
    TopicConfig,
)
from stratalog.partitions.errors import InvalidConfigError
from stratalog.partitions.retention import UNLIMITED
from stratalog.partitions.spelling import did_you_mean

_LONGEST = 2**63 - 1


def check_config(scope: Scope, name: str, text: str, what: str) -> str:
    """Return the canonical text of a value to set. ``what`` names the owner of the value, as in "topic 'flights'".

    Raises: InvalidConfigError for an unknown key (the error names the nearest key), a cluster key on a topic, or
        an invalid value.
    """
    definition = find_config(scope, name, what)
    return definition.text(definition.parse(text, what))


def check_long(configs: Mapping[str, str | None], what: str) -> None:
    """Check that whole numbers to set are in the range of Kafka's LONG. (Numbers that the metadata already has can
    still be read and restored.)

    Raises: InvalidConfigError.
    """
    for name, text in configs.items():
        definition = CLUSTER_CONFIGS.get(name) or TOPIC_CONFIGS.get(name)
        if text is None or definition is None or not isinstance(definition.default, int):
            continue
        value: object = None
        with suppress(InvalidConfigError):  # the command raises it
            value = definition.parse(text, what)
        if isinstance(value, int) and value > _LONGEST:
            raise InvalidConfigError(f"{what}: {name} = {text!r} is not valid: it takes at most {_LONGEST}")


def find_config(scope: Scope, name: str, what: str) -> ConfigDef:
    """Return the definition of a key that may be set at ``scope``. Raises: InvalidConfigError."""
    allowed = TOPIC_CONFIGS if scope is Scope.TOPIC else {**CLUSTER_CONFIGS, **TOPIC_CONFIGS}
    if name in allowed:
        return allowed[name]
    if name in CLUSTER_CONFIGS:
        raise InvalidConfigError(f"{what}: {name} is a config of the cluster, not of a topic")
    if name in ABSENT:
        raise InvalidConfigError(f"{what}: Kafka's {name} has no meaning here: {ABSENT[name]}")
    hint = did_you_mean(name, allowed) or "; conf/reference.toml lists them all"
    raise InvalidConfigError(f"{what}: unknown config {name!r}{hint}")


def topic_config(topic: Mapping[str, str], cluster: Mapping[str, str], what: str = "topic") -> TopicConfig:
    """Return the configs in force for a topic, given its own configs (``topic``) and those of the cluster
    (``cluster``).

    Raises: InvalidConfigError when values contradict each other.
    """
    values = _resolved(TOPIC_CONFIGS, {**cluster, **topic}, what)
    for unit in ("ms", "bytes"):
        total, local = values[f"retention_{unit}"], values[f"local_retention_{unit}"]
        local = total if local == AS_TOTAL else local
        if total != UNLIMITED and (local == UNLIMITED or local > total):
            raise InvalidConfigError(
                f"{what}: local.retention.{unit} = {local} is above retention.{unit} = {total}: brokers "
                "cannot keep records that the log has already deleted"
            )
        if values["remote_storage_enable"] and values["remote_log_copy_disable"] and local != total:
            raise InvalidConfigError(
                f"{what}: local.retention.{unit} = {local} and retention.{unit} = {total} must be equal if "
                "remote.log.copy.disable = true, because records without a remote copy must stay on the brokers"
            )
        values[f"local_retention_{unit}"] = local
        lag = values[f"remote_copy_lag_{unit}"]
        if local != UNLIMITED and lag > local:
            raise InvalidConfigError(
                f"{what}: remote.copy.lag.{unit} = {lag} is above local.retention.{unit} = {local}: records stay "
                "on the brokers until they are copied, so brokers would keep "
                f"{'them longer' if unit == 'ms' else 'more'} than "
                f"local.retention.{unit}; lower the lag, or raise local.retention.{unit}"
            )
        values[f"remote_copy_lag_{unit}"] = local if lag == AS_LOCAL else lag
    if values["cleanup_policy"] == SNAPSHOT and values["remote_storage_enable"]:
        raise InvalidConfigError(
            f"{what}: cleanup.policy = {SNAPSHOT} and remote.storage.enable = true: records that such a log "
            "deletes are in its snapshots, not in the remote tier; choose one of the two"
        )
    config = TopicConfig(**values)
    if config.compacts:
        _check_compacting(config, what)
    return config


def _check_compacting(config: TopicConfig, what: str) -> None:
    """Check that a compacted topic has no config that contradicts compaction. Raises: InvalidConfigError."""
    compact = f"{what}: cleanup.policy = {config.cleanup_policy}"
    if config.unclean_leader_election_enable:
        raise InvalidConfigError(
            f"{compact} and unclean.leader.election.enable = true: an unclean election could lose the last "
            "record of a key after compaction has removed the earlier records; set unclean.leader.election.enable "
            "= false"
        )
    if config.mirror_archive_enable:
        raise InvalidConfigError(
            f"{compact} and mirror.archive.enable = true: an archive keeps records that its source removes; "
            "choose one of the two"
        )
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfigError(
            f"{compact}: min.compaction.lag.ms = {config.min_compaction_lag_ms} is above max.compaction.lag.ms = "
            f"{config.max_compaction_lag_ms}; set a lower min.compaction.lag.ms"
        )


def check_removed(before: TopicConfig, config: TopicConfig, what: str, *, compacted: bool, erased: bool) -> None:
    """Check new configs of a topic from which records were compacted or erased. Snapshots follow erasures, so a
    topic may keep them.

    Raises: InvalidConfigError.
    """
    removed, gone = "compaction has removed records from this topic", "records were erased from this topic"
    becomes = config.snapshots and not before.snapshots
    reasons = {
        f"cleanup.policy = {SNAPSHOT}": (config.snapshots and compacted, becomes and erased),
        "unclean.leader.election.enable = true": (compacted and config.unclean_leader_election_enable, False),
    }
    for setting, (by_compaction, by_erasure) in reasons.items():
        if by_compaction or by_erasure:
            raise InvalidConfigError(
                f"{what}: {setting} is no longer possible, because {removed if by_compaction else gone}: create "
                "another topic with this setting, and append the records there"
            )


def check_iceberg_kept(before: TopicConfig, after: TopicConfig, what: str, *, unfinished: bool) -> None:
    """Check new configs of a topic whose erasure may be ``unfinished``. The configs must still name the Iceberg
    table, and tiering must stay enabled, because the erasure of a topic that is not tiered does not change the
    table.

    Raises: InvalidConfigError.
    """
    named = before.remote_iceberg_table
    if not (unfinished and named and before.remote_storage_enable):
        return
    if after.remote_iceberg_table != named:
        change = "remote.iceberg.table cannot change"
    elif not after.remote_storage_enable:
        change = "remote.storage.enable cannot be switched off"
    else:
        return
    raise InvalidConfigError(
        f"{what}: {change}, because an erasure of the topic's records is not finished, and {named} may still "
        "contain erased values: run `stratalog erase` until the erasure is finished"
    )


def check_snapshots_kept(before: TopicConfig, after: TopicConfig, what: str, *, unfinished: bool) -> None:
    """Check new configs of a topic whose erasure may be ``unfinished``. A topic with snapshots must keep them,
    because the rest of its erasure deletes old snapshots.

    Raises: InvalidConfigError.
    """
    if unfinished and before.snapshots and not after.snapshots:
        raise InvalidConfigError(
            f"{what}: cleanup.policy cannot change from {SNAPSHOT} to {after.cleanup_policy}, because an erasure "
            "of the topic's records is not finished, and old snapshots may still contain erased values: run "
            "`stratalog erase` until the erasure is finished"
        )


def configs_in_force(topic: Mapping[str, str], cluster: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each topic key, its value as text, and the source of the value: ``topic``, ``cluster`` or
    ``default``."""
    for key, definition in TOPIC_CONFIGS.items():
        if key in topic:
            yield key, topic[key], "topic"
        elif key in cluster:
            yield key, cluster[key], "cluster"
        else:
            yield key, definition.text(definition.default), "default"


def check_disabling(before: TopicConfig, after: TopicConfig, what: str) -> None:
    """Check that a change that disables tiering also determines what happens to the remote data (KIP-950).

    Raises: InvalidConfigError.
    """
    off = before.remote_storage_enable and not after.remote_storage_enable
    if off and not after.remote_log_delete_on_disable:
        raise InvalidConfigError(
            f"{what}: remote.storage.enable cannot be switched off while the remote data is kept. To keep the "
            "data without further copies, set remote.log.copy.disable = true; to delete the data, set "
            "remote.storage.enable = false "
            "together with remote.log.delete.on.disable = true"
        )
    if off and after.cleanup_policy == COMPACT:
        raise InvalidConfigError(
            f"{what}: remote.storage.enable cannot be switched off with cleanup.policy = {COMPACT}: the remote "
            "tier has the last record of some keys. To delete the remote data, set cleanup.policy = "
            f"{COMPACT_DELETE} first; to keep the data without further copies, set remote.log.copy.disable = true"
        )


def check_partitioner(before: TopicConfig, after: TopicConfig, what: str) -> None:
    """Check that the partitioner of a topic does not change. A mirror's partitioner may change, because the source
    chose the partitions of its records.

    Raises: InvalidConfigError.
    """
    if before.partitioner != after.partitioner and not before.mirror_source:
        raise InvalidConfigError(
            f"{what}: {PARTITIONER} cannot change from {before.partitioner} to {after.partitioner}: records of a "
            "key would be in two partitions, and a retried append could go to a different partition; create "
            f"another topic with {PARTITIONER} = {after.partitioner}, and append the records "
            "there"
        )


def cluster_config(cluster: Mapping[str, str]) -> ClusterConfig:
    """Return the configs of a cluster, with defaults. Raises: InvalidConfigError."""
    return ClusterConfig(**_resolved(CLUSTER_CONFIGS, cluster, "cluster"))


def _resolved(table: Mapping[str, ConfigDef], given: Mapping[str, str], what: str) -> dict[str, Any]:
    return {
        key.field_name: key.parse(given[name], what) if name in given else key.default
        for name, key in table.items()
    }


def reference_toml() -> str:
    """Return the content of ``conf/reference.toml``."""
    lines = [
        "# Every configuration key: its scope, its default, and its valid values. A test keeps this file",
        "# equal to the code; `python -m tests.golden` writes it.",
        "# Topic keys may also be set on the cluster, as defaults for its topics.",
    ]
    for definition in [*CLUSTER_CONFIGS.values(), *TOPIC_CONFIGS.values()]:
        default = definition.text(definition.default)
        quoted = f'"{default}"' if isinstance(definition.default, str) else default
        lines += ["", f'["{definition.name}"]', f'scope = "{definition.scope}"', f"default = {quoted}"]
        if definition.unit is not None:
            lines.append(f'unit = "{definition.unit}"')
        lines += [f'values = "{definition.takes.text}"', f'doc = "{definition.doc}"']
    return "\n".join(lines) + "\n"


_NO_BUFFER = "records are always synced to storage before they are acknowledged"
_NO_INDEX = "a segment is a Parquet file with a page index; the size of the index is not configurable"
_NO_LIMIT = (
    "an append writes one file of any size per partition, and a fetch reads part of it; a record may be up to "
    "96 MiB; to enforce a lower limit, check records before you append them"
)
_ANY_TIME = "timestamps are not checked; a timestamp in the future does not prevent the deletion of its file"
_JOINING = "follower.replication.throttled.rate throttles the replicas that join by a reassignment"

ABSENT: Mapping[str, str] = {
    "max.message.bytes": _NO_LIMIT,
    "message.max.bytes": _NO_LIMIT,
    "flush.messages": _NO_BUFFER,
    "flush.ms": _NO_BUFFER,
    "index.interval.bytes": _NO_INDEX,
    "segment.index.bytes": _NO_INDEX,
    "message.timestamp.before.max.ms": _ANY_TIME,
    "message.timestamp.after.max.ms": _ANY_TIME,
    "message.format.version": "there is only one format",
    "message.downconversion.enable": "there is only one format",
    "preallocate": "each file is written once, at its final size, so there is nothing to preallocate",
    "segment.jitter.ms": "sealing a segment writes nothing, so there is no load to spread",
    "compression.gzip.level": "the level is the codec's default",
    "compression.lz4.level": "the codecs are gzip, snappy, zstd and uncompressed",
    "compression.zstd.level": "the level is the codec's default",
    "leader.replication.throttled.replicas": _JOINING,
    "follower.replication.throttled.replicas": _JOINING,
    "leader.replication.throttled.rate": (
        "leaders do not send records; use follower.replication.throttled.rate, which limits the copies to "
        "followers"
    ),
    "log.retention.hours": "write retention.ms",
    "log.retention.minutes": "write retention.ms",
    "log.retention.ms": "write retention.ms",
    "log.retention.bytes": "write retention.bytes",
    "log.segment.bytes": "write segment.bytes",
    "log.cleanup.policy": "write cleanup.policy",
}
"""Kafka's configs that have no effect here, each with the reason or the replacement, for the error message."""
