"""The operations of drivers: a line in ``ACTIONS`` for each operation of the product."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from stratalog.engine.admin import topics
from stratalog.engine.admin.quorum import snapshot_metadata
from stratalog.engine.brokers import bring_up
from stratalog.engine.brokers.fence import fence, unfence
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.commands import FenceBroker
from stratalog.engine.metadata.partition_commands import AlterPartition
from stratalog.engine.records.append import append_batches
from stratalog.engine.replicas.in_sync import without
from stratalog.engine.upkeep.healing.heal import heal
from stratalog.engine.upkeep.healing.keep import keep_one
from stratalog.engine.upkeep.maintenance.budget import Budget
from stratalog.engine.upkeep.maintenance.maintain import maintain
from stratalog.engine.upkeep.replication.bootstrap import bootstrap
from stratalog.engine.upkeep.replication.compact import compact
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.keep_short import shorten_log
from stratalog.engine.upkeep.replication.merge import merge
from stratalog.engine.upkeep.replication.reassign import cancel, reassign
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.retain import retain
from stratalog.engine.upkeep.retention.vacuum import vacuum
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.engine.upkeep.verification.verify import verify
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.paths import base_name
from tests.ports import with_ports
from tests.simulation import mirroring, reading, transacting
from tests.simulation.actor import CORRUPT, Actor, batch, check_report
from tests.simulation.appending import append, append_again, append_once, append_other_records
from tests.simulation.configuration import Operation, Shape
from tests.simulation.erasing import erase_key, look_for_erased, take_snapshot
from tests.simulation.oracle import Key
from tests.simulation.remote import uncommitted
from tests.simulation.scheduler import Violation
from tests.simulation.snapshot_tables import rewrite_table
from tests.simulation.world import TOPIC, SimulatedStorage

OTHER = "u"


Plan = Callable[[random.Random, Shape, int, int], tuple[int | str, ...]]
"""The arguments of an operation, made from the slot and the number of the operation in it."""

Act = Callable[..., str]
"""Performs the operation with an actor and the arguments, and returns the outcome."""


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of operation."""

    plan: Plan
    act: Act


def named_by(actor: Actor, report: Report, damaged: Iterable[tuple[Key, int | None, str]]) -> None:
    """Check that a deep verify names everything that was damaged throughout. Raises: Violation (I10)."""
    said = [*report.notes, *(failure.message for failure in report.failures)]
    for key, broker, name in damaged:
        partition = actor.world.invariants.name(key)
        if not any(base_name(name) in each for each in said) and not any(
            f.item == partition for f in report.failures
        ):
            raise Violation(
                f"I10: {name} of {partition} on {broker} is damaged, and a deep verify does not say so"
            )


def deep_verify(actor: Actor, *_: int) -> str:
    """Read everything: reachable damage that exists from the beginning to the end must be found."""
    world = actor.world

    def readable() -> set[tuple[Key, int | None, str]]:
        return {
            (key, broker, name)
            for key, broker, name in world.copies.damaged()
            if broker is None or world.roots[broker].reachable
        }

    def fenced() -> set[int]:
        """Brokers that were fenced at the beginning or later, even temporarily: they are skipped."""
        images = [image for end, image in oracle.images.items() if end >= begin] or [oracle.image]
        return {broker.broker_id for image in images for broker in image.brokers.values() if broker.fenced}

    oracle = world.oracle
    begin, before = oracle.image.next_offset, readable()
    report = verify(actor.ports.metadata, actor.ports.storage, actor.ports.execution, deep=True)
    told = {failure.item.split(" ")[0] for failure in report.failures if failure.code not in CORRUPT}
    passed_over = fenced()
    damaged = (each for each in before & readable() if each[1] not in passed_over)
    named_by(actor, report, (each for each in damaged if world.invariants.name(each[0]) not in told))
    return check_report(actor, report)


