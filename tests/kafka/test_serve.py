"""``cluster.serve``, read by Kafka's own clients in a JVM: the consumer, and the AdminClient."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway

from bench.kafka_server import PINS
from stratalog.jobs.jars import class_path, jar_folder
from stratalog.jobs.java import find_java
from tests.unit.endpoint_harness import served
from tests.unit.transact_harness import Ledger, put

pytestmark = pytest.mark.kafka
_TEXT = "org.apache.kafka.common.serialization.StringDeserializer"


@pytest.fixture
def jvm(kafka_jars: None) -> Iterator[Any]:
    """With Kafka's classes; no broker runs."""
    gateway = JavaGateway.launch_gateway(
        classpath=class_path(jar_folder(), PINS, "kafka-broker"),
        die_on_exit=True,
        java_path=str(find_java(os.environ).executable),
    )
    yield gateway.jvm
    gateway.shutdown()


def properties(jvm: Any, address: tuple[str, int], **configs: str) -> Any:
    made = jvm.java.util.Properties()
    made.setProperty("bootstrap.servers", "{}:{}".format(*address))
    for name, value in configs.items():
        made.setProperty(name.replace("_", "."), value)
    return made


def listed(jvm: Any, *items: Any) -> Any:
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A few fetches of records, an aborted one with its marker, and one behind them."""
    live = Ledger(tmp_path).begin()
    live.append([f"v{number}" for number in range(500)]).raise_for_failures()
    aborted = live.driver().transactions.begin("x")
    put(aborted, {"t-0": "aborted"})
    aborted.abort()
    live.append(["last"]).raise_for_failures()
    return live


@pytest.mark.parametrize(("level", "extra"), [("read_committed", []), ("read_uncommitted", [(500, "aborted")])])
def test_the_consumer_of_java_reads_and_commits(
    level: str, extra: list[tuple[int, str]], ledger: Ledger, jvm: Any
) -> None:
    where = jvm.org.apache.kafka.common.TopicPartition("t", 0)
    only = listed(jvm, where)
    configs = {"group_id": "java", "enable_auto_commit": "false", "auto_offset_reset": "none"}
    texts = {"key_deserializer": _TEXT, "value_deserializer": _TEXT, "isolation_level": level}
    with served(ledger.cluster) as address:
        made = properties(jvm, address, **configs, **texts)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(made)
        consumer.assign(only)
        consumer.seekToBeginning(only)
        end, found = consumer.endOffsets(only)[where], []
        while consumer.position(where) < end:
            polled = consumer.poll(jvm.java.time.Duration.ofSeconds(5))
            found += [(one.offset(), one.value()) for one in polled.records(where)]
        consumer.commitSync()
        consumer.close()
    assert found == [*((number, f"v{number}") for number in range(500)), *extra, (502, "last")]
    assert ledger.cluster.groups.committed("java")["t", 0].offset == end == 503


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_consumers_of_java_share_partitions_as_members(assignor: str, ledger: Ledger, jvm: Any) -> None:
    ledger.append({1: ["other"]}).raise_for_failures()
    package = jvm.org.apache.kafka.clients.consumer
    configs = {"group_id": "java", "enable_auto_commit": "false", "auto_offset_reset": "earliest"}
    texts = {"key_deserializer": _TEXT, "value_deserializer": _TEXT, "isolation_level": "read_committed"}
    shares = {"partition_assignment_strategy": f"org.apache.kafka.clients.consumer.{assignor}"}
    second = jvm.java.time.Duration.ofSeconds(1)
    with served(ledger.cluster) as address:
        made = properties(jvm, address, **configs, **texts, **shares, heartbeat_interval_ms="100")
        consumers = [package.KafkaConsumer(made) for _ in range(2)]
        for one in consumers:
            one.subscribe(listed(jvm, "t"))
        places = [jvm.org.apache.kafka.common.TopicPartition("t", partition) for partition in range(2)]
        found: list[str] = []
        with ThreadPoolExecutor(2) as pool:
            for _ in range(60):
                for polled in pool.map(lambda one: one.poll(second), consumers):
                    found += [record.value() for place in places for record in polled.records(place)]
                if sorted(one.assignment().size() for one in consumers) == [1, 1] and len(found) >= 502:
                    break
        assert sorted(found) == sorted([*(f"v{number}" for number in range(500)), "last", "other"])
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties(jvm, address))
        described = admin.describeConsumerGroups(listed(jvm, "java")).all().get()["java"]
        assert (described.groupState().toString(), described.members().size()) == ("Stable", 2)
        admin.close()
        for one in consumers:
            one.commitSync()
            one.close()
    ends = {("t", 0): 503, ("t", 1): 1}
    assert {key: one.offset for key, one in ledger.cluster.groups.committed("java").items()} == ends


def test_the_admin_client_of_java_describes_topics_and_groups(ledger: Ledger, jvm: Any) -> None:
    ledger.cluster.groups.commit("loader", {("t", 0): 7})
    with served(ledger.cluster) as address:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties(jvm, address))
        names = set(admin.listTopics().names().get())
        described = admin.describeTopics(listed(jvm, "t")).allTopicNames().get()
        offsets = admin.listConsumerGroupOffsets("loader").partitionsToOffsetAndMetadata().get()
        cluster = admin.describeCluster().clusterId().get()
        groups = [one.groupId() for one in admin.listConsumerGroups().all().get()]
        topic = jvm.org.apache.kafka.common.config.ConfigResource(
            jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC, "t"
        )
        configs = admin.describeConfigs(listed(jvm, topic)).all().get()[topic]
        admin.close()
    assert (names, cluster) == ({"t", "u"}, "c")
    assert described["t"].partitions().size() == 2
    assert groups == ["loader"]
    assert configs.get("segment.ms").value() == "604800000"
    assert offsets[jvm.org.apache.kafka.common.TopicPartition("t", 0)].offset() == 7
