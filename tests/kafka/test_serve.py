"""``cluster.serve``, read by Kafka's own clients in a JVM: the consumer, and the AdminClient."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from bench.kafka_server import PINS
from stratalog.jobs.jars import class_path, jar_folder
from stratalog.jobs.java import find_java
from tests.bridges.endpoint_harness import served
from tests.unit.cluster_harness import LiveCluster
from tests.unit.transact_harness import Ledger, put

pytestmark = pytest.mark.kafka
_TEXT = "org.apache.kafka.common.serialization.StringDeserializer"


@pytest.fixture
def jvm(kafka_jars: None) -> Iterator[Any]:
    """A JVM with Kafka's classes; no broker runs."""
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
    """Records for several fetches, an aborted one with its marker, and one after them."""
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


_SPECS = {
    "earliest": 0,
    "latest": 7,
    "maxTimestamp": 6,
    "earliestLocal": 3,
    "latestTiered": 3,
    "earliestPendingUpload": 4,
}


def test_the_admin_client_of_java_asks_for_offsets_of_both_tiers(tmp_path: Path, jvm: Any) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(segment_bytes="1", local_retention_bytes="1", segment_merge_min_files="2")
    for number in range(4):
        live.append([f"v{number}"], at_ms=1000 + number).raise_for_failures()
    live.cluster.merge().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    for number in range(4, 7):
        live.append([f"v{number}"], at_ms=1000 + number).raise_for_failures()
    where = jvm.org.apache.kafka.common.TopicPartition("t", 0)
    with served(live.cluster) as address:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties(jvm, address))
        found = {}
        for name in _SPECS:
            asked = jvm.java.util.HashMap()
            asked.put(where, getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, name)())
            found[name] = admin.listOffsets(asked).all().get()[where].offset()
        admin.close()
    assert found == _SPECS


def test_the_admin_client_of_java_deletes_groups_and_says_what_is_not_served(ledger: Ledger, jvm: Any) -> None:
    ledger.cluster.groups.commit("loader", {("t", 0): 7})
    kafka = jvm.org.apache.kafka
    partition = kafka.common.TopicPartition("t", 0)
    new_topic = kafka.clients.admin.NewTopic("x", jvm.java.util.Optional.of(1), jvm.java.util.Optional.empty())
    one = jvm.java.util.HashSet()
    one.add(partition)
    with served(ledger.cluster) as address:
        admin = kafka.clients.admin.AdminClient.create(properties(jvm, address))
        asked = {
            "CREATE_TOPICS": lambda: admin.createTopics(listed(jvm, new_topic)).all(),
            "DELETE_TOPICS": lambda: admin.deleteTopics(listed(jvm, "t")).all(),
            "OFFSET_DELETE": lambda: admin.deleteConsumerGroupOffsets("loader", one).all(),
            "ELECT_LEADERS": lambda: admin.electLeaders(kafka.common.ElectionType.PREFERRED, one).all(),
            "DESCRIBE_ACLS": lambda: admin.describeAcls(kafka.common.acl.AclBindingFilter.ANY).values(),
            "DESCRIBE_LOG_DIRS": lambda: admin.describeLogDirs(listed(jvm, 0)).allDescriptions(),
            "DESCRIBE_PRODUCERS": lambda: admin.describeProducers(listed(jvm, partition)).all(),
            "LIST_TRANSACTIONS": lambda: admin.listTransactions().all(),
            "DESCRIBE_QUORUM": lambda: admin.describeMetadataQuorum().quorumInfo(),
            "DESCRIBE_CLIENT_QUOTAS": lambda: admin.describeClientQuotas(
                kafka.common.quota.ClientQuotaFilter.all()
            ).entities(),
            "LIST_CONFIG_RESOURCES": lambda: admin.listConfigResources().all(),
        }
        for name, ask in asked.items():
            assert java_error(ask).endswith(f"UnsupportedVersionException: The node does not support {name}")
        admin.deleteConsumerGroups(listed(jvm, "loader")).all().get()
        gone = java_error(lambda: admin.deleteConsumerGroups(listed(jvm, "loader")).all())
        admin.close()
    assert gone.endswith("GroupIdNotFoundException: The group id does not exist.")
    assert ledger.cluster.groups.list().rows == []


def java_error(ask: Callable[[], Any]) -> str:
    """The error of a Java future."""
    with pytest.raises(Py4JJavaError) as error:
        ask().get()
    return str(error.value.java_exception.getCause().toString())


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ({}, "ClusterAuthorizationException"),
        ({"enable_idempotence": "false"}, "TopicAuthorizationException"),
    ],
)
def test_producers_of_java_are_refused_in_words(
    configs: dict[str, str], error: str, ledger: Ledger, jvm: Any
) -> None:
    text = "org.apache.kafka.common.serialization.StringSerializer"
    with served(ledger.cluster) as address:
        made = properties(jvm, address, key_serializer=text, value_serializer=text, **configs)
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(made)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord("t", "mine")
        assert error in java_error(lambda: producer.send(record))
        producer.close()


def test_a_java_consumer_learns_that_the_new_protocol_is_not_served(ledger: Ledger, jvm: Any) -> None:
    configs = {"group_id": "java", "group_protocol": "consumer"}
    texts = {"key_deserializer": _TEXT, "value_deserializer": _TEXT}
    with served(ledger.cluster) as address:
        made = properties(jvm, address, **configs, **texts)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(made)
        consumer.subscribe(listed(jvm, "t"))
        with pytest.raises(Py4JJavaError) as error:
            consumer.poll(jvm.java.time.Duration.ofSeconds(60))
        assert "Set group.protocol=classic" in str(error.value.java_exception.toString())
        consumer.close()
