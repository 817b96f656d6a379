"""Commands: what they check, what they commit, what they answer (protocol section 4; KIP-497, KIP-903)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.metadata.commands import FenceBroker, RegisterBroker, UnfenceBroker
from engine.metadata.image import ClusterImage
from engine.metadata.partition_commands import (
    AdvanceLogStart,
    Altered,
    AlterPartition,
    ElectPreferredLeaders,
    LogStart,
    PartitionAnswer,
    Refused,
)
from engine.metadata.records import FenceBrokerRecord, RemoveTopicRecord
from engine.metadata.topic_commands import AlterConfigs, CreateTopic, DeleteTopic, TopicCreated
from partitions.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidCallError,
    InvalidConfigError,
    InvalidReplicationFactorError,
    InvalidUpdateVersionError,
    LeaderNotAvailableError,
    LogDirError,
    StaleBrokerError,
    TopicAlreadyExistsError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.metadata_harness import Metadata, an_id


def refusal(answer: PartitionAnswer) -> Exception:
    assert isinstance(answer, Refused)
    return answer.error


# ------------------------------------------------------------------------------- brokers


def test_two_brokers_cannot_share_a_directory() -> None:
    metadata = Metadata()
    with pytest.raises(LogDirError, match="broker 4 is that of broker 1"):
        metadata.do(RegisterBroker(4, an_id(1), "a", "file:///elsewhere"))


@pytest.mark.parametrize(("broker_id", "directory_id"), [(-1, an_id(1)), (1, "not an id"), (1, "")])
def test_a_registration_needs_ids(broker_id: int, directory_id: str) -> None:
    with pytest.raises(InvalidCallError, match="32 hexadecimal digits"):
        Metadata().do(RegisterBroker(broker_id, directory_id, None, "x"))


def test_fencing_is_one_record_whatever_the_broker_led() -> None:
    metadata = Metadata()
    metadata.do(CreateTopic(name="wide", topic_id=an_id(5), partitions=100, replication_factor=3))
    assert FenceBroker(1).decide(metadata.image).records == (FenceBrokerRecord(broker_id=1),)


def test_fencing_twice_and_unfencing_twice_change_nothing() -> None:
    metadata = Metadata()
    metadata.fence(1)
    assert FenceBroker(1).decide(metadata.image).records == ()
    back = UnfenceBroker(1, metadata.image.brokers[1].broker_epoch)
    metadata.do(back)
    assert back.decide(metadata.image).records == ()


def test_a_broker_that_was_registered_anew_is_not_unfenced_by_an_old_epoch() -> None:
    metadata = Metadata()
    old = metadata.image.brokers[1].broker_epoch
    metadata.register(1, incarnation=1)
    metadata.fence(1)
    with pytest.raises(StaleBrokerError, match=f"not {old}"):
        metadata.do(UnfenceBroker(1, old))


@pytest.mark.parametrize("command", [FenceBroker(9), UnfenceBroker(9, 1)])
def test_unknown_brokers_are_named(command: FenceBroker | UnfenceBroker) -> None:
    with pytest.raises(UnknownBrokerError, match="broker 9"):
        Metadata().do(command)


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


def test_a_retry_of_the_same_creation_is_recognised_by_its_topic_id() -> None:
    metadata = Metadata()
    create = CreateTopic(name="u", topic_id=an_id(5), partitions=2, replication_factor=2)
    assert metadata.do(create) == metadata.do(create)
    assert create.decide(metadata.image).records == ()


def test_another_creation_of_the_name_is_refused() -> None:
    with pytest.raises(TopicAlreadyExistsError, match=f"'t' exists already, with id {an_id(99)}"):
        Metadata().do(CreateTopic(name="t", topic_id=an_id(5)))


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_a_replication_factor_is_between_one_and_the_brokers(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError, match=f"replication factor {factor}"):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), replication_factor=factor))


@pytest.mark.parametrize("partitions", [0, -3])
def test_a_topic_has_a_partition(partitions: int) -> None:
    with pytest.raises(InvalidCallError, match="needs at least 1"):
        Metadata().do(CreateTopic(name="u", topic_id=an_id(5), partitions=partitions))


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "__cluster_metadata"])
def test_a_topic_name_follows_kafkas_rules(name: str) -> None:
    with pytest.raises(InvalidCallError, match="name"):
        Metadata().do(CreateTopic(name=name, topic_id=an_id(5)))


@pytest.mark.parametrize("topic_id", ["", "short", an_id(99)])
def test_a_topic_id_is_fresh(topic_id: str) -> None:
    with pytest.raises(InvalidCallError, match="no fresh topic id"):
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
    with pytest.raises(InvalidConfigError, match=r"topic 't': local.retention.ms = 1000 keeps more than"):
        metadata.do(AlterConfigs(None, {"retention.ms": "10"}))


def test_configs_of_unknown_topics_are_refused() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        Metadata().do(AlterConfigs("nowhere", {"segment.bytes": "1"}))


def test_deleting_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidConfigError, match=r"did you mean segment\.bytes"):
        Metadata().do(AlterConfigs("t", {"segment.byte": None}))


# ------------------------------------------------------------------------ alter partition


def test_the_isr_shrinks_in_one_commit() -> None:
    """Section 4, "Shrink": commit the new ISR (partition_epoch + 1)."""
    metadata = Metadata()
    assert metadata.propose([1, 3]) == Altered(an_id(99), 0, 1)
    assert (metadata.t.isr, metadata.t.partition_epoch, metadata.t.leader_epoch) == ((1, 3), 1, 1)


def test_the_isr_expands_in_two_commits() -> None:
    """Section 4, "Expand" (!)."""
    metadata = Metadata()
    metadata.propose([1, 2])
    assert metadata.propose([1, 2], adding=[3]) == Altered(an_id(99), 0, 2)
    assert (metadata.t.isr, metadata.t.adding) == ((1, 2), (3,))
    assert metadata.propose([3, 1, 2]) == Altered(an_id(99), 0, 3)
    assert (metadata.t.isr, metadata.t.adding) == ((1, 2, 3), ())


def test_nobody_joins_the_isr_in_one_commit() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    assert isinstance(refusal(metadata.propose([1, 2, 3])), InvalidCallError)
    assert metadata.t.isr == (1, 2)


def test_anybody_may_drop_an_adding_whose_proposer_died() -> None:
    """Section 4, "Shrink": or without an *adding* whose proposer died."""
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.propose([1, 2], adding=[3])
    assert isinstance(metadata.propose([1, 2]), Altered)
    assert metadata.t.adding == ()


def test_a_stale_partition_epoch_is_refused() -> None:
    metadata = Metadata()
    stale = metadata.proposal([1, 2])
    metadata.propose([1, 3])
    (answer,) = metadata.do(AlterPartition((stale,)))
    assert isinstance(refusal(answer), InvalidUpdateVersionError)
    assert metadata.t.isr == (1, 3)


@pytest.mark.parametrize("leader_epoch", [0, 2])
def test_another_leader_epoch_is_refused(leader_epoch: int) -> None:
    metadata = Metadata()
    assert isinstance(refusal(metadata.propose([1, 2], leader_epoch=leader_epoch)), FencedLeaderEpochError)


def test_a_fenced_member_is_ineligible() -> None:
    """KIP-903: INELIGIBLE_REPLICA when the broker is fenced."""
    metadata = Metadata()
    metadata.fence(3)
    answer = metadata.propose([1, 2], adding=[3])
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert "broker 3" in str(refusal(answer))


def test_kip_903_a_member_seen_under_an_older_registration_is_ineligible() -> None:
    """KIP-903, the race: F is being added; it loses its disk and registers anew; the delayed proposal, which
    counts what the old storage held, must not make the empty one a member."""
    metadata = Metadata()
    metadata.propose([1, 2])
    seen = metadata.member(3)
    metadata.register(3, incarnation=1)
    proposal = metadata.proposal([1, 2], adding=[3])
    assert proposal.adding != (seen,)
    (answer,) = metadata.do(AlterPartition((replace(proposal, adding=(seen,)),)))
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert metadata.t.adding == ()


def test_kip_903_the_second_commit_checks_the_epochs_as_well() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.propose([1, 2], adding=[3])
    second = metadata.proposal([1, 2, 3])
    metadata.register(3)  # the same root: adding stays, and so does the partition epoch
    assert metadata.t.partition_epoch == second.partition_epoch
    (answer,) = metadata.do(AlterPartition((second,)))
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert metadata.t.isr == (1, 2)


def test_a_proposal_keeps_the_leader_and_names_replicas_once() -> None:
    metadata = Metadata()
    metadata.register(4)
    for isr, adding in (([2, 3], []), ([], []), ([1, 1], []), ([1, 2, 4], []), ([1, 2], [2])):
        assert isinstance(refusal(metadata.propose(isr, adding)), InvalidCallError)
    assert metadata.t == Metadata().t


def test_a_partition_without_a_leader_takes_no_proposal() -> None:
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    assert isinstance(refusal(metadata.propose([1])), InvalidCallError)


def test_a_proposal_of_what_is_there_commits_nothing() -> None:
    metadata = Metadata()
    command = AlterPartition((metadata.proposal([1, 2, 3]),))
    decision = command.decide(metadata.image)
    assert (decision.records, decision.answer) == ((), (Altered(an_id(99), 0, 0),))


def test_one_refusal_does_not_stop_the_batch() -> None:
    metadata = Metadata()
    unknown = metadata.proposal([1], partition=7)
    command = AlterPartition((unknown, metadata.proposal([1, 2]), metadata.proposal([1, 3])))
    missing, first, second = metadata.do(command)
    assert isinstance(refusal(missing), UnknownTopicOrPartitionError)
    assert first == Altered(an_id(99), 0, 1)
    assert isinstance(refusal(second), InvalidUpdateVersionError)


# ------------------------------------------------------------------- log starts, elections


def test_log_starts_only_grow() -> None:
    metadata = Metadata()
    (answer,) = metadata.do(AdvanceLogStart((LogStart(an_id(99), 0, 10),)))
    assert answer == Altered(an_id(99), 0, 1)
    (answer,) = metadata.do(AdvanceLogStart((LogStart(an_id(99), 0, 4),)))
    assert answer == Altered(an_id(99), 0, 1)
    assert metadata.t.log_start_offset == 10


def test_of_two_log_starts_in_a_batch_the_greater_counts() -> None:
    metadata = Metadata()
    answers = metadata.do(AdvanceLogStart((LogStart(an_id(99), 0, 9), LogStart(an_id(99), 0, 3))))
    assert answers == (Altered(an_id(99), 0, 1),) * 2
    assert (metadata.t.log_start_offset, metadata.t.partition_epoch) == (9, 1)


def test_the_log_start_of_an_unknown_partition_is_refused_by_itself() -> None:
    metadata = Metadata()
    missing, fine = metadata.do(AdvanceLogStart((LogStart(an_id(5), 0, 9), LogStart(an_id(99), 0, 9))))
    assert isinstance(refusal(missing), UnknownTopicOrPartitionError)
    assert isinstance(fine, Altered)


def test_the_preferred_leader_is_elected_where_it_does_not_lead() -> None:
    metadata = Metadata()
    metadata.fence(1)
    metadata.register(1)
    metadata.propose([2, 3], adding=[1])
    metadata.propose([1, 2, 3])
    elect = ElectPreferredLeaders(((an_id(99), 0),))
    (answer,) = metadata.do(elect)
    assert isinstance(answer, Altered)
    assert (metadata.t.leader, metadata.t.leader_epoch) == (1, 3)
    assert elect.decide(metadata.image).records == ()


def test_a_preferred_leader_outside_the_isr_is_not_elected() -> None:
    metadata = Metadata()
    metadata.fence(1)
    metadata.register(1)
    (answer,) = metadata.do(ElectPreferredLeaders(((an_id(99), 0),)))
    assert isinstance(refusal(answer), LeaderNotAvailableError)
    assert metadata.t.leader == 2


def test_commands_on_an_empty_cluster_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="0 unfenced brokers"):
        CreateTopic(name="t", topic_id=an_id(5)).decide(ClusterImage())
    with pytest.raises(UnknownBrokerError):
        FenceBroker(1).decide(ClusterImage())
