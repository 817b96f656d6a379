"""Drivers of a metadata log in random interleavings, call by call: commits, reads, snapshots, deletion, voters
that are lost and come back; calls that fail before or after they take effect, drivers that stop for ever (protocol
section 6: I6, I7). One seed gives sizes, faults and schedule, and its trace again.

    python -m tests.unit.quorum_interleaving FIRST COUNT       prints the seeds that violate an invariant
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.metadata.commands import RegisterBroker
from engine.metadata.fold import apply
from engine.metadata.image import ClusterImage
from engine.metadata.records import MetadataRecord, RegisterBrokerRecord, VoterId
from engine.metadata.voter_commands import AddVoter, RemoveVoter
from engine.quorum.batch import Batch, decode_batch
from engine.quorum.checkpoints import read_checkpoint
from engine.quorum.client import MetadataClient
from engine.quorum.log import MetadataLog, Patience
from engine.quorum.upkeep import keep_up
from engine.quorum.voter import Voter
from partitions.errors import (
    FencedError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StorageError,
)
from partitions.lineage import Lineage
from partitions.paths import CheckpointName, DataName, base_name, parse_name
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import CLUSTER, HookedStore, Quorum

Call = Callable[[], object]


class CrashError(BaseException):
    """The process is gone."""


class Scheduler:
    """Runs drivers in threads, one storage call at a time, in an order that the seed decides."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turn: dict[int, threading.Event] = {}
        self._waiting: set[int] = set()
        self._running = 0
        self._changed = threading.Condition()
        self._dead: set[int] = set()
        self._failures: list[BaseException] = []

    def step(self, driver: int) -> None:
        """Called by a driver before each of its storage calls."""
        event = self._turn[driver]
        with self._changed:
            self._waiting.add(driver)
            self._running -= 1
            if self._running == 0:
                self._changed.notify()
        event.wait()
        event.clear()
        if driver in self._dead:
            raise CrashError

    def run(self, drivers: Sequence[Callable[[], None]]) -> None:
        """Until all have ended. Raises: what a driver raised."""

        def body(index: int, drive: Callable[[], None]) -> None:
            try:
                drive()
            except CrashError:
                pass
            except BaseException as error:
                self._failures.append(error)
            finally:
                with self._changed:
                    self._running -= 1
                    if self._running == 0:
                        self._changed.notify()

        self._turn = {index: threading.Event() for index in range(len(drivers))}
        self._running = len(drivers)
        for index, drive in enumerate(drivers):
            threading.Thread(target=body, args=(index, drive), daemon=True).start()
        last = -1
        sticky = self._rng.choice([0.5, 0.8, 0.95])
        sleepers: dict[int, int] = {}
        for turn in range(1_000_000):
            with self._changed:
                self._changed.wait_for(lambda: self._running == 0)
                if not self._waiting:
                    break
                awake = sorted(one for one in self._waiting if sleepers.get(one, 0) <= turn)
                ready = awake or sorted(self._waiting)
                chosen = last if last in ready and self._rng.random() < sticky else self._rng.choice(ready)
                last = chosen
                chance = self._rng.random()
                if chance < 0.003:
                    self._dead.add(chosen)
                elif chance < 0.02 and len(ready) > 1:
                    sleepers[chosen] = turn + self._rng.choice([20, 100, 1000])  # a zombie, when it is back
                    continue
                self._waiting.discard(chosen)
                self._running += 1
            self._turn[chosen].set()
        for failure in self._failures:
            raise failure


