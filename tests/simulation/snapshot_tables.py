"""The tables in which topics publish their snapshots, on a simulated store; and another program that rewrites
them."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StorageError, StratalogError
from stratalog.partitions.store.protocol import Store, StoredObject, StoreOptions
from stratalog.tiering.foreign_commits import ListedFile
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.simulation.delta import BrokenLogError, Change, Listing, SimulatedTable
from tests.simulation.stores import SimStore

if TYPE_CHECKING:
    from tests.simulation.actor import Actor

_ATTEMPTS = 20
_TRIES = 3


class SimulatedSnapshotTable(SnapshotTable):
    """The product's table. Only delta-rs is replaced, and no schema is compared."""

    def __init__(
        self, remote: SimStore, topic: str, topic_id: str, clock: Clock, rng: random.Random, dropped: set[str]
    ) -> None:
        """``dropped`` gets the names of all objects that leave with a whole table, or with its whole log."""
        self.remote = self._store = remote
        self.topic, self.topic_id, self.cluster_id = topic, topic_id, "c"
        self.folder = paths.join(self.parent, paths.topic_folder(topic, topic_id))
        self.uri = f"sim://remote/{self.folder}"
        self._options, self._clock, self._rng, self._dropped = StoreOptions(), clock, rng, dropped

    def ensure(self, schema: pa.Schema) -> None:
        for _ in range(_ATTEMPTS):
            if self._open() is not None:
                return
            name = paths.join(self.folder, paths.DELTA_LOG, f"{0:020d}.json")
            try:
                self.remote.create(name, msgspec.json.encode(Change()))
            except StratalogError:
                if self._open() is None:
                    raise
        raise StorageError(f"the table {self.uri} was created {_ATTEMPTS} times, and deleted")

    def create_again(self, schema: pa.Schema, partitions: Container[int], all_partitions: Iterable[int]) -> None:
        with self._dropping():
            super().create_again(schema, partitions, all_partitions)

    def delete(self) -> None:
        with self._dropping():
            super().delete()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        self.remote = cast(Store, _Dropping(self._store, self._dropped))
        try:
            yield
        finally:
            self.remote = self._store

    def _open(self) -> DeltaTable | None:
        try:
            return cast("DeltaTable | None", SimulatedTable.open(self._store, self.folder, self._clock))
        except DeltaError as error:
            self._failed("read", error)

    def _removed_paths(self, table: DeltaTable) -> frozenset[str]:
        return frozenset(cast(SimulatedTable, table).state.removed)

    def _tombstones_with_values(self, checkpoint: StoredObject) -> list[ListedFile]:
        """Removals of the simulation have no values."""
        return []

    def _is_damaged(self) -> bool:
        try:
            SimulatedTable.open(self._store, self.folder, self._clock)
        except BrokenLogError:
            return True
        except DeltaError as error:
            self._failed("read", error)
        return False


class _Dropping:
    """A store that notes what is deleted."""

    def __init__(self, store: SimStore, dropped: set[str]) -> None:
        self._store, self._dropped = store, dropped

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self._store.walk(prefix)

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(name, data)

    def delete(self, names: Iterable[str]) -> None:
        given = [*names]
        self._dropped.update(given)
        self._store.delete(given)


def rewrite_table(actor: Actor, number: int) -> str:
    """Rewrite the table like OPTIMIZE of another program: the same rows in another file. An odd number rewrites
    one file, an even number all of them."""
    world = actor.world
    store, clock = cast(SimStore, actor.ports.storage.remote), actor.ports.storage.table_clock
    topic = world.oracle.image.topics[world.topic_id]
    folder = paths.join(paths.SNAPSHOT_TABLES, paths.topic_folder(topic.name, topic.topic_id))
    try:
        table = SimulatedTable.open(store, folder, clock)
        if table is None or not table.state.listed:
            return "there is no row"
        chosen = sorted(table.state.listed)
        if number % 2:
            chosen = [chosen[number // 2 % len(chosen)]]
        rows = pa.concat_tables(_rows(store.read(f"{folder}/{path}")) for path in chosen)
        path = f"part-{actor.ports.storage.new_id()}.parquet"
        staged = store.stage_writer(f"{folder}/{path}")
        pq.write_table(rows, staged.file, compression="none")
        size = staged.size_bytes
        if not staged.commit():
            return "the name is taken"
        change = Change({path: Listing(size, _statistics(rows))}, dict.fromkeys(chosen, clock.now_ms()))
        for _ in range(_TRIES):
            try:
                table.put(change)
            except CommitFailedError:
                table = SimulatedTable.open(store, folder, clock)
                if table is not None and path in table.state.listed:
                    return "ok"
                if table is not None and table.state.listed.keys() >= {*chosen}:
                    continue
                if table is not None and path in table.state.removed:
                    return "ok, and replaced"
                store.delete([f"{folder}/{path}"])
                return "the files have left the table"
            world.ledger.count("rewritten tables")
            return "ok"
    except (DeltaError, FileNotFoundError) as error:
        return f"gave up: {error}"
    return "gave up"


def _rows(data: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _statistics(rows: pa.Table) -> str:
    values = sorted(rows["value"].to_pylist())
    found: dict[str, object] = {"numRecords": rows.num_rows}
    if values:
        found |= {"minValues": {"value": values[0].decode()}, "maxValues": {"value": values[-1].decode()}}
    return msgspec.json.encode(found).decode()
