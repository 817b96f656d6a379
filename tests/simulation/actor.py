"""A driver of the simulation, the records that it appends, and the reports that it checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.partitions.records import physical_schema
from tests.simulation.oracle import is_tombstone, key_of
from tests.simulation.scheduler import Driver
from tests.simulation.world import World

SCHEMA = physical_schema()
CORRUPT = {
    *("CORRUPT_MESSAGE", "CORRUPT_SEGMENT", "LOG_GAP", "REMOTE_OBJECT_MISSING"),
    *("LOG_BEHIND_REMOTE", "DIVERGENT_REMOTE_LOG", "LOG_LOST"),
}


@dataclass(slots=True)
class Actor:
    """The acting driver with its access to the cluster."""

    world: World
    driver: Driver
    ports: Ports


def batch(values: Sequence[bytes], *, keyed: bool = False) -> pa.RecordBatch:
    """Records with these values only; if ``keyed``, with keys, and some are tombstones, whose header has the
    value."""
    count = len(values)
    dead = [keyed and is_tombstone(value) for value in values]
    stamps = pa.repeat(pa.scalar(1_700_000_000_000_000, pa.int64()), count).cast(SCHEMA.field("timestamp").type)
    return pa.record_batch(
        {
            "timestamp": stamps,
            "key": pa.array([key_of(value) if keyed else None for value in values], pa.binary()),
            "value": pa.array(
                [None if is_dead else v for v, is_dead in zip(values, dead, strict=True)], pa.binary()
            ),
            "headers": pa.array(
                [[("token", v)] if is_dead else None for v, is_dead in zip(values, dead, strict=True)],
                SCHEMA.field("headers").type,
            ),
        }
    )


def check_report(actor: Actor, report: Report) -> str:
    """Check that intact storage is never called corrupt. Raises: Violation."""
    for failure in report.failures:
        if failure.code in CORRUPT:
            topic_partition = failure.item.split(" ")[0]
            actor.world.ledger.excuse_corruption(topic_partition, f"{failure.code}: {failure.message}")
    return ", ".join(sorted({failure.code for failure in report.failures})) or "ok"
