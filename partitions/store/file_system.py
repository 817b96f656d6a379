"""Storage through any file system of fsspec (``driver = "fsspec"``), by the calls common to all of them.

A name is created by ``pipe_file(mode="create")``. ``FileSystemStore.check`` and ``checking`` test whether a file
system does this exclusively and sends the request once. fsspec has no conditional reads, no listing after a name,
and no uploads that become visible later. So a read checks afterwards that the object is still the listed object, a
listing reads all names, and an object stays in memory until it gets its name.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from isal import isal_zlib

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, StorageError, UnsupportedStoreError
from stratalog.partitions.paths import probe_name
from stratalog.partitions.store.file_system_calls import (
    FileSystem,
    FileSystemRequests,
    open_file_system,
    silent_server,
)
from stratalog.partitions.store.object import ObjectStore, Upload, is_missing, missing_packages
from stratalog.partitions.store.object_http import DELETES_AT_ONCE, SLOWEST_BYTES_PER_S
from stratalog.partitions.store.protocol import StoredObject, StoreOptions
from stratalog.partitions.store.requests import Answer, Refusal, harmless, name_exclusively, undeleted
from stratalog.partitions.store.rules import STAGING_FOLDER, Tally, byte_range, drop_probes
from stratalog.partitions.store.storage_time import StorageTime

SILENCE_S = 5.0
"""A client that repeats a request does so within this time."""
LARGEST_BYTES = 512 * 1024 * 1024
"""The size limit of an object, which stays in memory until it gets its name."""
_NO_BUCKET = "NoSuchBucket"
_VERSIONS = ("generation", "ETag", "etag", "e_tag")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "timeCreated", "created")


class FileSystemStore(ObjectStore):
    """The files of a bucket whose paths start with a prefix."""

    _objects: Files

    def _open_objects(self, scheme: str, rng: random.Random) -> Files:
        self._requests = FileSystemRequests(self._address, self.options, self._clock, rng)
        return Files(self._requests, self._root_uri, self.bucket.partition("@")[0], self._tally)

    @property
    def file_system(self) -> str:
        """The class of the file system, for messages.

        Raises: see ``open_file_system``.
        """
        return self._objects.file_system

    def check(self) -> None:
        """See ``Store.check``; the error names a file system that overwrites existing names."""
        try:
            probe = probe_name(self._new_id())
            self.create(probe, b"first")
            again = self.create(probe, b"second")
            drop_probes(self, [probe])
        except StorageError:
            again = False  # the rest of the check reports the problem
        if again:
            raise UnsupportedStoreError(
                f'{self.uri}: {self.file_system}.pipe_file(mode="create") overwrites an existing name: '
                "concurrent drivers would overwrite each other's records. Use another file system, or none "
                "(without driver)"
            )
        super().check()

    def sent_per_creation(self) -> int | None:
        path = self._objects.path(self._key(probe_name(self._new_id())))
        with silent_server() as (url, came):
            try:
                there = open_file_system(self._address, replace(self.options, endpoint_url=url))
            except NotImplementedError:
                return None
            for method, arguments in (
                ("info", ()),
                ("pipe_file", (b"probe",)),
            ):  # the second one on an open connection
                named = {"mode": "create"} if arguments else {}
                with suppress(Exception):  # an error is expected: the server does not answer
                    there.call(method, SILENCE_S, path, *arguments, **named)
            return came()

    def instead(self) -> str:
        return "use another file system, or none (without driver)"

    def _in_one(self, name: str, data: bytes) -> StagedInMemory:
        staged = StagedInMemory(self._objects, self._key(name))
        staged.put_part(0, data, isal_zlib.crc32(data))
        return staged

    def _in_parts(self, name: str) -> StagedInMemory:
        return StagedInMemory(self._objects, self._key(name))

    def _keeps_damaged_bytes(self, probe: str) -> bool:
        """fsspec cannot send a caller's checksum."""
        return False


