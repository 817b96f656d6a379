"""A topic with a tail: the records of the tail, and events during its waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from stratalog.engine.reading.tail import Tail
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults


def two_partitions(folder: Path, faults: Faults) -> LiveCluster:
    """``t``, two partitions: a0 ... a3 and b0, b1."""
    live = LiveCluster(folder, through=faults.wrap)
    live.topic(partitions=2)
    for number in range(4):
        live.append({0: [f"a{number}"], **({1: [f"b{number}"]} if number < 2 else {})}).raise_for_failures()
    return live


def texts(tables: Iterator[pa.Table] | Tail) -> list[str]:
    """The values by partition; each table must belong to one partition, and have contiguous offsets."""
    found: dict[int, list[str]] = {}
    after: dict[int, int] = {}
    for table in tables:
        (partition,) = set(table.column("partition").to_pylist())
        offsets = table.column("offset").to_pylist()
        assert offsets == list(range(after.get(partition, offsets[0]), offsets[-1] + 1))
        after[partition] = offsets[-1] + 1
        found.setdefault(partition, []).extend(v.decode() for v in table.column("value").to_pylist())
    return [value for partition in sorted(found) for value in found[partition]]


def while_waiting(live: LiveCluster, *happens: Callable[[], object]) -> None:
    """One event happens at the beginning of each wait of a tail."""
    left, sleep = list(happens), live.clock.sleep

    def do(seconds: float) -> None:
        if left:
            left.pop(0)()
        sleep(seconds)

    live.clock.sleep = do  # type: ignore[method-assign]
