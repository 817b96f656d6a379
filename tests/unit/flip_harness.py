"""One flipped bit, somewhere in one copy of a segment, followed by an operation that moves or reads bytes. The
requirements:

    found or harmless       no reader gets a wrong value, and no other copy gets the flipped bit. Found: the
                            operation reports the bit or replaces the copy, or a later read reports it
    nothing good is lost    every record has an intact copy somewhere, and after a heal all records can be read
                            again

A way is tried at many positions: its cluster is built once, and restored before each of them. Healing is
expensive, and is skipped at most of the positions if there are many.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName, base_name, parse_name
from stratalog.partitions.replica import remembered_lineages
from stratalog.partitions.segments.check import verify_segment
from stratalog.partitions.store import Store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.protocol import StoredObject
from tests.ports import in_turn
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.tampering import Spot

HEALED = 10
"""The number of first positions that are healed afterwards, and the interval of the others."""
RECORDS = 40
"""The number of records of each append."""

UNCOMPRESSED = {"compression_type": "uncompressed", "file_delete_delay_ms": "0"}
"""Without compression, a flipped bit of a value is a wrong value that nothing else detects."""


def values(appends: range) -> list[str]:
    """The values of these appends."""
    return [f"value {at}.{number:02d}" for at in appends for number in range(RECORDS)]


def fill(live: LiveCluster, appends: range) -> None:
    for at in appends:
        live.append(values(range(at, at + 1)), at_ms=at).raise_for_failures()


Victim = Callable[[LiveCluster], Spot]
Act = Callable[[LiveCluster, "Trial"], object]


@dataclass(frozen=True)
class Way:
    """An operation that moves or reads bytes."""

    build: Callable[[LiveCluster], object]
    victim: Victim | None
    """The file with the flipped bit; None if ``act`` flips one itself."""
    act: Act
    brokers: int = 3
    heals: bool = True
    """Whether everything is intact after a heal, which is not so if the flipped copy is the only one."""
    check: Callable[[LiveCluster, bool], object] | None = None
    """Checks the result if the log changes, and, if requested, after a heal."""
    kind: type[LiveCluster] = LiveCluster


@dataclass
class Trial:
    """One position of one way."""

    live: LiveCluster
    faults: Faults
    at: int
    """Any number; it is used modulo the size of a file."""
    bit: int
    acknowledged: list[str] = field(default_factory=list)
    """The acknowledged records of the operation."""
    flipped: dict[str, bytes] = field(default_factory=dict)
    """The addresses of the copies with the flipped bit."""
    found: bool = False

    def snapshot_state(self, report: object) -> None:
        """A report detects the bit if an item failed or a note names the file."""
        if isinstance(report, Report):
            named = (base_name(address) in note for address in self.flipped for note in report.notes)
            self.found |= bool(report.failures) or any(named)

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Record that the bit was detected."""
        try:
            yield
        except CorruptionError:
            self.found = True

    def flip(self, spot: Spot) -> None:
        data = bytearray(spot.read())
        data[self.at % len(data)] ^= 1 << self.bit
        spot.replace(bytes(data))
        self.flipped[spot.store.uri_of(spot.path)] = bytes(data)


