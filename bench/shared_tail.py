"""A prototype for docs/shared-tail.md, not part of the product: ``python -m bench.shared_tail`` counts requests.

One object per run and broker holds the appends of all partitions that the broker leads:

    <number>.tail     the partitions' bytes one after the other, then an index with the partition, epoch, number of
                      records and place of each
    <number>.hw       the high watermark of all these partitions: the ISR holds every object up to this number

Numbers have no gaps: the exclusive create of the next number orders all runs of all drivers at this broker. No
object contains offsets. The offset of a record is the end of the last split, plus the number of earlier records of
its partition in the live entries. Calls are counted as in ``bench.calls``, on stores in memory.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.bench import TOPIC
from bench.calls import CountedCluster, append_one
from bench.cost_table import DAY_S, GIB_PER_MIB, Prices, Requests, Shape, diskless_requests, read_prices
from bench.counting import COPY, CREATE, LIST, READ, STAT, CountingStore
from bench.table import Cells, render
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.store import StoredObject
from stratalog.partitions.store.memory import MemoryStore

BROKERS = 3
FOLDER = "shared"
SPLIT = 20
"""The number of partitions whose split is counted."""
KINDS = ("PUTs", "GETs")
"""Requests at the price of a PUT, and at that of a GET."""
INDEX_BYTES = 8
"""The length of the index, at the end of an object."""
INDEX_READ = 64 * 1024
"""The size of the first read from the end: an index of a thousand partitions."""
Batches = Mapping[int, tuple[int, bytes]]
"""The number of records and their bytes, which contain no offsets, keyed by partition."""


class Entry(NamedTuple):
    """The part of one partition in an object."""

    partition: int
    epoch: int
    records: int
    start: int
    end: int


@dataclass(slots=True)
class SharedTail:
    """One driver's view of the shared tail of one broker and of its copies."""

    leader: CountingStore
    followers: Sequence[CountingStore]
    epoch: int = 1
    number: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    """The log end offset of each partition after the object ``number``."""

    def append(self, batches: Batches) -> dict[int, int]:
        """One run: create, look, copy, look, acknowledge. Returns the base offset of each partition."""
        data = encode(batches, self.epoch)
        while not self.attempt(data):
            self.catch_up()
        self.number += 1
        bases = {partition: self.ends[partition] for partition in batches}
        self.ends.update({partition: records for partition, (records, _) in batches.items()})
        stored = self._present()  # write, then check
        staged = [one.stage_copy(self.leader, stored, tail_name(self.number)) for one in self.followers]
        self._present()  # copy, then check
        for copy in staged:
            copy.commit()
        for store in (self.leader, *self.followers):
            store.stat("broker.json")  # the root must still be the same
            store.create(f"{FOLDER}/{self.number:020}.hw", b"")
        return bases

    def attempt(self, data: bytes) -> bool:
        """Write one object. Returns False if the number was taken; the caller then writes the bytes again."""
        return self.leader.create(tail_name(self.number + 1), data)

    def catch_up(self) -> None:
        """Learn the appends of others: one listing, and the index of each new object."""
        for stored in self.leader.list(FOLDER, _last(self.number)):
            if stored.name.endswith(".tail"):
                for entry in index_of(self.leader, stored.name, stored.size_bytes):
                    self.ends[entry.partition] += entry.records
                self.number += 1

    def tail(self, partition: int) -> Iterator[bytes]:
        """The requests of a reader of one partition: a listing, the index of each object, and ranges of some
        objects.
        """
        for stored in self.leader.list(FOLDER):
            if stored.name.endswith(".tail"):
                for entry in index_of(self.leader, stored.name, stored.size_bytes):
                    if entry.partition == partition:
                        yield self.leader.read(stored.name, entry.start, entry.end)

    def split(self, partitions: int) -> None:
        """Write one file for each partition from the whole tail. Each object is read once; each file is checked
        and copied.
        """
        parts: dict[int, bytes] = {}
        for stored in self.leader.list(FOLDER):
            if stored.name.endswith(".tail"):
                data = self.leader.read(stored.name)
                for entry in entries(data):
                    parts[entry.partition] = parts.get(entry.partition, b"") + data[entry.start : entry.end]
        for partition in range(partitions):
            name = f"{partition}/{self.ends[partition]:020}.parquet"
            self.leader.create(name, parts[partition])
            (stored,) = self.leader.list(f"{partition}")
            self.leader.stat(name)
            for follower in self.followers:
                follower.stage_copy(self.leader, stored, name).commit()

    def _present(self) -> StoredObject:
        listed = self.leader.list(FOLDER, _last(self.number - 1))
        return next(stored for stored in listed if stored.name == tail_name(self.number))


