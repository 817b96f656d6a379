"""The content of a seed: the voters, the operations of each process, the faults, the schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.simulation.configuration import Event, Operation, Plan, operations_of

READERS_IN = 4
"""One in this many seeds has a process that may only read."""
FOR_EVER = 10**12
"""A lag after which the log start moves, in ms: longer than any run."""

LONG_IN = 5
"""One in this many seeds has commits that take snapshots."""
KEYS_IN = 3
"""One in this many seeds has a cluster with a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Plan):
    """Everything on which a run depends, except the random choices of its schedule."""

    voters: int = 3
    others: int = 1
    """Formatted roots of brokers that are not voters."""
    lag_ms: int = 0
    attempts: int = 6
    claimant_attempts: int = 2
    """See ``stratalog.engine.quorum.log.Patience``."""
    zombie_rate: float = 0.0
    """The probability that a process stops before a mutating call until others have claimed twice."""
    late_rate: float = 0.0
    """The fraction of lost answers whose calls take effect later."""
    slow: int = 0
    """The broker whose calls take ten times as long; 0 means none."""
    refused: frozenset[tuple[int, int]] = frozenset()
    """Slots, and the brokers whose roots their processes may only read."""
    real_files: bool = False
    """Whether files have their real content, or stand-ins for it (see ``remembering``)."""
    chunk_bytes: int = 0
    """Snapshots above this size are fetched in chunks; 0 selects the product's limit."""
    most_batches: int = 50
    """A commit takes a snapshot after this number of batches since the latest one."""
    key: bool = False
    """Whether the cluster has a key; an attacker without it then writes to a voter."""


def directed(*slots: str, **given: object) -> Configuration:
    """A configuration written by hand: operations by slot."""
    settings = {"seed": 0, "others": 0, "tick_ms": 0, "constant_roots": True, **given}
    return Configuration(operations=tuple(map(operations_of, slots)), **settings)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Theme:
    """The subject of a run: the weights of operations, and the events."""

    name: str
    weights: tuple[tuple[str, int], ...]
    events: tuple[str, ...] = ("cut", "cut", "fill", "leave")
    weight: int = 10


_BASE = (("commit", 8), ("read", 4), ("snapshot", 2), ("take", 1), ("together", 1))
THEMES: Sequence[Theme] = (
    Theme("commits", (*_BASE, ("open", 1), ("take", 2)), weight=20),
    Theme("snapshots", (*_BASE, ("snapshot", 8), ("open", 2)), ("cut", "leave"), weight=20),
    Theme("threads", (*_BASE, ("together", 8)), weight=8),
    Theme("caches", (*_BASE, ("open", 8), ("snapshot", 2)), weight=10),
    Theme("voters", (*_BASE, ("change", 7), ("open", 1)), ("cut", "leave", "fill"), weight=16),
    Theme(
        "losses", (*_BASE, ("snapshot", 2), ("replace", 5), ("change", 1)), ("wipe", "cut", "damage"), weight=16
    ),
    Theme("damage", (*_BASE, ("snapshot", 5), ("open", 4)), ("damage", "damage", "damage_all", "cut"), weight=12),
    Theme(
        "strangers",
        (*_BASE, ("snapshot", 3), ("open", 5), ("describe", 1)),
        ("stranger", "stranger", "stranger", "cut"),
        weight=12,
    ),
    Theme("outage", (*_BASE, ("describe", 1)), ("outage", "outage", "cut"), weight=8),
)


