"""A mirror of three real brokers: leaders that move, are missing, or have lost records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from confluent_kafka import Producer

from stratalog import Cluster, Report
from tests.kafka.kafka_clients import PRODUCER, WAIT_S
from tests.kafka.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka(kafka_jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with closing(KafkaCluster(tmp_path_factory.mktemp("brokers"))) as made:
        yield made


def append(kafka: KafkaCluster, topic: str, *values: str, acks: str = "all") -> None:
    """Append with a new producer, which knows the current leader."""
    producer = Producer({**PRODUCER, "bootstrap.servers": kafka.bootstrap, "acks": acks})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def mirrored(kafka: KafkaCluster, cluster: Cluster, *topics: str) -> Report:
    return cluster.mirror(list(topics), kafka.bootstrap, replication_factor=2, check=False)


def equal(kafka: KafkaCluster, cluster: Cluster, *topics: str) -> None:
    cluster.compare(list(topics), kafka.bootstrap).raise_for_failures()


def failed(report: Report) -> list[tuple[str, str]]:
    return [(failure.item, failure.code) for failure in report.failures]


def of(report: Report, topic: str) -> Mapping[str, object]:
    (row,) = [row for row in report.rows if row["topic"] == topic]
    return row


def test_an_unclean_election_is_found_by_the_end_of_the_log_and_by_its_leader_epochs(
    kafka: KafkaCluster, cluster: Cluster
) -> None:
    """Before the election, a partition without a leader is named, and the others continue."""
    lost, beside = "lost", "beside"
    kafka.create(lost, [[1, 2]], {"min.insync.replicas": "1"})
    kafka.create(beside, [[3]])
    append(kafka, lost, *"abcde")
    append(kafka, beside, "a")
    mirrored(kafka, cluster, lost, beside).raise_for_failures()

    kafka.await_state(lost, lambda states: states == [(1, {1, 2})])
    kafka.kill(2)
    kafka.await_state(lost, lambda states: states == [(1, {1})])
    append(kafka, lost, *"fghij", acks="1")
    mirrored(kafka, cluster, lost).raise_for_failures()
    kafka.kill(1)
    kafka.await_state(lost, lambda states: states[0][0] is None)
    append(kafka, beside, "b")
    report = mirrored(kafka, cluster, lost, beside)
    assert failed(report) == [(f"{lost}-0", "LEADER_NOT_AVAILABLE")]
    assert (of(report, beside)["log_end"], of(report, beside)["lag"]) == (2, 0)
    assert failed(cluster.compare([lost, beside], kafka.bootstrap)) == [(f"{lost}-0", "LEADER_NOT_AVAILABLE")]

    kafka.start(2)
    kafka.elect_unclean(lost, 0)
    kafka.await_state(lost, lambda states: states[0][0] == 2)
    report = mirrored(kafka, cluster, lost, beside)
    assert failed(report) == [(f"{lost}-0", "LOG_TRUNCATION")], "it ends before the log here"

    append(kafka, lost, *"vwxyz12345", acks="1")
    append(kafka, beside, "c")
    report = mirrored(kafka, cluster, lost, beside)
    assert failed(report) == [(f"{lost}-0", "LOG_TRUNCATION")], "it is longer than the log here by now"
    assert of(report, lost)["log_end"] == 10, "nothing was appended"
    assert of(report, beside)["log_end"] == 3

    kafka.start(1)
    kafka.await_all_in_sync(lost, 2)
    assert failed(mirrored(kafka, cluster, lost)) == [(f"{lost}-0", "LOG_TRUNCATION")]
    cluster.topics.delete(lost)
    mirrored(kafka, cluster, lost).raise_for_failures()
    equal(kafka, cluster, lost, beside)


def test_a_marker_that_the_next_leader_has_written_is_no_truncation(kafka: KafkaCluster, cluster: Cluster) -> None:
    """The log here ends after the marker, and its last record has an older leader epoch."""
    topic = "moved"
    kafka.create(topic, [[1, 3]])
    append(kafka, topic, "a")
    producer = Producer({**PRODUCER, "bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, "never", partition=0)
    assert producer.flush(WAIT_S) == 0
    kafka.stop(1)
    kafka.await_state(topic, lambda states: states[0][0] == 3)
    producer.abort_transaction(WAIT_S)
    report = mirrored(kafka, cluster, topic).raise_for_failures()
    assert (of(report, topic)["log_end"], of(report, topic)["gaps"]) == (3, 2)
    append(kafka, topic, "b")
    report = mirrored(kafka, cluster, topic).raise_for_failures()
    assert of(report, topic)["log_end"] == 4
    kafka.start(1)
    kafka.await_all_in_sync(topic, 2)
    equal(kafka, cluster, topic)
