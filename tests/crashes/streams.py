"""Drivers of streams, killed (-9) in the middle of their batches: what they copy is each record, once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from engine import Cluster
from partitions.offsets import OffsetSpec
from partitions.records import physical_schema
from tests.crashes.stream_driver import ROWS
from tests.crashes.victim import LOOK_EVERY_S, Victim
from tests.spark.spark_cluster import write_cluster_file

_DRIVER = "tests/crashes/stream_driver"
PARTITIONS = 2
_MOST_BATCHES = 2
"""That a driver begins before it is killed."""
_LONGEST_S = 1.2
"""After it has begun the last one."""
_SCHEMA = physical_schema()


class StreamCampaign:
    """One topic, which is copied into another one for each way."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._say = say
        self._file = write_cluster_file(folder, brokers=2)
        self._cluster = Cluster.format(self._file)
        small = {"num.partitions": "1", "replication.factor": "2"}
        for topic in ("transaction.state.log", "offsets.topic"):
            self._cluster.alter_configs(None, {f"{topic}.{name}": value for name, value in small.items()})
        self._cluster.alter_configs(None, {"transaction.state.log.min.isr": "1"})
        self._cluster.create_topic("numbers", partitions=PARTITIONS, replication_factor=2)
        self._count = 0

    def run(self, way: str, kills: int) -> Counter[str]:
        """Kill so many drivers, let the last one be; whether they were amid a batch. Raises: AssertionError when
        what was copied is not what there is."""
        self._append((kills * _MOST_BATCHES + 2) * ROWS)
        target, checkpoint = f"copied-{way}", self._folder / f"checkpoint-{way}"
        self._cluster.create_topic(target, partitions=PARTITIONS, replication_factor=2)
        argv = [way, str(self._file), str(checkpoint), "numbers", target]
        met: Counter[str] = Counter()
        for number in range(kills):
            victim = Victim(_DRIVER, argv, self._folder / f"{way}-{number}.log")
            try:
                met[self._kill(victim, checkpoint)] += 1
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
        """Numbers, of which those of a key are in one partition, in order."""
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

    def _kill(self, victim: Victim, checkpoint: Path) -> str:
        further = _count(checkpoint, "offsets") + self._rng.randint(1, _MOST_BATCHES)
        while not victim.ended and _count(checkpoint, "offsets") < further:
            time.sleep(LOOK_EVERY_S)
        assert not victim.ended, victim.output
        time.sleep(self._rng.uniform(0, _LONGEST_S))
        victim.kill()
        begun, ended = (_count(checkpoint, what) for what in ("offsets", "commits"))
        return "in a batch" if begun > ended else "between batches"

    def _check(self, target: str) -> None:
        tail = self._cluster.tail(target, start=OffsetSpec.EARLIEST, follow=False, isolation="read_committed")
        found = [int(value) for table in tail for value in table.column("value").to_pylist()]
        assert Counter(found) == Counter(range(self._count))
        for key in range(7):
            of_key = [number for number in found if number % 7 == key]
            assert of_key == sorted(of_key)


def _count(checkpoint: Path, folder: str) -> int:
    return len(list((checkpoint / folder).glob("[0-9]*")))
