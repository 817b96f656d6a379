"""A store with programmable faults, for tests of failures and of concurrent changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TypeVar

from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoreCounts, StoredObject

T = TypeVar("T")

CHANGES = frozenset({"create", "stage", "commit", "replace", "delete"})
"""The calls that change stored objects."""
WRITES = ("create", "commit", "delete")
"""The changes after which other drivers see another object, or none."""


class FaultyStore:
    """Every call goes through ``hook(what, name, call)``, which may act before the call, instead of it, or after
    it. ``what`` is the name of the method, or ``stage`` for both kinds of staging, or ``commit`` when a staged
    object gets its name.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.hook: Callable[[str, str, Callable[[], Any]], Any] = lambda what, name, call: call()

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    @property
    def counts(self) -> StoreCounts:
        return self.inner.counts

    @counts.setter
    def counts(self, counts: StoreCounts) -> None:
        raise AssertionError("counts are only read")

    def create(self, name: str, data: bytes) -> bool:
        return self._through("create", name, lambda: self.inner.create(name, data))

    def stage_writer(self, name: str) -> StagedWriter:
        return _FaultyStaged(self, name, self._through("stage", name, lambda: self.inner.stage_writer(name)))

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        copied = self._through("stage", name, lambda: self.inner.stage_copy(source, source_object, name))
        return _FaultyStaged(self, name, copied)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self._through("read", name, lambda: self.inner.read(name, start, end))

    def stat(self, name: str) -> StoredObject:
        return self._through("stat", name, lambda: self.inner.stat(name))

    def open(self, source_object: StoredObject) -> BinaryIO:
        return self._through("open", source_object.name, lambda: self.inner.open(source_object))

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        return self._through("list", prefix, lambda: self.inner.list(prefix, after, known))

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self._through("list", prefix, lambda: self.inner.walk(prefix))

    def now_ms(self) -> int | None:
        return self.inner.now_ms()

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        what = "list" if dry_run else "sweep"
        return self._through(what, "", lambda: self.inner.sweep_staging(older_than_ms, dry_run=dry_run))

    def staged(self) -> frozenset[str]:
        return self._through("list", "", self.inner.staged)

    def names(self, prefix: str) -> frozenset[str]:
        return self._through("list", prefix, lambda: self.inner.names(prefix))

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        self._through("delete", " ".join(doomed), lambda: self.inner.delete(doomed))

    def uri_of(self, name: str) -> str:
        return self.inner.uri_of(name)

    def check(self) -> None:
        self.inner.check()

    def _through(self, what: str, name: str, call: Callable[[], T]) -> T:
        result: T = self.hook(what, name, call)
        return result


class _FaultyStaged:
    """A staged object whose ``commit`` goes through the hook."""

    def __init__(self, store: FaultyStore, name: str, inner: Any) -> None:
        self._store = store
        self._name = name
        self._inner = inner
        self.file: BinaryIO = getattr(inner, "file", None)  # type: ignore[assignment]

    @property
    def size_bytes(self) -> int:
        return int(self._inner.size_bytes)

    @property
    def crc32(self) -> int:
        return int(self._inner.crc32)

    def commit(self) -> bool:
        return bool(self._store.hook("commit", self._name, self._inner.commit))

    def replace(self) -> None:
        self._store.hook("replace", self._name, self._inner.replace)

    def abort(self) -> None:
        self._inner.abort()


class Faults:
    """Hooks all stores that it wraps, and distinguishes them by their addresses."""

    def __init__(self) -> None:
        self.before: Callable[[str, str, str], None] = lambda uri, what, name: None
        """Called with store, call and name; raises the error of the call."""
        self.after: Callable[[str, str, str], None] = lambda uri, what, name: None
        """Called after the call has taken effect."""

    def wrap(self, uri: str, store: Store) -> Store:
        """The store with the hooks: pass it to ``LiveCluster`` as ``through``."""
        wrapped = FaultyStore(store)

        def hook(what: str, name: str, call: Callable[[], Any]) -> Any:
            self.before(uri, what, name)
            result = call()
            self.after(uri, what, name)
            return result

        wrapped.hook = hook
        return wrapped

    def refuse(self, error: BaseException, *calls: str, after: bool = False, **where: str) -> None:
        """Raise ``error`` at each of these ``calls``, by default at every call. ``where``: ``at`` a store whose
        address ends so; ``of`` an object with this in its name; ``ending`` of that name."""

        def fail(uri: str, what: str, name: str) -> None:
            if _selects(calls, uri, what, name, **where):
                raise error

        self._let(fail, after=after)

    def once(self, act: Callable[[], object], *calls: str, after: bool = False, **where: str) -> None:
        """End all faults and act, at the next call that ``refuse`` would select."""

        def strike(uri: str, what: str, name: str) -> None:
            if _selects(calls, uri, what, name, **where):
                self.none()
                act()

        self._let(strike, after=after)

    @contextmanager
    def dies_at(self, number: int, *calls: str, **where: str) -> Iterator[None]:
        """The driver of the block dies before the call of this number, from 1, among those that ``refuse`` would
        select. A block that makes fewer of them ends by itself."""
        numbers = itertools.count(1)

        def die(uri: str, what: str, name: str) -> None:
            if _selects(calls, uri, what, name, **where) and next(numbers) == number:
                raise KeyboardInterrupt

        self.before = die
        with suppress(KeyboardInterrupt):
            yield
        self.none()

    def none(self) -> None:
        """End all faults."""
        self.before = self.after = lambda uri, what, name: None

    def _let(self, hook: Callable[[str, str, str], None], *, after: bool) -> None:
        if after:
            self.after = hook
        else:
            self.before = hook


def _selects(
    calls: Collection[str], uri: str, what: str, name: str, *, at: str = "", of: str = "", ending: str = ""
) -> bool:
    return (not calls or what in calls) and uri.endswith(at) and of in name and name.endswith(ending)
