"""Commands on topics and configs: their checks, records and answers."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from stratalog.engine.metadata.description import describe
from stratalog.engine.metadata.dump import count_changes
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import RemoveTopicRecord, TopicRecord, TopicSchemaRecord
from stratalog.engine.metadata.topic_commands import (
    AlterConfigs,
    AlterTopic,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RestoreTopic,
    TopicCreated,
)
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.records import type_from_json, type_to_json
from tests.unit.metadata_harness import Metadata, an_id

# -------------------------------------------------------------------------- create, delete


def test_a_topic_is_created_with_replicas_in_distinct_racks() -> None:
    metadata = Metadata()
    answer = metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=6, replication_factor=3))
    assert answer == TopicCreated(an_id(5), 6, 3)
    topic = metadata.image.topic("u")
    assert [p.partition for p in topic.partitions] == list(range(6))
    assert all(set(p.replicas) == {1, 2, 3} and p.isr == p.replicas for p in topic.partitions)
    assert sorted(p.leader or 0 for p in topic.partitions) == [1, 1, 2, 2, 3, 3]
    assert {(p.leader_epoch, p.partition_epoch) for p in topic.partitions} == {(1, 0)}


def test_the_cluster_says_how_many_partitions_and_replicas() -> None:
    metadata = Metadata()
    metadata.do(AlterConfigs(None, {"num.partitions": "4", "default.replication.factor": "2"}))
    answer = metadata.do(CreateTopic(name="u", topic_id=an_id(5)))
    assert (answer.partitions, answer.replication_factor) == (4, 2)


def test_replicas_are_not_placed_on_fenced_brokers() -> None:
    metadata = Metadata()
    metadata.fence(2)
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=9, replication_factor=2))
    assert {b for p in metadata.image.topic("u").partitions for b in p.replicas} == {1, 3}
    with pytest.raises(InvalidReplicationFactorError, match="replication factor 3 with 2 unfenced brokers"):
        metadata.do(CreateTopic(name="v", topic_id=an_id(6), replication_factor=3))


def test_new_partitions_of_a_topic_go_where_few_of_its_replicas_are() -> None:
    metadata = Metadata(4)
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=2, replication_factor=2))
    before = metadata.image.topic("u").partitions
    answer = metadata.do(CreatePartitions("u", 8))
    partitions = metadata.image.topic("u").partitions
    assert partitions[:2] == before, "the old ones stay as they are"
    assert answer == {one.partition: one.replicas for one in partitions[2:]}
    assert all(len(set(one.replicas)) == 2 and one.isr == one.replicas for one in partitions)
    for load in (
        Counter(b for one in partitions for b in one.replicas),
        Counter(one.leader for one in partitions),
    ):
        assert max(load.values()) - min(load.values()) <= 1
    assert CreatePartitions("u", 8).decide(metadata.image).records == (), "a retry adds none"


def test_a_topic_that_has_grown_says_so() -> None:
    """Appends that have already begun distribute their records over fewer partitions."""
    metadata = Metadata()
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=2, replication_factor=1))
    metadata.do(CreatePartitions("u", 2))
    assert not metadata.image.topic("u").grown
    metadata.do(CreatePartitions("u", 3))
    assert metadata.image.topic("u").grown


def test_new_partitions_need_as_many_brokers_as_the_old_ones_have() -> None:
    metadata = Metadata()
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=1, replication_factor=2))
    metadata.fence(2)
    assert set(metadata.do(CreatePartitions("u", 2))[1]) == {1, 3}, "none on a fenced broker"
    metadata.fence(3)
    with pytest.raises(InvalidReplicationFactorError, match="2 replicas of each partition, but only 1 brokers"):
        CreatePartitions("u", 3).decide(metadata.image)


def test_partitions_are_never_taken_away_nor_keys_of_a_topic_with_snapshots_moved() -> None:
    metadata = Metadata()
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=3, replication_factor=1))
    with pytest.raises(InvalidPartitionsError, match="has 3 partitions, and cannot have 2"):
        CreatePartitions("u", 2).decide(metadata.image)
    with pytest.raises(UnknownTopicOrPartitionError):
        CreatePartitions("w", 2).decide(metadata.image)
    metadata.do(AlterConfigs("u", {"cleanup.policy": "snapshot"}))
    with pytest.raises(InvalidCallError, match="all records of a key must stay in one partition"):
        CreatePartitions("u", 4).decide(metadata.image)


def test_a_retry_of_the_same_creation_is_recognised_by_its_topic_id() -> None:
    metadata = Metadata()
    create = CreateTopic(name="u", topic_id=an_id(5), partitions=2, replication_factor=2)
    assert metadata.do(create) == metadata.do(create)
    assert create.decide(metadata.image).records == ()


def test_another_creation_of_the_name_is_refused() -> None:
    with pytest.raises(
        TopicAlreadyExistsError, match=f"'t' already exists, with id {an_id(99)}: choose .* if_not_exists"
    ):
        Metadata().do(CreateTopic(name="t", topic_id=an_id(5)))


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_a_replication_factor_is_between_one_and_the_brokers(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError, match=f"replication factor {factor}"):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), replication_factor=factor))


@pytest.mark.parametrize("partitions", [0, -3])
def test_a_topic_has_a_partition(partitions: int) -> None:
    with pytest.raises(InvalidPartitionsError, match="use at least 1"):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), partitions=partitions))


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 223, "__cluster_metadata"])
def test_a_topic_name_follows_kafkas_rules(name: str) -> None:
    with pytest.raises(InvalidCallError, match="name"):
        Metadata().do(CreateTopic(name=name, topic_id=an_id(5)))


@pytest.mark.parametrize("topic_id", ["", "short", an_id(99)])
def test_a_topic_id_is_fresh(topic_id: str) -> None:
    with pytest.raises(InvalidCallError, match="not a new topic id"):
        Metadata().do(CreateTopic(name="u", topic_id=topic_id))


@pytest.mark.parametrize(
    "schema", ["not json", '"nonsense"', '{"type":"struct"}', '{"type":"struct","fields":[]}']
)
def test_a_schema_is_one_that_a_segment_can_hold(schema: str) -> None:
    with pytest.raises(InvalidCallError):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), value_schema=schema))
    with pytest.raises(InvalidCallError):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), key_schema=schema))


def test_declared_schemas_are_kept() -> None:
    metadata = Metadata()
    value = '{"type":"struct","fields":[{"name":"x","type":"long"}]}'
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), key_schema='"string"', value_schema=value))
    topic = metadata.image.topic("u")
    assert (topic.key_schema, topic.value_schema) == ('"string"', value)


def test_a_topic_with_a_bad_config_is_not_created() -> None:
    with pytest.raises(InvalidConfigError, match=r"topic 'u': unknown config 'retention.m'.*retention\.ms"):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), configs={"retention.m": "1"}))


def test_a_deleted_topic_is_gone_and_unknown() -> None:
    metadata = Metadata()
    assert DeleteTopic("t").decide(metadata.image).records == (RemoveTopicRecord(topic_id=an_id(99)),)
    assert metadata.do(DeleteTopic("t")) == an_id(99)
    assert not metadata.image.topics
    with pytest.raises(UnknownTopicOrPartitionError, match="'t'"):
        metadata.do(DeleteTopic("t"))


# ------------------------------------------------------------------------- schemas that grow

NARROW = type_to_json(pa.struct([("x", pa.int64())]))
WIDE = type_to_json(pa.struct([("x", pa.int64()), ("y", pa.string())]))


def typed(key: str | None = None, value: str | None = NARROW, **configs: str) -> Metadata:
    """The metadata with topic ``u``."""
    metadata = Metadata()
    given = {name.replace("_", "."): text for name, text in configs.items()}
    metadata.do(
        CreateTopic(name="u", topic_id=an_id(5), key_schema=key, value_schema=value, partitions=2, configs=given)
    )
    return metadata


@pytest.mark.parametrize(("key", "wanted"), [(None, None), (NARROW, None), (NARROW, NARROW), (NARROW, WIDE)])
def test_a_schema_grows_by_one_record_and_nothing_else_of_the_topic_changes(
    key: str | None, wanted: str | None
) -> None:
    metadata = typed(key, segment_bytes="5")
    before = metadata.image.topic("u")
    decision = AlterTopic("u", wanted, WIDE).decide(metadata.image)
    assert decision.answer == (("key.y",) if wanted == WIDE else ()) + ("value.y",)
    [record] = decision.records
    assert isinstance(record, TopicSchemaRecord)
    metadata.commit(record)
    after = metadata.image.topic("u")
    assert type_from_json(after.value_schema or "") == type_from_json(WIDE)
    assert after.key_schema == (record.key_schema if wanted == WIDE else key)
    assert (after.topic_id, after.configs, after.partitions) == (
        before.topic_id,
        before.configs,
        before.partitions,
    )


def test_a_schema_that_is_there_is_no_change() -> None:
    metadata = typed()
    metadata.do(AlterTopic("u", value_schema=WIDE))
    assert AlterTopic("u", value_schema=WIDE).decide(metadata.image).records == ()
    with pytest.raises(InvalidCallError, match=r"value\.y would be removed"):
        metadata.do(AlterTopic("u", value_schema=NARROW))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (AlterTopic("u", key_schema=WIDE), "topic 'u': its key is binary, which cannot change"),
        (AlterTopic("u", value_schema='"string"'), "topic 'u': value is .* and cannot become string"),
        (AlterTopic("u", NARROW, WIDE), "its key is binary"),
        (AlterTopic("u", value_schema="nonsense"), "topic 'u': not the JSON text of a Spark type"),
    ],
)
def test_a_type_that_does_not_grow_changes_nothing(command: AlterTopic, message: str) -> None:
    metadata = typed()
    before = metadata.image
    with pytest.raises(InvalidCallError, match=message):
        metadata.do(command)
    assert metadata.image == before


def test_an_unknown_and_an_internal_topic_are_not_altered() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        Metadata().do(AlterTopic("nowhere", value_schema=WIDE))
    metadata = Metadata()
    offsets = CreateTopic(name="__consumer_offsets", topic_id=an_id(6), partitions=1, internal=True)
    metadata.do(offsets)
    with pytest.raises(InvalidTopicError, match="__consumer_offsets"):
        metadata.do(AlterTopic("__consumer_offsets", value_schema=WIDE))


def test_keys_of_a_topic_with_snapshots_stay_comparable() -> None:
    metadata = typed(NARROW, cleanup_policy="snapshot")
    floating = type_to_json(pa.struct([("x", pa.int64()), ("y", pa.float64())]))
    with pytest.raises(InvalidConfigError, match="cannot be compared"):
        metadata.do(AlterTopic("u", key_schema=floating))
    assert metadata.do(AlterTopic("u", key_schema=WIDE)) == ("key.y",)


@pytest.mark.parametrize("policy", ["snapshot", "compact", "compact,delete"])
def test_a_default_of_the_cluster_that_needs_comparable_keys_is_checked_for_each_topic(policy: str) -> None:
    metadata = typed(NARROW)
    floating = type_to_json(pa.float64())
    metadata.do(CreateTopic(name="w", topic_id=an_id(7), key_schema=floating, value_schema=floating))
    with pytest.raises(InvalidConfigError, match=r"topic 'w'.*cannot be compared"):
        metadata.do(AlterConfigs(None, {"cleanup.policy": policy}))
    metadata.do(AlterConfigs("w", {"cleanup.policy": "delete"}))
    metadata.do(AlterConfigs(None, {"cleanup.policy": policy}))


def test_a_grown_schema_is_described_restored_and_counts_as_a_change() -> None:
    """A restore point contains all of it, including marks; for snapshots of the metadata it counts as
    one change.
    """
    metadata = typed()
    before = metadata.image
    metadata.do(AlterTopic("u", value_schema=WIDE))
    held, changed = count_changes(before, metadata.image)
    assert (held, changed) == (count_changes(before, before)[0], 1)
    restored = Metadata()
    [described] = [topic for topic in describe(metadata.image).topics if topic.name == "u"]
    restored.do(RestoreTopic(described))
    assert restored.image.topic("u").value_schema == metadata.image.topic("u").value_schema


# -------------------------------------------------------------------------------- configs


def test_configs_are_set_and_deleted() -> None:
    metadata = Metadata()
    metadata.do(AlterConfigs("t", {"segment.bytes": " 10 ", "remote.storage.enable": "TRUE"}))
    assert metadata.image.topic("t").configs == {"segment.bytes": "10", "remote.storage.enable": "true"}
    metadata.do(AlterConfigs("t", {"segment.bytes": None}))
    assert metadata.image.topic("t").configs == {"remote.storage.enable": "true"}


def test_configs_that_are_as_they_should_be_commit_nothing() -> None:
    metadata = Metadata()
    change = AlterConfigs("t", {"segment.bytes": "10", "segment.ms": None})
    metadata.do(change)
    assert change.decide(metadata.image).records == ()


def test_one_bad_config_of_several_changes_nothing() -> None:
    metadata = Metadata()
    before = metadata.image
    with pytest.raises(InvalidConfigError, match=r"segment\.ms = 'soon' is not valid: it takes at least 1"):
        metadata.do(AlterConfigs("t", {"segment.bytes": "10", "segment.ms": "soon"}))
    assert metadata.image == before


def test_a_cluster_default_that_contradicts_a_topic_is_refused_naming_it() -> None:
    metadata = Metadata()
    metadata.do(AlterConfigs("t", {"local.retention.ms": "1000"}))
    with pytest.raises(InvalidConfigError, match=r"topic 't': local.retention.ms = 1000 is above"):
        metadata.do(AlterConfigs(None, {"retention.ms": "10"}))


def test_configs_of_unknown_topics_are_refused() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        Metadata().do(AlterConfigs("nowhere", {"segment.bytes": "1"}))


def test_deleting_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidConfigError, match=r"did you mean 'segment\.bytes'"):
        Metadata().do(AlterConfigs("t", {"segment.byte": None}))


def test_an_empty_cluster_has_no_room_for_a_topic() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="0 unfenced brokers"):
        CreateTopic(name="t", topic_id=an_id(5)).decide(ClusterImage())


def test_a_topic_without_partitions_is_damage_and_keeps_no_other_from_being_described() -> None:
    """No command makes such a record, but a writer of batches can."""
    metadata = Metadata()
    metadata.commit(TopicRecord(name="hollow", topic_id=an_id(7)))
    assert [topic.name for topic in describe(metadata.image).topics] == ["t"]
    for command in (CreatePartitions("hollow", 2), CreateTopic(name="hollow", topic_id=an_id(7))):
        with pytest.raises(CorruptionError, match="'hollow' without partitions"):
            command.decide(metadata.image)
