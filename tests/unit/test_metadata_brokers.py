"""The life of brokers: register, fence, unfence, unregister (protocol section 4; KIP-903)."""

from __future__ import annotations

import pytest

from stratalog.engine.metadata.commands import FenceBroker, RegisterBroker, UnfenceBroker, UnregisterBroker
from stratalog.engine.metadata.image import BrokerImage, ClusterImage
from stratalog.engine.metadata.records import FenceBrokerRecord, UnregisterBrokerRecord, VoterId, VotersRecord
from stratalog.engine.metadata.topic_commands import CreateTopic, DeleteTopic
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogDirError,
    StaleBrokerError,
    UnknownBrokerError,
)
from tests.unit.metadata_harness import Metadata, an_id, with_newcomer

# ------------------------------------------------------------------------------- commands


def test_two_brokers_cannot_share_a_directory() -> None:
    metadata = Metadata()
    with pytest.raises(LogDirError, match="broker 4 is already the log dir of broker 1"):
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


def test_a_broker_that_was_registered_again_is_not_unfenced_by_an_old_epoch() -> None:
    metadata = Metadata()
    old = metadata.image.brokers[1].broker_epoch
    metadata.register(1, incarnation=1)
    metadata.fence(1)
    with pytest.raises(StaleBrokerError, match=f"not {old}"):
        metadata.do(UnfenceBroker(1, old))


@pytest.mark.parametrize("command", [FenceBroker(9), UnfenceBroker(9, 1), UnregisterBroker(9)])
def test_unknown_brokers_are_named(command: FenceBroker | UnfenceBroker | UnregisterBroker) -> None:
    with pytest.raises(UnknownBrokerError, match="broker 9"):
        Metadata().do(command)


def test_an_empty_cluster_has_no_broker_to_fence() -> None:
    with pytest.raises(UnknownBrokerError, match=r"is not registered \(registered: .*\): correct the number"):
        FenceBroker(1).decide(ClusterImage())


def test_a_prober_that_is_late_does_not_fence_the_next_registration() -> None:
    metadata = Metadata()
    seen = metadata.image.brokers[1].broker_epoch
    metadata.register(1)
    with pytest.raises(StaleBrokerError, match=f"not {seen}: it was registered again"):
        metadata.do(FenceBroker(1, seen))
    assert not metadata.image.brokers[1].fenced
    metadata.do(FenceBroker(1, metadata.image.brokers[1].broker_epoch))
    assert metadata.image.brokers[1].fenced


def test_a_broker_that_is_fenced_by_hand_is_held() -> None:
    metadata = Metadata()
    metadata.fence(1)
    assert not metadata.image.brokers[1].fenced_by_hand
    metadata.do(FenceBroker(1, by_hand=True))
    assert metadata.image.brokers[1].fenced_by_hand
    for again in (FenceBroker(1), FenceBroker(1, by_hand=True)):
        assert again.decide(metadata.image).records == ()


def test_unfencing_and_registering_end_the_hold() -> None:
    metadata = Metadata()
    for back in (lambda: metadata.unfence(1), lambda: metadata.register(1)):
        metadata.do(FenceBroker(1, by_hand=True))
        back()
        assert (metadata.image.brokers[1].fenced, metadata.image.brokers[1].fenced_by_hand) == (False, False)


def test_a_broker_cannot_be_fenced_by_hand_and_not_fenced() -> None:
    with pytest.raises(CorruptionError, match="fenced by hand but not fenced"):
        BrokerImage(
            broker_id=1,
            broker_epoch=0,
            directory_id=an_id(1),
            incarnation_folder="h",
            rack=None,
            log_dir="",
            fenced=False,
            fenced_by_hand=True,
        )


# ------------------------------------------------------------------------------ unregister


def test_a_broker_without_replicas_is_unregistered() -> None:
    metadata = Metadata()
    metadata.register(4)
    assert UnregisterBroker(4).decide(metadata.image).records == (UnregisterBrokerRecord(broker_id=4),)
    metadata.do(UnregisterBroker(4))
    assert 4 not in metadata.image.brokers
    metadata.register(4)
    assert metadata.image.brokers[4].broker_epoch == metadata.image.next_offset - 1


def test_a_broker_with_replicas_is_not_unregistered() -> None:
    metadata = Metadata()
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), partitions=9, replication_factor=3))
    with pytest.raises(
        InvalidCallError, match=r"replicas of t-0, u-0, u-1, u-2, u-3 and 5 more: drain it with re"
    ):
        metadata.do(UnregisterBroker(1))
    metadata.do(DeleteTopic("u"))
    with pytest.raises(InvalidCallError, match=r"replicas of t-0: drain"):
        metadata.do(UnregisterBroker(1))
    metadata.do(DeleteTopic("t"))
    metadata.do(UnregisterBroker(1))


def test_a_metadata_voter_is_not_unregistered() -> None:
    metadata = Metadata()
    metadata.register(4)
    metadata.commit(VotersRecord(cluster_id="c", voters=(VoterId(4, an_id(4)),)))
    with pytest.raises(InvalidCallError, match="broker 4 is a metadata voter"):
        metadata.do(UnregisterBroker(4))


# ------------------------------------------------------------------- registrations of a root


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
    """Section 4, "Register": it unfences the broker, and a partition without a leader gets one if the broker is in
    its ISR.
    """
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
    """Section 4, "Register": in the same commit the old incarnation leaves every ISR, and every partition that it
    led gets a new leader epoch.
    """
    metadata = Metadata()
    metadata.register(1, incarnation=1)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (2, 2, (2, 3))
    assert metadata.t.partition_epoch == 1


def test_another_incarnation_of_a_follower_leaves_the_isr_in_the_same_leader_epoch() -> None:
    metadata = Metadata()
    metadata.register(3, incarnation=1)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (1, 1, (1, 2))


def test_another_incarnation_leaves_the_isr_also_as_its_last_member() -> None:
    """Section 4, "Register", marked (!): V5 of the attack. The acknowledged data may survive elsewhere; the empty
    root must not lead and truncate it."""
    metadata = Metadata()
    metadata.fence(2, 3)
    metadata.register(1, incarnation=1)
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (None, (), 2)


def test_an_empty_isr_has_no_leader_whichever_broker_registers() -> None:
    """Section 4: an empty ISR: no leader until ... an unclean election."""
    metadata = Metadata()
    metadata.fence(2, 3)
    metadata.register(1, incarnation=1)
    for broker_id in (1, 2, 3):
        metadata.register(broker_id, incarnation=broker_id == 1)
    assert metadata.t.leader is None


def test_another_incarnation_is_not_being_added_any_longer() -> None:
    metadata = with_newcomer()
    metadata.register(3, incarnation=1)
    assert (metadata.t.isr, metadata.t.adding) == ((1, 2), ())