def configuration_of(seed: int, theme_name: str | None = None) -> Configuration:
    """The configuration of a seed, with a certain theme if given."""
    rng = random.Random(f"quorum {seed}")
    theme = rng.choices(THEMES, [theme.weight for theme in THEMES])[0]
    if theme_name is not None:
        (theme,) = (theme for theme in THEMES if theme.name == theme_name)
    voters = rng.choice((1, 3, 3, 3, 3, 5))
    slots = rng.choice((2, 2, 3, 3, 3, 4, 5))
    length = (2, 4) if slots < 4 else (1, 3)
    operations = tuple(
        tuple(_operation(rng, theme.weights, voters + 1) for _ in range(rng.randint(*length)))
        for _ in range(slots)
    )
    horizon = rng.choice((80, 160, 320))
    faulty = rng.random() < 0.75
    events = _events(rng, theme, voters, slots, horizon) if faulty else ()
    changing = any(one.action in ("replace", "change") for slot in operations for one in slot)
    made = Configuration(
        seed=seed,
        operations=operations,
        events=events,
        constant_roots=not changing and not any(what == "wipe" for _, what, _ in events),
        page=rng.choice((0, 0, 0, 0, 0, 0, 2, 5)),
        tick_ms=rng.choice((0, 1, 10)),
        schedule=rng.choice(("priorities", "priorities", "bursts", "bursts", "uniform")),
        horizon=horizon,
        fault_rate=rng.choice((0.0, 0.01, 0.03, 0.08)) if faulty else 0.0,
        stall_rate=rng.choice((0.0, 0.0, 0.05, 0.2)),
        crashes=rng.choice((0, 1, 2, 3)) if faulty else 0,
        most_steps=horizon * 8,
        tags=frozenset({theme.name}),
        voters=voters,
        others=1,
        lag_ms=rng.choice((0, 0, 100, FOR_EVER, FOR_EVER)) if theme.name != "damage" else FOR_EVER,
        attempts=rng.choice((4, 6, 8)),
        claimant_attempts=rng.choice((0, 0, 2)),
        zombie_rate=rng.choice((0.0, 0.03, 0.1)),
        late_rate=rng.choice((0.0, 0.5, 0.8)),
        slow=rng.choice((0, 0, 0, 1)) and rng.randint(1, voters),
        real_files=seed % 10 == 0,
        chunk_bytes=2000 if seed % 20 == 0 else 0,
    )
    if seed % LONG_IN == 1:
        made = replace(made, most_batches=random.Random(f"long {seed}").randint(1, 4))
        made = replace(made, tags=made.tags | {"commits that snapshot"})
    made = with_key(made) if seed % KEYS_IN == 0 else made
    return with_readers(made) if seed % READERS_IN == 0 else made


def with_key(configuration: Configuration) -> Configuration:
    """The configuration for a cluster with a key; an attacker without the key writes to one voter repeatedly."""
    rng = random.Random(f"stranger {configuration.seed}")
    broker = rng.randint(1, configuration.voters)
    forged = [(rng.randrange(configuration.horizon), "forge", broker) for _ in range(rng.randint(1, 6))]
    events = tuple(sorted((*configuration.events, *forged)))
    return replace(configuration, key=True, events=events, tags=configuration.tags | {"key"})


def with_readers(configuration: Configuration) -> Configuration:
    """The configuration with one more slot, whose processes may only read; sometimes other slots may not write to
    single voters.
    """
    rng = random.Random(f"readers {configuration.seed}")
    slot = len(configuration.operations)
    brokers = range(1, configuration.voters + configuration.others + 1)
    refused = {(slot, broker) for broker in brokers}
    if rng.random() < 0.3:
        refused.add((rng.randrange(slot), rng.choice(brokers)))
    reading = [Operation("read"), Operation("read"), Operation("read"), Operation("describe"), Operation("commit")]
    operations = [Operation("open", (rng.randint(0, 9),)) if rng.random() < 0.4 else rng.choice(reading)]
    operations += rng.choices(reading, k=rng.randint(2, 5))
    return replace(
        configuration,
        operations=(*configuration.operations, tuple(operations)),
        refused=frozenset(refused),
        tags=configuration.tags | {"readers"},
    )


def _operation(rng: random.Random, weights: Sequence[tuple[str, int]], brokers: int) -> Operation:
    action = rng.choices([name for name, _ in weights], [weight for _, weight in weights])[0]
    match action:
        case "take":
            return Operation(action, (rng.randint(1, 3),))
        case "together":
            return Operation(action, (rng.randint(2, 4),))
        case "change":
            return Operation(action, (rng.randint(1, brokers),))
        case "open":
            return Operation(action, (rng.randint(0, 9),))
        case _:
            return Operation(action)


def _events(rng: random.Random, theme: Theme, voters: int, slots: int, horizon: int) -> tuple[Event, ...]:
    events: list[Event] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at, what, broker = rng.randrange(horizon), rng.choice(theme.events), rng.randint(1, voters)
        if rng.random() < 0.1:
            events.append((at, "double", rng.randrange(slots)))
            continue
        events.append((at, what, broker))
        ends = {"cut": "repair", "fill": "repair", "outage": "repair_all"}.get(what)
        if ends is not None:
            events.append((at + rng.choice((5, 20, 60, 200)), ends, broker))
    return tuple(sorted(events))
