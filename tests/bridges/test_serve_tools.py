"""``cluster.serve`` for tools that show topics and groups, and for a mirror in another cluster."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from stratalog.bridges.mirror.kafka_source import url_safe
from stratalog.bridges.serve.codes import ErrorCode
from stratalog.bridges.serve.protocol import ApiKey
from stratalog.engine.config.topic_config import TOPIC_CONFIGS
from tests.bridges.endpoint_harness import TIMEOUT_S, Wire, served, wire
from tests.unit.cluster_harness import LiveCluster


def admin(address: tuple[str, int]) -> AdminClient:
    return AdminClient({"bootstrap.servers": "{}:{}".format(*address)})


def test_the_configs_in_force_are_shown_with_their_origins(tmp_path: Path) -> None:
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
    seen = {name: (one.value, ConfigSource(one.source), one.is_read_only) for name, one in found.items()}
    assert seen["retention.ms"] == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG, True)
    assert seen["segment.bytes"] == ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, True)
    assert seen["segment.ms"] == ("604800000", ConfigSource.DEFAULT_CONFIG, True)
    described = live.cluster.topics.describe("t").rows
    assert seen.keys() == {row["name"] for row in described if row["name"] in TOPIC_CONFIGS}
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


def joined(client: Wire, group: str) -> None:
    """The client becomes a member of the group."""
    fields: dict[str, Any] = {"session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": ""}
    protocols = [{"protocol_name": "range", "protocol_metadata": b""}]
    answer = client.ask(
        ApiKey.JOIN_GROUP, 2, group=group, protocol_type="consumer", group_protocols=protocols, **fields
    )
    assert answer["error_code"] == ErrorCode.NONE


def test_groups_are_deleted_but_those_with_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    live.fill(["a", "b"])
    for group in ("g", "h", "with members"):
        live.cluster.groups.commit(group, {("t", 0): 2})
    with served(live.cluster) as address, wire(address) as client, wire(address) as member:
        joined(member, "with members")
        joined(client, "without offsets")
        for version, group in ((0, "g"), (1, "h")):
            asked = [group, "with members", "without offsets", "nobody", "", group]
            answer = client.ask(ApiKey.DELETE_GROUPS, version, groups_names=asked)
            assert {one["group_id"]: one["error_code"] for one in answer["results"]} == {
                group: ErrorCode.NONE,
                "with members": ErrorCode.NON_EMPTY_GROUP,
                "without offsets": ErrorCode.NON_EMPTY_GROUP,
                "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
                "": ErrorCode.GROUP_ID_NOT_FOUND,
            }
        assert client.ask(ApiKey.DELETE_GROUPS, 1, groups_names=None)["results"] == []
    assert [row["group"] for row in live.cluster.groups.list().rows] == ["with members"]
    # The history names these deletions as it names those of the command line.
    deleted = live.cluster.history(operation="groups delete").rows
    assert [row["outcome"] for row in deleted] == ["done", "done"]


_OF_LIBRDKAFKA = {
    "list_topics": ("ok", "{'t': a.list_topics(timeout=20).topics['t']}"),
    "describe_topics": ("ok", "a.describe_topics(TopicCollection(['t']), request_timeout=20)"),
    "describe_cluster": ("ok", "{'': a.describe_cluster(request_timeout=20)}"),
    "describe_configs": ("ok", "a.describe_configs([ConfigResource('topic', 't')], request_timeout=20)"),
    "list_offsets": ("ok", "a.list_offsets({t0: OffsetSpec.max_timestamp()}, request_timeout=20)"),
    "list_consumer_groups": ("ok", "{'': a.list_consumer_groups(request_timeout=20)}"),
    "describe_consumer_groups": ("ok", "a.describe_consumer_groups(['g'], request_timeout=20)"),
    "list_consumer_group_offsets": (
        "ok",
        "a.list_consumer_group_offsets([ConsumerGroupTopicPartitions('g')], request_timeout=20)",
    ),
    "alter_consumer_group_offsets": (
        "ok",
        "a.alter_consumer_group_offsets([ConsumerGroupTopicPartitions('g', [t0])], request_timeout=20)",
    ),
    "delete_consumer_groups": ("ok", "a.delete_consumer_groups(['g'], request_timeout=20)"),
    "delete_no_consumer_group": ("GROUP_ID_NOT_FOUND", "a.delete_consumer_groups(['n'], request_timeout=20)"),
    "create_topics": ("_UNSUPPORTED_FEATURE", "a.create_topics([NewTopic('x', 1)], request_timeout=20)"),
    "delete_topics": ("_UNSUPPORTED_FEATURE", "a.delete_topics(['t'], request_timeout=20)"),
    "create_partitions": (
        "_UNSUPPORTED_FEATURE",
        "a.create_partitions([NewPartitions('t', 9)], request_timeout=20)",
    ),
    "delete_records": ("_UNSUPPORTED_FEATURE", "a.delete_records([t0], request_timeout=20)"),
    "incremental_alter_configs": (
        "_UNSUPPORTED_FEATURE",
        "a.incremental_alter_configs([ConfigResource('topic', 't', incremental_configs=[ConfigEntry("
        "'retention.ms', '5', incremental_operation=AlterConfigOpType.SET)])], request_timeout=20)",
    ),
    "create_acls": (
        "_UNSUPPORTED_FEATURE",
        "a.create_acls([AclBinding('topic', 't', 'literal', 'User:x', '*', 'read', 'allow')], request_timeout=20)",
    ),
    "describe_acls": (
        "_UNSUPPORTED_FEATURE",
        "{'': a.describe_acls("
        "AclBindingFilter('any', None, 'any', None, None, 'any', 'any'), request_timeout=20)}",
    ),
    "describe_user_scram_credentials": (
        "_UNSUPPORTED_FEATURE",
        "{'': a.describe_user_scram_credentials(request_timeout=20)}",
    ),
}
"""The answer and the request, keyed by call of the client."""
_ASKING = """
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import *

