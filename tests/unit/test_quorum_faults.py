"""The metadata log under crashes, failing calls, and races (protocol section 6: I6, I7)."""

from __future__ import annotations

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
from partitions.clock import SystemClock
from partitions.errors import (
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
from tests.unit.quorum_interleaving import CrashError, interleave

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


@pytest.mark.parametrize("hundred", range(6))
def test_interleaved_drivers_share_one_history(hundred: int) -> None:
    """I6, I7 on the product's own code, by 300 seeds: commits, reads, snapshots, deletion, voters that come, go,
    and lose everything. (``python -m tests.unit.quorum_interleaving 0 20000`` tries more.)"""
    worlds = [interleave(seed) for seed in range(50 * hundred, 50 * hundred + 50)]
    assert sum(len(world.acknowledged) for world in worlds) > 100
    assert sum(world.deleted for world in worlds) > 100
    assert sum(world.changes for world in worlds) > 10
    assert sum(world.wiped for world in worlds) > 5


def test_a_seed_gives_its_trace_again() -> None:
    def trace(seed: int) -> tuple[object, ...]:
        world = interleave(seed)
        return sorted(world.batches), world.acknowledged, world.reads, world.deleted

    assert [trace(seed) for seed in range(5)] == [trace(seed) for seed in range(5)]


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