def perform(actor: Actor, operation: Operation) -> str:
    """Perform one operation and return its outcome. Errors of the product are an outcome. Raises: Violation."""
    try:
        return ACTIONS[operation.action].act(actor, *operation.arguments)
    except StratalogError as error:
        if isinstance(error, CorruptionError):
            actor.world.ledger.excuse_corruption("", f"{error.code}: {error}")
        return f"{error.code}: {error}"


def fence_one(actor: Actor, broker: int) -> str:
    """Fence a broker like a prober that did not reach it."""
    actor.ports.metadata.submit(FenceBroker(broker))
    return "ok"


def shrink(actor: Actor, broker: int, partition: int) -> str:
    """Shrink the ISR like a driver that has waited too long for a follower."""
    image = actor.ports.metadata.image()
    view = image.view(actor.world.topic_id, partition)
    if broker not in view.isr or broker == view.leader:
        return "no follower in the ISR"
    (answer,) = actor.ports.metadata.submit(AlterPartition((without(view, [broker]),)))
    return type(answer).__name__


def isolate(actor: Actor, partition: int) -> str:
    """Take the leader, the last member of the ISR, out of service: the partition has no leader."""
    view = actor.ports.metadata.image().view(actor.world.topic_id, partition)
    if view.leader is None:
        return "no leader"
    others = [broker for broker in view.isr if broker != view.leader]
    actor.ports.metadata.submit(AlterPartition((without(view, others),)))
    return check_report(actor, fence(actor.ports.metadata, actor.ports.execution, [view.leader], force=True))


def elect_one(actor: Actor, broker: int) -> str:
    """Elect a leader by hand; 0 selects the preferred replicas."""
    return check_report(
        actor,
        elect(actor.ports.metadata, actor.ports.storage, actor.ports.execution, [TOPIC], leader=broker or None),
    )


def tidy(actor: Actor, *_: int) -> str:
    """Merge; delete the hidden files, and in a second run the files that left the log in the first."""
    done = [
        check_report(actor, operation(actor.ports.metadata, actor.ports.storage, actor.ports.execution))
        for operation in (merge, retain, retain)
    ]
    return ", ".join(done)


def shorten_one(actor: Actor, partition: int) -> str:
    """Shorten a log like the driver of an append after its acknowledgement."""
    image = actor.ports.metadata.image()
    view = image.view(actor.world.topic_id, partition)
    done = shorten_log(actor.ports.storage, actor.ports.clock, image, view)
    if done is None:
        return "nothing is merged"
    for error in done.failed:
        if isinstance(error, CorruptionError):
            actor.world.ledger.excuse_corruption(f"{view.topic}-{partition}", f"{error.code}: {error}")
    actor.world.ledger.count(f"shortened by {done.segments}" if done.segments < 2 else "shortened by more")
    return ", ".join(sorted({error.code for error in done.failed})) or "ok"


def maintain_within(actor: Actor, budget_ms: int) -> str:
    """Run everything that is due, partly within a budget that ends after two steps."""
    ports = actor.ports
    report = maintain(
        ports.metadata,
        ports.storage,
        ports.execution,
        ports.memory,
        ports.events,
        lambda storage, execution, partitions, dry_run: snapshot_metadata(
            ports.metadata, execution, ports.memory, dry_run=dry_run
        ),
        budget=Budget(budget_ms / 1000),
    )
    for row in report.rows:
        actor.world.ledger.count(f"maintain: {row['step']} {row['outcome']}")
    return check_report(actor, report)


def begin_again(actor: Actor, *_: int) -> str:
    """Let a lost log begin again, like an operator."""
    return check_report(
        actor,
        keep_one(
            actor.ports.metadata, actor.ports.storage, actor.ports.execution, actor.ports.memory, None, "brokers"
        ),
    )


def tier_uncommitted(actor: Actor, *_: int) -> str:
    """Tier like a driver that dies, or loses its access to the table, when everything is uploaded."""
    storage = actor.ports.storage
    assert isinstance(storage, SimulatedStorage)
    table = storage.table
    cut_off = replace(storage, table=lambda *args: uncommitted(table(*args)))
    return check_report(actor, tier(actor.ports.metadata, cut_off, actor.ports.execution))


