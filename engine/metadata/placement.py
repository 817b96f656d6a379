"""Which brokers hold the replicas of new partitions (Kafka's rack-aware placement). Pure.

Aims, in this order: the replicas of a partition stand in as many racks as can be; racks hold nearly equal
shares of replicas and of leaders, and so do the brokers within a rack; who follows whom varies, so that
the load of a lost leader spreads.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from partitions.errors import InvalidReplicationFactorError

K = TypeVar("K", int, str | None)


def place_replicas(
    racks: Mapping[int, str | None], partitions: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """Replicas per partition in order of preference, the leader first. ``racks`` gives the rack of every
    broker that may be used; brokers without one share a rack.

    Raises: InvalidReplicationFactorError.
    """
    if not 1 <= replication_factor <= len(racks):
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} with {len(racks)} unfenced brokers: "
            "it must be at least 1 and at most their number"
        )
    placer = _Placer(racks, rng)
    return [placer.place(replication_factor) for _ in range(partitions)]


class _Placer:
    """Counts what it has placed, and takes the least loaded; ties are broken by ``rng``."""

    def __init__(self, racks: Mapping[int, str | None], rng: random.Random) -> None:
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

    def _take(self, broker_id: int, rack: str | None, chosen: list[int], used: Counter[str | None]) -> None:
        chosen.append(broker_id)
        used[rack] += 1
        self._rack_replicas[rack] += 1
        self._replicas[broker_id] += 1

    def _least(self, candidates: Sequence[K], *loads: Counter[K]) -> K:
        return min(candidates, key=lambda one: (*(load[one] for load in loads), self._rng.random()))
