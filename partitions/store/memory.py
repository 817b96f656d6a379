"""A store in memory, for simulations, tests and first steps."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from typing import BinaryIO, NoReturn

from isal import isal_zlib

from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import InvalidCallError, SourceChangedError
from stratalog.partitions.paths import probe_name
from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoredObject
from stratalog.partitions.store.reader import RangeReader
from stratalog.partitions.store.rules import Tally, byte_range, check_exclusive_create, check_name, folder_prefix

_CLOCK = SystemClock()


class MemoryStore:
    """Objects in a dictionary: every call is atomic and succeeds, and a listing is a snapshot.

    Versions are numbers that grow by one with each created object, so that runs are deterministic.
    """

    def __init__(self, uri: str = "memory://unnamed", clock: Clock = _CLOCK) -> None:
        self.uri = uri.rstrip("/")
        self._clock = clock
        self._tally = Tally()
        self.counts = self._tally.counts
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[StoredObject, bytes]] = {}
        self._created = 0

    def __repr__(self) -> str:
        return f"MemoryStore({self.uri!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.uri} exists in one process and cannot be sent to another: use file:// or s3://")

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        with self._lock:
            created = name not in self._objects
            if created:
                self._created += 1
                listed = StoredObject(name, len(data), self._clock.now_ms(), str(self._created))
                self._objects[name] = (listed, bytes(data))
        self._tally.add(creates=1, written_bytes=len(data) if created else 0)
        return created

    def stage_writer(self, name: str) -> StagedWriter:
        return _StagedBytes(self, check_name(name))

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        staged = _StagedBytes(self, check_name(name))
        with source.open(source_object) as reader:
            data = reader.read()
        if len(data) != source_object.size_bytes:
            raise SourceChangedError(f"{source.uri_of(source_object.name)} has been replaced since it was listed")
        staged.file.write(data)
        self._tally.add(copies=1)
        return staged

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        check_name(name)
        with self._lock:
            found = self._objects.get(name)
        if found is None:
            self._tally.add(reads=1)
            raise FileNotFoundError(self.uri_of(name))
        low, high = byte_range(start, end, len(found[1]))
        self._tally.add(reads=1, read_bytes=high - low)
        return found[1][low:high]

    def stat(self, name: str) -> StoredObject:
        check_name(name)
        self._tally.add(reads=1)
        with self._lock:
            found = self._objects.get(name)
        if found is None:
            raise FileNotFoundError(self.uri_of(name))
        return found[0]

    def open(self, source_object: StoredObject) -> BinaryIO:
        with self._lock:
            found = self._objects.get(check_name(source_object.name))
        if found is None or source_object.version not in ("", found[0].version):
            raise SourceChangedError(f"{self.uri_of(source_object.name)} has been replaced since it was listed")
        data = found[1]

        def fetch(start: int, end: int) -> bytes:
            self._tally.add(reads=1, read_bytes=end - start)
            return data[start:end]

        return RangeReader(len(data), fetch).as_file()

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        folder = folder_prefix(prefix)
        self._tally.add(lists=1)
        with self._lock:
            return sorted(
                (
                    listed
                    for name, (listed, _) in self._objects.items()
                    if name.startswith(folder) and (not after or name > folder + after)
                ),
                key=lambda listed: listed.name,
            )

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self.list(prefix)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """See ``Store.sweep_staging``: staged bytes disappear with their writer."""
        return 0

    def staged(self) -> frozenset[str]:
        return frozenset()

    def names(self, prefix: str) -> frozenset[str]:
        return frozenset(listed.name for listed in self.list(prefix))

    def delete(self, names: Iterable[str]) -> None:
        doomed = [check_name(name) for name in names]
        with self._lock:
            for name in doomed:
                self._objects.pop(name, None)
        self._tally.add(deletes=len(doomed))

    def uri_of(self, name: str) -> str:
        """See ``Store.uri_of``; only this process can read the address."""
        return f"{self.uri}/{name}"

    def check(self) -> None:
        check_exclusive_create(self, probe_name(str(threading.get_ident())))


class _StagedBytes:
    """Staged bytes of a ``MemoryStore``."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store = store
        self._name = name
        self._buffer = _Buffer()
        self._done = False
        self.file: BinaryIO = self._buffer

    @property
    def size_bytes(self) -> int:
        return len(self._buffer.bytes_written())

    @property
    def crc32(self) -> int:
        return isal_zlib.crc32(self._buffer.bytes_written())

    def commit(self) -> bool:
        return self._store.create(self._name, self._taken())

    def replace(self) -> None:
        data = self._taken()
        with self._store._lock:
            self._store._objects.pop(self._name, None)
            self._store.create(self._name, data)

    def abort(self) -> None:
        self._done = True
        self._buffer.close()

    def _taken(self) -> bytes:
        if self._done:
            raise InvalidCallError(f"{self._store.uri_of(self._name)} has already been committed or aborted")
        self.abort()
        return self._buffer.bytes_written()


class _Buffer(io.BytesIO):
    """A buffer whose bytes remain readable after its writer has closed it."""

    _kept = b""

    def bytes_written(self) -> bytes:
        return self._kept if self.closed else self.getvalue()

    def close(self) -> None:
        if not self.closed:
            self._kept = self.getvalue()
        super().close()
