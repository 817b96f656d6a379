"""A store that reports every call, to count those that an object store would bill as requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, cast

from stratalog.partitions.store import StagedCopy, StagedWriter, Store, StoreCounts, StoredObject

LIST, STAT, READ, COPY, CREATE, DELETE = KINDS = ("list", "stat", "read", "copy", "create", "delete")
"""The kinds of calls. Reading a file's footer is a read; naming staged bytes is a create."""

OnCall = Callable[[str, str], None]
"""Called with the kind of a call and the name of its object."""


class CountingStore:
    """A store that reports each call to ``on_call`` before it makes the call. A copy from another such store is
    one call."""

    def __init__(self, inner: Store, on_call: OnCall) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.counts: StoreCounts = inner.counts
        self._on_call = on_call

    def create(self, name: str, data: bytes) -> bool:
        self._on_call(CREATE, name)
        return self.inner.create(name, data)

    def stage_writer(self, name: str) -> StagedWriter:
        """See ``Store.stage_writer``. The bytes are sent with the call that names them."""
        return _Staged(self.inner.stage_writer(name), lambda: self._on_call(CREATE, name))

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        self._on_call(COPY, name)
        plain = source.inner if isinstance(source, CountingStore) else source
        return _Staged(self.inner.stage_copy(plain, source_object, name), lambda: self._on_call(CREATE, name))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._on_call(READ, name)
        return self.inner.read(name, start, end)

    def stat(self, name: str) -> StoredObject:
        self._on_call(STAT, name)
        return self.inner.stat(name)

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. Counted as one read: only small files are opened here, for their footers."""
        self._on_call(READ, source_object.name)
        return self.inner.open(source_object)

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        self._on_call(LIST, prefix)
        return self.inner.list(prefix, after, known)

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        self._on_call(LIST, prefix)
        return self.inner.walk(prefix)

    def now_ms(self) -> int | None:
        return self.inner.now_ms()

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        return self.inner.sweep_staging(older_than_ms, dry_run=dry_run)

    def staged(self) -> frozenset[str]:
        return self.inner.staged()

    def names(self, prefix: str) -> frozenset[str]:
        self._on_call(LIST, prefix)
        return self.inner.names(prefix)

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        for name in doomed:
            self._on_call(DELETE, name)
        self.inner.delete(doomed)

    def uri_of(self, name: str) -> str:
        return self.inner.uri_of(name)

    def check(self) -> None:
        self.inner.check()


class _Staged:
    """Staged bytes, which report when they are named."""

    def __init__(self, inner: StagedCopy | StagedWriter, named: Callable[[], None]) -> None:
        self._inner = inner
        self._named = named
        self.file: BinaryIO = getattr(inner, "file", None)  # type: ignore[assignment]  # a copy has none

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    @property
    def crc32(self) -> int:
        return cast(StagedCopy, self._inner).crc32

    def commit(self) -> bool:
        self._named()
        return self._inner.commit()

    def replace(self) -> None:
        self._named()
        cast(StagedWriter, self._inner).replace()

    def abort(self) -> None:
        self._inner.abort()
