"""Descriptions of clusters, and the command that brings a topic back from one."""

from __future__ import annotations

import pytest

from stratalog.engine.metadata.description import (
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    decode,
    describe,
    digest,
    encode,
)
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.records import EPOCH_GAP
from stratalog.engine.metadata.topic_commands import RestoreTopic
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    InvalidConfigError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
)
from tests.unit.metadata_harness import Metadata, an_id

TOPIC = TopicDescription(
    name="old",
    topic_id=an_id(7),
    key_schema=None,
    value_schema='"long"',
    replication_factor=2,
    configs={"segment.bytes": "5"},
    partitions=(PartitionDescription(3, 10), PartitionDescription(1, 0)),
)


def changed(**fields: object) -> TopicDescription:
    return TopicDescription(**{name: fields.get(name, getattr(TOPIC, name)) for name in TOPIC.__struct_fields__})


def test_a_description_round_trips() -> None:
    one = ClusterDescription(cluster_id="c", configs={"num.partitions": "3"}, topics=(TOPIC,))
    assert decode(encode(one), "it") == one
    assert digest(encode(one)) == digest(encode(decode(encode(one), "it")))


def test_a_description_of_another_version_is_refused() -> None:
    one = ClusterDescription(cluster_id="c", configs={}, topics=())
    for text in (b"", b"{}", encode(one).replace(b'"configs"', b'"config"')):
        with pytest.raises(CorruptionError, match="it is not a cluster description"):
            decode(text, "it")
    with pytest.raises(CorruptionError, match="version 2"):
        decode(encode(one).replace(b'"version":1', b'"version":2'), "it")


def test_a_cluster_is_described_apart_from_its_brokers() -> None:
    metadata = Metadata()
    metadata.fence(1)
    found = describe(metadata.image)
    (topic,) = found.topics
    assert (topic.name, topic.replication_factor, topic.partitions) == ("t", 3, (PartitionDescription(2, 0),))
    metadata.register(9)
    assert describe(metadata.image) == found


def test_a_restored_topic_has_no_leader_until_an_unclean_election() -> None:
    """No append is allowed before a replica begins at the end of the remote log."""
    metadata = Metadata()
    assert metadata.do(RestoreTopic(TOPIC)) == 2
    topic = metadata.image.topic("old")
    assert (topic.topic_id, topic.value_schema, topic.configs) == (an_id(7), '"long"', {"segment.bytes": "5"})
    first, second = topic.partitions
    assert (first.leader, first.isr, first.leader_epoch, first.log_start_offset) == (None, (), 3 + EPOCH_GAP, 10)
    assert (second.leader_epoch, second.log_start_offset) == (1 + EPOCH_GAP, 0)
    assert len(first.replicas) == len(second.replicas) == 2
    metadata.fence(*first.replicas)
    metadata.do(RestoreTopic(TOPIC))
    assert metadata.image.partition(an_id(7), 0) == first, "registrations and fences elect nobody"
    for broker in first.replicas:
        metadata.register(broker)
    assert metadata.image.partition(an_id(7), 0).leader is None
    metadata.do(ElectLeaders((Election(an_id(7), 0, unclean=True),)))
    elected = metadata.image.partition(an_id(7), 0)
    assert (elected.leader, elected.leader_epoch) == (first.replicas[0], 4 + EPOCH_GAP)


def test_to_restore_a_topic_again_changes_nothing() -> None:
    metadata = Metadata()
    metadata.do(RestoreTopic(TOPIC))
    before = metadata.image
    assert metadata.do(RestoreTopic(TOPIC)) == 2
    assert metadata.image == before


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (changed(name="t"), TopicAlreadyExistsError),
        (changed(topic_id=an_id(99)), TopicAlreadyExistsError),
        (changed(name="a/b"), InvalidCallError),
        (changed(name="__consumer_offsets"), InvalidTopicError),
        (changed(partitions=()), InvalidCallError),
        (changed(configs={"segment.bites": "5"}), InvalidConfigError),
        (changed(configs={"retention.ms": "5", "local.retention.ms": "6"}), InvalidConfigError),
    ],
)
def test_a_description_that_cannot_be_restored_is_refused(topic: TopicDescription, error: type[Exception]) -> None:
    metadata = Metadata()
    with pytest.raises(error):
        RestoreTopic(topic).decide(metadata.image)


def test_without_brokers_nothing_is_restored() -> None:
    metadata = Metadata()
    metadata.fence(1, 2, 3)
    with pytest.raises(InvalidReplicationFactorError):
        RestoreTopic(TOPIC).decide(metadata.image)
