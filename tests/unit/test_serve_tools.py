"""``cluster.serve`` for tools that show topics and groups, and for a mirror in another cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from tests.unit.cluster_harness import LiveCluster
from tests.unit.endpoint_harness import TIMEOUT_S, served


def admin(address: tuple[str, int]) -> AdminClient:
    return AdminClient({"bootstrap.servers": "{}:{}".format(*address)})


def test_the_configs_in_force_are_told_with_where_they_come_from(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(retention_ms="1000")
    live.cluster.topics.alter_configs(None, {"segment.bytes": "2000"})
    topic, broker, nobody = (
        ConfigResource(kind, name)
        for kind, name in ((ResourceType.TOPIC, "t"), (ResourceType.BROKER, "0"), (ResourceType.TOPIC, "nobody"))
    )
    with served(live.cluster) as address, live.unchanged():
        asking = admin(address)
        found = asking.describe_configs([topic], request_timeout=TIMEOUT_S)[topic].result()
        of_broker = asking.describe_configs([broker], request_timeout=TIMEOUT_S)[broker].result()
        unknown = asking.describe_configs([nobody], request_timeout=TIMEOUT_S)[nobody].exception()
    told = {name: (one.value, ConfigSource(one.source), one.is_read_only) for name, one in found.items()}
    assert told["retention.ms"] == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG, True)
    assert told["segment.bytes"] == ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, True)
    assert told["segment.ms"] == ("604800000", ConfigSource.DEFAULT_CONFIG, True)
    described = live.cluster.topics.describe("t").rows
    assert told.keys() == {row["name"] for row in described if "." in str(row["name"])}
    assert of_broker == {}
    assert isinstance(unknown, KafkaException)
    assert unknown.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_groups_without_members_are_listed_and_are_empty(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill(["a", "b"])
    with served(live.cluster) as address:
        asking = admin(address)
        assert asking.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid == []
        live.cluster.groups.commit("g", {("t", 0): 2})
        (listed,) = asking.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid
        assert (listed.group_id, listed.is_simple_consumer_group) == ("g", True)
        asked = asking.describe_consumer_groups(["g", "nobody"], request_timeout=TIMEOUT_S)
        described = {name: future.result() for name, future in asked.items()}
    assert {name: (one.state.name, one.members) for name, one in described.items()} == {
        "g": ("EMPTY", []),
        "nobody": ("DEAD", []),
    }


@pytest.mark.slow
def test_another_cluster_mirrors_what_is_served(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here, there = LiveCluster(tmp_path / "here"), LiveCluster(tmp_path / "there")
    there.topic(partitions=2, retention_ms="3600000")
    there.fill([f"v{number}" for number in range(5)])
    there.cluster.groups.commit("g", {("t", 0): 3})
    with served(there.cluster) as address:
        source = "{}:{}".format(*address)
        here.cluster.mirror(source, ["t"], replication_factor=1).raise_for_failures()
        there.fill(["more"])
        report = here.cluster.mirror(source, ["t"], replication_factor=1).raise_for_failures()
        here.cluster.compare(source, ["t"]).raise_for_failures()
    assert (report.totals["records"], report.totals["lag"]) == (1, 0)
    assert here.cluster.groups.committed("g")["t", 0].offset == 3
    configs = {str(row["name"]): row["value"] for row in here.cluster.topics.describe("t").rows}
    assert configs["retention.ms"] == "3600000"
