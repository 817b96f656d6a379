"""Metadata records are small JSON objects that round-trip; all other values are refused."""

from __future__ import annotations

import numpy as np
import pytest

from stratalog.engine.metadata.records import (
    ConfigRecord,
    ConfigResource,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    TopicSchemaRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    VoterId,
    VotersRecord,
    check_readable,
    decode,
    encode,
)
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from tests.unit.metadata_harness import an_id

ALL: list[MetadataRecord] = [
    VotersRecord(cluster_id="c", voters=(VoterId(1, an_id(1)),)),
    NoOpRecord(),
    RegisterBrokerRecord(broker_id=1, directory_id=an_id(1), log_dir="file:///x", rack="a"),
    RegisterBrokerRecord(broker_id=1, directory_id=an_id(1), log_dir="file:///x"),
    RegisterBrokerRecord(broker_id=1, directory_id=an_id(1), log_dir="x", root="1@2", trusted=True),
    FenceBrokerRecord(broker_id=1),
    FenceBrokerRecord(broker_id=1, by_hand=True),
    UnfenceBrokerRecord(broker_id=1, broker_epoch=7),
    UnregisterBrokerRecord(broker_id=1),
    TopicRecord(name="t", topic_id=an_id(2), value_schema='"long"'),
    TopicSchemaRecord(topic_id=an_id(2), key_schema='"string"', value_schema='"long"'),
    PartitionRecord(topic_id=an_id(2), partition=0, replicas=(1, 2), isr=(1,), leader=1),
    PartitionRecord(topic_id=an_id(2), partition=0, replicas=(1,), isr=(), leader_epoch=1007, log_start_offset=5),
    PartitionChangeRecord(topic_id=an_id(2), partition=0, isr=(1, 2), adding=(), log_start_offset=5),
    PartitionChangeRecord(topic_id=an_id(2), partition=0, leader=None),
    PartitionChangeRecord(topic_id=an_id(2), partition=0, replicas=(1, 3), target=(3,), joining=(3,)),
    RemoveTopicRecord(topic_id=an_id(2)),
    ConfigRecord(resource=ConfigResource.TOPIC, name="t", key="segment.bytes", value="1"),
    ConfigRecord(resource=ConfigResource.CLUSTER, name="", key="segment.bytes", value=None),
]


@pytest.mark.parametrize("record", ALL, ids=lambda record: type(record).__name__)
def test_a_record_round_trips(record: MetadataRecord) -> None:
    assert decode(encode(record)) == record


def test_fencing_a_broker_is_a_record_of_a_few_bytes() -> None:
    """Protocol section 4, "Fence": one record."""
    assert encode(FenceBrokerRecord(broker_id=3)) == b'{"type":"FenceBrokerRecord","broker_id":3}'


def test_an_absent_field_of_a_partition_change_differs_from_no_leader() -> None:
    assert b"leader" not in encode(PartitionChangeRecord(topic_id="x", partition=0))
    assert b'"leader":null' in encode(PartitionChangeRecord(topic_id="x", partition=0, leader=None))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[]",
        b'{"type":"NobodyKnowsRecord"}',
        b'{"type":"FenceBrokerRecord"}',
        b'{"type":"FenceBrokerRecord","broker_id":"three"}',
        b'{"type":"FenceBrokerRecord","broker_id":3,"of_a_later_version":1}',
    ],
)
def test_a_record_of_another_version_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptionError, match="not a metadata record, or a record of a later version"):
        decode(text)


@pytest.mark.parametrize("record", ALL, ids=lambda record: type(record).__name__)
def test_every_kind_of_record_can_be_read_again(record: MetadataRecord) -> None:
    check_readable(record)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (FenceBrokerRecord(broker_id=2.0), "broker_id=2.0.*Expected `int`, got `float`"),  # type: ignore[arg-type]
        (FenceBrokerRecord(broker_id=True), "broker_id=True"),
        (FenceBrokerRecord(broker_id=np.int64(2)), "numpy.int64"),  # type: ignore[arg-type]
        (PartitionChangeRecord(topic_id="x", partition=0, isr=(1, 2.0)), r"isr=\(1, 2.0\)"),  # type: ignore[arg-type]
        (PartitionChangeRecord(topic_id="x", partition=0, isr=[1]), "be read back differently"),  # type: ignore[arg-type]
        (ConfigRecord(resource=ConfigResource.TOPIC, name="t", key="k", value="\ud800"), "surrogates"),
    ],
    ids=str,
)
def test_a_record_that_nobody_could_read_is_refused(record: MetadataRecord, says: str) -> None:
    """Decoders accept only integers as integers: one such record would break every read of the metadata."""
    with pytest.raises(InvalidCallError, match=says):
        check_readable(record)
