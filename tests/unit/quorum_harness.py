"""Voters on stores, drivers over them, and faulty stores, for tests of the metadata log."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, cast

import pytest

from stratalog.engine.metadata.commands import RegisterBroker
from stratalog.engine.metadata.records import ConfigRecord, ConfigResource, MetadataRecord, VoterId
from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter
from stratalog.engine.quorum.bootstrap import FoundLog, bootstrap, find_log
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.patience import Patience
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.clock import Clock, ManualClock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import OutcomeUnknownError, StorageError
from stratalog.partitions.root import format_root
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Staged, StagedCopy, StagedWriter, Store, StoreCounts, StoredObject

CLUSTER = "c"
IMPATIENT = Patience(attempts=3, claimant_attempts=1)


class HookedStore:
    """A store whose calls all go through ``hook(what, name, call)``, which may act before the call, instead of it,
    or after it.
    """

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

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        listing = self.hook("list", prefix, lambda: self.inner.list(prefix, after, known))
        assert isinstance(listing, Sequence)
        return listing

    def now_ms(self) -> int | None:
        return self.inner.now_ms()

    def names(self, prefix: str) -> frozenset[str]:
        names = self.hook("list", prefix, lambda: self.inner.names(prefix))
        assert isinstance(names, frozenset)
        return names

    def stage_writer(self, name: str) -> StagedWriter:
        staged = self.hook("stage_writer", name, lambda: _HookedStaged(self, self.inner.stage_writer(name), name))
        assert isinstance(staged, _HookedStaged)
        return staged

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        def call() -> object:
            return _HookedStaged(self, self.inner.stage_copy(source, source_object, name), name)

        staged = self.hook("stage_copy", name, call)
        assert isinstance(staged, _HookedStaged)
        return staged

    def open(self, source_object: StoredObject) -> BinaryIO:
        opened = self.hook("open", source_object.name, lambda: self.inner.open(source_object))
        return cast(BinaryIO, opened)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:  # a bulk delete may stop anywhere
            self.hook("delete", name, lambda name=name: self.inner.delete([name]))

    def uri_of(self, name: str) -> str:
        return self.inner.uri_of(name)

    def check(self) -> None:
        self.inner.check()


class _HookedStaged:
    """Staged bytes; giving them a name is a call like ``create``."""

    def __init__(self, store: HookedStore, staged: Staged, name: str) -> None:
        self._store = store
        self._staged = staged
        self._name = name
        self.file: BinaryIO = getattr(staged, "file", io.BytesIO())

    @property
    def size_bytes(self) -> int:
        return self._staged.size_bytes

    @property
    def crc32(self) -> int:
        return cast(StagedCopy, self._staged).crc32

    def commit(self) -> bool:
        return bool(self._store.hook("commit", self._name, self._staged.commit))

    def replace(self) -> None:
        self._store.hook("replace", self._name, cast(StagedWriter, self._staged).replace)

    def abort(self) -> None:
        self._staged.abort()


class Quorum:
    """``n`` voters on brokers 1..n, bootstrapped, and drivers over them; then ``others`` more brokers."""

    def __init__(
        self,
        n: int = 1,
        stores: Sequence[Store] | None = None,
        clock: Clock | None = None,
        others: int = 0,
        key: ClusterKey | None = None,
    ) -> None:
        numbers = itertools.count(1)
        self.key = key
        self.new_id = lambda: f"{next(numbers):032x}"
        self.clock = clock if clock is not None else ManualClock()
        made = stores or [MemoryStore(f"memory://{broker}", self.clock) for broker in range(1, n + 1)]
        self.stores = dict(enumerate(made, start=1))
        self.notes: list[str] = []
        self.voters = [
            Voter(broker, store, format_root(store, CLUSTER, broker, self.new_id, key).directory_id, key)
            for broker, store in self.stores.items()
        ]
        bootstrap(CLUSTER, self.log(), self.voters, {})
        for broker in range(n + 1, n + 1 + others):
            self.stores[broker] = MemoryStore(f"memory://{broker}", self.clock)
            format_root(self.stores[broker], CLUSTER, broker, self.new_id, key)

    def hooked(self) -> list[HookedStore]:
        """The voters' stores as one driver sees them: pass them to ``log``."""
        return [HookedStore(store) for store in self.stores.values()]

    def log(
        self,
        seed: int = 0,
        through: Sequence[Store] | None = None,
        patience: Patience | None = None,
        hint: LogState = LogState(),  # noqa: B008 - immutable
        key: ClusterKey | bool | None = True,
    ) -> MetadataLog:
        """Another driver, optionally through other stores onto the same storage, or with another key."""
        stores = self.stores if through is None else dict(enumerate(through, start=1))
        key = self.key if isinstance(key, bool) else key
        voters = [Voter(one.broker_id, stores[one.broker_id], one.directory_id, key) for one in self.voters]
        return MetadataLog(
            CLUSTER,
            voters,
            clock=self.clock,
            rng=random.Random(seed),
            new_id=self.new_id,
            patience=patience if patience is not None else Patience(),
            stores=stores,
            hint=hint,
            note=self.notes.append,
            key=key,
        )

    def find(self, cached: LogState = LogState()) -> FoundLog:  # noqa: B008 - immutable
        """Find the log like a process that opens the cluster."""
        return find_log(CLUSTER, self.stores.keys(), self.stores, cached=cached, as_logged=True, key=self.key)

    def look(self) -> None:
        """Let drivers from now on begin with the current voters, like drivers that open the cluster now."""
        self.voters = list(self.find().voters)

    def root(self, broker_id: int) -> Voter:
        """The current root of a broker, voter or not."""
        store = self.stores[broker_id]
        formatted = format_root(store, CLUSTER, broker_id, self.new_id, self.key)
        return Voter(broker_id, store, formatted.directory_id, self.key)

    def wipe(self, broker_id: int) -> None:
        """Delete everything on a broker, and format its root again."""
        store = self.stores[broker_id]
        store.delete([stored.name for stored in store.list("")])
        self.root(broker_id)

    def client(self, seed: int = 0, through: Sequence[Store] | None = None) -> MetadataClient:
        return MetadataClient(self.log(seed, through), self.clock, self.notes.append)

    def names(self, broker_id: int) -> list[str]:
        """The file names in a voter's folder."""
        folder = f"{self.voters[broker_id - 1].directory_id}/__cluster_metadata/"
        return [stored.name.removeprefix(folder) for stored in self.stores[broker_id].list(folder[:-1])]