def tail_name(number: int) -> str:
    return f"{FOLDER}/{number:020}.tail"


def _last(number: int) -> str:
    """The last name that may have this number."""
    return f"{number:020}.tail"


def encode(batches: Batches, epoch: int) -> bytes:
    """An object."""
    index, data = [], b""
    for partition, (records, part) in batches.items():
        index.append((partition, epoch, records, len(data), len(data) + len(part)))
        data += part
    index_bytes = json.dumps(index, separators=(",", ":")).encode()
    return data + index_bytes + len(index_bytes).to_bytes(INDEX_BYTES)


def entries(end: bytes) -> list[Entry]:
    """The index, from the end of an object. Raises: ValueError if the index is longer."""
    size = int.from_bytes(end[-INDEX_BYTES:]) + INDEX_BYTES
    if size > len(end):
        raise ValueError(f"the index has {size} bytes, and {len(end)} were read")
    return [Entry(*entry) for entry in parse_json(end[-size:-INDEX_BYTES], list[tuple[int, int, int, int, int]])]


def index_of(store: CountingStore, name: str, size_bytes: int) -> list[Entry]:
    """The index of an object, in one request."""
    return entries(store.read(name, max(0, size_bytes - INDEX_READ), size_bytes))


# --------------------------------------------------------------------------------------------- figures


def requests_of(calls: Sequence[str]) -> Requests:
    """Requests by price: a copy also counts as a GET of the object that its create writes."""
    kinds = Counter(calls)
    return Requests(kinds[LIST] + kinds[CREATE], kinds[STAT] + kinds[READ] + kinds[COPY])


