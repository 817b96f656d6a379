"""Topics and their configs: refusals and their errors."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import Log, Trace

pytestmark = pytest.mark.kafka


@pytest.fixture
def prefix() -> str:
    """No prefix: each test has its own names."""
    return ""


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "n" * 250]
)
def test_a_name_that_is_invalid_is_refused(both: Both, name: str) -> None:
    assert both.same(lambda log: [log.create_topic(name)]) == ["INVALID_TOPIC_EXCEPTION"]


@pytest.mark.parametrize("name", ["...", "-", "_", "n" * 222, "A.z_0-9", "__of-users"])
def test_other_names_are_taken(both: Both, name: str) -> None:
    assert both.same(lambda log: [log.create_topic(name)]) == [None]


def test_a_name_that_leaves_no_room_for_the_topic_id_is_refused_here(both: Both) -> None:
    """The name of a folder contains both the topic's name and its id. Kafka's folders contain the number of the
    partition.
    """
    assert both.each(lambda log: [log.create_topic("n" * 249)]) == (["INVALID_TOPIC_EXCEPTION"], [None])


def test_the_log_of_the_metadata_is_no_topic_of_users(both: Both) -> None:
    assert both.same(lambda log: [log.create_topic("__cluster_metadata")]) == ["INVALID_REQUEST"]


def test_a_topic_has_a_partition_and_no_more_replicas_than_there_are_brokers(both: Both) -> None:
    def script(log: Log) -> Trace:
        return [
            log.create_topic("sizes", 0),
            log.create_topic("sizes", replication_factor=0),
            log.create_topic("sizes", replication_factor=2),
            log.delete_topic("sizes"),
        ]

    refused = "INVALID_REPLICATION_FACTOR"
    assert both.same(script) == ["INVALID_PARTITIONS", refused, refused, "UNKNOWN_TOPIC_OR_PARTITION"]


def test_a_name_is_that_of_one_topic_until_it_is_deleted(both: Both) -> None:
    def script(log: Log) -> Trace:
        return [
            log.create_topic("once", 2),
            log.create_topic("once", 3),
            log.append("once", ["a"]),
            log.delete_topic("once"),
            log.delete_topic("once"),
            log.append("once", ["b"]),
            log.create_topic("once"),
            log.append("once", ["c"]),
        ]

    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert both.same(script) == [None, "TOPIC_ALREADY_EXISTS", [0], None, unknown, unknown, None, [0]]


def test_partitions_are_added_and_never_taken_away(both: Both) -> None:
    def script(log: Log) -> Trace:
        return [
            log.create_topic("growing", 2),
            log.create_partitions("growing", 1),
            log.create_partitions("growing", 4),
            log.append("growing", ["a"], partition=3),
            log.create_partitions("missing", 4),
        ]

    assert both.same(script) == [None, "INVALID_PARTITIONS", None, [0], "UNKNOWN_TOPIC_OR_PARTITION"]


CONFIGS = [
    ("retention.ms", "-5", False),
    ("retention.ms", "-1", True),
    ("retention.ms", " 5 ", True),
    ("retention.ms", "", False),
    ("retention.ms", "x", False),
    ("retention.bytes", "1.5", False),
    ("retention.bytes", "-1", True),
    ("local.retention.ms", "-3", False),
    ("local.retention.ms", "-2", True),
    ("segment.bytes", "0", False),
    ("segment.ms", "0", False),
    ("file.delete.delay.ms", "-1", False),
    ("delete.retention.ms", "-1", False),
    ("min.insync.replicas", "0", False),
    ("min.insync.replicas", "2", True),
    ("cleanup.policy", "x", False),
    ("cleanup.policy", "delete", True),
    ("compression.type", "x", False),
    ("compression.type", "zstd", True),
    ("message.timestamp.type", "x", False),
    ("message.timestamp.type", "LogAppendTime", True),
    ("unclean.leader.election.enable", "yes", False),
    ("unclean.leader.election.enable", "TRUE", True),
    ("remote.storage.enable", "x", False),
    ("no.such.key", "1", False),
]


def test_configs_take_the_same_values_when_a_topic_is_created_and_later(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("configs")
        trace: Trace = []
        for number, (key, value, _) in enumerate(CONFIGS):
            created = log.create_topic(f"configs-{number}", configs={key: value})
            trace.append((key, value, created, log.alter_configs("configs", {key: value})))
        return trace

    assert both.same(script) == [
        (key, value, *[None if valid else "INVALID_CONFIG"] * 2) for key, value, valid in CONFIGS
    ]


def test_a_topic_whose_configs_are_refused_is_not_created(both: Both) -> None:
    def script(log: Log) -> Trace:
        return [
            log.create_topic("refused", configs={"retention.ms": "1", "no.such.key": "1"}),
            log.delete_topic("refused"),
            log.alter_configs("refused", {"retention.ms": "1"}),
        ]

    assert both.same(script) == ["INVALID_CONFIG", *["UNKNOWN_TOPIC_OR_PARTITION"] * 2]
