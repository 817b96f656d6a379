"""The metadata log under crashes, failing calls, and races (protocol section 6: I6, I7)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine.metadata.commands import RegisterBroker
from engine.metadata.fold import apply
from engine.metadata.image import ClusterImage
from engine.metadata.records import MetadataRecord
from engine.metadata.topic_commands import AlterConfigs, CreateTopic
from engine.quorum.batch import decode_batch
from engine.quorum.client import MetadataClient
from engine.quorum.log import Patience
from partitions.clock import SystemClock
from partitions.errors import (
    FencedError,
    OutcomeUnknownError,
    RetriableError,
    StorageError,
    TopicAlreadyExistsError,
)
from partitions.lineage import Lineage
from partitions.paths import DataName, parse_name
from partitions.store.local import LocalStore
from partitions.store.memory import MemoryStore
from partitions.store.protocol import Store
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import CLUSTER, HookedStore, Quorum

Call = Callable[[], object]


def histories(quorum: Quorum) -> list[list[MetadataRecord]]:
    """Each voter's log as records, the one with the greatest (epoch, end) first; read the long way, no code
    of the log is used."""
    logs: list[tuple[int, int, list[MetadataRecord]]] = []
    bytes_of: dict[str, bytes] = {}
    for voter in quorum.voters:
        store = quorum.stores[voter.broker_id]
        batches = {}
        for name in quorum.names(voter.broker_id):
            parsed = parse_name(name)
            if isinstance(parsed, DataName):
                content = store.read(f"{voter.directory_id}/__cluster_metadata/{name}")
                assert bytes_of.setdefault(name, content) == content, f"two batches are called {name}"
                batches[parsed] = decode_batch(CLUSTER, parsed, content, name)
        if not batches:
            continue
        last = max(batches, key=lambda name: (name.epoch, name.base_offset))
        lineage: Lineage = batches[last].lineage
        records: list[MetadataRecord] = []
        while (epoch := lineage.epoch_at(len(records))) is not None:
            batch = batches.get(DataName(len(records), None, epoch))
            if batch is None:
                break
            records += batch.records
        logs.append((last.epoch, len(records), records))
    return [records for _, _, records in sorted(logs, key=lambda log: log[:2], reverse=True)]


# ------------------------------------------------------------------------------ crash points


class CrashError(BaseException):
    """The process is gone."""


def failing_at(
    stores: Sequence[HookedStore], nth: int, before: Exception | CrashError, after: Exception | CrashError | None
) -> list[str]:
    """Raise at the nth call of all: before it takes effect, or after it when ``after`` is given. The list
    that is returned has the calls so far."""
    calls: list[str] = []

    def hook(what: str, name: str, call: Call) -> object:
        calls.append(f"{what} {name}")
        if len(calls) != nth:
            return call()
        if after is None:
            raise before
        call()
        raise after

    for store in stores:
        store.hook = hook
    return calls


@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.parametrize("effect", ["before", "after"])
def test_everything_goes_on_after_a_crash_at_any_store_call(voters: int, effect: str) -> None:
    """I7: any crash between two storage operations leaves a state from which every operation can go on."""
    for nth in range(1, 1000):
        quorum = Quorum(voters)
        quorum.log().claim()  # somebody else's claim is in the way, too
        through = quorum.hooked()
        calls = failing_at(through, nth, CrashError(), CrashError() if effect == "after" else None)
        answered = False
        try:
            client = quorum.client(through=through)
            client.submit(RegisterBroker(1, an_id(1), "a", "x"))
            client.submit(CreateTopic(name="t", topic_id=an_id(5)))
            answered = True
        except CrashError:
            pass
        survivor = quorum.client()
        image = survivor.image()
        assert survivor.image() == image
        if answered:
            assert image.topic("t")
        survivor.submit(RegisterBroker(1, an_id(1), "a", "x"))
        retry = CreateTopic(name="t", topic_id=an_id(5))
        assert survivor.submit(retry).topic_id == an_id(5)
        records = histories(quorum)
        assert all(log == records[0] for log in records)
        assert apply(ClusterImage(), 0, records[0]) == survivor.image()
        if len(calls) < nth:
            assert answered
            return
    raise AssertionError("the commands never came to an end")


@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.parametrize("effect", ["before", "after"])
def test_one_failing_call_is_survived_or_reported(voters: int, effect: str) -> None:
    """A call that fails, and a create that takes effect and reports failure: whoever is told of success
    has it, and whoever is told otherwise may try again."""
    for nth in range(1, 1000):
        quorum = Quorum(voters)
        through = quorum.hooked()
        calls = failing_at(
            through, nth, StorageError("failed"), OutcomeUnknownError("no answer") if effect == "after" else None
        )
        client = quorum.client(through=through)
        epochs = []
        for _ in range(3):
            try:
                epochs.append(client.submit(RegisterBroker(1, an_id(1), "a", "x")))
            except (RetriableError, OutcomeUnknownError):
                continue
        assert len(epochs) >= 2, "one failure costs one attempt"
        assert quorum.client().image().brokers[1].broker_epoch == epochs[-1]
        if len(calls) < nth:
            return
        assert client.image() == quorum.client().image()
        if voters == 3 and effect == "before":
            assert len(epochs) == 3, "a failure of one voter of three is nobody's business"
    raise AssertionError("the commands never came to an end")


# ------------------------------------------------------------------------------ real threads


@pytest.fixture(params=["memory", "local", "three"])
def contended(request: pytest.FixtureRequest, tmp_path: Path) -> Quorum:
    """A quorum on real time, with one voter in memory or on a disk, or three in memory."""
    stores: list[Store]
    if request.param == "local":
        (tmp_path / "root").mkdir()
        stores = [LocalStore(str(tmp_path / "root"))]
    else:
        stores = [MemoryStore(f"memory://{n}") for n in range(3 if request.param == "three" else 1)]
    return Quorum(stores=stores, clock=SystemClock())


def test_racing_drivers_lose_nothing_that_was_acknowledged(contended: Quorum) -> None:
    """I6, with threads: no two batches at one offset, nothing acknowledged lost, every read a prefix."""
    acknowledged: list[int] = []
    images: list[ClusterImage] = []
    failures: list[BaseException] = []

    def drive(seed: int) -> None:
        try:
            client: MetadataClient = contended.client(seed)
            for _ in range(6):
                acknowledged.append(client.submit(RegisterBroker(seed, an_id(seed), "a", "x")))
                images.append(client.image())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(acknowledged)) == len(acknowledged) == 24
    final = contended.client().image()
    (history,) = {tuple(log) for log in histories(contended)}
    assert apply(ClusterImage(), 0, history) == final
    for epoch in acknowledged:
        assert type(history[epoch]).__name__ == "RegisterBrokerRecord"
    for image in images:
        assert apply(ClusterImage(), 0, history[: image.next_offset]) == image


# ------------------------------------------------------------------ interleaved, call by call


class Scheduler:
    """Runs drivers in threads, one storage call at a time, in an order that the seed decides."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turn: dict[int, threading.Event] = {}
        self._waiting: set[int] = set()
        self._running = 0
        self._changed = threading.Condition()
        self.dead: set[int] = set()
        """Drivers that stop for ever at their next call."""
        self._failures: list[BaseException] = []

    def step(self, driver: int) -> None:
        """Called by a driver before each of its storage calls."""
        event = self._turn[driver]
        with self._changed:
            self._waiting.add(driver)
            self._running -= 1
            self._changed.notify()
        event.wait()
        event.clear()
        if driver in self.dead:
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
                    self._changed.notify()

        self._turn = {index: threading.Event() for index in range(len(drivers))}
        self._running = len(drivers)
        for index, drive in enumerate(drivers):
            threading.Thread(target=body, args=(index, drive), daemon=True).start()
        last = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running == 0)
                if not self._waiting:
                    break
                ready = sorted(self._waiting)
                chosen = last if last in ready and self._rng.random() < 0.7 else self._rng.choice(ready)
                last = chosen
                if self._rng.random() < 0.004:
                    self.dead.add(chosen)
                self._waiting.discard(chosen)
                self._running += 1
            self._turn[chosen].set()
        for failure in self._failures:
            raise failure


