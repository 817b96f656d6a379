"""The allowed targets of flips, and the damage that the end excuses."""

from __future__ import annotations

import pytest

from stratalog.partitions.paths import DataName, EpochName
from tests.simulation.configuration import Configuration, small
from tests.simulation.ending import LoneDriver
from tests.simulation.running import Run
from tests.simulation.scheduler import InTurn
from tests.simulation.strategies import Script
from tests.simulation.world import World


def run_until(configuration: Configuration, call: str = "") -> World:
    """The world when the first driver is about to make this call, or is done."""
    run = Run(configuration)
    assert run.run(Script(("d0", call)), enough=lambda: True).violation is None
    return run.world


def test_a_good_copy_of_an_unacknowledged_record_stays() -> None:
    """Brokers 3 and 1 have the record; broker 2, an intact member of the ISR without it, may leave the ISR, and
    then the record is committed."""
    world = run_until(small("append p0 0 0 1", brokers=3, copies=3), "create 1.epoch b2")
    key = world.topic_id, 0
    name = str(DataName(0, None, 1))
    for number in range(50):
        world.events.apply("flip", number)
    good = [world.copies.elsewhere(key, broker, name) for broker in (1, 3)]
    assert sorted(good) == [[False], [True]]


def test_the_only_copy_that_a_reassignment_leaves_stays_good() -> None:
    """Broker 1 has copied and verified the record, but is not yet the only replica."""
    world = run_until(small("append p0 0 0 1; reassign 0 1; replicate", brokers=3, copies=1), "create 1.1.hw b1")
    key = world.topic_id, 0
    partition = world.invariants.partition(key)
    assert partition is not None
    assert (partition.replicas, partition.target) == ((3, 1), (1,))
    for number in range(50):
        world.events.apply("flip", number)
    assert world.copies.elsewhere(key, 3, str(DataName(0, None, 1))) == [True]


def bring_in_order(world: World) -> None:
    """The end of a run. Raises: Violation."""
    world.scheduler.spawn("lone", -1, LoneDriver(world).main)
    assert world.scheduler.run(InTurn(world.now_ms), 100_000)


def flip(world: World, broker: int, name: DataName | EpochName) -> None:
    """Flip a bit in the middle of a file of a replica."""
    key = world.topic_id, 0
    world.damage.flip(world.roots[broker], f"{world.invariants.folder(broker, key)}/{name}", key, lambda n: n // 2)


COMMITTED, BEYOND = DataName(0, None, 1), DataName(1, None, 1)


@pytest.mark.slow
@pytest.mark.parametrize("shrink", ["", "; shrink 1 0"])
@pytest.mark.parametrize("other", [COMMITTED, EpochName(1)])
def test_a_partition_stays_as_it_is_when_no_member_is_intact_though_only_unacknowledged_records_are_lost(
    shrink: str, other: DataName | EpochName
) -> None:
    """Broker 2 leads with an unacknowledged record, which cannot be read any more. Broker 1 is damaged too, in the
    ISR or out of it, so that it cannot lead: an operator has to decide."""
    world = run_until(small(f"append p9 0 0 1; append_leader 0 0 1 leader{shrink}"))
    flip(world, 2, BEYOND)
    flip(world, 1, other)
    damaged = list(world.copies.damaged())
    bring_in_order(world)
    assert world.abandoned
    assert list(world.copies.damaged()) == damaged


def test_records_without_an_acknowledgement_are_given_up_when_an_intact_member_can_lead() -> None:
    world = run_until(small("append p9 0 0 1; append_leader 0 0 1 leader"))
    flip(world, 2, BEYOND)
    bring_in_order(world)
    assert not world.abandoned
    assert not list(world.copies.damaged())
