"""A read-only store, for operations that must not change anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NoReturn

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoreCounts, StoredObject


class ReadOnlyStore:
    """Another store, without the calls that change it: these raise InvalidCallError."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.uri = inner.uri

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self._inner!r})"

    @property
    def counts(self) -> StoreCounts:
        return self._inner.counts

    @counts.setter
    def counts(self, counts: StoreCounts) -> None:
        self._inner.counts = counts

    def create(self, name: str, data: bytes) -> bool:
        self._refuse(name)

    def stage_writer(self, name: str) -> StagedWriter:
        self._refuse(name)

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        self._refuse(name)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self._inner.read(name, start, end)

    def stat(self, name: str) -> StoredObject:
        return self._inner.stat(name)

    def open(self, source_object: StoredObject) -> BinaryIO:
        return self._inner.open(source_object)

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        return self._inner.list(prefix, after, known)

    def names(self, prefix: str) -> frozenset[str]:
        return self._inner.names(prefix)

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self._inner.walk(prefix)

    def now_ms(self) -> int | None:
        return self._inner.now_ms()

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        if not dry_run:
            self._refuse("")
        return self._inner.sweep_staging(older_than_ms, dry_run=True)

    def staged(self) -> frozenset[str]:
        return self._inner.staged()

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        if doomed:
            self._refuse(doomed[0])

    def uri_of(self, name: str) -> str:
        return self._inner.uri_of(name)

    def check(self) -> None:
        self._inner.list("")

    def _refuse(self, name: str) -> NoReturn:
        raise InvalidCallError(f"{self._inner.uri_of(name)} cannot be changed by a read-only operation")
