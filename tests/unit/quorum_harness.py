"""Voters on stores, drivers over them, and stores that misbehave, for tests of the metadata log."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from engine.metadata.records import ConfigRecord, ConfigResource, MetadataRecord
from engine.quorum.bootstrap import bootstrap
from engine.quorum.client import MetadataClient
from engine.quorum.log import MetadataLog, Patience
from engine.quorum.voter import Voter
from partitions.clock import Clock, ManualClock
from partitions.replica import format_root
from partitions.store.memory import MemoryStore
from partitions.store.protocol import Staged, StagedWriter, Store, StoreCounts, StoredObject

CLUSTER = "c"


class HookedStore:
    """A store of which every call goes through ``hook(what, name, call)``, which may do anything before,
    instead of, or after it."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.uri = store.uri
        self.hook: Callable[[str, str, Callable[[], object]], object] = lambda what, name, call: call()

    @property
    def counts(self) -> StoreCounts:
        return self.inner.counts

    def create(self, name: str, data: bytes) -> bool:
        return bool(self.hook("create", name, lambda: self.inner.create(name, data)))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        data = self.hook("read", name, lambda: self.inner.read(name, start, end))
        assert isinstance(data, bytes)
        return data

    def stat(self, name: str) -> StoredObject:
        found = self.hook("stat", name, lambda: self.inner.stat(name))
        assert isinstance(found, StoredObject)
        return found

    def list(self, prefix: str) -> Sequence[StoredObject]:
        listing = self.hook("list", prefix, lambda: self.inner.list(prefix))
        assert isinstance(listing, Sequence)
        return listing

    def stage_writer(self, name: str) -> StagedWriter:
        raise AssertionError("the metadata log stages nothing")

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> Staged:
        raise AssertionError("the metadata log stages nothing")

    def open(self, source_object: StoredObject) -> BinaryIO:
        raise AssertionError("the metadata log reads whole files")

    def delete(self, names: Iterable[str]) -> None:
        raise AssertionError("the metadata log deletes nothing")

    def uri_of(self, name: str) -> str:
        return self.inner.uri_of(name)

    def check(self) -> None:
        self.inner.check()


class Quorum:
    """``n`` voters on brokers 1..n, bootstrapped, and drivers over them."""

    def __init__(self, n: int = 1, stores: Sequence[Store] | None = None, clock: Clock | None = None) -> None:
        numbers = itertools.count(1)
        self.new_id = lambda: f"{next(numbers):032x}"
        self.clock = clock if clock is not None else ManualClock()
        made = stores or [MemoryStore(f"memory://{broker}", self.clock) for broker in range(1, n + 1)]
        self.stores = dict(enumerate(made, start=1))
        self.voters = [
            Voter(broker, store, format_root(store, CLUSTER, broker, self.new_id).directory_id)
            for broker, store in self.stores.items()
        ]
        bootstrap(CLUSTER, self.log(), self.voters, {})

    def hooked(self) -> list[HookedStore]:
        """The voters' stores, as one driver sees them: give them to ``log``."""
        return [HookedStore(store) for store in self.stores.values()]

    def log(
        self, seed: int = 0, through: Sequence[Store] | None = None, patience: Patience | None = None
    ) -> MetadataLog:
        """A driver of its own, optionally through other stores onto the same storage."""
        voters = self.voters
        if through is not None:
            voters = [
                Voter(voter.broker_id, store, voter.directory_id)
                for voter, store in zip(self.voters, through, strict=True)
            ]
        return MetadataLog(
            CLUSTER,
            voters,
            clock=self.clock,
            rng=random.Random(seed),
            new_id=self.new_id,
            patience=patience if patience is not None else Patience(),
        )

    def client(self, seed: int = 0, through: Sequence[Store] | None = None) -> MetadataClient:
        return MetadataClient(self.log(seed, through))

    def names(self, broker_id: int) -> list[str]:
        """What is in a voter's folder, without the folder."""
        folder = f"{self.voters[broker_id - 1].directory_id}/__cluster_metadata/"
        return [stored.name.removeprefix(folder) for stored in self.stores[broker_id].list(folder[:-1])]


def config(value: int) -> list[MetadataRecord]:
    """A batch of one record that tells which it is."""
    return [
        ConfigRecord(resource=ConfigResource.CLUSTER, name="", key="segment.bytes", value=str(value)),
    ]
