"""Incarnations of a root: wiped, restored, moved, returned (protocol section 4, "Register"; V5)."""

from __future__ import annotations

import pytest

from tests.unit.metadata_harness import Metadata, an_id


def alone_on_broker_1(root: str = "") -> Metadata:
    """The ISR is broker 1 alone, whose root has this identity."""
    metadata = Metadata()
    metadata.register(1, root=root)
    metadata.propose([1])
    return metadata


def test_the_same_root_found_again_changes_no_partition() -> None:
    metadata = alone_on_broker_1("a")
    before = metadata.t
    metadata.register(1, root="a")
    assert metadata.t == before


def test_a_restored_older_copy_is_another_incarnation() -> None:
    """The directory id is that of the original; records acknowledged since the copy are missing."""
    metadata = Metadata()
    metadata.register(1, root="a")
    metadata.register(1, root="b")
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (2, (2, 3), 2)
    assert metadata.image.brokers[1].root == "b"


def test_a_copy_that_a_person_trusts_is_the_same_incarnation() -> None:
    metadata = alone_on_broker_1("a")
    before = metadata.t
    metadata.register(1, root="b", trusted=True)
    assert metadata.t == before
    assert metadata.image.brokers[1].root == "b"


def test_trust_does_not_cover_another_directory() -> None:
    metadata = Metadata()
    metadata.register(1, incarnation=1, trusted=True)
    assert metadata.t.isr == (2, 3)


@pytest.mark.parametrize(("before", "after"), [("", "a"), ("a", ""), ("", "")])
def test_a_root_that_is_not_known_equals_any(before: str, after: str) -> None:
    metadata = alone_on_broker_1(before)
    metadata.register(1, root=after)
    assert metadata.t.isr == (1,)


def test_a_registration_that_did_not_look_at_the_root_keeps_what_was_known_of_it() -> None:
    """Otherwise a copy could be registered in two steps, through a registration that equals any registration."""
    metadata = alone_on_broker_1("a")
    metadata.register(1)
    assert metadata.image.brokers[1].root == "a"
    metadata.register(1, root="b")
    assert metadata.t.isr == ()


def test_a_trusted_copy_that_nobody_looked_at_is_not_known() -> None:
    metadata = alone_on_broker_1("a")
    metadata.register(1, trusted=True)
    assert metadata.image.brokers[1].root == ""
    metadata.register(1, root="b")
    assert metadata.t.isr == (1,)


# ----------------------------------------------------------------- the last member, lost and back


def test_the_last_member_that_was_lost_is_remembered() -> None:
    metadata = alone_on_broker_1("a")
    metadata.register(1, incarnation=1, root="b")
    assert (metadata.t.leader, metadata.t.isr) == (None, ())
    assert metadata.t.lost == ((1, an_id(1), "a", an_id(1)),)


def test_the_old_storage_that_comes_back_is_the_isr_and_leads() -> None:
    """Section 4, "Register": an empty ISR: no leader until the old storage comes back."""
    metadata = alone_on_broker_1("a")
    metadata.register(1, incarnation=1, root="b")
    epoch, partition_epoch = metadata.t.leader_epoch, metadata.t.partition_epoch
    metadata.register(1, root="a")
    assert (metadata.t.leader, metadata.t.isr, metadata.t.lost) == (1, (1,), ())
    assert (metadata.t.leader_epoch, metadata.t.partition_epoch) == (epoch + 1, partition_epoch + 1)


def test_whatever_was_registered_in_between() -> None:
    metadata = alone_on_broker_1("a")
    metadata.register(1, incarnation=1)
    metadata.register(1, incarnation=2)
    metadata.fence(1, 2, 3)
    for broker_id in (2, 3):
        metadata.register(broker_id, incarnation=1)
    assert metadata.t.leader is None
    metadata.register(1, root="a")
    assert (metadata.t.leader, metadata.t.isr) == (1, (1,))


def test_an_older_copy_of_the_old_storage_does_not_bring_it_back() -> None:
    metadata = alone_on_broker_1("a")
    metadata.register(1, incarnation=1)
    metadata.register(1, root="b")
    assert (metadata.t.leader, metadata.t.isr) == (None, ())
    metadata.register(1)  # The root is not read, so the known root is still the copy.
    assert (metadata.t.leader, metadata.t.isr) == (None, ())
    metadata.register(1, root="b", trusted=True)
    assert (metadata.t.leader, metadata.t.isr) == (1, (1,))


def test_a_copy_over_the_original_and_the_original_back() -> None:
    metadata = alone_on_broker_1("a")
    metadata.register(1, root="b")
    assert (metadata.t.isr, metadata.t.lost) == ((), ((1, an_id(1), "a", an_id(1)),))
    metadata.register(1, root="a")
    assert metadata.t.isr == (1,)


def test_a_fenced_last_member_that_is_replaced_is_lost_like_any_other() -> None:
    metadata = alone_on_broker_1("a")
    metadata.fence(1)
    assert (metadata.t.isr, metadata.t.lost) == ((1,), ())
    metadata.register(1, incarnation=1)
    assert (metadata.t.isr, metadata.t.lost) == ((), ((1, an_id(1), "a", an_id(1)),))


def test_a_broker_that_was_not_the_last_member_does_not_rejoin_the_isr() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.register(1, incarnation=1)
    metadata.register(2, incarnation=1)
    assert metadata.t.lost == ((2, an_id(2), "", an_id(2)),)
    metadata.register(1)
    assert (metadata.t.leader, metadata.t.isr) == (None, ())
    metadata.register(2)
    assert (metadata.t.leader, metadata.t.isr) == (2, (2,))


def test_an_unregistered_stranger_matters_to_no_partition() -> None:
    metadata = alone_on_broker_1("a")
    metadata.register(1, incarnation=1)
    before = metadata.t
    metadata.register(4)
    metadata.register(4, incarnation=1)
    assert metadata.t == before


# ------------------------------------------------------------------------------------- homes


def test_every_incarnation_has_a_home_of_its_own_and_the_same_again_when_it_is_back() -> None:
    """Protocol, section 1: a driver that knew a removed incarnation writes to an abandoned folder. A copy has the
    directory id of the original, but must not have its folders.
    """
    metadata = Metadata()
    metadata.register(1, incarnation=2, root="a")
    first = metadata.image.broker(1).incarnation_folder
    metadata.register(1, incarnation=2, root="b")
    copy = metadata.image.broker(1).incarnation_folder
    assert copy != first
    metadata.register(1, incarnation=1)
    assert metadata.image.broker(1).incarnation_folder not in (first, copy)
    metadata.register(1, incarnation=2, root="a")
    assert metadata.image.broker(1).incarnation_folder == first


def test_a_trusted_copy_keeps_the_home_of_what_it_is_a_copy_of() -> None:
    metadata = Metadata()
    metadata.register(1, root="a")
    incarnation_folder = metadata.image.broker(1).incarnation_folder
    metadata.register(1, root="b", trusted=True)
    assert metadata.image.broker(1).incarnation_folder == incarnation_folder
    assert metadata.t.isr == (1, 2, 3)


def test_a_copy_that_is_trusted_late_is_what_partitions_waited_for_and_leaves_the_others() -> None:
    """The copy was registered as another incarnation first, and has received copies since."""
    metadata = alone_on_broker_1("a")
    incarnation_folder = metadata.image.broker(1).incarnation_folder
    metadata.register(1, root="b")
    assert metadata.t.isr == ()
    metadata.register(1, root="b", trusted=True)
    assert metadata.image.broker(1).incarnation_folder == incarnation_folder
    assert (metadata.t.leader, metadata.t.isr) == (1, (1,))