class Files:
    """``Objects`` through a file system's calls."""

    def __init__(self, requests: FileSystemRequests, uri: str, bucket: str, tally: Tally) -> None:
        self.requests = requests
        self.uri = uri
        self._bucket = bucket
        self._tally = tally
        self.time = StorageTime()
        """No file system reports the server's time."""

    @property
    def file_system(self) -> str:
        return self._made().name

    def check(self) -> None:
        self.list(f"{STAGING_FOLDER}/")

    def get(self, key: str, start: int = 0, end: int | None = None, version: str = "") -> bytes:
        if start < 0 or (start and end is None):
            found = self.head(key, version)
            start, end = byte_range(start, end, found.size_bytes)
            if start >= end:
                return b""
        try:
            data = self._read(key, start, end)
        except (StorageError, Refusal) as failure:
            if isinstance(failure, Refusal) and is_missing(failure.answer):
                raise
            start, end = byte_range(start, end, self.head(key, version).size_bytes)
            if start < end:
                raise
            return b""  # file systems raise different errors for a range after the end
        self._tally.add(read_bytes=len(data))
        if version:
            self.head(key, version)  # versions are unique: the object did not change meanwhile
        return data

    def head(self, key: str, version: str = "") -> StoredObject:
        info = self._ask(f"look for {self.uri}/{key}", "info", key, reads=1)
        if info.get("type") == "directory":
            raise self._refusal(404)
        found = _stored(key, info)
        if version not in ("", found.version):
            raise self._refusal(412)
        return found

    def list(
        self, key_prefix: str, most: int | None = None, after: str = ""
    ) -> tuple[int, Sequence[StoredObject]]:
        """All names by one call; writes may happen meanwhile, so this is not a snapshot. A file system may raise
        FileNotFoundError for a folder without files, as it does for a missing bucket.
        """
        try:
            infos = self._ask(
                f"list {self.uri}/{key_prefix}", "find", key_prefix.rstrip("/"), lists=1, detail=True
            )
        except Refusal as refused:
            if not is_missing(refused.answer):
                raise
            self._check_bucket()
            infos = {}
        if not isinstance(infos, Mapping):  # adlfs: an empty list, or the object with the name of the folder
            infos = {}
        root = f"{self._bucket}/"
        keys = {path.lstrip("/").removeprefix(root): info for path, info in infos.items()}
        return 2, [
            _stored(key, info)
            for key, info in keys.items()
            if info.get("type") != "directory" and key.startswith(key_prefix) and key > after
        ]

    def delete(self, keys: Sequence[str]) -> None:
        """One call per name, many in parallel."""
        if not keys:
            return
        with ThreadPoolExecutor(min(DELETES_AT_ONCE, len(keys)), thread_name_prefix="delete") as pool:
            answers = list(pool.map(self._delete, keys))
        refused = [(key, refusal) for key, refusal in zip(keys, answers, strict=True) if refusal is not None]
        if refused:
            raise undeleted(refused, self.uri) from refused[0][1]

    def uploads(self, key_prefix: str) -> Iterator[Upload]:
        """Empty: objects stay in memory."""
        return iter(())

    def abort(self, upload: Upload) -> None:
        """Does nothing: there are no listed uploads."""

    def put(self, key: str, data: bytes, mode: str) -> Callable[[FileSystem], None]:
        """An attempt to write a file with these bytes; ``mode`` is fsspec's: ``create``, ``overwrite``."""

        def attempt(fs: FileSystem) -> None:
            self._tally.add(creates=1)
            fs.call("pipe_file", self._deadline_s(len(data)), self.path(key), data, mode=mode)

        return attempt

    def count_written(self, size_bytes: int) -> None:
        self._tally.add(written_bytes=size_bytes)

    def _read(self, key: str, start: int, end: int | None) -> bytes:
        bounds = {} if not start and end is None else {"start": start, "end": end}

        def attempt(fs: FileSystem) -> bytes:
            self._tally.add(reads=1)
            return bytes(fs.call("cat_file", self._deadline_s((end or start) - start), self.path(key), **bounds))

        return self.requests.repeatable(f"read {self.uri}/{key}", attempt)

    def _delete(self, key: str) -> Refusal | None:
        """Returns the answer of a storage that refuses to delete the object."""
        try:
            self._ask(f"delete {self.uri}/{key}", "rm_file", key, deletes=1)
        except Refusal as refusal:
            return None if is_missing(refusal.answer) else refusal
        return None

    def _ask(self, what: str, method: str, key: str, /, *, deletes: int = 0, reads: int = 0, lists: int = 0,
             **named: Any) -> Any:  # fmt: skip
        def attempt(fs: FileSystem) -> Any:
            self._tally.add(deletes=deletes, reads=reads, lists=lists)
            return fs.call(method, self._deadline_s(0), self.path(key), **named)

        return self.requests.repeatable(what, attempt)

    def _check_bucket(self) -> None:
        """Raises: Refusal."""
        try:
            self._ask(f"look for {self.uri}", "info", "", reads=1)
        except Refusal as refused:
            if not is_missing(refused.answer):
                raise
            raise self._refusal(404, _NO_BUCKET) from refused

    def _made(self) -> FileSystem:
        return self.requests.client()

    def path(self, key: str) -> str:
        """The name of an object in the file system."""
        return f"{self._bucket}/{key}" if key else self._bucket

    def _deadline_s(self, moved_bytes: int) -> float:
        return self.requests.options.timeout_s + moved_bytes / SLOWEST_BYTES_PER_S

    def _refusal(self, status: int, code: str = "") -> Refusal:
        return Refusal(Answer(status, code or str(status), ambiguous=False), self.requests.wording)