class Brokers:
    """Buckets in memory, whose calls are recorded."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        clock = SystemClock()
        on_call = lambda kind, _: self.calls.append(kind)  # noqa: E731
        self.stores = [CountingStore(MemoryStore(f"memory://b{n}", clock), on_call) for n in range(BROKERS)]
        for store in self.stores:
            store.create("broker.json", b"{}")

    def driver(self) -> SharedTail:
        """A driver that knows nothing yet."""
        return SharedTail(self.stores[0], self.stores[1:])

    def counted(self, work: Callable[[], object]) -> Requests:
        """The requests of a piece of work."""
        self.calls.clear()
        work()
        return requests_of(self.calls)


def batches(partitions: int) -> Batches:
    return dict.fromkeys(range(partitions), (1, b"x" * 100))


def shared_run(partitions: int) -> Requests:
    """The requests of a run over partitions of one broker, by a driver that has made such a run before."""
    brokers = Brokers()
    driver = brokers.driver()
    driver.append(batches(partitions))
    return brokers.counted(lambda: driver.append(batches(partitions)))


def raced(drivers: int) -> float:
    """The number of objects that are written per acknowledged run if all drivers try the same numbers at the same
    time.
    """
    brokers = Brokers()
    pending, written = [brokers.driver() for _ in range(drivers)], 0
    data = encode(batches(1), 1)
    while pending:
        won = [driver.attempt(data) for driver in pending]
        written += len(pending)
        pending = [driver for driver, first in zip(pending, won, strict=True) if not first]
        for driver in pending:
            driver.catch_up()
    return written / drivers


def of_tail(runs: int, partitions: int) -> tuple[Requests, Requests]:
    """The requests of a read of one partition by a new reader, from a tail of this number of runs, and of a split
    of all partitions."""
    brokers = Brokers()
    driver = brokers.driver()
    for _ in range(runs):
        driver.append(batches(partitions))
    read = brokers.counted(lambda: list(brokers.driver().tail(0)))
    return read, brokers.counted(lambda: driver.split(partitions))


def today(replicas: int) -> tuple[Requests, Requests]:
    """The requests of the product's append, per partition and per run, by a driver that has made an append
    before.
    """
    found: dict[int, Requests] = {}
    for partitions in (1, 3):
        with tempfile.TemporaryDirectory() as folder:
            made = CountedCluster(Path(folder))
            made.cluster.topics.create(TOPIC, partitions=partitions, replication_factor=replicas)
            driver = made.driver()
            for _ in range(2):
                append_one(driver, range(partitions)).raise_for_failures()
            calls = made.calls_of(lambda: append_one(driver, range(partitions)).raise_for_failures())  # noqa: B023
        found[partitions] = requests_of([*calls.elements()])
    partition = (found[3] + found[1].times(-1)).times(0.5)
    return partition, found[1] + partition.times(-1)


def parts(mib: float, replicas: int) -> Requests:
    """The additional requests of large objects: parts of 16 MiB when written, copies of 64 MiB above 4 MiB."""
    written = math.ceil(mib / 16) + 1 if mib > 16 else 0
    copied = math.ceil(mib / 64) + 1 if mib > 4 else 0
    return Requests(puts=written + copied * (replicas - 1))


def dollars(prices: Prices, shape: Shape, trigger_s: float, split_runs: int) -> list[str]:
    """Dollars of appends per day, as text: of today's appends, of one replica, of a shared tail, and of diskless
    topics.
    """
    runs, mib = DAY_S / trigger_s, shape.mib_s * trigger_s
    three, besides = today(BROKERS)
    one, _ = today(1)
    _, split = of_tail(split_runs, SPLIT)
    shared = (shared_run(SPLIT) + parts(mib / BROKERS, BROKERS)).times(BROKERS)
    each = split.times(1 / SPLIT) + parts(mib * split_runs / shape.partitions, BROKERS)
    days = (
        ((three + parts(mib / shape.partitions, BROKERS)).times(shape.partitions) + besides).times(runs),
        ((one + parts(mib / shape.partitions, 1)).times(shape.partitions) + besides).times(runs),
        (shared + each.times(shape.partitions / split_runs) + besides).times(runs),
        diskless_requests(prices, shape),
    )
    gib = shape.mib_s * DAY_S * GIB_PER_MIB
    return [f"{day.dollars(prices.bucket):,.2f} ({day.dollars(prices.bucket) / gib:.4f})" for day in days]


def figures() -> Iterator[Cells]:
    """All tables of the page."""
    prices = read_prices()
    (three, besides), (one, _) = today(BROKERS), today(1)
    systems = ("today", "one replica", "shared")
    heads: tuple[str, ...] = ("partitions of a run", *(f"{each}: {kind}" for each in systems for kind in KINDS))
    for partitions in (3, 30, 300, 3_000):
        asked = (
            three.times(partitions) + besides,
            one.times(partitions) + besides,
            shared_run(partitions // BROKERS).times(BROKERS) + besides,
        )
        yield Cells(heads, (f"{partitions:,}", *(f"{n:,.0f}" for r in asked for n in (r.puts, r.gets))))
    for drivers in (1, 2, 4, 8, 16):
        yield Cells(("concurrent drivers", "objects written per run"), (str(drivers), f"{raced(drivers):.1f}"))
    for runs in (1, 16, 60):
        read, split = of_tail(runs, SPLIT)
        cells = (
            *(f"{n:.0f}" for n in (read.puts, read.gets)),
            *(f"{n / SPLIT:.1f}" for n in (split.puts, split.gets)),
        )
        steps = ("read one partition", "split, per partition")
        heads = ("runs in the tail", *(f"{step}: {kind}" for step in steps for kind in KINDS))
        yield Cells(heads, (str(runs), *cells))
    heads = ("shape", "trigger", "today", "one replica", "shared, split after 60 runs", "diskless")
    for shape in prices.shape:
        for trigger_s in (1, 10, 60):
            shape_text = f"{shape.partitions:,} partitions, {shape.mib_s:g} MiB/s"
            yield Cells(heads, (shape_text, f"{trigger_s} s", *dollars(prices, shape, trigger_s, 60)))


if __name__ == "__main__":
    print(render([*figures()]))
    sys.exit(0)
