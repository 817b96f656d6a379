"""Appends of the simulation's drivers."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.engine.driver.report import Report
from stratalog.engine.records.append import append_batches, who_appends
from stratalog.partitions.producers import LAST_APPENDS, ProducerAppend
from tests.simulation.actor import Actor, batch, check_report
from tests.simulation.scheduler import Violation
from tests.simulation.world import TOPIC, World

_TRIES = 5


def append(actor: Actor, producer: str, sequence: int, partition: int, records: int) -> str:
    """Append until it is acknowledged, or a few times."""
    world = actor.world
    key = world.topic_id, partition
    if world.ledger.is_early(world.topic_id, producer, sequence):
        return "not begun: the one before is not acknowledged"
    world.ledger.appends.setdefault((key, producer), {}).setdefault(sequence, False)
    for _ in range(_TRIES):
        outcome = append_try(actor, producer, sequence, partition, records)
        if outcome in ("acknowledged", "duplicate", "superseded"):
            return outcome
    return f"given up: {outcome}"


def append_try(actor: Actor, producer: str, sequence: int, partition: int, records: int) -> str:
    """Call the product once."""
    world, key = actor.world, (actor.world.topic_id, partition)
    tokens = world.ledger.tokens(key, producer, sequence, records)
    report = append_records(actor, partition, tokens, who_appends(producer, sequence))
    check_report(actor, report)
    outcome = world.ledger.acknowledge(key, tokens, report)
    begun = world.ledger.appends[key, producer]
    if outcome in ("acknowledged", "duplicate"):
        begun[sequence] = True
        world.ledger.count(outcome)
        return outcome
    code = report.failures[0].code if report.failures else "?"
    if code == "OUT_OF_ORDER_SEQUENCE_NUMBER" and world.oracle.history(key).was_put_back:
        return "superseded"  # it was lost, and other partitions have later ones
    if code == "DUPLICATE_SEQUENCE_NUMBER" and sum(other > sequence for other in begun) >= LAST_APPENDS:
        return "superseded"  # so long ago that its records may be unknown
    if code in ("DUPLICATE_SEQUENCE_NUMBER", "OUT_OF_ORDER_SEQUENCE_NUMBER"):
        if not world.ledger.any_unclean(world.topic_id):
            raise Violation(f"I11: {producer} {sequence}, the same records: {report.failures[0].message}")
        begun[sequence] = True
        return "superseded"
    return f"{outcome} ({code})"


def append_again(actor: Actor, producer: str, number: int) -> str:
    """Repeat an append that was acknowledged, possibly long ago, like a scheduler's backfill."""
    world = actor.world
    if (done := _one_acknowledged(world, producer, number)) is None:
        return "nothing is acknowledged"
    partition, sequence, size = done
    outcome = append_try(actor, producer, sequence, partition, size)
    if outcome == "acknowledged" and not world.oracle.history((world.topic_id, partition)).unclean:
        raise Violation(f"I3: {producer} {sequence} was acknowledged before, and is no duplicate")
    return outcome


def append_other_records(actor: Actor, producer: str, number: int) -> str:
    """Append as many other records with the sequence of an acknowledged append."""
    world = actor.world
    if (done := _one_acknowledged(world, producer, number)) is None:
        return "nothing is acknowledged"
    partition, sequence, size = done
    tokens = [f"{partition}/{producer}/{sequence}/{actor.driver.name}/{i}".encode() for i in range(size)]
    report = append_records(actor, partition, tokens, who_appends(producer, sequence))
    check_report(actor, report)
    outcome = str(report.rows[0]["outcome"])
    if outcome in ("acknowledged", "duplicate") and not world.ledger.any_unclean(world.topic_id):
        raise Violation(f"I11: other records of {producer} {sequence} are called {outcome}")
    world.ledger.never[world.topic_id, partition].update(tokens)
    world.ledger.count(f"other records: {report.failures[0].code if report.failures else outcome}")
    return outcome


def _one_acknowledged(world: World, producer: str, number: int) -> tuple[int, int, int] | None:
    """Partition, sequence and number of records of one of the producer's acknowledged appends."""
    done = world.ledger.acknowledged(world.topic_id, producer)
    if not done:
        return None
    partition, sequence = done[number % len(done)]
    return partition, sequence, world.ledger.sizes[(world.topic_id, partition), producer, sequence]


def append_records(
    actor: Actor, partition: int, tokens: Sequence[bytes], who: ProducerAppend | None, acks: str = "all"
) -> Report:
    """Call the product once."""
    report = append_batches(
        actor.ports.metadata,
        actor.ports.storage,
        actor.ports.clock,
        actor.ports.memory,
        TOPIC,
        {partition: [batch(tokens, keyed=actor.world.keyed)]},
        who,
        acks=acks,
    )
    if any("is full" in note and "leads:" in note for note in report.notes):
        actor.world.ledger.count("full leaders resigned")
    return report


def append_once(actor: Actor, number: int, partition: int, records: int, acks: str) -> str:
    """Append without a producer: the append is not retried."""
    world, key = actor.world, (actor.world.topic_id, partition)
    tokens = world.ledger.tokens(key, f"once-{actor.driver.name}", number, records)
    report = append_records(actor, partition, tokens, None, acks)
    check_report(actor, report)
    outcome = str(report.rows[0]["outcome"])
    if outcome == "not appended":
        world.ledger.never[key].update(tokens)
    elif acks == "all":
        outcome = world.ledger.acknowledge(key, tokens, report)
    world.ledger.count(f"{outcome}, acks={acks}")
    return outcome
