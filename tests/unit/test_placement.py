"""Replicas over racks (Kafka's rack-aware aims)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.metadata.placement import place_replicas
from stratalog.partitions.errors import InvalidReplicationFactorError


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[int, str | None], list[tuple[int, ...]]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    racks: dict[int, str | None] = {}
    for rack, size in enumerate(sizes):
        racks |= {len(racks) + n: None if rack == 0 else f"rack-{rack}" for n in range(size)}
    factor = draw(st.integers(1, len(racks)))
    partitions = draw(st.integers(1, 40))
    rng = random.Random(draw(st.integers(0, 1000)))
    return racks, place_replicas(racks, partitions, factor, rng)


def spread(counts: Counter[int] | Counter[str | None], over: set[int] | set[str | None]) -> int:
    """The difference between the maximum and the minimum."""
    numbers = [counts[one] for one in over]  # type: ignore[index]
    return max(numbers) - min(numbers)


@given(placements())
def test_the_replicas_of_a_partition_are_in_as_many_racks_as_possible(
    placed: tuple[dict[int, str | None], list[tuple[int, ...]]],
) -> None:
    racks, partitions = placed
    for replicas in partitions:
        assert len(set(replicas)) == len(replicas)
        assert len({racks[b] for b in replicas}) == min(len(replicas), len(set(racks.values())))


@given(placements())
def test_racks_and_the_brokers_of_a_rack_share_evenly(
    placed: tuple[dict[int, str | None], list[tuple[int, ...]]],
) -> None:
    racks, partitions = placed
    leaders = Counter(replicas[0] for replicas in partitions)
    held = Counter(b for replicas in partitions for b in replicas)
    assert spread(Counter(racks[replicas[0]] for replicas in partitions), set(racks.values())) <= 1
    if len(partitions[0]) <= len(set(racks.values())):
        assert spread(Counter(racks[b] for b in held.elements()), set(racks.values())) <= 2
    for rack in set(racks.values()):
        members = {b for b in racks if racks[b] == rack}
        assert spread(leaders, members) <= 1
        assert spread(held, members) <= 2


def test_the_load_of_a_lost_leader_spreads() -> None:
    placed = place_replicas(dict.fromkeys(range(5), "a"), 100, 3, random.Random(1))
    assert len({replicas[1] for replicas in placed if replicas[0] == 0}) == 4


def test_the_same_seed_places_the_same_and_another_differently() -> None:
    racks = {n: f"rack-{n % 3}" for n in range(9)}
    once, again, other = (place_replicas(racks, 6, 3, random.Random(seed)) for seed in (1, 1, 2))
    assert once == again != other


@pytest.mark.parametrize("factor", [0, 3])
def test_a_factor_beyond_the_brokers_is_refused(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError, match=f"replication factor {factor} with 2 unfenced"):
        place_replicas({1: "a", 2: "b"}, 1, factor, random.Random(1))
