"""Histories: runs of the simulation in which drivers append, fetch, commit offsets and elect leaders under faults.

Each run has a seed's own cluster, faults and schedule. Unclean elections, damaged bits and restored copies are
left out, because they may lose acknowledged records by design.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stratalog.engine.driver.fetching import Fetching, Remote
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.records.append import append_batches, who_appends
from stratalog.engine.records.groups import commit, committed
from stratalog.partitions.runner import Outcome, attempt
from tests.linearizability.calls import Call, Calls
from tests.simulation import actions
from tests.simulation.actions import ACTIONS, Action
from tests.simulation.actor import Actor
from tests.simulation.configuration import Configuration, Operation, Shape, configuration_of
from tests.simulation.running import Run
from tests.simulation.strategies import Seeded
from tests.simulation.world import TOPIC

_THEMES = ("base", "delete", "move", "tier")
_WEIGHTS = {
    "recorded_append": 8,
    "recorded_fetch": 8,
    "recorded_commit": 3,
    "recorded_committed": 3,
    "elect": 3,
    "shrink": 2,
    "replicate": 2,
    "fence": 1,
    "unfence": 1,
    "merge": 1,
}
_OF_THEME = {"move": {"reassign": 3}, "tier": {"tier": 3, "retain": 2}}
_NOT_SOUND = {"flip", "wipe", "replace", "backup", "restore"}
_TRIES = 3


class SerialFetching(Fetching):
    """Fetches on the driver itself, because a separate thread could not be scheduled."""

    def run(self, begin: Any, items: Sequence[Any], *_: object, **__: object) -> Iterator[Outcome[Any, Any]]:
        for item in items:
            yield attempt(lambda item: _whole(begin(item)), item)


def _whole(found: Any) -> Any:
    return found.rest() if isinstance(found, Remote) else found


class Recorder:
    """The recorded actions of one run."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._next: dict[tuple[int, int], int] = {}
        """The next offset of each slot's consumer of a partition."""

    def actions(self) -> dict[str, Action]:
        """The actions, keyed by name, with their arguments."""

        def of_partition(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int, ...]:
            return slot, index, rng.randrange(shape.partitions), rng.randrange(3)

        made = {"append": self._append, "fetch": self._fetch, "commit": self._commit, "committed": self._committed}
        return {f"recorded_{name}": Action(of_partition, act) for name, act in made.items()}

    def _append(self, actor: Actor, slot: int, index: int, partition: int, size: int) -> str:
        tokens = [f"{partition}/{slot}/{index}/{number}".encode() for number in range(max(1, size))]
        call = self.calls.begin(slot, f"log {partition}", "append", records=tokens)
        ports, outcome = actor.ports, ""
        for _ in range(_TRIES):
            report = append_batches(
                *(ports.metadata, ports.storage, ports.clock, ports.memory, TOPIC),
                {partition: [actions.batch(tokens)]},
                who_appends(f"p{slot}", index),
            )
            (row,) = report.rows
            outcome = str(row["outcome"])
            if outcome in ("acknowledged", "duplicate"):
                self.calls.end(call, {"offset": row["base_offset"]})
                break
        return outcome

    def _fetch(self, actor: Actor, slot: int, index: int, partition: int, kind: int) -> str:
        """Continue where this consumer is, or begin again."""
        offset = self._next.get((slot, partition), 0) if kind else 0
        call = self.calls.begin(slot, f"log {partition}", "fetch", offset=offset)
        ports = actor.ports
        if not isinstance(ports.memory.fetching, SerialFetching):
            ports.memory.fetching = SerialFetching()
        found = fetch(
            *(ports.metadata, ports.storage, ports.clock, ports.memory), TOPIC, partition, offset, timeout_s=1
        )
        records = [value.decode() for value in found.records.column("value").to_pylist()]
        self._next[slot, partition] = found.next_offset
        answer = {"records": records, "high_watermark": found.high_watermark, "end_known": found.end_known}
        self.calls.end(call, answer)
        return f"{len(records)} records"

    def _commit(self, actor: Actor, slot: int, index: int, partition: int, group: int) -> str:
        """Commit the end of the log as this consumer knows it; the committed offset may go back, because there are
        several consumers.
        """
        offset = self._next.get((slot, partition), 0)
        call = self.calls.begin(slot, f"group g{group % 2} of {partition}", "commit", offset=offset)
        ports = actor.ports
        commit(
            *(ports.metadata, ports.storage, ports.execution, ports.memory),
            f"g{group % 2}",
            {(TOPIC, partition): offset},
        ).raise_for_failures()
        self.calls.end(call, {})
        return "ok"

    def _committed(self, actor: Actor, slot: int, index: int, partition: int, group: int) -> str:
        call = self.calls.begin(slot, f"group g{group % 2} of {partition}", "committed")
        ports = actor.ports
        found = committed(*(ports.metadata, ports.storage, ports.clock, ports.memory), f"g{group % 2}")
        one = found.get((TOPIC, partition))
        self.calls.end(call, {"offset": -1 if one is None else one.offset})
        return "ok"


def configuration(seed: int) -> Configuration:
    """The cluster, the faults and the schedule of a seed, with operations of recorded drivers."""
    rng = random.Random(f"recorded {seed}")
    theme = rng.choice(_THEMES)
    base = configuration_of(seed, theme)
    weights = {**_WEIGHTS, **_OF_THEME.get(theme, {})}
    table = {**ACTIONS, **Recorder().actions()}
    topics = (("offsets.topic.num.partitions", "1"), ("offsets.topic.replication.factor", str(base.shape.copies)))
    kept = ("remote.storage.enable", "segment.bytes", "local.retention.bytes", "retention.bytes", "retention.ms")
    unbounded = {"retention.bytes": "-1"}  # the specification has no log start
    configs = {
        name: unbounded.get(name, value)
        for name, value in base.shape.topic_configs
        if name in kept or not name.startswith("retention")
    }
    shape = replace(
        base.shape, topic_configs=tuple(configs.items()), cluster_configs=(*base.shape.cluster_configs, *topics)
    )
    operations = tuple(
        tuple(
            Operation(name, table[name].plan(rng, shape, slot, index))
            for index, name in enumerate(rng.choices([*weights], [*weights.values()], k=rng.randint(4, 9)))
        )
        for slot in range(max(2, len(base.operations)))
    )
    events = tuple(event for event in base.events if event[1] not in _NOT_SOUND)
    return replace(base, shape=shape, operations=operations, events=events, most_steps=base.most_steps * 2)


def record(seed: int) -> list[Call]:
    """The calls of a seed's run. Raises: AssertionError if the run itself broke an invariant."""
    recorder = Recorder()
    run = Run(configuration(seed))
    before = dict(ACTIONS)
    ACTIONS.update(recorder.actions())
    try:
        result = run.run(Seeded(run.configuration), enough=lambda: True)
    finally:
        ACTIONS.clear()
        ACTIONS.update(before)
    assert result.violation is None, f"seed {seed}: {result.violation}"
    return recorder.calls.made
