"""A Delta table whose log is objects of a simulated store: what ``SnapshotTable`` uses of delta-rs.

An entry is created exclusively, a checkpoint replaces an earlier one of its version. A reader lists the log, and
then reads the files from the newest checkpoint on; it fails if one of them is gone by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import NoReturn

import msgspec
import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from tests.simulation.roots import Entry, Root
from tests.simulation.stores import SimStore

_HOUR_MS = 3_600_000
_CHECKPOINT = ".checkpoint.parquet"


class BrokenLogError(DeltaError):
    """The log has no complete version."""


class Listing(msgspec.Struct, frozen=True):
    """A file that a table lists."""

    size_bytes: int
    stats: str

    @property
    def records(self) -> int:
        return int(msgspec.json.decode(self.stats)["numRecords"])


class Change(msgspec.Struct, frozen=True):
    """One entry."""

    adds: dict[str, Listing] = {}
    removes: dict[str, int] = {}
    """The times of removal, by path."""
    transactions: dict[str, int] = {}
    info: dict[str, str] = {}


class TableState(msgspec.Struct, frozen=True):
    """A table at one version; also the content of a checkpoint."""

    version: int
    listed: dict[str, Listing] = {}
    removed: dict[str, int] = {}
    transactions: dict[str, int] = {}

    def after(self, change: Change) -> TableState:
        """The next version."""
        listed = {path: one for path, one in self.listed.items() if path not in change.removes} | change.adds
        removed = {path: ms for path, ms in self.removed.items() if path not in change.adds} | change.removes
        return TableState(self.version + 1, listed, removed, self.transactions | change.transactions)


@lru_cache(maxsize=4096)
def _change(data: bytes) -> Change:
    return msgspec.json.decode(data, type=Change)


@lru_cache(maxsize=4096)
def _checkpoint(data: bytes) -> TableState:
    return msgspec.json.decode(data, type=TableState)


def log_of(folder: str) -> str:
    """The folder of the log of the table in ``folder``."""
    return paths.join(folder, paths.DELTA_LOG)


def _needed(names: Sequence[str]) -> list[str]:
    """The names of the files to read for the newest version: the newest checkpoint, and the later entries."""
    names = sorted(names)
    start = max((name for name in names if name.endswith(_CHECKPOINT)), default="")
    later = (name for name in names if name.endswith(".json") and name > start.replace(_CHECKPOINT, ".json"))
    return [*([start] if start else []), *later]


def state_of(files: Mapping[str, bytes]) -> TableState | None:
    """The newest version of a table, from the content of its log, by base name; None without a table. Raises:
    BrokenLogError."""
    needed = _needed([*files])
    if not needed:
        return None
    state = TableState(-1)
    for name in needed:
        if name.endswith(_CHECKPOINT):
            state = _checkpoint(files[name])
        elif int(name.partition(".")[0]) != state.version + 1:
            raise BrokenLogError(f"the entry after version {state.version} is missing, there is {name}")
        else:
            state = state.after(_change(files[name]))
    return state


def state_on(root: Root, folder: str) -> TableState | None:
    """The newest version of the table in a folder. Raises: BrokenLogError."""
    log = log_of(folder)
    return state_of({paths.base_name(name): data for name, (_, data) in root.folders.get(log, {}).items()})


class SimulatedTable:
    """A driver's table, opened at one version. The methods with the names of delta-rs do as those: some read the
    files of the version again, and fail if one is gone."""

    def __init__(self, store: SimStore, folder: str, clock: Clock, needed: Sequence[str]) -> None:
        self._store, self._log, self._clock, self._needed = store, log_of(folder), clock, needed
        files = self._read()
        newest = needed[-1].replace(_CHECKPOINT, ".json")
        self._info = _change(files[newest]).info
        state = state_of({name: files[name] for name in needed})
        assert state is not None
        self.state = state

    @classmethod
    def open(cls, store: SimStore, folder: str, clock: Clock) -> SimulatedTable | None:
        """The table at its newest version; None without one. Raises: DeltaError."""
        log = log_of(folder)
        try:
            listed = store.call("list", log, lambda: store.root.of_folder(log))
        except StratalogError as error:
            _fail(error)
        needed = _needed([paths.base_name(stored.name) for stored in listed])
        return cls(store, folder, clock, needed) if needed else None

    def _read(self) -> dict[str, bytes]:
        """The files of the version, and its entry."""
        names = {*self._needed, self._needed[-1].replace(_CHECKPOINT, ".json")}

        def read() -> dict[str, bytes]:
            found: dict[str, Entry] = self._store.root.folders.get(self._log, {})
            if gone := sorted(name for name in names if f"{self._log}/{name}" not in found):
                raise BrokenLogError(f"{gone[0]} is gone")
            return {name: found[f"{self._log}/{name}"][1] for name in names}

        try:
            return self._store.call("read", self._log, read)
        except StratalogError as error:
            _fail(error)

    def version(self) -> int:
        return self.state.version

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(configuration={}, partition_columns=[])

    def protocol(self) -> SimpleNamespace:
        return SimpleNamespace(writer_features=None, min_writer_version=2)

    def schema(self) -> None:
        """Commits do not look at it."""

    def get_add_actions(self) -> pa.Table:
        listed = self.state.listed
        return pa.table(
            {
                "path": pa.array([*listed], pa.string()),
                "size_bytes": pa.array([one.size_bytes for one in listed.values()], pa.int64()),
                "num_records": pa.array([one.records for one in listed.values()], pa.int64()),
            }
        )

    def transaction_version(self, application: str) -> int | None:
        self._read()
        return self.state.transactions.get(application)

    def history(self, _limit: int) -> list[dict[str, str]]:
        return [self._info]

    def create_write_transaction(
        self,
        actions: Sequence[AddAction | RemoveAction],
        *,
        mode: str,
        schema: None,
        commit_properties: CommitProperties,
    ) -> None:
        self.put(
            Change(
                {one.path: Listing(one.size, one.stats) for one in actions if isinstance(one, AddAction)},
                {one.path: one.deletion_timestamp for one in actions if isinstance(one, RemoveAction)},
                {one.app_id: one.version for one in commit_properties.app_transactions or ()},
                commit_properties.custom_metadata or {},
            )
        )

    def put(self, change: Change) -> None:
        """Commit the next version. Raises: CommitFailedError if its entry exists; DeltaError without an answer."""
        name = f"{self._log}/{self.version() + 1:020d}.json"
        try:
            made = self._store.create(name, msgspec.json.encode(change))
        except StratalogError as error:
            _fail(error)
        if not made:
            raise CommitFailedError(f"version {self.version() + 1} exists")

    def create_checkpoint(self) -> None:
        name, data = f"{self._log}/{self.version():020d}{_CHECKPOINT}", msgspec.json.encode(self.state)
        self._read()
        root = self._store.root
        try:
            self._store.call("replace", name, lambda: root.put(name, data, self._store.now_ms()))
        except StratalogError as error:
            _fail(error)

    def cleanup_metadata(self) -> None:
        """No entry is old enough."""

    def vacuum(self, *, retention_hours: int, dry_run: bool, enforce_retention_duration: bool) -> list[str]:
        self._read()
        until_ms = self._clock.now_ms() - retention_hours * _HOUR_MS
        return [path for path, removed_ms in self.state.removed.items() if removed_ms <= until_ms]


def _fail(error: Exception) -> NoReturn:
    raise DeltaError(str(error)) from error
