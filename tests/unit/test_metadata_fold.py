"""The derivations of a replay of the metadata from its records (protocol section 4), and its refusals."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from msgspec.structs import replace

from stratalog.engine.metadata.commands import UnfenceBroker
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage, Incarnation
from stratalog.engine.metadata.overlay import Overlay
from stratalog.engine.metadata.records import (
    ConfigRecord,
    ConfigResource,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    TopicSchemaRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    VoterId,
    VotersRecord,
)
from stratalog.engine.metadata.topic_commands import AlterConfigs, CreateTopic, DeleteTopic
from stratalog.partitions.errors import (
    CorruptionError,
    LogGapError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.metadata_harness import Metadata, an_id, with_newcomer

# ---------------------------------------------------------------------------- fence, unfence


def test_a_fenced_leader_is_followed_by_the_preferred_member_of_the_isr() -> None:
    """Section 4, "Elect": the new leader comes from the ISR (the preferred replica first)."""
    metadata = Metadata()
    metadata.fence(1)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (2, 2, (2, 3))


def test_a_fenced_follower_leaves_the_isr_in_the_same_leader_epoch() -> None:
    metadata = Metadata()
    metadata.fence(2)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (1, 1, (1, 3))
    assert metadata.t.partition_epoch == 1


def test_the_last_member_stays_in_the_isr_and_nobody_leads() -> None:
    """Section 4, "Fence": the broker leaves the ISRs in which it is not the last member ... without a candidate,
    none.
    """
    metadata = Metadata()
    metadata.fence(1, 2, 3)
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (None, (3,), 4)


def test_fencing_drops_replicas_that_are_being_added() -> None:
    """Section 4, "Expand": fencing and every change of the leader drop *adding*."""
    metadata = with_newcomer()
    metadata.fence(3)
    assert metadata.t.adding == ()


def test_a_change_of_the_leader_drops_replicas_that_are_being_added() -> None:
    metadata = with_newcomer()
    metadata.fence(1)
    assert (metadata.t.leader, metadata.t.adding) == (2, ())


def test_an_election_never_picks_a_replica_that_is_only_being_added() -> None:
    """Section 4, "Expand", last sentence."""
    metadata = Metadata(brokers=2)
    metadata.propose([1])
    metadata.propose([1], adding=[2])
    metadata.fence(1)
    assert (metadata.t.leader, metadata.t.isr) == (None, (1,))


def test_fencing_touches_no_partition_without_the_broker_in_isr_or_adding() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    before = metadata.t
    metadata.fence(3)
    assert metadata.t == before


def test_a_fence_that_is_not_by_hand_does_not_end_a_hold() -> None:
    metadata = Metadata()
    metadata.commit(FenceBrokerRecord(broker_id=1, by_hand=True), FenceBrokerRecord(broker_id=1))
    assert metadata.image.brokers[1].fenced_by_hand


def test_unfencing_gives_leaderless_partitions_a_leader() -> None:
    """Attack C3: a fenced last ISR member stays; when it is unfenced it leads in a new epoch."""
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    metadata.do(UnfenceBroker(1, metadata.image.brokers[1].broker_epoch))
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (1, (1,), 3)


# ----------------------------------------------------------------------- partition changes


def test_every_election_is_a_new_leader_epoch_also_of_the_same_leader() -> None:
    """Section 4, "Elect"."""
    metadata = Metadata()
    metadata.commit(PartitionChangeRecord(topic_id=an_id(99), partition=0, leader=1))
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.partition_epoch) == (1, 2, 1)


def test_a_placed_replica_is_assigned_by_the_record_that_placed_it() -> None:
    """Section 1: the assignment is the metadata offset of the record that placed this replica here."""
    metadata = Metadata()
    created = metadata.image.next_offset - 1
    assert metadata.t.assignments == (created,) * 3
    metadata.register(4)
    metadata.commit(PartitionChangeRecord(topic_id=an_id(99), partition=0, replicas=(1, 2), isr=(1, 2)))
    again = metadata.image.next_offset
    metadata.commit(PartitionChangeRecord(topic_id=an_id(99), partition=0, replicas=(4, 1, 2, 3)))
    assert metadata.t.assignments == (again, created, created, again)


def test_one_batch_may_change_a_partition_several_times() -> None:
    metadata = Metadata()
    change = PartitionChangeRecord(topic_id=an_id(99), partition=0, log_start_offset=1)
    metadata.commit(change, FenceBrokerRecord(broker_id=1), FenceBrokerRecord(broker_id=2))
    assert (metadata.t.partition_epoch, metadata.t.leader, metadata.t.leader_epoch) == (3, 3, 3)


def test_the_last_members_of_an_empty_isr_are_remembered_while_they_have_a_replica() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    emptied = PartitionChangeRecord(topic_id=an_id(99), partition=0, replicas=(2, 3), isr=(), leader=None)
    metadata.commit(emptied)
    assert metadata.t.lost == ((2, an_id(2), "", an_id(2)),)
    metadata.commit(PartitionChangeRecord(topic_id=an_id(99), partition=0, log_start_offset=1))
    assert metadata.t.lost == ((2, an_id(2), "", an_id(2)),)
    metadata.commit(PartitionChangeRecord(topic_id=an_id(99), partition=0, isr=(3,), leader=3))
    assert metadata.t.lost == ()


# -------------------------------------------------------------------------- topics, configs


def test_a_topic_of_the_same_name_has_none_of_the_old_ones_configs() -> None:
    metadata = Metadata()
    metadata.do(AlterConfigs("t", {"segment.bytes": "5"}))
    metadata.do(DeleteTopic("t"))
    metadata.do(CreateTopic(name="t", topic_id=an_id(7), configs={"retention.ms": "9"}))
    assert metadata.image.topic("t").configs == {"retention.ms": "9"}
    assert metadata.image.topics.keys() == {an_id(7)}


def test_delete_and_recreate_may_be_in_one_batch() -> None:
    metadata = Metadata()
    metadata.commit(
        PartitionChangeRecord(topic_id=an_id(99), partition=0, log_start_offset=3),
        RemoveTopicRecord(topic_id=an_id(99)),
        TopicRecord(name="t", topic_id=an_id(7)),
        ConfigRecord(resource=ConfigResource.TOPIC, name="t", key="segment.bytes", value="1"),
        PartitionRecord(topic_id=an_id(7), partition=0, replicas=(2,), isr=(2,), leader=2),
    )
    topic = metadata.image.topic("t")
    assert (topic.topic_id, len(topic.partitions), topic.configs) == (an_id(7), 1, {"segment.bytes": "1"})


def test_the_view_of_a_deleted_topic_is_an_error_also_when_the_name_is_back() -> None:
    metadata = Metadata()
    metadata.do(DeleteTopic("t"))
    metadata.do(CreateTopic(name="t", topic_id=an_id(7)))
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
        metadata.image.view(an_id(99), 0)
    assert metadata.image.view(an_id(7), 0).topic == "t"


def test_a_view_is_small_whole_and_picklable() -> None:
    metadata = Metadata()
    view = metadata.image.view(an_id(99), 0)
    assert view.brokers.keys() == view.assignments.keys() == {1, 2, 3}
    assert pickle.loads(pickle.dumps(view)) == view
    assert len(pickle.dumps(view)) < 2000


def test_an_image_shares_unchanged_topics_with_the_image_before_it() -> None:
    """One small commit on a large cluster must not cost a copy of the cluster."""
    metadata = Metadata()
    for number in range(40):
        metadata.do(CreateTopic(name=f"u{number}", topic_id=an_id(200 + number), partitions=2))
    before = dataclasses.replace(metadata.image, topics=dict(metadata.image.topics))
    change = PartitionChangeRecord(topic_id=an_id(207), partition=1, log_start_offset=5)
    after = apply(before, before.next_offset, [change])
    assert isinstance(after.topics, Overlay)
    assert after.topics.base is before.topics
    assert after.topics.changed.keys() == {an_id(207)}
    assert after.partition(an_id(207), 1).log_start_offset == 5
    assert before.partition(an_id(207), 1).log_start_offset == 0
    assert pickle.loads(pickle.dumps(after)) == after


@pytest.mark.parametrize(("partition", "message"), [(1, "has no partition 1: it has 1"), (-1, "no partition -1")])
def test_a_partition_out_of_range_is_named(partition: int, message: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=message):
        Metadata().image.view(an_id(99), partition)


def test_unknown_names_are_errors() -> None:
    image = Metadata().image
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere' does not exist"):
        image.topic("nowhere")
    with pytest.raises(UnknownBrokerError, match="broker 9 is not registered"):
        image.broker(9)


def test_the_first_record_names_the_cluster_and_its_voters() -> None:
    voters = (VoterId(1, an_id(1)),)
    image = apply(ClusterImage(), 0, [VotersRecord(cluster_id="c", voters=voters), NoOpRecord()])
    assert (image.cluster_id, image.voters, image.next_offset) == ("c", voters, 2)


# --------------------------------------------------------------------------- contradictions

T = an_id(99)


@pytest.mark.parametrize(
    "record",
    [
        FenceBrokerRecord(broker_id=9),
        UnfenceBrokerRecord(broker_id=1, broker_epoch=77),
        TopicRecord(name="t", topic_id=an_id(5)),
        TopicRecord(name="u", topic_id=T),
        PartitionRecord(topic_id=an_id(5), partition=0, replicas=(1,), isr=(1,), leader=1),
        PartitionRecord(topic_id=T, partition=0, replicas=(1,), isr=(1,), leader=1),
        PartitionRecord(topic_id=T, partition=2, replicas=(1,), isr=(1,), leader=1),
        PartitionRecord(topic_id=T, partition=1, replicas=(9,), isr=(9,), leader=9),
        PartitionRecord(topic_id=T, partition=1, replicas=(), isr=()),
        PartitionRecord(topic_id=T, partition=1, replicas=(1, 1), isr=(1,), leader=1),
        PartitionRecord(topic_id=T, partition=1, replicas=(1,), isr=(1, 2), leader=1),
        PartitionRecord(topic_id=T, partition=1, replicas=(1, 2), isr=(2,), leader=1),
        PartitionChangeRecord(topic_id=T, partition=1, isr=(1,)),
        PartitionChangeRecord(topic_id=T, partition=0, isr=(2,)),
        PartitionChangeRecord(topic_id=T, partition=0, adding=(3,)),
        PartitionChangeRecord(topic_id=T, partition=0, replicas=(1, 2)),
        PartitionChangeRecord(topic_id=T, partition=0, leader=None, isr=(1, 2), adding=(3,)),
        PartitionChangeRecord(topic_id=T, partition=0, target=(1, 2)),
        PartitionChangeRecord(topic_id=T, partition=0, joining=(3,)),
        PartitionChangeRecord(topic_id=T, partition=0, target=(1, 2), joining=(3,)),
        PartitionChangeRecord(topic_id=T, partition=0, target=(1, 2), joining=(2,)),
        PartitionChangeRecord(topic_id=T, partition=0, target=(3, 3), joining=(3,)),
        PartitionChangeRecord(topic_id=T, partition=0, target=(3, 9), joining=(3,)),
        PartitionChangeRecord(topic_id=T, partition=0, target=(1, 2, 3), joining=(1, 2, 3)),
        UnregisterBrokerRecord(broker_id=1),
        UnregisterBrokerRecord(broker_id=9),
        RemoveTopicRecord(topic_id=an_id(5)),
        TopicSchemaRecord(topic_id=an_id(5), value_schema='"long"'),
        ConfigRecord(resource=ConfigResource.TOPIC, name="u", key="segment.bytes", value="1"),
    ],
    ids=str,
)
def test_a_record_that_does_not_fit_is_corruption_and_changes_nothing(record: MetadataRecord) -> None:
    metadata = Metadata()
    before = metadata.image
    with pytest.raises(CorruptionError):
        metadata.commit(NoOpRecord(), record)
    assert metadata.image == before == Metadata().image


def test_a_metadata_voter_that_is_unregistered_is_corruption() -> None:
    metadata = Metadata()
    metadata.register(4)
    metadata.commit(VotersRecord(cluster_id="c", voters=(VoterId(4, an_id(4)),)))
    with pytest.raises(CorruptionError, match="broker 4, which is still in use"):
        metadata.commit(UnregisterBrokerRecord(broker_id=4))


@pytest.mark.parametrize(("isr", "broker_id"), [((1,), 1), ((), 9)])
def test_a_partition_remembers_lost_storage_of_its_replicas_while_its_isr_is_empty(
    isr: tuple[int, ...], broker_id: int
) -> None:
    t = replace(Metadata().t, leader=None, isr=())
    assert replace(t, lost=(Incarnation(1, an_id(1), "", an_id(1)),)).lost
    with pytest.raises(CorruptionError, match="contradicts itself"):
        replace(t, isr=isr, lost=(Incarnation(broker_id, an_id(1), "", an_id(1)),))


@pytest.mark.parametrize("offset", [0, 4, 6])
def test_a_gap_or_an_overlap_of_offsets_is_refused(offset: int) -> None:
    metadata = Metadata()
    assert metadata.image.next_offset == 5
    with pytest.raises(LogGapError, match="known up to offset 5"):
        apply(metadata.image, offset, [NoOpRecord()])