def reseal(actor: Actor, segment_bytes: int) -> str:
    """Change the size of segments, so that later uploads have other boundaries than earlier ones."""
    topics.alter_configs(*actor.ports.all, TOPIC, {"segment.bytes": str(segment_bytes)})
    return "ok"


def switch_publishing(actor: Actor, enabled: str) -> str:
    """Let the topic publish its snapshots, or stop that."""
    topics.alter_configs(*actor.ports.all, TOPIC, {"remote.snapshot.table.enable": enabled})
    return "ok"


def begin_tiering(actor: Actor) -> str:
    """Make the topic tiered."""
    topics.alter_configs(*actor.ports.all, TOPIC, {"remote.storage.enable": "true"})
    return "ok"


def reassign_one(actor: Actor, partition: int, *brokers: int) -> str:
    """Reassign the replicas of a partition."""
    return check_report(
        actor,
        reassign(
            actor.ports.metadata,
            actor.ports.storage,
            actor.ports.execution,
            actor.ports.memory,
            {(TOPIC, partition): list(brokers)},
        ),
    )


def create_other_topic(actor: Actor, records: int) -> str:
    """Create a second topic, or delete it, with some records."""
    copies = min(2, actor.world.shape.brokers)
    configs = dict(actor.world.shape.topic_configs)
    created = topics.create_topic(
        *actor.ports.for_tasks, OTHER, partitions=1, replication_factor=copies, configs=configs
    )
    topic_id = str(created.rows[0]["topic_id"])
    tokens = actor.world.ledger.tokens((topic_id, 0), f"other-{actor.driver.name}", 0, records)
    report = append_batches(
        actor.ports.metadata,
        actor.ports.storage,
        actor.ports.clock,
        actor.ports.memory,
        OTHER,
        {0: [batch(tokens)]},
        None,
    )
    check_report(actor, report)
    key = topic_id, 0
    return (
        actor.world.ledger.acknowledge(key, tokens, report)
        if key[0] in actor.world.oracle.image.topics
        else "gone"
    )


def _reported(operation: Callable[..., Report], **options: object) -> Act:
    def act(actor: Actor, *_: int) -> str:
        return check_report(actor, with_ports(operation, actor.ports)(**options))

    return act