@dataclass
class World:
    """The quorum, and everything that ever was in it."""

    quorum: Quorum
    batches: dict[DataName, bytes] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Offset to the token that was acknowledged there."""
    reads: list[tuple[int, ClusterImage]] = field(default_factory=list)
    """What must have been seen, and what was."""
    snapshots: int = 0
    deleted: int = 0
    changes: int = 0
    wiped: int = 0

    def note(self, what: str, name: str, store: HookedStore) -> None:
        """Remember every batch that ever had a name, for the replay of a log whose files are deleted."""
        parsed = parse_name(base_name(name))
        if what == "create" and isinstance(parsed, DataName):
            data = store.inner.read(name)
            assert self.batches.setdefault(parsed, data) == data, f"two batches are called {parsed}"

    def batch(self, name: DataName) -> Batch:
        return decode_batch(CLUSTER, name, self.batches[name], str(name))

    def history(self, lineage: Lineage, end: int) -> list[MetadataRecord]:
        """The records of a log, from everything that ever was."""
        records: list[MetadataRecord] = []
        while len(records) < end:
            epoch = lineage.epoch_at(len(records))
            assert epoch is not None
            records += self.batch(DataName(len(records), None, epoch)).records
        return records


def interleave(seed: int) -> World:
    """One random run; raises AssertionError when an invariant does not hold."""
    rng = random.Random(seed)
    world = World(Quorum(rng.choice([1, 3, 3, 3, 5]), others=1))
    quorum = world.quorum
    brokers = len(quorum.stores)
    for voter in quorum.voters:
        for stored in voter.store.list(voter.folder):
            if isinstance(name := parse_name(base_name(stored.name)), DataName):
                world.batches[name] = voter.store.read(stored.name)
    scheduler = Scheduler(rng)
    fault_rate = rng.choice([0.0, 0.02, 0.1])
    lag_ms = rng.choice([0, 10**12])

    def hooked_stores(index: int, own: random.Random) -> list[HookedStore]:
        through = quorum.hooked()

        def hooked(store: HookedStore) -> Callable[[str, str, Call], object]:
            def hook(what: str, name: str, call: Call) -> object:
                scheduler.step(index)
                if own.random() < fault_rate:
                    if what in ("create", "commit", "delete") and own.random() < 0.5:
                        call()
                        world.note(what, name, store)
                        raise OutcomeUnknownError("no answer") if what != "delete" else StorageError("failed")
                    raise StorageError("failed")
                result = call()
                world.note(what, name, store)
                return result

            return hook

        for store in through:
            store.hook = hooked(store)
        return through

    def driver(index: int, todo: int) -> Callable[[], None]:
        own = random.Random(seed * 1000 + index)
        log = quorum.log(index, hooked_stores(index, own), Patience(attempts=6, courtesy=own.choice([0, 2])))
        client = MetadataClient(log)

        def drive() -> None:
            for number in range(todo):
                before = max(world.acknowledged, default=-1) + 1
                try:
                    match own.choice("rrcccs"):
                        case "r":
                            world.reads.append((before, client.image()))
                        case "s":
                            done = keep_up(log, quorum.clock, lag_ms=lag_ms)
                            world.snapshots += 1
                            world.deleted += sum(one.deleted for one in done.voters)
                        case _:
                            token = 100 * (index + 1) + number
                            epoch = client.submit(RegisterBroker(token, an_id(10**9 + token), None, "x"))
                            assert epoch not in world.acknowledged
                            world.acknowledged[epoch] = token
                except (RetriableError, OutcomeUnknownError, FencedError, StaleMetadataError):
                    continue

        return drive

    def operator(index: int) -> Callable[[], None]:
        """Changes voters, and replaces one that has lost everything, before the next one does."""
        own = random.Random(seed * 1000 + index)
        client = MetadataClient(quorum.log(index, hooked_stores(index, own), Patience(attempts=10)))

        def change(command: AddVoter | RemoveVoter) -> None:
            for _ in range(3):
                with suppress(RetriableError, OutcomeUnknownError, FencedError, StaleMetadataError):
                    client.change_voters(command)
                    world.changes += 1
                    return
            raise CrashError

        def register(broker: int) -> VoterId:
            found = quorum.root(broker)
            for _ in range(3):
                with suppress(RetriableError, OutcomeUnknownError, FencedError, StaleMetadataError):
                    client.submit(RegisterBroker(broker, found.directory_id, None, "x"))
                    return found.id
            raise CrashError

        def drive() -> None:
            for _ in range(own.randint(1, 3)):
                voters = [voter.broker_id for voter in image_of(client).voters]
                broker = own.choice(range(1, brokers + 1))
                if broker not in voters:
                    change(AddVoter(register(broker)))
                elif own.random() < 0.6 and len(voters) > 2:
                    scheduler.step(index)
                    quorum.wipe(broker)
                    world.wiped += 1
                    there = register(broker)
                    change(RemoveVoter(broker, returning=True))
                    change(AddVoter(there))
                elif len(voters) > 1:
                    register(broker)
                    change(RemoveVoter(broker))

        return drive

    drivers = [driver(index, rng.randint(1, 6)) for index in range(rng.randint(2, 4))]
    if rng.random() < 0.6:
        drivers.append(operator(len(drivers)))
    scheduler.run(drivers)
    quorum.look()
    check(world)
    return world


def image_of(client: MetadataClient) -> ClusterImage:
    for _ in range(3):
        with suppress(RetriableError, OutcomeUnknownError, FencedError, StaleMetadataError):
            return client.image()
    raise CrashError


def check(world: World) -> None:
    """What must hold at the end. Raises: AssertionError."""
    log: MetadataLog = world.quorum.log(99)
    settled = log.settle()
    for voter in log.voters:  # what the last read has written itself
        for stored in voter.store.list(voter.folder):
            if isinstance(name := parse_name(base_name(stored.name)), DataName):
                data = voter.store.read(stored.name)
                assert world.batches.setdefault(name, data) == data, f"two batches are called {name}"
    final = settled.state.image
    history = world.history(settled.state.lineage, final.next_offset)
    assert apply(ClusterImage(), 0, history) == final, "the log does not fold to what is read"
    for offset, token in world.acknowledged.items():
        record = history[offset]
        assert isinstance(record, RegisterBrokerRecord), f"offset {offset} was acknowledged, and lost"
        assert record.broker_id == token, f"offset {offset} was acknowledged, and is another's"
        assert final.brokers[token].broker_epoch == offset, "registered twice"
    for before, image in world.reads:
        assert image.next_offset >= before, "a read missed what was committed before it began"
        assert apply(ClusterImage(), 0, history[: image.next_offset]) == image, "a read was of no history"
    for broker in world.quorum.stores:
        check_snapshots(world.quorum.root(broker), history)
    client = MetadataClient(log)
    again = client.submit(RegisterBroker(7, an_id(10**9), None, "x"))
    assert world.quorum.client(98).image().brokers[7].broker_epoch == again, "the log does not go on"


def check_snapshots(voter: Voter, history: list[MetadataRecord]) -> None:
    """Every snapshot of a voter is the replay of the log that it stands for."""
    for stored in voter.store.list(voter.folder):
        name = parse_name(base_name(stored.name))
        if isinstance(name, CheckpointName):
            state = read_checkpoint(CLUSTER, voter, name, stored)
            assert state.image == apply(ClusterImage(), 0, history[: name.end_offset]), f"{name} is no replay"


def main(first: int, count: int) -> int:
    """Run so many seeds; returns how many violate an invariant."""
    bad = 0
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            world = interleave(seed)
        except Exception as error:
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            continue
        total.update(
            {
                "commands": len(world.acknowledged),
                "reads": len(world.reads),
                "snapshots": world.snapshots,
                "files deleted": world.deleted,
                "changes of voters": world.changes,
                "voters wiped": world.wiped,
            }
        )
    print(f"{count} seeds, {bad} bad; {dict(total)}")
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2])) else 0)
