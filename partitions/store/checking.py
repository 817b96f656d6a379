"""Tests whether a storage keeps every rule that the replication protocol depends on, and describes each result. A
test that passes does not prove its rule, because each race runs only a few times. A test that fails proves that
the rule is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from isal import isal_zlib

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    OutcomeUnknownError,
    SourceChangedError,
    StratalogError,
    UnsupportedStoreError,
)
from stratalog.partitions.identity import NewId
from stratalog.partitions.paths import probe_name
from stratalog.partitions.store.object import ObjectStore
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.partitions.store.racing import CREATED, RACERS, TAKEN, UNKNOWN, Race, Racer
from stratalog.partitions.store.rules import drop_probes

RACES = 10
ROUNDS = 10
MANY = 200
PART_BYTES = 1024
"""The size of the parts of large objects, which are multipart uploads."""
LARGE_BYTES = 16 * 1024 * 1024
MOST_SKEW_S = 60


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of attempts of a check."""

    racers: int
    races: int
    rounds: int


THOROUGH = Effort(RACERS, RACES, ROUNDS)
QUICK = Effort(racers=6, races=2, rounds=3)
"""The rounds of a quick check, which takes some seconds if a request takes 100 ms."""


LARGE_ONCE = "a large object is created once"
"""The rule for which a store may have an alternative setting; the report includes the store's advice."""


class BrokenRuleError(Exception):
    """A rule was broken; the message has the evidence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one rule."""

    rule: str
    kept: bool
    result: str


