"""A topic that mirrors another: any number of mirrors, which die, pause and are late, and one copy.

The source's record at an offset, or its absence, is a function of the offset, so that commits can be compared with
it.
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
"""The start of the source, and so of the log."""
_TRIES = 4
_FASTER = {"OFFSET_OUT_OF_RANGE", "DUPLICATE_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH"}


def token_at(offset: int) -> Token:
    """The expected token of the log there; for a gap as in ``tokens_of``."""
    return b"%d:" % offset if _is_gap(offset) else b"m/%d" % offset


def epoch_at(offset: int) -> int:
    """The source's leader epoch."""
    return offset // 11


def _is_gap(offset: int) -> bool:
    return offset * 2654435761 % 1000 < 350


def rows(start: int, end: int) -> pa.RecordBatch:
    """The source's records at ``[start, end)``."""
    from tests.simulation.actor import batch

    values = [None if _is_gap(offset) else token_at(offset) for offset in range(start, end)]
    made = batch(values)  # type: ignore[arg-type]
    control = pa.array([GAP if value is None else None for value in values], pa.int32())
    return made.append_column("control", control)


def mirror(actor: Actor, records: int) -> str:
    """Mirror from the log end on, like a run of a mirror that may have looked long ago."""
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
    """Check that every committed offset equals the source's. Raises: Violation."""
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
    """The configuration with mirrors added."""
    operations = mirrored(configuration.seed, configuration.operations, rate=1.0)
    return replace(configuration, operations=operations)
