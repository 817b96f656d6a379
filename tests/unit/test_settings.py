"""Configs: one table, the configs in force for a topic, the refused values."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.config.cluster_config import CLUSTER_CONFIGS
from stratalog.engine.config.definition import ConfigDef, Scope
from stratalog.engine.config.settings import ABSENT, check_config, cluster_config, reference_toml, topic_config
from stratalog.engine.config.topic_config import AS_LOCAL, AS_TOTAL, TOPIC_CONFIGS
from stratalog.partitions.errors import InvalidConfigError
from stratalog.partitions.retention import UNLIMITED, RetentionLimits

REFERENCE = Path(__file__).parents[2] / "conf" / "reference.toml"
ALL = [*TOPIC_CONFIGS.values(), *CLUSTER_CONFIGS.values()]


def test_the_reference_file_is_that_of_the_code() -> None:
    assert REFERENCE.read_text() == reference_toml(), "run: python -m tests.golden"


def test_the_reference_file_lists_every_key_with_scope_default_and_doc() -> None:
    listed = tomllib.loads(REFERENCE.read_text())
    assert {key: (entry["scope"], entry["default"], entry["doc"]) for key, entry in listed.items()} == {
        definition.name: (definition.scope.value, definition.default, definition.doc) for definition in ALL
    }


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_a_default_is_a_value_that_the_key_takes(definition: ConfigDef) -> None:
    assert definition.parse(definition.text(definition.default), "here") == definition.default
    assert definition.doc.endswith(".")
    assert '"' not in definition.doc


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("segment.bytes", 1073741824),
        ("segment.ms", 604800000),
        ("retention.ms", 604800000),
        ("retention.bytes", -1),
        ("local.retention.ms", -2),
        ("local.retention.bytes", -2),
        ("remote.storage.enable", False),
        ("file.delete.delay.ms", 60000),
        ("min.insync.replicas", 1),
        ("message.timestamp.type", "CreateTime"),
        ("unclean.leader.election.enable", False),
    ],
)
def test_configs_have_kafkas_defaults(key: str, default: object) -> None:
    assert TOPIC_CONFIGS[key].default == default


def test_a_topics_own_value_goes_before_the_clusters_and_that_before_the_default() -> None:
    cluster = {"segment.bytes": "20", "segment.ms": "30", "replica.lag.time.max.ms": "5"}
    config = topic_config({"segment.bytes": "10"}, cluster)
    assert (config.segment_bytes, config.segment_ms, config.segment_merge_min_files) == (10, 30, 16)
    assert cluster_config(cluster).replica_lag_time_max_ms == 5


def test_local_retention_follows_the_total_unless_it_is_set() -> None:
    config = topic_config({"retention.ms": "100", "local.retention.bytes": "7"}, {})
    assert config.retention(0) == RetentionLimits(100, UNLIMITED)
    assert config.local_retention == RetentionLimits(100, 7)


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local", "fine"),
    [
        (100, 100, True),
        (100, 0, True),
        (100, AS_TOTAL, True),
        (UNLIMITED, 5, True),
        (UNLIMITED, UNLIMITED, True),
        (100, 101, False),
        (100, UNLIMITED, False),
    ],
)
def test_local_retention_is_at_most_the_total(unit: str, total: int, local: int, fine: bool) -> None:
    configs = {f"retention.{unit}": str(total), f"local.retention.{unit}": str(local)}
    if fine:
        topic_config(configs, {})
    else:
        with pytest.raises(InvalidConfigError, match=f"topic 't': local.retention.{unit} = {local} is above"):
            topic_config(configs, {}, "topic 't'")


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local", "lag", "applies"),
    [
        (100, 50, 50, 50),
        (100, 50, 0, 0),
        (100, 50, AS_LOCAL, 50),
        (100, AS_TOTAL, AS_LOCAL, 100),
        (100, AS_TOTAL, 100, 100),
        (UNLIMITED, UNLIMITED, 10**12, 10**12),
        (UNLIMITED, UNLIMITED, AS_LOCAL, UNLIMITED),
        (100, 50, 51, None),
        (100, AS_TOTAL, 101, None),
        (UNLIMITED, 50, 51, None),
    ],
)
def test_the_copy_lag_is_at_most_local_retention(
    unit: str, total: int, local: int, lag: int, applies: int | None
) -> None:
    """KIP-1241: -1 means local retention; a greater value is refused, unless local retention has no limit."""
    configs = {
        f"retention.{unit}": str(total),
        f"local.retention.{unit}": str(local),
        f"remote.copy.lag.{unit}": str(lag),
    }
    if applies is None:
        what = f"topic 't': remote.copy.lag.{unit} = {lag} is above local.retention.{unit} = "
        with pytest.raises(InvalidConfigError, match=what):
            topic_config(configs, {}, "topic 't'")
    else:
        copy_lag = topic_config(configs, {}).copy_lag
        assert {"ms": copy_lag.ms, "bytes": copy_lag.size_bytes}[unit] == applies


def test_without_a_copy_lag_segments_go_at_once() -> None:
    """Kafka's defaults: 0 by time, so everything may be deleted."""
    assert topic_config({}, {}).copy_lag.ms == 0
    with pytest.raises(
        InvalidConfigError, match=r"remote\.copy\.lag\.ms = '-2' is not valid: it takes at least -1"
    ):
        topic_config({"remote.copy.lag.ms": "-2"}, {})