t0 = TopicPartition("t", 0, 1)
a = AdminClient({{"bootstrap.servers": "{}:{}", "log_level": 0}})
for name, call in {!r}:
    try:
        for one in eval(call).values():
            if hasattr(one, "result"):
                one.result(30)
        print(name, "ok", flush=True)
    except KafkaException as error:
        print(name, error.args[0].name(), flush=True)
del a
"""


@pytest.mark.slow
def test_every_call_of_librdkafkas_admin_client_has_an_answer(tmp_path: Path) -> None:
    """The calls run in a separate process, because the client aborts its process if some requests are not
    listed."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill(["a", "b"])
    live.cluster.groups.commit("g", {("t", 0): 2})
    with served(live.cluster) as address:
        calls = [(name, call) for name, (_, call) in _OF_LIBRDKAFKA.items()]
        script = _ASKING.format(*address, calls)
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answers = dict(line.split() for line in ran.stdout.splitlines())
    assert answers == {name: answer for name, (answer, _) in _OF_LIBRDKAFKA.items()}


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
        here.cluster.mirror(["t"], source, replication_factor=1).raise_for_failures()
        there.fill(["more"])
        report = here.cluster.mirror(["t"], source, replication_factor=1).raise_for_failures()
        here.cluster.compare(["t"], source).raise_for_failures()
    assert (report.totals["records"], report.totals["lag"]) == (1, 0)
    assert here.cluster.groups.committed("g")["t", 0].offset == 3
    configs = {str(row["name"]): row["value"] for row in here.cluster.topics.describe("t").rows}
    assert configs["retention.ms"] == "3600000"


def test_librdkafka_knows_a_topic_by_its_id(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    with served(live.cluster) as address:
        asking, found = admin(address), []
        for _ in range(2):
            live.topic()
            described = asking.describe_topics(TopicCollection(["t"]), request_timeout=TIMEOUT_S)["t"].result()
            assert url_safe(described.topic_id) == url_safe_id(live.cluster.image.topic_ids["t"])
            found.append(str(described.topic_id))
            live.cluster.topics.delete("t")
    assert found[0] != found[1], "made again"


def url_safe_id(topic_id: str) -> str:
    """The id as Kafka writes it."""
    return base64.urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")