def config(value: int) -> list[MetadataRecord]:
    """A batch of one record with this number."""
    return [
        ConfigRecord(resource=ConfigResource.CLUSTER, name="", key="segment.bytes", value=str(value)),
    ]


def commit_on_voter_1(quorum: Quorum) -> None:
    """Commit ``config(1)`` by a driver that reaches only voter 1: a minority has it, and no driver knows its
    outcome."""
    cut = quorum.hooked()
    log = quorum.log(through=cut, patience=IMPATIENT)
    log.claim()
    for store in cut[1:]:
        store.hook = unreachable
    with pytest.raises(OutcomeUnknownError):
        log.commit(config(1))


def data(name: str) -> bool:
    return name.endswith(".parquet")


def once(
    store: HookedStore, what: str, when: Callable[[str], bool], instead: Callable[[Callable[[], object]], object]
) -> None:
    """Run ``instead(call)`` at the first such call on ``store``."""
    done = False

    def hook(asked: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if asked == what and when(name) and not done:
            done = True
            return instead(call)
        return call()

    store.hook = hook


def unreachable(what: str, name: str, call: Callable[[], object]) -> object:
    """A hook: the root is unreachable."""
    raise StorageError("no such mount")


def registered(quorum: Quorum, broker: int) -> VoterId:
    """The registration of a broker's current root."""
    found = quorum.root(broker)
    quorum.client(broker).submit(RegisterBroker(broker, found.directory_id, None, "x"))
    return found.id


def add(quorum: Quorum, broker: int) -> tuple[VoterId, ...]:
    voters = quorum.client().change_voters(AddVoter(registered(quorum, broker)))
    quorum.look()
    return voters


def remove(quorum: Quorum, broker: int) -> tuple[VoterId, ...]:
    voters = quorum.client().change_voters(RemoveVoter(broker))
    quorum.look()
    return voters