def _nothing(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    return ()


def _a_broker(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    return (rng.randint(1, shape.brokers),)


def _a_partition(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    return (rng.randrange(shape.partitions),)


def _a_replica(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    return rng.randint(1, shape.brokers), rng.randrange(shape.partitions)


def _replicas(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    count = max(1, min(shape.brokers, shape.copies + rng.choice((-1, 0, 0, 1))))
    return rng.randrange(shape.partitions), *rng.sample(range(1, shape.brokers + 1), count)


def _an_append(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    return f"p{slot}", rng.randrange(5)


def _a_transaction(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    appends = [rng.randrange(shape.partitions) for _ in range(rng.choice((1, 2, 2, 3)))]
    how = rng.choice(("commit", "commit", "commit", "abort"))
    return f"x{slot % 2}", index, how, rng.choice((60, 100_000)), *appends


def _an_erasure(rng: random.Random, shape: Shape, slot: int, index: int) -> tuple[int | str, ...]:
    return rng.randrange(3), rng.choice(("keys", "now", "now", "again"))


ACTIONS: dict[str, Action] = {
    "append": Action(
        lambda rng, s, slot, i: (f"p{slot}", i, rng.randrange(s.partitions), rng.choice((1, 1, 2))), append
    ),
    "append_again": Action(_an_append, append_again),
    "append_other_records": Action(_an_append, append_other_records),
    "append_once": Action(lambda rng, s, slot, i: (i, rng.randrange(s.partitions), 1, "all"), append_once),
    "append_leader": Action(lambda rng, s, slot, i: (i, rng.randrange(s.partitions), 1, "leader"), append_once),
    "replicate": Action(_nothing, _reported(replicate)),
    "merge": Action(_nothing, _reported(merge)),
    "compact": Action(_nothing, _reported(compact)),
    "compact_some": Action(_nothing, _reported(compact, over=lambda: True)),
    "snapshot": Action(_nothing, take_snapshot),
    "erase": Action(_an_erasure, erase_key),
    "rewrite": Action(lambda rng, s, slot, i: (rng.randrange(6),), rewrite_table),
    "publishing": Action(lambda rng, s, slot, i: (rng.choice(("false", "true", "true")),), switch_publishing),
    "begin_tiering": Action(_nothing, begin_tiering),
    "look_for_erased": Action(_nothing, look_for_erased),
    "shorten": Action(_a_partition, shorten_one),
    "retain": Action(_nothing, _reported(retain)),
    "maintain": Action(lambda rng, s, slot, i: (rng.choice((1, 1, 200, 5000)),), maintain_within),
    "tier": Action(_nothing, _reported(tier)),
    "tier_uncommitted": Action(_nothing, tier_uncommitted),
    "reseal": Action(lambda rng, s, slot, i: (rng.choice((1, 5000, 1_000_000)),), reseal),
    "tidy": Action(_nothing, tidy),
    "begin_again": Action(_nothing, begin_again),
    "verify": Action(_nothing, deep_verify),
    "look": Action(_nothing, _reported(verify)),
    "heal": Action(_nothing, _reported(heal)),
    "vacuum": Action(_nothing, _reported(vacuum)),
    "vacuum_at_once": Action(_nothing, _reported(vacuum, older_than_ms=0)),
    "elect": Action(lambda rng, s, slot, i: (rng.randint(0, s.brokers),), elect_one),
    "elect_unclean": Action(_nothing, _reported(elect, unclean=True)),
    "shrink": Action(_a_replica, shrink),
    "isolate": Action(_a_partition, isolate),
    "fence": Action(_a_broker, fence_one),
    "fence_by_hand": Action(_a_broker, lambda a, b: check_report(a, with_ports(fence, a.ports)([b], force=True))),
    "unfence": Action(_a_broker, lambda a, b: check_report(a, with_ports(unfence, a.ports)([b]))),
    "reassign": Action(_replicas, reassign_one),
    "cancel": Action(_nothing, _reported(cancel)),
    "create_other": Action(lambda rng, s, slot, i: (1,), create_other_topic),
    "delete_other": Action(_nothing, _reported(topics.delete_topic, name=OTHER)),
    "snapshot_metadata": Action(_nothing, _reported(snapshot_metadata)),
    "register": Action(
        _a_broker, lambda a, b: check_report(a, with_ports(bring_up.register_brokers, a.ports)([b]))
    ),
    "bootstrap": Action(_a_broker, lambda a, b: check_report(a, with_ports(bootstrap, a.ports)([b]))),
    "read": Action(_nothing, lambda a: reading.read_topic(a.world, a.ports)),
    "read_replica": Action(_a_replica, lambda a, b, p: reading.read_replica(a.world, a.ports, b, p)),
    "offsets": Action(_nothing, lambda a: reading.offsets(a.world, a.ports)),
    "transact": Action(_a_transaction, transacting.transact),
    "finish": Action(_nothing, transacting.finish),
    "mirror": Action(lambda rng, s, slot, i: (rng.choice((1, 3, 8)),), mirroring.mirror),
}


def plan_operation(
    rng: random.Random, weights: Sequence[tuple[str, int]], shape: Shape, slot: int, index: int
) -> Operation:
    """Choose an operation by its weight."""
    (name,) = rng.choices([name for name, _ in weights], [weight for _, weight in weights])
    return Operation(name, ACTIONS[name].plan(rng, shape, slot, index))
