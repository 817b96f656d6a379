"""The cost of a restore: a few requests per partition, many of them concurrent."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from bench.bench import Bench
from bench.counting import CREATE, KINDS, CountingStore
from bench.options import bench_options
from bench.restoring import restored
from stratalog.partitions.store import Store
from tests.unit.cluster_harness import LiveCluster
from tests.unit.restore_harness import Heir

pytestmark = pytest.mark.slow


def tiered(folder: Path, partitions: int) -> LiveCluster:
    """A cluster with one tiered segment in each partition of ``t``."""
    folder.mkdir()
    live = LiveCluster(folder)
    live.cluster.topics.alter_configs(None, {"default.replication.factor": "3"})
    live.tiered(partitions=partitions)
    live.append({partition: ["a"] for partition in range(partitions)}).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    return live


def requests(folder: Path, partitions: int) -> Counter[str]:
    """The calls of a restore to brokers and the remote tier, by kind."""
    live = tiered(folder, partitions)
    calls: list[str] = []
    live.through = lambda _, store: CountingStore(store, lambda kind, _: calls.append(kind))
    Heir(live).restore().raise_for_failures()
    return Counter(calls)


def test_a_restore_sends_a_fixed_number_of_requests_per_partition(tmp_path: Path) -> None:
    """No partition needs a commit, a listing of a whole topic, or a load of a table of its own."""
    few, some, more = (requests(tmp_path / str(size), size) for size in (4, 8, 16))
    step = some - few
    assert more - some == step + step
    most = {"list": 13, "stat": 13, "read": 9, "copy": 0, "create": 7, "delete": 0}
    assert all(step[kind] / 4 <= most[kind] for kind in KINDS)


class Together:
    """Blocks the write of a local log start until another one is written, too."""

    def __init__(self, partitions: int) -> None:
        self.left = partitions
        self._lock = threading.Lock()
        self._two = threading.Barrier(2, timeout=10)

    def wait(self, kind: str, name: str) -> None:
        if kind == CREATE and name.endswith(".local"):
            with self._lock:
                self.left -= 1
                last = self.left < 0  # the starts of followers
            if not last:
                self._two.wait()


def test_leaders_are_prepared_side_by_side(tmp_path: Path) -> None:
    """Two small files for each partition, one after the other, would take minutes for a cluster in buckets."""
    live = tiered(tmp_path / "c", 4)
    together = Together(4)

    def through(uri: str, store: Store) -> Store:
        return CountingStore(store, together.wait) if "heir" in uri else store

    live.through = through
    Heir(live).restore().raise_for_failures()
    assert together.left <= 0


def test_the_benchmark_restores_and_appends(tmp_path: Path) -> None:
    line = restored(Bench(None, bench_options({}, tmp_path)), 2)
    assert line.partitions == 2
    assert line.append_s > 0
    assert line.requests > 0
    assert len(line.cells) == len(line.headings)