def test_the_remote_log_managers_intervals_are_kafkas() -> None:
    """RemoteLogManagerConfig: DEFAULT_REMOTE_LOG_MANAGER_TASK_*."""
    found = cluster_config({}).tier_intervals
    assert (found.interval_ms, found.retry_ms, found.retry_max_ms, found.jitter) == (30_000, 500, 30_000, 0.2)
    for jitter in ("-0.1", "0.6"):
        with pytest.raises(InvalidConfigError, match=r"from 0 to 0\.5"):
            check_config(Scope.CLUSTER, "remote.log.manager.task.retry.jitter", jitter, "cluster")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("retention.m", "retention.ms"),
        ("segment_bytes", "segment.bytes"),
        ("min.insync.replica", "min.insync.replicas"),
        ("compresion.type", "compression.type"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"topic 't': unknown config '{key}'; did you mean '{nearest}'"):
        check_config(Scope.TOPIC, key, "1", "topic 't'")


def test_a_config_of_kafka_that_means_nothing_here_says_why() -> None:
    """The error does not suggest the nearest name: max.message.bytes is not retention.bytes."""
    with pytest.raises(
        InvalidConfigError, match=r"topic 't': Kafka's max\.message\.bytes has no meaning here: an append"
    ):
        check_config(Scope.TOPIC, "max.message.bytes", "1000", "topic 't'")
    assert not ABSENT.keys() & {*TOPIC_CONFIGS, *CLUSTER_CONFIGS}


def test_an_unknown_key_points_to_the_reference() -> None:
    with pytest.raises(InvalidConfigError, match=r"conf/reference\.toml"):
        check_config(Scope.TOPIC, "zzz", "1", "topic 't'")


def test_a_cluster_key_is_none_of_a_topic() -> None:
    with pytest.raises(InvalidConfigError, match=r"num\.partitions is a config of the cluster, not of a topic"):
        check_config(Scope.TOPIC, "num.partitions", "1", "topic 't'")
    assert check_config(Scope.CLUSTER, "segment.bytes", "1", "cluster") == "1"


@pytest.mark.parametrize(
    ("key", "value", "takes"),
    [
        ("segment.bytes", "0", "at least 1"),
        ("segment.bytes", "1.5", "at least 1"),
        ("segment.bytes", "", "at least 1"),
        ("segment.bytes", "true", "at least 1"),
        ("retention.ms", "-2", "at least -1"),
        ("local.retention.ms", "-3", "at least -2"),
        ("min.insync.replicas", "0", "at least 1"),
        ("remote.storage.enable", "yes", "true or false"),
        ("compression.type", "ZSTD", "one of zstd, snappy, lz4, gzip, uncompressed"),
        ("cleanup.policy", "archive", "one of delete"),
    ],
)
def test_a_value_that_the_key_does_not_take_is_refused(key: str, value: str, takes: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{key} = '{value}' is not valid: it takes {takes}"):
        check_config(Scope.TOPIC, key, value, "topic 't'")


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("retention.ms", "7d", "The unit is ms: 7d is 604800000"),
        ("retention.ms", "12 h", "The unit is ms: 12 h is 43200000"),
        ("segment.bytes", "1GiB", "The unit is bytes: 1GiB is 1073741824"),
        ("segment.bytes", "much", "The unit is bytes"),
    ],
)
def test_a_value_with_a_unit_is_answered_with_the_number(key: str, value: str, meant: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{re.escape(meant)}$"):
        check_config(Scope.TOPIC, key, value, "topic 't'")


def test_a_value_that_is_no_text_is_refused_with_the_way_to_write_it() -> None:
    number: Any = 1000
    with pytest.raises(
        InvalidConfigError, match=r"topic 't': retention\.ms = 1000 is not a string; write it as '1000'"
    ):
        check_config(Scope.TOPIC, "retention.ms", number, "topic 't'")


def test_values_are_kept_in_one_spelling() -> None:
    assert check_config(Scope.TOPIC, "remote.storage.enable", "True", "t") == "true"
    assert check_config(Scope.TOPIC, "segment.bytes", " 007 ", "t") == "7"
    assert check_config(Scope.TOPIC, "compression.type", " lz4", "t") == "lz4"


TIERED = {"remote.storage.enable": "true"}
MIB = 1024**2


@pytest.mark.parametrize(
    ("configs", "largest", "leaves_sealed"),
    [
        ({}, 1024 * MIB, False),
        (TIERED, 64 * MIB, False),
        (TIERED | {"segment.bytes": str(MIB)}, MIB, False),
        (TIERED | {"segment.merge.inline.bytes": "0"}, 1024 * MIB, True),
        (TIERED | {"segment.merge.inline.bytes": "4096"}, 1024 * MIB, True),
        (TIERED | {"segment.merge.inline.bytes": str(16 * MIB - 1)}, 1024 * MIB, True),
        (TIERED | {"segment.merge.inline.bytes": str(16 * MIB)}, 16 * MIB, False),
        (TIERED | {"remote.copy.lag.ms": "60000"}, 1024 * MIB, False),
        (TIERED | {"remote.copy.lag.ms": "60000", "remote.copy.lag.bytes": "0"}, 64 * MIB, False),
        (TIERED | {"remote.log.copy.disable": "true"}, 1024 * MIB, False),
        (TIERED | {"cleanup.policy": "compact"}, 1024 * MIB, False),
    ],
)
def test_merge_leaves_segments_that_tier_may_upload_at_once_to_tier(
    configs: dict[str, str], largest: int, leaves_sealed: bool
) -> None:
    config = topic_config(configs, {})
    assert (config.merging_on_brokers.segment_bytes, config.merging_on_brokers.leaves_sealed) == (
        largest,
        leaves_sealed,
    )
    assert (config.merging.segment_bytes, config.merging.leaves_sealed) == (
        max(largest, config.segment_bytes),
        False,
    )