class StagedInMemory:
    """Staged bytes in memory; implements ``StagedWholeCopy`` and ``StagedPartsCopy``."""

    def __init__(self, files: Files, key: str) -> None:
        self._files = files
        self._key = key
        self._lock = threading.Lock()
        self._parts: dict[int, bytes] | None = {}
        self.size_bytes = 0

    @property
    def crc32(self) -> int:
        """The CRC-32 of the parts so far, in the order of their indices."""
        with self._lock:
            parts = dict(self._parts or {})
        crc32 = 0
        for index in sorted(parts):
            crc32 = isal_zlib.crc32(parts[index], crc32)
        return crc32

    def put_part(self, index: int, data: bytes, crc32: int) -> None:
        """Add a part. A repeated part replaces the first.

        Raises: StorageError for more than ``LARGEST_BYTES`` in total. In that case, the part is dropped.
        """
        with self._lock:
            if self._parts is None:
                raise self._over()
            size_bytes = self.size_bytes - len(self._parts.get(index, b"")) + len(data)
            if size_bytes > LARGEST_BYTES:
                raise StorageError(
                    f"{self._files.uri}/{self._key}: a file system of fsspec takes whole objects of at most "
                    f"{LARGEST_BYTES:,} bytes: use a smaller segment.bytes, or no driver"
                )
            self._parts[index] = data
            self.size_bytes = size_bytes

    def commit(self) -> bool:
        data, files, uri = self._take(), self._files, f"{self._files.uri}/{self._key}"
        attempt = files.put(self._key, data, "create")
        created = name_exclusively(files.requests, uri, attempt, lambda: files.head(self._key))
        if created:
            files.count_written(len(data))
        return created

    def replace(self) -> None:
        data, files = self._take(), self._files
        harmless(files.requests, f"{files.uri}/{self._key}", "replace", files.put(self._key, data, "overwrite"))
        files.count_written(len(data))

    def abort(self) -> None:
        with self._lock:
            self._parts = None

    def _take(self) -> bytes:
        with self._lock:
            if self._parts is None:
                raise self._over()
            parts, self._parts = self._parts, None
        return parts[0] if len(parts) == 1 else b"".join(parts[index] for index in sorted(parts))

    def _over(self) -> InvalidCallError:
        return InvalidCallError(f"{self._files.uri}/{self._key} has already been committed or aborted")


def open_on_file_system(uri: str, options: StoreOptions, clock: Clock) -> FileSystemStore:
    """Raises: UnsupportedStoreError if packages are missing."""
    scheme = uri.partition("://")[0]
    store = FileSystemStore(uri, options, clock)
    if options.file_system is None:
        try:
            if scheme == "gs":
                from stratalog.partitions.store import object_gcs  # noqa: F401
            else:
                from stratalog.partitions.store import object_azure  # noqa: F401
        except ModuleNotFoundError as missing:
            raise missing_packages(f"{scheme}://", scheme, missing) from None
    return store


def _stored(key: str, info: Mapping[str, Any]) -> StoredObject:
    """Raises: UnsupportedStoreError if two successive files of one name cannot be distinguished."""
    size, made_s = int(info["size"]), _made_s(info)
    version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name)), None)
    if version is None and made_s is None:
        raise UnsupportedStoreError(
            "the file system reports no ETag, generation or creation time, so two successive objects of one name "
            "cannot be distinguished. Use another file system"
        )
    return StoredObject(
        key, size, int((made_s or 0) * 1000), f"{version or round((made_s or 0) * 1_000_000)}.{size:x}"
    )


def _made_s(info: Mapping[str, Any]) -> float | None:
    """The time of the file; some file systems report it as a number in one call and as a time in another."""
    moment = next((info[name] for name in _TIMES if info.get(name)), None)
    if moment is None or isinstance(moment, int | float):
        return moment
    found = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment))
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