class Stage:
    """The cluster of one way, restored for each trial."""

    def __init__(self, folder: Path, way: Way) -> None:
        self.way = way
        self.faults = Faults()
        self.live = way.kind(folder, way.brokers, through=self.faults.wrap)
        way.build(self.live)
        self._memory = {name: dict(store._objects) for name, store in self.live._memory.items()}
        self._remote = self.live.in_remote()
        self._expected = self.live.read()[0] if way.check is None else []
        self._good = {base_name(name): data for name, data in self._files()}
        self._ends = {
            str(name): verify_segment(store, DataFile(name, stored)).footer.next_offset
            for _, store, stored in self._stored()
            if isinstance(name := parse_name(base_name(stored.name)), DataName)
        }

    @cached_property
    def victim_bytes(self) -> int:
        """The size of the flipped file, or of a similar one if the way creates it."""
        names = sorted(name for name in self._good if isinstance(parse_name(name), DataName))
        return len(self._good[names[0]]) if self.way.victim is None else len(self.way.victim(self.live).read())

    def try_at(self, at: int, bit: int, *, heals: bool = True) -> str:
        """Run one trial; returns whether the bit was ``found`` or is ``harmless``. Raises: AssertionError."""
        self._put_back()
        trial = Trial(self.live, self.faults, at, bit)
        if self.way.victim is not None:
            trial.flip(self.way.victim(self.live))
        with trial.finding():
            trial.snapshot_state(self.way.act(self.live, trial))
        self.faults.none()
        assert trial.flipped, "no bit was flipped"
        self.live.cluster = self._driver()
        now = {at: store.read(stored.name) for at, store, stored in self._stored() if at in trial.flipped}
        trial.found |= now != trial.flipped
        if self.way.check is None:
            self._check(trial, heals=heals and self.way.heals)
        else:
            self._good_offsets(trial)
            self.way.check(self.live, heals)
        return "found" if trial.found else "harmless"

    def _put_back(self) -> None:
        self.faults.none()
        remembered_lineages.clear()
        for name, store in self.live._memory.items():
            store._objects = dict(self._memory.get(name, {}))
        for name, data in self.live.in_remote().items():
            if self._remote.get(name) != data:
                Path(name).unlink()
        for name, data in self._remote.items():
            if not Path(name).exists():
                Path(name).write_bytes(data)
        self.live.cluster = self._driver()

    def _driver(self) -> Cluster:
        """Another driver, which works serially."""
        return in_turn(self.live.driver())

    def _check(self, trial: Trial, *, heals: bool) -> None:
        if self.way.heals:
            assert self._good_offsets(trial) >= set(range(len(self._expected) + len(trial.acknowledged)))
        self._check_read(whole=False, trial=trial)
        if heals:
            self.live.cluster.heal()
            self.live.cluster.replicate()
            self.live.cluster.verify(deep=True).raise_for_failures()
            self._check_read(whole=True, trial=trial)

    def _good_offsets(self, trial: Trial) -> set[int]:
        """The offsets with an intact copy. The bit was not copied, and files that were made from other files are
        intact.
        """
        found: set[int] = set()
        for address, store, stored in self._stored():
            name = parse_name(base_name(stored.name))
            if address in trial.flipped or not isinstance(name, DataName):
                continue
            end = self._ends.get(str(name), name.next_offset)
            good = self._good.get(str(name))
            if good is None or store.read(stored.name) != good:
                end = verify_segment(store, DataFile(name, stored)).footer.next_offset
            assert end is not None
            found |= set(range(name.base_offset, end))
        return found

    def _check_read(self, *, whole: bool, trial: Trial) -> None:
        expected = [*self._expected, *trial.acknowledged]
        found: dict[int, str] = {}
        finding = nullcontext if whole else trial.finding
        with finding():
            for part in self.live.cluster.plan_read("t"):
                with finding():
                    found.update(self.live.records(part))
        for offset, value in found.items():
            assert offset >= len(expected) or value == expected[offset], "a wrong value was read"
        if whole:
            assert [found[offset] for offset in range(len(expected))] == expected

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for _, store, stored in self._stored():
            yield stored.name, store.read(stored.name)

    def _stored(self) -> Iterator[tuple[str, Store, StoredObject]]:
        """Every file of topic ``t``, on brokers and in the remote tier."""
        roots: list[Store] = [*self.live.cluster.stores.values(), LocalStore(str(self.live.remote))]
        for store in roots:
            for stored in store.list(""):
                if "/t-" in f"/{stored.name}" and "_delta_log" not in stored.name:
                    yield store.uri_of(stored.name), store, stored


def try_way(folder: Path, way: Way, positions: int, seed: int) -> Counter[str]:
    """Flip bits at a number of random positions of a segment; returns the counts of ``found`` and ``harmless``."""
    stage, rng = Stage(folder, way), random.Random(seed)
    size, met = stage.victim_bytes, Counter[str]()
    for number, at in enumerate(rng.sample(range(size), positions)):
        bit = rng.randrange(8)
        try:
            met[stage.try_at(at, bit, heals=number < HEALED or number % HEALED == 0)] += 1
        except Exception as error:
            raise AssertionError(f"bit {bit} of byte {at} (of {size}): {type(error).__name__}: {error}") from error
    return met
