"""A driver's view of a root. Every call waits at the scheduler, then takes effect, fails, or both; a mutating call
may take effect much later, even after the end of the driver, like a request in flight.
"""

from __future__ import annotations

import io
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import BinaryIO, TypeVar

from stratalog.partitions.errors import (
    BrokerUnreachableError,
    OutcomeUnknownError,
    SourceChangedError,
    StorageError,
    StoreTimeoutError,
    StratalogError,
)
from stratalog.partitions.paths import BROKER_FILE
from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoreCounts, StoredObject
from stratalog.partitions.store.rules import byte_range, check_exclusive_create, stable_listing
from stratalog.partitions.store.two_scans import objects_together
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.simulation.roots import Root
from tests.simulation.scheduler import Driver, Verdict

T = TypeVar("T")

CHANGES = frozenset({"create", "commit", "replace", "delete"})
"""The calls that change what is stored."""

Note = Callable[[Driver, str, str, str, object], None]
"""Called with every call: driver, call, place, name, outcome."""

Send = Callable[[Driver, str, Root, str, Callable[[], object]], None]
"""Lets a call take effect later: driver, call, root, name, effect."""


class SimStore:
    """One driver's view of one root. ``page``: the number of names in a page of a listing; 0: all, so that one
    page is a snapshot. ``constant_roots``: no ``broker.json`` ever changes, so reading it is no step.
    """

    def __init__(
        self,
        root: Root,
        driver: Driver,
        now_ms: Callable[[], int],
        note: Note,
        page: Callable[[], int] = lambda: 0,
        constant_roots: bool = False,
        send: Send | None = None,
    ) -> None:
        self.root = root
        self.uri = f"sim://{root.place}"
        self.counts = StoreCounts()
        self._driver = driver
        self._now_ms = now_ms
        self._note = note
        self._page = page
        self._constant_roots = constant_roots
        self._send = send

    def __repr__(self) -> str:
        return f"SimStore({self.uri!r}, {self._driver.name})"

    def call(self, what: str, name: str, effect: Callable[[], T]) -> T:
        """One call: the point of interleaving, the faults, the effect."""
        driver = self._driver
        verdict = Verdict.GO
        if name != BROKER_FILE or not self._constant_roots:
            verdict = driver.point(what, self.root.place, name)
        if not self.root.reachable:
            self._note(driver, what, self.root.place, name, "unreachable")
            raise BrokerUnreachableError(f"{self.uri} does not answer")
        if self.root.full and what in ("create", "commit", "replace"):
            self._note(driver, what, self.root.place, name, "full")
            raise UnwritableStorageError(f"{self.uri} is full: cannot {what} {name}", self.uri_of(name), full=True)
        if verdict is Verdict.REFUSE:
            self._note(driver, what, self.root.place, name, "refused")
            raise StorageError(f"{self.uri} refused to {what} {name}")
        if verdict is Verdict.LATE:
            assert self._send is not None
            self._note(driver, what, self.root.place, name, "later")
            self._send(driver, what, self.root, name, effect)
            raise self._unanswered(what, name)
        try:
            result = effect()
        except Exception as error:
            self._note(driver, what, self.root.place, name, type(error).__name__)
            raise
        self._note(driver, what, self.root.place, name, "echo" if verdict is Verdict.ECHO else result)
        if verdict is Verdict.DIE_AFTER:
            driver.die()
        if verdict is Verdict.LOSE_ANSWER:
            raise self._unanswered(what, name)
        if verdict is Verdict.ECHO:
            return False  # type: ignore[return-value]
        return result

    def _unanswered(self, what: str, name: str) -> StratalogError:
        """Like the product's stores: a later run repeats the rest of a bulk delete."""
        if what in ("create", "commit"):
            return OutcomeUnknownError(f"{self.uri}: no answer whether {name} was created")
        if what in ("delete", "replace"):
            return StorageError(f"{self.uri}: cannot {what} {name}")
        return StoreTimeoutError(f"{self.uri}: no answer")

    def create(self, name: str, data: bytes) -> bool:
        self.counts.creates += 1
        return self.call("create", name, lambda: self.root.create(name, bytes(data), self._now_ms()))

    def stage_writer(self, name: str) -> StagedWriter:
        """See ``Store.stage_writer``. Only ``staged`` shows staged bytes, so staging is no step."""
        return _StagedBytes(self, name)

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        with source.open(source_object) as reader:
            data = reader.read()
        staged = _StagedBytes(self, name)
        staged.file.write(data)
        self.counts.copies += 1
        return staged

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.counts.reads += 1

        def effect() -> bytes:
            found = self.root.get(name)
            if found is None:
                raise FileNotFoundError(name)
            low, high = byte_range(start, end, len(found[1]))
            return found[1][low:high]

        return self.call("read", name, effect)

    def stat(self, name: str) -> StoredObject:
        self.counts.reads += 1

        def effect() -> StoredObject:
            found = self.root.get(name)
            if found is None:
                raise FileNotFoundError(name)
            return found[0]

        return self.call("stat", name, effect)

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. The bytes are those of this moment: an open file outlives its name."""
        self.counts.reads += 1

        def effect() -> bytes:
            found = self.root.get(source_object.name)
            if found is None or source_object.version not in ("", found[0].version):
                raise SourceChangedError(f"{self.uri}/{source_object.name} is not the object that was listed")
            return found[1]

        return io.BytesIO(self.call("open", source_object.name, effect))

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        self.counts.lists += 1
        if not self._page():
            return self.call("list", prefix, lambda: self.root.listing(prefix))
        return self._list_in_pages(prefix)

    def now_ms(self) -> int:
        """See ``Store.now_ms``: an earlier answer contains it, so it is no step."""
        return self._now_ms()

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """See ``Store.sweep_staging``: staged bytes disappear with their writer."""
        return 0

    def staged(self) -> frozenset[str]:
        return self.call("staged", "", lambda: frozenset(self.root.staged))

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        """See ``Store.list``; with pages, by the rule of all stores whose listings are no snapshots."""
        self.counts.lists += 1
        if not self._page():
            listed = self.call("list", prefix, lambda: self.root.listing(prefix))
        else:
            listed = stable_listing(lambda: self._list_in_pages(prefix), f"{self.uri}/{prefix}", objects_together)
        return [stored for stored in listed if stored.name > f"{prefix}/{after}"] if after else listed

    def names(self, prefix: str) -> frozenset[str]:
        return frozenset(stored.name for stored in self.list(prefix))

    def _list_in_pages(self, prefix: str) -> Sequence[StoredObject]:
        """List each page at its own moment."""
        size = max(self._page(), 1)
        found: list[StoredObject] = []
        position = -1
        while True:

            def page(after: int = position) -> Sequence[tuple[int, StoredObject]]:
                ranked = self.root.by_rank(prefix)
                begin = bisect_right(ranked, after, key=itemgetter(0))
                return ranked[begin : begin + size]

            some = self.call("page", prefix, page)
            found += [stored for _, stored in some]
            if len(some) < size:
                return sorted(found, key=attrgetter("name"))
            position = some[-1][0]

    def delete(self, names: Iterable[str]) -> None:
        """See ``Store.delete``: one step for each name."""
        failed = []
        for name in names:
            self.counts.deletes += 1
            try:
                self.call("delete", name, lambda name=name: self.root.delete(name))  # type: ignore[misc]
            except StorageError:
                failed.append(name)
        if failed:
            raise StorageError(f"{self.uri}: cannot delete {', '.join(failed)}")

    def uri_of(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def check(self) -> None:
        check_exclusive_create(self, f".check-{self._driver.name}")


class _StagedBytes:
    """Bytes on their way into a ``SimStore``."""

    def __init__(self, store: SimStore, name: str) -> None:
        self._store = store
        self._name = name
        self._place = store.root.stage()
        self._buffer = _Buffer()
        self.file: BinaryIO = self._buffer

    @property
    def size_bytes(self) -> int:
        return len(self._buffer.written())

    @property
    def crc32(self) -> int:
        return zlib.crc32(self._buffer.written())

    def commit(self) -> bool:
        store, data = self._store, self._buffer.written()
        store.counts.creates += 1

        def effect() -> bool:
            store.root.staged.pop(self._place, None)
            return store.root.create(self._name, data, store._now_ms())

        try:
            return store.call("commit", self._name, effect)
        except OutcomeUnknownError:
            if self._place in self._store.root.staged:
                self._store.root.staged[self._place] = self._name
            raise
        except BaseException:
            self.abort()
            raise

    def replace(self) -> None:
        store, data = self._store, self._buffer.written()
        store.counts.creates += 1
        try:
            store.call("replace", self._name, lambda: store.root.put(self._name, data, store._now_ms()))
        finally:
            self.abort()

    def abort(self) -> None:
        """A naming in flight is not revoked."""
        if not self._store.root.staged.get(self._place):
            self._store.root.staged.pop(self._place, None)


class _Buffer(io.BytesIO):
    """A buffer that still returns its bytes after its writer has closed it."""

    _kept = b""

    def written(self) -> bytes:
        return self._kept if self.closed else self.getvalue()

    def close(self) -> None:
        if not self.closed:
            self._kept = self.getvalue()
        super().close()