class StoreCheck:
    """One check of one store, in a separate folder."""

    def __init__(
        self, store: Store, other: Store, race: Race, clock: Clock, new_id: NewId, effort: Effort = THOROUGH
    ) -> None:
        """``other`` is the same storage opened again, as another driver would."""
        self._store = store
        self._other = other
        self._race = race
        self._clock = clock
        self._folder = probe_name(new_id())
        self._effort = effort
        self._outcomes: Sequence[Sequence[str]] = ()

    def verdicts(self) -> Sequence[Verdict]:
        """One result per rule, even if the rule could not be tested."""
        rules: dict[str, Callable[[], str]] = {
            "it can be used": self._usable,
            "a name is created once": partial(self._created_once, 0),
            LARGE_ONCE: partial(self._created_once, self._effort.races),
            "a taken name stays as it is": self._stays,
            "a listing shows all that was written": self._listed,
            "a deleted name is gone, and free again": self._free_again,
            "a bulk delete deletes": self._bulk_delete,
            "a range has exactly its bytes": self._ranges,
            "a listed object is the one that is read": self._same_object,
            "a copy has the same bytes": self._copies,
            "its clock agrees with ours": self._clocks,
            "speed": self._speed,
            "the test leaves nothing": self._clean,
        }
        return [self._verdict(rule, tried) for rule, tried in (self._foreign_rules() | rules).items()]

    def _foreign_rules(self) -> dict[str, Callable[[], str]]:
        """The additional rule for a foreign file system."""
        foreign = isinstance(self._store, ObjectStore) and self._store.file_system is not None
        return {"a creation is sent once": self._sent_once} if foreign else {}

    def must_hold(self) -> None:
        """Test the rules that protect records. Raises: UnsupportedStoreError for the first broken rule;
        StorageError kinds if a rule cannot be tested.
        """
        rules: dict[str, Callable[[], str]] = {
            "a name is created once": partial(self._created_once, 0),
            LARGE_ONCE: partial(self._created_once, self._effort.races),
            "a listing shows all that was written": self._listed,
            "a deleted name is gone, and free again": self._free_again,
        }
        try:
            for rule, tried in (rules | self._foreign_rules()).items():
                try:
                    tried()
                except (BrokenRuleError, FileNotFoundError) as broken:
                    instead = "use other storage"
                    if isinstance(self._store, ObjectStore) and (rule == LARGE_ONCE or self._foreign_rules()):
                        instead = self._store.instead()
                    raise UnsupportedStoreError(
                        f"{self._store.uri} breaks the rule that {rule}: {_evidence(broken)}. Remedy: {instead}; "
                        f"check_store {self._store.uri} tests all rules"
                    ) from None
        finally:
            drop_probes(self._store, [each.name for each in self._store.walk(self._folder)])

    def _verdict(self, rule: str, tried: Callable[[], str]) -> Verdict:
        try:
            return Verdict(rule, True, tried())
        except (BrokenRuleError, FileNotFoundError) as broken:
            return Verdict(rule, False, _evidence(broken))
        except StratalogError as error:
            return Verdict(rule, False, f"the rule could not be tested: {error or type(error).__name__}")

    # ------------------------------------------------------------------------------------- rules

    def _usable(self) -> str:
        self._store.check()
        return "the store can be listed and written; if it supports checksums, it rejects bytes damaged in transit"

    def _created_once(self, first: int) -> str:
        races, count = self._effort.races, self._effort.racers
        small, large = ([self._name(f"race-{kind}-{n}") for n in range(races)] for kind in ("put", "parts"))
        racers = [Racer(self._store, number, small, large, PART_BYTES) for number in range(count)]
        if not self._outcomes:
            self._outcomes = self._race(racers)  # both kinds in one race, because processes start slowly
        outcomes = self._outcomes
        for index, name in [*enumerate((*small, *large))][first : first + races]:
            of_name = [each[index] if index < len(each) else each[-1] for each in outcomes]
            winners = [number for number, outcome in enumerate(of_name) if outcome == CREATED]
            errors = [outcome for outcome in of_name if outcome not in (CREATED, TAKEN, UNKNOWN)]
            if len(winners) > 1:
                raise BrokenRuleError(
                    f"{len(winners)} of {count} concurrent writers created the same name, according to the "
                    f"storage: concurrent drivers would overwrite each other's records{self._how(name)}"
                )
            if errors:
                raise BrokenRuleError(
                    f"{len(errors)} of {count} concurrent writers failed, the first with: {errors[0]}"
                )
            found = self._other.read(name)
            if winners and found != racers[winners[0]].data():
                raise BrokenRuleError("the name does not have the bytes of the writer that created it")
            if not winners and UNKNOWN not in of_name:
                raise BrokenRuleError(
                    f"the storage reported to all {count} concurrent writers that a free name was taken"
                )
        return f"{count} concurrent writers tried to create each of {races} names, and exactly one created it"

    def _how(self, name: str) -> str:
        """The reason why a foreign file system created an existing name."""
        if not isinstance(self._store, ObjectStore) or self._store.file_system is None:
            return ""
        way = (
            "overwrites" if self._store.create(name, b"again") else "checks whether a name exists, and then writes"
        )
        return f'. {self._store.file_system}.pipe_file(mode="create") {way}'

    def _sent_once(self) -> str:
        assert isinstance(self._store, ObjectStore)
        file_system, times = self._store.file_system, self._store.sent_per_creation()
        if times is None:
            return f"not measured: {file_system} does not use an HTTP server"
        if times == 0:
            raise BrokenRuleError(f"{file_system} sent nothing to the given endpoint_url")
        if times > 1:
            raise BrokenRuleError(
                f"{file_system} sent the same create request {times} times when it got no answer: a retry "
                "could mistake its own object for someone else's. Switch its retries off"
            )
        return f"{file_system} sent a create request only once when it got no answer"

    def _stays(self) -> str:
        name = self._name("taken")
        self._create(self._store, name, b"first")
        before = self._store.stat(name)
        if self._other.create(name, b"later"):
            raise BrokenRuleError("an existing name could be created again")
        staged = self._other.stage_writer(name)
        staged.file.write(b"x" * PART_BYTES)
        if staged.commit():
            raise BrokenRuleError("an existing name could be created again by a large object")
        if self._store.read(name) != b"first" or self._store.stat(name).version != before.version:
            raise BrokenRuleError("a refused create changed the existing object")
        return "neither a small nor a large object replaced the existing object"

    def _listed(self) -> str:
        names: list[str] = []
        rounds = self._effort.rounds
        for number in range(rounds):
            names.append(self._name(f"listed/{number:03d}"))
            self._create(self._store, names[-1], b"data")
            seen = sorted(each.name for each in self._other.list(f"{self._folder}/listed"))
            if seen != names:
                raise BrokenRuleError(
                    f"after {len(names)} names were created, another driver's listing showed {len(seen)} of them"
                )
        behind = [each.name for each in self._other.list(f"{self._folder}/listed", after="001")]
        if behind != names[2:]:
            raise BrokenRuleError(f"a listing after a name showed {len(behind)} names instead of {len(names[2:])}")
        return f"each of {rounds} new names was in the next listing of another driver"

    def _free_again(self) -> str:
        name = self._name("again")
        versions: set[str] = set()
        rounds = self._effort.rounds
        for number in range(rounds):
            data = b"%04d" % number
            if not self._store.create(name, data):
                raise BrokenRuleError("a deleted name could not be created again")
            if self._other.read(name) != data:
                raise BrokenRuleError("a name that was created again had its old bytes")
            versions.add(self._other.stat(name).version)
            self._store.delete([name])
            self._is_gone(name)
        self._is_gone(name)
        if len(versions) < rounds:
            raise BrokenRuleError("two successive objects of one name cannot be distinguished")
        return (
            f"{rounds} times: another driver saw the deletion immediately, the name was free immediately, and the "
            "new "
            "object was distinguishable"
        )

    def _bulk_delete(self) -> str:
        names = [self._name(f"bulk/{number:04d}") for number in range(MANY)]
        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(lambda name: self._create(self._store, name, b""), names))
        self._store.delete(names)
        left = [each.name for each in self._other.list(f"{self._folder}/bulk")]
        if left:
            raise BrokenRuleError(f"a delete of {MANY} names reported success, but {len(left)} still exist")
        return f"{MANY} names were gone"

    def _ranges(self) -> str:
        name, data = self._name("ranges"), bytes(range(256)) * 8
        self._create(self._store, name, data)
        for start, end in ((0, None), (0, 1), (100, 300), (2000, 9000), (-8, None), (5000, None), (2047, 2048)):
            found = self._other.read(name, start, end)
            if found != data[start:end]:
                raise BrokenRuleError(
                    f"a read of [{start}, {end}) of {len(data)} bytes returned {len(found)} other bytes"
                )
        return "ranges at the start, in the middle, at the end, and beyond it"

    def _same_object(self) -> str:
        name = self._name("same")
        self._create(self._store, name, b"first")
        before = self._listed_object(self._store, name)
        self._store.delete([name])
        self._create(self._store, name, b"later")
        try:
            with self._other.open(before) as reader:
                found = reader.read()
        except SourceChangedError:
            pass
        else:
            raise BrokenRuleError(f"a read of the listed object returned another object ({found!r})")
        return "a read of a replaced object is refused"

    def _copies(self) -> str:
        data = bytes(range(256)) * 20  # five parts
        here, there = self._name("here"), self._name("there")
        self._create(self._store, here, data)
        staged = self._store.stage_copy(self._store, self._listed_object(self._store, here), there)
        if staged.crc32 != isal_zlib.crc32(data):
            raise BrokenRuleError("the checksum reported for a copy does not match its bytes")
        if not staged.commit() or self._other.read(there) != data:
            raise BrokenRuleError("the bytes of a copy differ from those of its source")
        return "the copy has the checksum that the server reported"

    def _clocks(self) -> str:
        before_ms = self._clock.now_ms()
        name = self._name("clock")
        self._create(self._store, name, b"data")
        after_ms = self._clock.now_ms()
        stored_ms = self._store.stat(name).modified_ms
        skew_s = max(before_ms - 1000 - stored_ms, stored_ms - after_ms, 0) / 1000
        if skew_s > MOST_SKEW_S:
            raise BrokenRuleError(
                f"the clocks differ by {skew_s:.0f} s: unfinished files would be deleted too early or too late. "
                "Set the clocks of this machine and of the storage"
            )
        return f"the clocks differ by at most {skew_s:.1f} s"

    def _speed(self) -> str:
        name = self._name("speed")
        data = bytes(LARGE_BYTES)
        create_ms = sorted(
            self._timed(partial(self._create, self._store, f"{name}-{n}", b"data")) for n in range(ROUNDS)
        )
        read_ms = sorted(self._timed(partial(self._store.read, f"{name}-{n}")) for n in range(ROUNDS))
        list_ms = self._timed(partial(self._store.walk, self._folder))
        up_ms = self._timed(partial(self._create, self._store, name, data))
        down_ms = self._timed(partial(self._store.read, name))
        up, down = (LARGE_BYTES / 1000 / max(ms, 0.001) for ms in (up_ms, down_ms))
        return (
            f"a create takes {create_ms[ROUNDS // 2]:.1f} ms, a read {read_ms[ROUNDS // 2]:.1f} ms, a listing "
            f"{list_ms:.1f} ms; {up:.0f} MB/s up, {down:.0f} MB/s down, one at a time"
        )

    def _clean(self) -> str:
        self._store.delete([each.name for each in self._store.walk(self._folder)])
        if left := self._other.list(self._folder):
            raise BrokenRuleError(f"{len(left)} objects below {self._folder} were not deleted: delete them")
        return "all objects of this test are deleted"

    # ------------------------------------------------------------------------------------ helpers

    def _name(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _timed(self, work: Callable[[], object]) -> float:
        began = self._clock.monotonic_s()
        work()
        return (self._clock.monotonic_s() - began) * 1000

    def _create(self, store: Store, name: str, data: bytes) -> None:
        try:
            created = store.create(name, data) or store.read(name) == data  # True after a lost answer
        except OutcomeUnknownError:
            created = store.read(name) == data
        if not created:
            raise BrokenRuleError(f"a free name was reported as taken ({name})")

    def _listed_object(self, store: Store, name: str) -> StoredObject:
        found = [each for each in store.list(self._folder) if each.name == name]
        if not found:
            raise BrokenRuleError("a created object is not listed")
        return found[0]

    def _is_gone(self, name: str) -> None:
        if any(each.name == name for each in self._other.list(self._folder)):
            raise BrokenRuleError("a deleted name is still listed, or reappeared")
        try:
            self._other.read(name)
        except FileNotFoundError:
            return
        raise BrokenRuleError("a deleted name can still be read, or reappeared")


def _evidence(broken: BrokenRuleError | FileNotFoundError) -> str:
    """The reason why a rule is broken. Tests read only names that were created before, or that others hold."""
    return str(broken) if isinstance(broken, BrokenRuleError) else f"a created name cannot be read: {broken}"