def interleave(seed: int) -> int:
    """Several drivers over one, three or five voters, every storage call a point of interleaving, some
    calls failing before or after they take effect, some drivers stopping for ever. Returns the number of
    acknowledged commands; raises when I6 does not hold."""
    rng = random.Random(seed)
    quorum = Quorum(rng.choice([1, 3, 3, 3, 5]))
    scheduler = Scheduler(rng)
    acknowledged: dict[int, int] = {}
    reads: list[tuple[int, ClusterImage]] = []
    fault_rate = rng.choice([0.0, 0.02, 0.1])

    def driver(index: int, todo: int) -> Callable[[], None]:
        own = random.Random(seed * 1000 + index)

        def hook(what: str, name: str, call: Call) -> object:
            scheduler.step(index)
            if own.random() < fault_rate:
                if what == "create" and own.random() < 0.5:
                    call()
                    raise OutcomeUnknownError("no answer")
                raise StorageError("failed")
            return call()

        through = quorum.hooked()
        for store in through:
            store.hook = hook
        patience = Patience(attempts=6, courtesy=own.choice([0, 2]))
        client = MetadataClient(quorum.log(index, through, patience))

        def drive() -> None:
            for number in range(todo):
                before = max(acknowledged, default=-1) + 1
                try:
                    if own.random() < 0.4:
                        reads.append((before, client.image()))
                    else:
                        token = 100 * index + number
                        epoch = client.submit(RegisterBroker(token, an_id(token), None, "x"))
                        assert epoch not in acknowledged
                        acknowledged[epoch] = token
                except (RetriableError, OutcomeUnknownError, FencedError):
                    continue

        return drive

    scheduler.run([driver(index, rng.randint(1, 4)) for index in range(rng.randint(2, 4))])
    final = quorum.client(99).image()
    history = histories(quorum)[0]
    assert apply(ClusterImage(), 0, history) == final
    for epoch, token in acknowledged.items():
        assert getattr(history[epoch], "broker_id", None) == token, f"offset {epoch} was acknowledged, and lost"
        assert final.brokers[token].broker_epoch == epoch, "registered twice"
    for before, image in reads:
        assert image.next_offset >= before, "a read missed what was committed before it began"
        assert apply(ClusterImage(), 0, history[: image.next_offset]) == image, "a read was of no history"
    return len(acknowledged)


def test_interleaved_drivers_share_one_history() -> None:
    """I6 on the product's own code. (The large one is in tests/simulation.)"""
    assert sum(interleave(seed) for seed in range(60)) > 60


def test_acknowledged_configs_are_there_after_many_hands() -> None:
    quorum = Quorum(3)
    clients = [quorum.client(seed) for seed in range(5)]
    for value in range(1, 20):
        clients[value % 5].submit(AlterConfigs(None, {"segment.bytes": str(value)}))
        assert clients[(value + 1) % 5].image().configs == {"segment.bytes": str(value)}


def test_two_creations_of_one_name_leave_one() -> None:
    quorum = Quorum()
    one, two = quorum.client(1), quorum.client(2)
    one.submit(RegisterBroker(1, an_id(1), "a", "x"))
    one.submit(CreateTopic(name="t", topic_id=an_id(5)))
    with pytest.raises(TopicAlreadyExistsError):
        two.submit(CreateTopic(name="t", topic_id=an_id(6)))
