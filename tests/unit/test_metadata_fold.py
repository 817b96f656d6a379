"""What a replay of the metadata derives (protocol section 4), and that there is one way to fold."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.metadata.commands import Command, FenceBroker, RegisterBroker, UnfenceBroker
from engine.metadata.fold import apply
from engine.metadata.image import ClusterImage
from engine.metadata.partition_commands import (
    AdvanceLogStart,
    AlterPartition,
    ElectPreferredLeaders,
    IsrProposal,
    LogStart,
    Member,
)
from engine.metadata.records import (
    ConfigRecord,
    ConfigResource,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    VoterId,
    VotersRecord,
)
from engine.metadata.topic_commands import AlterConfigs, CreateTopic, DeleteTopic
from partitions.errors import (
    CorruptionError,
    LogGapError,
    StratalogError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.metadata_harness import Metadata, an_id

# ------------------------------------------------------------------------------- register


def test_a_broker_epoch_is_the_offset_of_the_registration() -> None:
    """Section 4, "Register": commits a record whose offset is the broker epoch."""
    metadata = Metadata()
    offset = metadata.image.next_offset
    assert metadata.register(2) == offset
    assert metadata.image.brokers[2].broker_epoch == offset


def test_registering_the_same_root_changes_no_partition() -> None:
    metadata = Metadata()
    before = metadata.t
    metadata.register(1)
    assert metadata.t == before


def test_registering_unfences_and_gives_leaderless_partitions_a_leader() -> None:
    """Section 4, "Register": it unfences, and partitions without a leader whose ISR it is in get one."""
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    assert (metadata.t.leader, metadata.t.isr) == (None, (1,))
    epoch = metadata.t.leader_epoch
    metadata.register(1)
    assert not metadata.image.brokers[1].fenced
    assert (metadata.t.leader, metadata.t.leader_epoch) == (1, epoch + 1)


def test_registering_a_broker_outside_the_isr_elects_nobody() -> None:
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    metadata.register(2)
    assert metadata.t.leader is None


def test_another_incarnation_leaves_every_isr_and_what_it_led_is_led_by_another() -> None:
    """Section 4, "Register": in the same commit the old one leaves every ISR, and every partition it led
    gets a new leader epoch."""
    metadata = Metadata()
    metadata.register(1, incarnation=1)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (2, 2, (2, 3))
    assert metadata.t.partition_epoch == 1


def test_another_incarnation_of_a_follower_leaves_the_isr_in_the_same_leader_epoch() -> None:
    metadata = Metadata()
    metadata.register(3, incarnation=1)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (1, 1, (1, 2))


def test_another_incarnation_leaves_the_isr_also_as_its_last_member() -> None:
    """Section 4, "Register", marked (!): V5 of the attack. The acknowledged data may live on elsewhere; the
    empty root must not lead and truncate it."""
    metadata = Metadata()
    metadata.fence(2, 3)
    metadata.register(1, incarnation=1)
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (None, (), 2)


def test_an_empty_isr_has_no_leader_whoever_registers() -> None:
    """Section 4: an empty ISR: no leader until ... an unclean election."""
    metadata = Metadata()
    metadata.fence(2, 3)
    metadata.register(1, incarnation=1)
    for broker_id in (1, 2, 3):
        metadata.register(broker_id, incarnation=broker_id == 1)
    assert metadata.t.leader is None


def test_another_incarnation_is_not_being_added_any_longer() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.propose([1, 2], adding=[3])
    metadata.register(3, incarnation=1)
    assert (metadata.t.isr, metadata.t.adding) == ((1, 2), ())


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
    """Section 4, "Fence": leaves the ISRs in which it is not the last member ... without a candidate, none."""
    metadata = Metadata()
    metadata.fence(1, 2, 3)
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (None, (3,), 4)


def test_fencing_drops_whom_is_being_added() -> None:
    """Section 4, "Expand": fencing and every change of the leader drop *adding*."""
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.propose([1, 2], adding=[3])
    metadata.fence(3)
    assert metadata.t.adding == ()


def test_a_change_of_the_leader_drops_whom_is_being_added() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.propose([1, 2], adding=[3])
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


# -------------------------------------------------------------------------- topics, configs


def test_a_topic_of_the_same_name_has_none_of_the_old_ones_configs() -> None:
    metadata = Metadata()
    metadata.do(AlterConfigs("t", {"segment.bytes": "5"}))
    metadata.do(DeleteTopic("t"))
    metadata.do(CreateTopic(name="t", topic_id=an_id(7), configs={"retention.ms": "9"}))
    assert metadata.image.topic("t").configs == {"retention.ms": "9"}
    assert metadata.image.topics.keys() == {an_id(7)}


def test_delete_and_recreate_may_stand_in_one_batch() -> None:
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
        RemoveTopicRecord(topic_id=an_id(5)),
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


@pytest.mark.parametrize("offset", [0, 4, 6])
def test_a_gap_or_an_overlap_of_offsets_is_refused(offset: int) -> None:
    metadata = Metadata()
    assert metadata.image.next_offset == 5
    with pytest.raises(LogGapError, match="known up to offset 5"):
        apply(metadata.image, offset, [NoOpRecord()])


# ----------------------------------------------------------------------------- one fold


def random_command(rng: random.Random, image: ClusterImage) -> Command[object]:
    """Any command, likely to be allowed."""
    names = ["t", "u", "v"]
    partitions = [(t.topic_id, p) for t in image.topics.values() for p in t.partitions]
    brokers = list(image.brokers.values())
    match rng.randrange(10):
        case 0 | 1:
            broker_id = rng.randint(1, 4)
            return RegisterBroker(broker_id, an_id(1000 * rng.randint(0, 2) + broker_id), "a", "x")
        case 2 if brokers:
            return FenceBroker(rng.choice(brokers).broker_id)
        case 3 if brokers:
            broker = rng.choice(brokers)
            return UnfenceBroker(broker.broker_id, broker.broker_epoch)
        case 4:
            configs = {"segment.bytes": str(rng.randint(1, 9))} if rng.random() < 0.5 else {}
            return CreateTopic(
                name=rng.choice(names),
                topic_id=an_id(rng.randrange(10**6) + 10**6),
                partitions=rng.randint(1, 3),
                replication_factor=rng.randint(1, 3),
                configs=configs,
            )
        case 5:
            return DeleteTopic(rng.choice(names))
        case 6:
            value = rng.choice([None, "1", "2"])
            return AlterConfigs(rng.choice([None, *names]), {rng.choice(["segment.bytes", "segment.ms"]): value})
        case 7 if partitions:
            topic_id, partition = rng.choice(partitions)
            return ElectPreferredLeaders(((topic_id, partition.partition),))
        case 8 if partitions:
            topic_id, partition = rng.choice(partitions)
            return AdvanceLogStart((LogStart(topic_id, partition.partition, rng.randint(0, 20)),))
        case _ if partitions:
            topic_id, partition = rng.choice(partitions)
            some = [b for b in partition.replicas if b in partition.isr or rng.random() < 0.5]
            isr = [b for b in some if b in (*partition.isr, *partition.adding)]
            epochs = {b: Member(b, image.brokers[b].broker_epoch) for b in some}
            return AlterPartition(
                (
                    IsrProposal(
                        topic_id=topic_id,
                        partition=partition.partition,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=partition.partition_epoch,
                        isr=tuple(epochs[b] for b in isr),
                        adding=tuple(epochs[b] for b in some if b not in isr),
                    ),
                )
            )
        case _:
            return RegisterBroker(1, an_id(1), "a", "x")


def random_history(rng: random.Random, commands: int) -> tuple[list[MetadataRecord], ClusterImage]:
    records: list[MetadataRecord] = []
    image = ClusterImage()
    for _ in range(commands):
        try:
            decision = random_command(rng, image).decide(image)
        except StratalogError:
            continue
        after = apply(image, image.next_offset, decision.records)
        check_step(image, after)
        records += decision.records
        image = after
    return records, image


def check_step(before: ClusterImage, after: ClusterImage) -> None:
    """What holds of every change of every partition."""
    for topic_id, topic in after.topics.items():
        if topic_id not in before.topics:
            continue
        for old, new in zip(before.topics[topic_id].partitions, topic.partitions, strict=True):
            assert (new.partition_epoch == old.partition_epoch) == (new == old)
            assert new.partition_epoch >= old.partition_epoch
            assert new.log_start_offset >= old.log_start_offset
            if new.leader != old.leader:
                assert new.leader_epoch > old.leader_epoch
                assert not new.adding
            assert new.leader_epoch >= old.leader_epoch
            if new.leader is None and new.isr:
                assert all(after.brokers[b].fenced for b in new.isr), "a candidate, and yet no leader"
            if new.leader is not None:
                assert not after.brokers[new.leader].fenced
            assert all(not after.brokers[b].fenced for b in new.adding)
            assert len(new.isr) == 1 or all(not after.brokers[b].fenced for b in new.isr)
            for b in set(new.isr) - set(old.isr):
                assert b in old.adding
    assert {name: after.topics[i].name for name, i in after.topic_ids.items()} == {
        name: name for name in after.topic_ids
    }
    assert len(after.topic_ids) == len(after.topics)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_fold_in_one_go_equals_a_fold_in_steps(seed: int, cuts: list[int]) -> None:
    """Issue 5: deleting and re-creating a topic of the same name with other configs included."""
    records, image = random_history(random.Random(seed), 60)
    at_once = apply(ClusterImage(), 0, records)
    in_steps = ClusterImage()
    bounds = sorted({0, *(min(cut, len(records)) for cut in cuts), len(records)})
    for start, end in pairwise(bounds):
        in_steps = apply(in_steps, start, records[start:end])
    assert at_once == in_steps == image or not records


def test_the_random_histories_reach_what_they_are_for() -> None:
    """A proof that cannot fail proves nothing."""
    recreated = leaderless = adding = 0
    for seed in range(60):
        records, image = random_history(random.Random(seed), 60)
        created = [record.name for record in records if isinstance(record, TopicRecord)]
        recreated += len(created) > len(set(created))
        states = [p for t in image.topics.values() for p in t.partitions]
        leaderless += any(p.leader is None for p in states)
        adding += any(isinstance(record, PartitionChangeRecord) and bool(record.adding) for record in records)
    assert min(recreated, leaderless, adding) > 10
