"""The content of a seed: the cluster, the operations of each driver, the faults, the schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.simulation.themes import (
    ALWAYS_DUE,
    BEHIND,
    COMPACT,
    COMPACT_TIERED,
    EARLIER,
    ERASE,
    ERASE_COMPACT_TIERED,
    ERASE_TIERED,
    LOST,
    MAINTAIN,
    MIXED_IN,
    PUBLISHED,
    THEMES,
    WITH_SNAPSHOTS,
    Theme,
)

Event = tuple[int, str, int]
"""The step, the kind, and the broker or slot of an event (see ``faults.Events``)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a driver. The action interprets the arguments."""

    action: str
    arguments: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, (self.action, *self.arguments)))


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster as it is formatted: only the first of each shape is formatted, the others are copies."""

    brokers: int
    voters: int
    partitions: int
    copies: int
    topic_configs: tuple[tuple[str, str], ...]
    cluster_configs: tuple[tuple[str, str], ...]
    placement: int
    """Determines the ids, and so the placement of replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The operations of drivers, the events, and the schedule of any simulation."""

    seed: int
    operations: tuple[tuple[Operation, ...], ...]
    """Operations by slot: a slot is a job that is restarted when its driver dies."""
    events: tuple[Event, ...] = ()
    constant_roots: bool = False
    """Whether roots never change: reading a ``broker.json`` is then no point of interleaving."""
    page: int = 0
    """The number of names in a page of a listing; 0: a listing is a snapshot."""
    tick_ms: int = 1
    """The time by which a step moves the clock."""
    schedule: str = "uniform"
    horizon: int = 300
    """The approximate number of steps of the interesting part."""
    fault_rate: float = 0.0
    late_write_rate: float = 0.0
    """The rate of mutating calls that fail and take effect after their error, or whose answer is the echo of their
    own success."""
    stall_rate: float = 0.0
    """The rate of drivers that pause before a call of ``stalls_at``, and a tenth of it before other calls."""
    stalls_at: frozenset[str] = frozenset({"create", "commit", "replace", "delete"})
    crashes: int = 0
    most_steps: int = 4000
    """The number of steps after which the faults end, and all drivers run in turn."""
    tags: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Plan):
    """Everything on which a run depends, except the random choices of its schedule."""

    shape: Shape
    setup: tuple[Operation, ...] = ()
    """The operations of one driver alone before the others begin."""
    ahead_ms: tuple[int, ...] = ()
    """By slot, the offset of its drivers' clocks from the storage's (negative: behind). Empty: all clocks are
    right, including those of the setup and of the lone driver."""
    fine_metadata: bool = True
    """Whether each call of the metadata log is a point of interleaving, or all calls of one request together."""


def operations_of(text: str) -> tuple[Operation, ...]:
    """Operations in the notation ``append p0 0 0 1; replicate``."""
    operations = []
    for words in map(str.split, filter(None, text.split(";"))):
        arguments = (int(word) if word.isdigit() else word for word in words[1:])
        operations.append(Operation(words[0], tuple(arguments)))
    return tuple(operations)


def small(
    *slots: str, setup: str = "", brokers: int = 2, copies: int = 2, page: int = 0, **configs: str
) -> Configuration:
    """A directed configuration: one partition, these operations by slot; ``configs`` have underscores instead of
    dots."""
    given = {"compression_type": "uncompressed", "file_delete_delay_ms": "0", "retention_ms": "-1", **configs}
    return Configuration(
        seed=0,
        shape=Shape(
            brokers=brokers,
            voters=1,
            partitions=1,
            copies=copies,
            topic_configs=tuple((name.replace("_", "."), value) for name, value in given.items()),
            cluster_configs=(("replica.lag.time.max.ms", "1"),),
            placement=0,
        ),
        operations=tuple(map(operations_of, slots)),
        setup=operations_of(setup),
        fine_metadata=False,
        constant_roots=True,
        page=page,
        tick_ms=0,
    )


