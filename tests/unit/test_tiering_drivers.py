"""Overlapping tier runs, and a zombie of an earlier one, on Delta's real log: seeded schedules in which every read
and every put of the table is a point of interleaving, and any driver may die at any of them."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from greenlet import GreenletExit, greenlet

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_segment import RemoteSegment
from tests.unit.commit_interleaving import pause, stepped_table
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import table_in, uploaded

END, PARTITIONS, DRIVERS = 60, 2, 4
LINEAGE = Lineage([(1, 0), (2, 25)])
"""Epoch 1 wrote up to offset 25, epoch 2 the rest: a clean election in the middle."""


class World:
    """Drivers that tier the same partitions. Each sees runs with its own boundaries (merges change them), and the
    metadata, whose leader epoch changes once."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.remote = LocalStore(str(folder))
        self.epoch = 1
        table_in(self.remote).ensure(SCHEMA)

    def now(self) -> dict[int, Present]:
        pause()
        return dict.fromkeys(range(PARTITIONS), Present(self.epoch))

    def runs(self, rng: random.Random, start: int, end: int) -> list[tuple[int, int]]:
        bounds = sorted({start, end, *rng.sample(range(END + 1), 8), 25})
        return list(pairwise(bound for bound in bounds if start <= bound <= end))

    def driver(self, number: int, zombie: bool) -> None:
        """Tier runs, one after the other, in batches; a zombie still believes that epoch 1 leads."""
        rng = random.Random(self.rng.random())
        table = stepped_table(self.remote, number)
        for _ in range(3):
            epoch = 1 if zombie else self.epoch
            lineage = LINEAGE if epoch == 2 else Lineage([(1, 0)])
            log = table.load()
            batch: list[RemoteSegment] = []
            for partition in range(PARTITIONS):
                for low, high in self.runs(rng, log.end(partition) or 0, END if epoch == 2 else 25):
                    name = DataName(low, high, 1 if high <= 25 else 2)
                    batch.append(RemoteSegment(partition, name, high, 100))
            while batch:
                size = rng.randint(1, 4)
                some, batch = batch[:size], batch[size:]
                histories = Histories(dict.fromkeys(range(PARTITIONS), lineage), self.now)
                done = table.commit([uploaded(each) for each in some], (), histories)
                if len(done.listed) < len(some):
                    break  # another driver has committed: the next run plans again

    def elect(self) -> None:
        for _ in range(self.rng.randint(0, 12)):
            pause()
        self.epoch = 2

    def run(self) -> None:
        running = [greenlet(lambda n=n: self.driver(n, zombie=n == 0)) for n in range(DRIVERS)]
        running.append(greenlet(self.elect))
        while running:
            one = self.rng.choice(running)
            if one and self.rng.random() < 0.01 and len(running) > 2:
                one.throw(GreenletExit)
            else:
                one.switch()
            running = [each for each in running if not each.dead]
        self.epoch = 2
        self.driver(DRIVERS, zombie=False)

    def entries(self) -> list[list[dict[str, dict[str, object]]]]:
        """The actions of each version."""
        log = Path(table_in(self.remote).uri) / "_delta_log"
        return [
            [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(log.glob("*.json"))
        ]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(4), *(range(4 + 20 * n, 24 + 20 * n) for n in range(5))])
def test_overlapping_runs_lose_nothing_and_commit_every_offset_once(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(folder, seed)
        world.run()
        log = table_in(world.remote).load()
        for partition in range(PARTITIONS):
            found = log.of_partition(partition)
            assert (found[0].base_offset, found[-1].next_offset) == (0, END), seed
            assert all(each.is_of(LINEAGE) for each in found), seed
        entries = world.entries()
        added = [action["add"]["path"] for version in entries for action in version if "add" in action]
        assert len(added) == len(set(added)) == len(log.all_segments()), f"{seed}: what was added stays, and once"
        assert all(any("add" in action for action in version) for version in entries[1:]), seed


def test_a_batch_of_several_partitions_is_one_version(tmp_path: Path) -> None:
    """One commit per topic and batch, not one per segment or partition."""
    world = World(tmp_path, 0)
    batch = [
        uploaded(RemoteSegment(partition, DataName(low, low + 5, 1), low + 5, 100))
        for partition in range(PARTITIONS)
        for low in range(0, 25, 5)
    ]
    histories = Histories(dict.fromkeys(range(PARTITIONS), Lineage([(1, 0)])), world.now)
    table_in(world.remote).commit(batch, (), histories)
    assert [sum("add" in action for action in version) for version in world.entries()] == [0, 10]
