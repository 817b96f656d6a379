"""A topic that mirrors another: any number of mirrors, which die, sleep and are late, and one copy.

What the source has at an offset is a function of the offset: a record, or nothing. So what is committed can be
held against it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.engine.admin import topics
from stratalog.engine.records.append import append_mirrored
from stratalog.engine.replication.leader import leader_log
from stratalog.partitions.errors import StratalogError, TopicAlreadyExistsError
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.records import GAP
from tests.simulation.configuration import Configuration, mirrored
from tests.simulation.oracle import Oracle, Token
from tests.simulation.scheduler import Violation

if TYPE_CHECKING:
    from tests.simulation.actor import Actor

MIRRORED = "m"
_SOURCE = "kafka/oX3uHkRbTS6eNWJkT0n5kw"
_START = 7
"""Where the source begins, and so the log."""
_TRIES = 4
_FASTER = {"OFFSET_OUT_OF_RANGE", "DUPLICATE_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH"}


def token_at(offset: int) -> Token:
    """What the log is to have there; of a gap as ``tokens_of`` tells it."""
    return b"%d:" % offset if _is_gap(offset) else b"m/%d" % offset


def epoch_at(offset: int) -> int:
    """The source's leader epoch."""
    return offset // 11


def _is_gap(offset: int) -> bool:
    return offset * 2654435761 % 1000 < 350


def rows(start: int, end: int) -> pa.RecordBatch:
    """What the source has at ``[start, end)``."""
    from tests.simulation.actor import batch

    values = [None if _is_gap(offset) else token_at(offset) for offset in range(start, end)]
    made = batch(values)  # type: ignore[arg-type]
    control = pa.array([GAP if value is None else None for value in values], pa.int32())
    return made.append_column("control", control)


def mirror(actor: Actor, records: int) -> str:
    """From the log end on, as a run of a mirror does it, which may have looked long ago."""
    from tests.simulation.actor import check_report

    world, ports = actor.world, actor.ports
    own = {key: value for key, value in dict(world.shape.topic_configs).items() if key != "cleanup.policy"}
    configs = {**own, "mirror.source": _SOURCE}  # the oracle knows no keys of the source
    image = ports.metadata.image()
    if MIRRORED not in image.topic_ids:
        with suppress(TopicAlreadyExistsError):
            topics.create_topic(
                *ports.for_tasks,
                MIRRORED,
                partitions=1,
                replication_factor=world.shape.copies,
                configs=configs,
                log_starts=[_START],
            )
        image = ports.metadata.image()
    outcome = "?"
    for _ in range(_TRIES):
        try:
            topic = image.topic(MIRRORED)
            key = topic.topic_id, 0
            start = leader_log(ports.storage.replicas(image.view(*key))).log_end
        except StratalogError as error:
            outcome, image = error.code, ports.metadata.image()
            continue
        end = min(start + records, (start // 11 + 1) * 11)  # a piece is of one epoch
        image = ports.metadata.image()
        who = ProducerAppend("mirror", epoch_at(start), start, base_offset=start)
        report = append_mirrored(
            ports.metadata, ports.storage, ports.clock, ports.memory, image, topic, 0, [rows(start, end)], who
        )
        check_report(actor, report)
        (row,) = report.rows
        outcome = str(row["outcome"])
        if outcome in ("acknowledged", "duplicate") and row["next_offset"] == end:
            world.ledger.acknowledge(key, [token_at(offset) for offset in range(start, end)], report)
            world.ledger.count(f"mirrored: {outcome}")
            return outcome
        if report.failures:
            outcome = report.failures[0].code
            world.ledger.count("mirrored: another was faster" if outcome in _FASTER else f"mirrored: {outcome}")
    return f"given up: {outcome}"


def check_mirrored(oracle: Oracle) -> None:
    """Whatever is committed is what the source has there. Raises: Violation."""
    topic_id = oracle.image.topic_ids.get(MIRRORED)
    history = None if topic_id is None else oracle.histories.get((topic_id, 0))
    if history is None or history.unclean:
        return
    for offset, token in history.committed.items():
        if token != token_at(offset):
            raise Violation(f"M1: the mirror has {token!r} at {offset}, the source {token_at(offset)!r}")
    if history.committed and sorted(history.committed)[0] < _START:
        raise Violation(f"M1: the mirror begins at {min(history.committed)}, the source at {_START}")


def with_mirrors(configuration: Configuration) -> Configuration:
    """The configuration, and mirrors in it."""
    operations = mirrored(configuration.seed, configuration.operations, rate=1.0)
    return replace(configuration, operations=operations)
