"""The metadata log under real threads, on real stores (protocol section 6: I6)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stratalog.engine.metadata.commands import RegisterBroker
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import MetadataRecord
from stratalog.engine.metadata.topic_commands import AlterConfigs, CreateTopic
from stratalog.engine.quorum.batch import decode_batch
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import TopicAlreadyExistsError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, parse_name
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import CLUSTER, Quorum


def histories(quorum: Quorum) -> list[list[MetadataRecord]]:
    """Each voter's log as records, the one with the greatest (epoch, end) first; read without the code of the
    log."""
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


@pytest.fixture(params=["three", *(pytest.param(one, marks=pytest.mark.slow) for one in ("memory", "local"))])
def contended(request: pytest.FixtureRequest, tmp_path: Path) -> Quorum:
    """A quorum in real time, with one voter in memory or on a disk, or three in memory."""
    stores: list[Store]
    if request.param == "local":
        (tmp_path / "root").mkdir()
        stores = [LocalStore(str(tmp_path / "root"))]
    else:
        stores = [MemoryStore(f"memory://{n}") for n in range(3 if request.param == "three" else 1)]
    return Quorum(stores=stores, clock=SystemClock())


@pytest.mark.slow
def test_racing_drivers_lose_nothing_that_was_acknowledged(contended: Quorum) -> None:
    """I6, with threads: no two batches at one offset, no acknowledged batch lost, every read a prefix."""
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


@pytest.mark.slow
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