def configuration_of(seed: int, theme_name: str | None = None, voters: int | None = None) -> Configuration:
    """The configuration of a seed, with a certain theme and number of voters if given."""
    from tests.simulation.actions import plan_operation  # the table of actions rests on these types

    rng = random.Random(f"configuration {seed}")
    large = rng.random() < 0.08
    brokers = rng.choice((2, 3, 3, 3, 4, 5)) if not large else rng.choice((3, 4, 5))
    partitions = rng.choice((1, 1, 1, 2)) if not large else rng.randint(2, 8)
    copies = min(brokers, rng.choice((2, 2, 3, 3, 3)))
    slots = rng.choice((2, 2, 3, 3, 4)) if not large else rng.randint(3, 6)
    if theme_name is None:
        theme = rng.choices(THEMES, [theme.weight for theme in THEMES])[0]
        for name, share, kinds in MIXED_IN:
            if random.Random(f"{name} {seed}").random() < share:
                theme = random.Random(f"kind of {name} {seed}").choice(kinds)
    else:
        kinds_of_all = (kind for _, _, kinds in MIXED_IN for kind in kinds)
        named = (*THEMES, *kinds_of_all, BEHIND, EARLIER, LOST, *WITH_SNAPSHOTS)
        theme = rng.choice([theme for theme in named if theme.name == theme_name])
    if voters is not None:
        brokers = max(brokers, voters)
    else:
        voters = 3 if brokers >= 3 and rng.random() < 0.2 else 1
    delay = rng.choice(("0", "0", "40"))
    topic_configs = {
        "compression.type": "uncompressed",
        "segment.merge.min.files": "2",
        "file.delete.delay.ms": delay,
        "retention.ms": "-1",
    }
    if "tidy" in dict(theme.weights):
        topic_configs["retention.bytes"] = rng.choice(("-1", "2500", "6000"))
        topic_configs["segment.bytes"] = rng.choice(("5000", "12000", "1073741824"))
    if theme in (*COMPACT, COMPACT_TIERED, ERASE[-1], ERASE_COMPACT_TIERED):
        topic_configs |= _compacted(random.Random(f"compacted {seed}"))
    if theme in WITH_SNAPSHOTS:
        topic_configs |= _with_user_snapshots(random.Random(f"snapshots {seed}"))
    if theme is PUBLISHED:
        topic_configs["remote.snapshot.table.enable"] = "true"
        partitions = max(partitions, random.Random(f"published {seed}").choice((1, 2, 2)))
    if theme.tiered:
        topic_configs |= _tiered(rng)
        if theme.name == "tier" and random.Random(f"left to tier {seed}").random() < 0.3:
            topic_configs |= LEFT_TO_TIER
    if "retention.bytes" in topic_configs and random.Random(f"all expires {seed}").random() < 0.2:
        topic_configs |= {"retention.bytes": "0", "local.retention.bytes": "-2"}  # the last file of a log, too
    if theme.unclean:
        topic_configs["unclean.leader.election.enable"] = rng.choice(("true", "false"))
    if copies == 3 and rng.random() < 0.2:
        topic_configs["min.insync.replicas"] = "2"
    shape = Shape(
        brokers=brokers,
        voters=voters,
        partitions=partitions,
        copies=copies,
        topic_configs=tuple(topic_configs.items()),
        cluster_configs=(
            ("replica.lag.time.max.ms", rng.choice(("1", "300"))),
            ("follower.fetch.last.tiered.offset.enable", rng.choice(("true", "false"))),
            *(ALWAYS_DUE.items() if theme in MAINTAIN else ()),
        ),
        placement=rng.randrange(3),
    )
    length = theme.length if not large else (3, 7)
    operations = tuple(
        tuple(plan_operation(rng, theme.weights, shape, slot, index) for index in range(rng.randint(*length)))
        for slot in range(slots)
    )
    if theme.unclean:
        shape, operations = _with_tiering(seed, shape, operations)
    if "transact" in dict(theme.weights):
        shape, operations = _with_transactions(seed, shape, operations)
    operations = _with_litter(seed, theme, shape, operations)
    if theme is ERASE_COMPACT_TIERED:
        shape, operations = _tiered_later(seed, shape, operations)
    operations = _with_replays(seed, shape, operations)
    if theme is not EARLIER and theme not in (
        *COMPACT,
        *ERASE,
        *WITH_SNAPSHOTS,
        ERASE_TIERED,
        ERASE_COMPACT_TIERED,
    ):  # the state of a mirror is not restored
        operations = mirrored(seed, operations)
    shape, operations = _with_snapshots(seed, shape, operations)
    if theme in (*ERASE, *WITH_SNAPSHOTS):  # the others have the remote tier
        local = tuple(pair for pair in shape.topic_configs if pair[0] != "remote.storage.enable")
        shape = replace(shape, topic_configs=local)
    shape, ahead_ms = _with_wrong_clocks(seed, shape, slots)
    horizon = rng.choice((60, 120, 250, 500)) * (2 if large else 1)
    faulty = rng.random() < 0.6
    events = _events(rng, theme, shape, slots, horizon) if faulty else ()
    if theme is BEHIND:
        late = rng.randrange(horizon // 2, 2 * horizon)
        copied = (rng.randrange(horizon // 2), "copy", 0)
        events = tuple(sorted((*events, copied, (late, "put_back", rng.randrange(2)))))
        faulty = False
    elif theme is EARLIER:
        late = rng.randrange(horizon // 2, 2 * horizon)
        copied = (rng.randrange(horizon // 2), "copy_all", 0)
        events, faulty = tuple(sorted((*events, copied, (late, "put_back_all", 0)))), False
    elif theme is LOST:
        lost = rng.randrange(horizon // 2, 2 * horizon), "lose_all", rng.randrange(8)
        events = tuple(sorted((*events, lost)))
    elif not theme.unclean and theme not in (
        *(*COMPACT, *ERASE, *WITH_SNAPSHOTS, ERASE_TIERED, ERASE_COMPACT_TIERED),
    ):
        events, operations = _with_flips(seed, events, operations, horizon)
    return Configuration(
        seed=seed,
        shape=shape,
        operations=operations,
        setup=_published_before(partitions) if theme is PUBLISHED else (),
        events=events,
        ahead_ms=ahead_ms,
        fine_metadata=rng.random() < (0.5 if voters == 1 else 0.8),
        page=rng.choice((0, 0, 0, 0, 1, 2, 5)),
        tick_ms=rng.choice((0, 1, 1, 10)),
        schedule=rng.choice(("priorities", "priorities", "priorities", "uniform", "bursts")),
        horizon=horizon,
        fault_rate=rng.choice((0.0, 0.01, 0.03)) if faulty else 0.0,
        late_write_rate=random.Random(f"late writes {seed}").choice(_LATE_WRITE_RATES) if faulty else 0.0,
        stall_rate=rng.choice((0.0, 0.0, 0.05, 0.2)),
        crashes=rng.choice((0, 1, 1, 2)) if faulty else 0,
        most_steps=horizon * 8,
        tags=frozenset({theme.name}),
    )


def _with_flips(
    seed: int, events: tuple[Event, ...], operations: tuple[tuple[Operation, ...], ...], horizon: int
) -> tuple[tuple[Event, ...], tuple[tuple[Operation, ...], ...]]:
    """In some runs bits are flipped, and a driver checks and repairs meanwhile."""
    rng = random.Random(f"flips {seed}")
    if rng.random() >= _FLIPPED:
        return events, operations
    flips = [(rng.randrange(horizon), "flip", number) for number in range(rng.choice((1, 1, 2, 4)))]
    slots = [list(slot) for slot in operations]
    for _ in range(rng.choice((0, 1, 2))):
        slot = rng.choice(slots)
        slot.insert(rng.randint(0, len(slot)), Operation(rng.choice(("verify", "look", "heal", "heal"))))
    return tuple(sorted((*events, *flips))), tuple(map(tuple, slots))


LEFT_TO_TIER = {"segment.bytes": "9000", "segment.merge.inline.bytes": "0"}
"""``merge`` leaves sealed runs of several files to ``tier``, which writes each segment straight from the files."""

_FLIPPED = 0.25

_LATE_WRITE_RATES = (0.0, 0.0, 0.01, 0.03, 0.1)


def _compacted(rng: random.Random) -> dict[str, str]:
    return {
        "cleanup.policy": rng.choice(("compact", "compact", "compact,delete")),
        "segment.bytes": rng.choice(("1", "1", "5000", "9000")),
        "min.cleanable.dirty.ratio": rng.choice(("0", "0.3")),
        "delete.retention.ms": rng.choice(("0", "20", "1000000")),
    }


def _with_user_snapshots(rng: random.Random) -> dict[str, str]:
    return {
        "cleanup.policy": "snapshot",
        "segment.bytes": rng.choice(("1", "5000", "9000")),
        "delete.retention.ms": rng.choice(("0", "20", "1000000")),
        "metadata.start.offset.lag.time.max.ms": rng.choice(("0", "1", "1000000")),
    }


def _published_before(partitions: int) -> tuple[Operation, ...]:
    """Each partition has records in the table."""
    appends = (Operation("append", (f"before{partition}", 0, partition, 3)) for partition in range(partitions))
    return *appends, Operation("snapshot")


def _tiered(rng: random.Random) -> dict[str, str]:
    return {
        "remote.storage.enable": "true",
        "segment.bytes": rng.choice(("1", "1", "5000")),
        "local.retention.bytes": rng.choice(("0", "0", "2500")),
        "retention.bytes": rng.choice(("-1", "-1", "6000")),
    }


def _with_tiering(
    seed: int, shape: Shape, operations: tuple[tuple[Operation, ...], ...]
) -> tuple[Shape, tuple[tuple[Operation, ...], ...]]:
    """In half of these runs a part of each history is tiered before it may be lost."""
    rng = random.Random(f"lost histories {seed}")
    if rng.random() < 0.5:
        return shape, operations
    configs = {**dict(shape.topic_configs), **_tiered(rng)}
    slots = [list(slot) for slot in operations]
    for _ in range(rng.randint(3, 8)):
        slot = rng.choice(slots)
        name = rng.choice(("tier", "tier", "tier", "retain", "vacuum"))
        slot.insert(rng.randint(0, len(slot)), Operation(name))
    return replace(shape, topic_configs=tuple(configs.items())), tuple(map(tuple, slots))


def _with_transactions(
    seed: int, shape: Shape, operations: tuple[tuple[Operation, ...], ...]
) -> tuple[Shape, tuple[tuple[Operation, ...], ...]]:
    """Their coordinator's log is small; in half of these runs the topic is tiered."""
    configs = (
        *shape.cluster_configs,
        ("transaction.state.log.num.partitions", "1"),
        ("transaction.state.log.replication.factor", str(shape.copies)),
        ("transaction.state.log.min.isr", "1"),
    )
    shape, operations = _with_tiering(seed, shape, operations)
    return replace(shape, cluster_configs=configs), operations


def _tiered_later(
    seed: int, shape: Shape, operations: tuple[tuple[Operation, ...], ...]
) -> tuple[Shape, tuple[tuple[Operation, ...], ...]]:
    """In some of these runs the topic becomes tiered in the middle: its table begins after rules of both kinds."""
    rng = random.Random(f"tiered later {seed}")
    if rng.random() >= _TIERED_LATER:
        return shape, operations
    slots = [list(slot) for slot in operations]
    slot = rng.choice(slots)
    slot.insert(rng.randint(0, len(slot)), Operation("begin_tiering"))
    configs = tuple(pair for pair in shape.topic_configs if pair[0] != "remote.storage.enable")
    return replace(shape, topic_configs=configs), tuple(map(tuple, slots))


_TIERED_LATER = 0.3


def _with_litter(
    seed: int, theme: Theme, shape: Shape, operations: tuple[tuple[Operation, ...], ...]
) -> tuple[tuple[Operation, ...], ...]:
    """In half of the runs with tiering some uploads are never committed, and segments change their size. If no
    history is lost, a vacuum may delete objects of any age."""
    rng = random.Random(f"litter {seed}")
    if ("remote.storage.enable", "true") not in shape.topic_configs or rng.random() < 0.5:
        return operations
    slots = [list(slot) for slot in operations]

    def insert(*actions: Operation) -> None:
        slot = rng.choice(slots)
        at = rng.randint(0, len(slot))
        slot[at:at] = actions

    for _ in range(rng.randint(1, 3)):
        insert(Operation("tier_uncommitted"), Operation("reseal", (rng.choice((1, 5000, 1_000_000)),)))
        insert(Operation("tier"))
        insert(Operation("vacuum" if theme.unclean else "vacuum_at_once"))
    return tuple(map(tuple, slots))


def _with_replays(
    seed: int, shape: Shape, operations: tuple[tuple[Operation, ...], ...]
) -> tuple[tuple[Operation, ...], ...]:
    """In some runs producers repeat acknowledged appends, and append other records under their sequences."""
    from tests.simulation.actions import ACTIONS

    rng = random.Random(f"replays {seed}")
    if rng.random() >= 0.3:
        return operations
    slots = [list(slot) for slot in operations]
    for _ in range(rng.randint(1, 4)):
        number = rng.randrange(len(slots))
        name = rng.choice(("append_again", "append_other_records"))
        arguments = ACTIONS[name].plan(rng, shape, number, 0)
        slots[number].insert(rng.randint(0, len(slots[number])), Operation(name, arguments))
    return tuple(map(tuple, slots))


def mirrored(
    seed: int, operations: tuple[tuple[Operation, ...], ...], rate: float = 0.06
) -> tuple[tuple[Operation, ...], ...]:
    """In some runs of any theme, concurrent drivers also mirror a topic."""
    rng = random.Random(f"mirrors {seed}")
    if rng.random() >= rate:
        return operations
    slots = [list(slot) for slot in operations]
    for slot in slots:
        for _ in range(rng.choice((0, 1, 2, 3))):
            slot.insert(rng.randint(0, len(slot)), Operation("mirror", (rng.choice((1, 3, 8)),)))
    return tuple(map(tuple, slots))


def _with_snapshots(
    seed: int, shape: Shape, operations: tuple[tuple[Operation, ...], ...]
) -> tuple[Shape, tuple[tuple[Operation, ...], ...]]:
    """Some runs of any theme take snapshots of the metadata meanwhile; most of these delete the log below
    immediately."""
    rng = random.Random(f"metadata snapshots {seed}")
    if rng.random() >= 0.3:
        return shape, operations
    lag_ms = rng.choice(("0", "0", "1000000"))
    configs = (*shape.cluster_configs, ("metadata.start.offset.lag.time.max.ms", lag_ms))
    slots = [list(slot) for slot in operations]
    for _ in range(rng.randint(1, 4)):
        slot = rng.choice(slots)
        slot.insert(rng.randint(0, len(slot)), Operation("snapshot_metadata"))
    return replace(shape, cluster_configs=configs), tuple(map(tuple, slots))


_DAY_MS = 24 * 60 * 60 * 1000
DAYS_APART_MS = 3 * _DAY_MS
"""The distance of a wrong clock from the right time."""
EXPIRES_SOONER = {"producer.id.expiration.ms": str(_DAY_MS)}
"""Configs of a topic whose producers a wrong clock would expire."""


def _with_wrong_clocks(seed: int, shape: Shape, slots: int) -> tuple[Shape, tuple[int, ...]]:
    """In some runs of any theme, the clocks of drivers are days apart."""
    rng = random.Random(f"clocks {seed}")
    if rng.random() >= 0.15:
        return shape, ()
    configs = (*shape.topic_configs, *EXPIRES_SOONER.items())
    ahead_ms = tuple(rng.choice((0, DAYS_APART_MS, -DAYS_APART_MS)) for _ in range(slots))
    return replace(shape, topic_configs=configs), ahead_ms


def _events(rng: random.Random, theme: Theme, shape: Shape, slots: int, horizon: int) -> tuple[Event, ...]:
    events: list[Event] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at, what = rng.randrange(horizon), rng.choice(theme.events)
        if what == "double":
            events.append((at, what, rng.randrange(slots)))
            continue
        broker = rng.randint(1, shape.brokers)
        ends = {"cut": "mend", "fill": "mend", "backup": "restore"}.get(what)
        events.append((at, what, broker))
        if ends is not None:
            events.append((at + rng.choice((5, 20, 60, 200)), ends, broker))
    return tuple(sorted(events))
