"""Drivers of streams, killed (-9) in the middle of their batches: they copy each record once.

A moment is counted from the beginning of a batch, or from its first written file: otherwise a slow machine would
always be killed before anything is stored, and a fast one after everything.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from stratalog import Cluster
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.records import physical_schema
from tests.crashes.stream_driver import ROWS
from tests.crashes.victim import LOOK_EVERY_S, Victim
from tests.spark.spark_cluster import write_cluster_file

_DRIVER = "tests/crashes/stream_driver"
PARTITIONS = 2
_MOST_BATCHES = 2
"""The maximum number of batches that a driver begins before it is killed."""
_AHEAD = 4
"""The maximum number of further batches before the kill."""
_LONGEST_S = 1.0
"""The longest wait after the beginning of the last batch, or after its first written file."""
_WRITING = 0.7
"""The fraction of kills after the driver has written something."""
_SCHEMA = physical_schema()


class StreamCampaign:
    """One topic, which each way copies into another one."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._say = say
        self._file = write_cluster_file(folder, brokers=2)
        self._cluster = Cluster.format(self._file)
        small = {"num.partitions": "1", "replication.factor": "2"}
        for topic in ("transaction.state.log", "offsets.topic"):
            self._cluster.topics.alter_configs(None, {f"{topic}.{name}": value for name, value in small.items()})
        self._cluster.topics.alter_configs(None, {"transaction.state.log.min.isr": "1"})
        self._cluster.topics.create("numbers", partitions=PARTITIONS, replication_factor=2)
        self._count = 0

    def run(self, way: str, kills: int) -> Counter[str]:
        """Kill the given number of drivers, and let the last one finish; returns the stored part of the batch at
        each kill. Raises: AssertionError if the copy differs from the source."""
        target, checkpoint = f"copied-{way}", self._folder / f"checkpoint-{way}"
        self._cluster.topics.create(target, partitions=PARTITIONS, replication_factor=2)
        argv = [way, str(self._file), str(checkpoint), "numbers", target]
        met: Counter[str] = Counter()
        for number in range(kills):
            there = (_count(checkpoint, "offsets") + _MOST_BATCHES + _AHEAD) * ROWS
            self._append(max(0, there - self._count))
            victim = Victim(_DRIVER, argv, self._folder / f"{way}-{number}.log")
            try:
                met[self._kill(victim, checkpoint, target)] += 1
            finally:
                victim.end()
            self._say(f"{way} {number + 1:3}: {dict(met)}, {_count(checkpoint, 'commits')} batches")
        last = Victim(_DRIVER, argv, self._folder / f"{way}-last.log")
        try:
            assert last.wait() == 0, last.output
        finally:
            last.end()
        self._check(target)
        return met

    def _append(self, count: int) -> None:
        """Append numbers; those of a key are in one partition, in order."""
        numbers = range(self._count, self._count + count)
        self._count += count
        for start in range(0, count, 2 * ROWS):
            batches = {}
            for partition in range(PARTITIONS):
                some = [n for n in numbers[start : start + 2 * ROWS] if n % 7 % PARTITIONS == partition]
                batches[partition] = [
                    pa.record_batch(
                        {
                            "timestamp": pa.array([n * 1000 for n in some], _SCHEMA.field("timestamp").type),
                            "key": pa.array([b"%d" % (n % 7) for n in some]),
                            "value": pa.array([b"%d" % n for n in some]),
                            "headers": pa.nulls(len(some), _SCHEMA.field("headers").type),
                        }
                    )
                ]
            self._cluster.append_batches("numbers", batches).raise_for_failures()

    def _kill(self, victim: Victim, checkpoint: Path, target: str) -> str:
        begun = _count(checkpoint, "offsets") + self._rng.randint(1, _MOST_BATCHES)
        writes = self._rng.random() < _WRITING

        def wait(until: Callable[[], bool]) -> None:
            while not victim.ended and not until():
                time.sleep(LOOK_EVERY_S)
            assert not victim.ended, victim.output

        wait(lambda: _count(checkpoint, "offsets") >= begun)
        before, stored = self._files(target), self._stored(target)
        if writes:
            wait(lambda: self._files(target) > before or _count(checkpoint, "commits") >= begun)
        time.sleep(self._rng.uniform(0, _LONGEST_S))
        victim.kill()
        if _count(checkpoint, "commits") >= begun:
            return "committed"
        stored = self._stored(target) - stored
        return "nothing stored" if stored == 0 else "part stored" if stored < ROWS else "all stored"

    def _files(self, target: str) -> int:
        """The number of data files of its replicas."""
        return sum(1 for _ in self._folder.glob(f"b?/*/{target}-*/*/*.parquet"))

    def _stored(self, target: str) -> int:
        """The number of records and transaction markers of its leaders."""
        views = self._cluster.image.views(target)
        return sum(PartitionReplicas(view, self._cluster.stores).leader.log().log_end for view in views)

    def _check(self, target: str) -> None:
        tail = self._cluster.tail(target, start=OffsetSpec.EARLIEST, follow=False, isolation="read_committed")
        found = [int(value) for table in tail for value in table.column("value").to_pylist()]
        counts = Counter(found)
        lost, doubled = set(range(self._count)) - counts.keys(), [n for n, times in counts.items() if times > 1]
        self._say(f"{target}: {self._count} records, {len(lost)} lost, {len(doubled)} doubled")
        assert counts == Counter(range(self._count)), (lost, doubled)
        for key in range(7):
            of_key = [number for number in found if number % 7 == key]
            assert of_key == sorted(of_key)


def _count(checkpoint: Path, folder: str) -> int:
    return len(list((checkpoint / folder).glob("[0-9]*")))
