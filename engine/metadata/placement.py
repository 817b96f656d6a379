"""Chooses the brokers of new and moved replicas (Kafka's rack-aware placement). Pure.

Aims, in this order: the replicas of a partition are in as many racks as possible; racks hold nearly equal shares
of replicas and leaders, and so do the brokers within a rack; the order of followers varies, so that the load of a
lost leader spreads.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from stratalog.partitions.errors import InvalidReplicationFactorError

K = TypeVar("K", int, str | None)


def place_replicas(
    racks: Mapping[int, str | None], partitions: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """Replicas of each partition in order of preference, the leader first. ``racks`` gives the rack of every
    usable broker; brokers without a rack are treated as one rack.

    Raises: InvalidReplicationFactorError.
    """
    if not 1 <= replication_factor <= len(racks):
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} with {len(racks)} unfenced brokers: "
            "use at least 1 and at most the number of brokers"
        )
    placer = Placer(racks, rng)
    return [placer.place(replication_factor) for _ in range(partitions)]


class Placer:
    """Counts placed replicas, and chooses the least loaded broker; ``rng`` breaks ties."""

    def __init__(
        self, racks: Mapping[int, str | None], rng: random.Random, full: Mapping[int, str | None] | None = None
    ) -> None:
        """``racks`` has every usable broker; ``full`` the brokers that hold replicas but cannot take more
        replicas.
        """
        self._racks = {**(full or {}), **racks}
        self._members: dict[str | None, list[int]] = {}
        for broker_id in sorted(racks):
            self._members.setdefault(racks[broker_id], []).append(broker_id)
        self._rng = rng
        self._rack_leaders: Counter[str | None] = Counter()
        self._rack_replicas: Counter[str | None] = Counter()
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """The replicas of the next partition."""
        leader_rack = self._least(list(self._members), self._rack_leaders, self._rack_replicas)
        leader = self._least(self._members[leader_rack], self._leaders, self._replicas)
        self._rack_leaders[leader_rack] += 1
        self._leaders[leader] += 1
        chosen: list[int] = []
        used: Counter[str | None] = Counter()
        self._take(leader, leader_rack, chosen, used)
        while len(chosen) < replication_factor:
            free = {rack: [b for b in brokers if b not in chosen] for rack, brokers in self._members.items()}
            rack = self._least([rack for rack in free if free[rack]], used, self._rack_replicas)
            self._take(self._least(free[rack], self._replicas), rack, chosen, used)
        return tuple(chosen)

    def count(self, replicas: Sequence[int], times: int = 1) -> None:
        """Count a placed partition, its preferred leader first; ``times`` -1 removes the partition."""
        self._rack_leaders[self._racks[replicas[0]]] += times
        self._leaders[replicas[0]] += times
        for broker_id in replicas:
            self._rack_replicas[self._racks[broker_id]] += times
            self._replicas[broker_id] += times

    def another(self, kept: Collection[int]) -> int | None:
        """The broker for one more replica in addition to ``kept``; None when all brokers have one. The new replica
        is not counted yet.
        """
        used = Counter(self._racks[broker_id] for broker_id in kept)
        free = {rack: [b for b in brokers if b not in kept] for rack, brokers in self._members.items()}
        racks = [rack for rack in free if free[rack]]
        if not racks:
            return None
        return self._least(free[self._least(racks, used, self._rack_replicas)], self._replicas)

    def dispensable(self, replicas: Sequence[int], candidates: Sequence[int]) -> int:
        """The candidate to remove: one that shares its rack with another candidate, on the most loaded broker."""
        used = Counter(self._racks[broker_id] for broker_id in replicas)
        return max(candidates, key=lambda b: (used[self._racks[b]], self._replicas[b], self._rng.random()))

    def leader(self, candidates: Sequence[int]) -> int:
        """The candidate with the fewest preferred leaders."""
        return min(candidates, key=lambda b: (self._leaders[b], self._rack_leaders[self._racks[b]]))

    def _take(self, broker_id: int, rack: str | None, chosen: list[int], used: Counter[str | None]) -> None:
        chosen.append(broker_id)
        used[rack] += 1
        self._rack_replicas[rack] += 1
        self._replicas[broker_id] += 1

    def _least(self, candidates: Sequence[K], *loads: Counter[K]) -> K:
        return min(candidates, key=lambda one: (*(load[one] for load in loads), self._rng.random()))
