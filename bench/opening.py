"""Opens a cluster that a driver remembers (``cache`` in the cluster file), compared with a cluster without topics.

Both clusters have three voters and the same tail: commits after the cached state. The time ends when the metadata
is read, linearizably, and the partitions of one topic are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.large_cluster import REPLICAS, folded, topic_records
from bench.measuring import in_child, in_turn, seconds_of
from bench.options import size_text
from bench.table import Limit, Line
from stratalog import Cluster
from stratalog.engine.quorum.bootstrap import find_log
from stratalog.engine.quorum.cache import SAVE_AFTER, cache_file
from stratalog.engine.quorum.checkpoints import copy_checkpoint, write_checkpoint
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.store import Store
from stratalog.partitions.store.local import LocalStore

if TYPE_CHECKING:
    from bench.bench import Bench

VOTERS = range(1, REPLICAS + 1)
TAIL = 20
"""The number of commits after the cached state; it is too small to renew the cache."""
ALLOWED_S = 0.1
NOTE = f"Both have {TAIL} commits after the remembered state. To reach: the peer's time plus 100 ms."

_CONFIG = "segment.bytes"


@dataclass(frozen=True, slots=True)
class Opening:
    """The seconds of opening a cluster with this number of partitions."""

    partitions: int
    forgotten_s: float
    """The seconds of one opening without a cache, from a snapshot."""
    remembered_s: float
    empty_s: float
    cache_bytes: int


def opening(bench: Bench) -> list[Line]:
    """Measure with a hundredth, a tenth, and all of the partitions."""
    assert TAIL < SAVE_AFTER
    largest = bench.options.metadata_partitions
    measured: list[Opening] = []
    for partitions in (max(1, largest // 100), max(1, largest // 10), largest):
        bench.say(f"opening a cluster of {partitions:,} partitions")
        measured.append(in_child(measure_opening, bench.folder / f"opening-{partitions}", partitions))
    return opening_lines(measured)


def measure_opening(folder: Path, partitions: int) -> Opening:
    """Open both clusters in turn."""
    empty, _ = _made(folder / "empty", 0)
    full, forgotten_s = _made(folder / "full", partitions)
    remembered_s, empty_s = in_turn(lambda: _seconds(full, partitions), lambda: _seconds(empty, 0))
    return Opening(
        partitions=partitions,
        forgotten_s=forgotten_s,
        remembered_s=remembered_s,
        empty_s=empty_s,
        cache_bytes=cache_file(folder / "full" / "cache", full.parent.name).stat().st_size,
    )


def _made(folder: Path, partitions: int) -> tuple[Path, float]:
    """The cluster file of a cluster that is cached up to its tail, and the seconds that it took to open the
    cluster without the cache.
    """
    file = _format(folder)
    if partitions > 0:
        _fill(file.parent.name, {broker: LocalStore(str(folder / str(broker))) for broker in VOTERS}, partitions)
    forgotten_s = _seconds(file, partitions)
    driver = Cluster.open(file)
    for number in range(TAIL):
        driver.topics.alter_configs(None, {_CONFIG: str(number + 1)})
    return file, forgotten_s


def _format(folder: Path) -> Path:
    lines = ["[cluster]", f'id = "{folder.name}"', f"voters = {list(VOTERS)}", 'cache = "cache"']
    for broker in VOTERS:
        (folder / str(broker)).mkdir(parents=True)
        lines += ["[[brokers]]", f"id = {broker}", f'log_dir = "{broker}"']
    file = folder / "cluster.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    Cluster.format(file)
    return file


def _fill(cluster_id: str, stores: dict[int, Store], partitions: int) -> None:
    """Create the given number of partitions in a snapshot of every voter, as if the log before the snapshot had
    been deleted.
    """
    found = find_log(cluster_id, VOTERS, stores)
    state = replace(found.state, image=folded(found.state.image, topic_records(partitions, VOTERS)))
    first, *others = found.voters
    write_checkpoint(cluster_id, first, state, SystemClock())
    for voter in others:
        copy_checkpoint(cluster_id, first.list(), state.snapshot, voter)


def _seconds(file: Path, partitions: int) -> float:
    def opened() -> None:
        image = Cluster.open(file).image
        if partitions > 0:
            image.views("topic-000000")

    return seconds_of(opened)


def opening_lines(measured: Sequence[Opening]) -> list[Line]:
    return [
        Line(
            f"open, {one.partitions:,} partitions remembered in {size_text(one.cache_bytes)}; none",
            f"{one.remembered_s * 1000:.0f} ms; from a snapshot {one.forgotten_s:.2f} s",
            f"{one.empty_s * 1000:.0f} ms + 100 ms",
            one.remembered_s / (one.empty_s + ALLOWED_S),
            Limit(1, at_most=True),
            NOTE,
        )
        for one in measured
    ]
