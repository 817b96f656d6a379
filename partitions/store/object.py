"""The calls that all object stores share, for any client of a bucket or a container.

One page of a listing is a snapshot. Reads of a listed object are conditional on its version.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Protocol

from isal import isal_zlib

from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    LogDirError,
    RetriableError,
    SourceChangedError,
    StorageAuthorizationError,
    StorageError,
    StratalogError,
    UnsupportedStoreError,
)
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.paths import BROKER_FILE, is_log_folder, is_probe, is_top_folder, join, probe_name
from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoredObject, StoreOptions
from stratalog.partitions.store.reader import RangeReader
from stratalog.partitions.store.requests import Answer, EndpointUnreachableError, Refusal
from stratalog.partitions.store.resolving import resolved
from stratalog.partitions.store.rules import (
    CROWDED,
    MOST_NAMES,
    STAGING_FOLDER,
    Tally,
    byte_range,
    check_exclusive_create,
    check_name,
    copy_in_pieces,
    drop_probes,
    folder_prefix,
    special_key,
    stable_listing,
)
from stratalog.partitions.store.storage_time import StorageTime
from stratalog.partitions.store.two_scans import objects_together
from stratalog.partitions.store.upload_writer import StagedParts, StagedWhole, UploadWriter

MOST_PARTS = 10_000
INLINE_COPY_BYTES = 4 * 1024 * 1024
"""Copies up to this size stay in memory until they get their name. Such a copy takes two requests, instead of
three or more for an upload. The limit is small because callers stage many files before they commit them.
"""

_DEFAULTS = StoreOptions()
_CLOCK = SystemClock()
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})

_Pages = tuple[int, Sequence[StoredObject]]
"""The result of a walk through a folder: the number of pages, and the objects."""
_Once = Callable[[], _Pages]


_EXTRAS = {"s3": "s3fs", "abfss": "azure", "az": "azure", "gs": "gcs"}


def missing_packages(needs: str, scheme: str, missing: ModuleNotFoundError) -> UnsupportedStoreError:
    """The error for a client that needs a missing package; ``needs`` names the client."""
    return UnsupportedStoreError(
        f"{needs} needs packages that are not installed ({missing.name}): "
        f"pip install 'stratalog[{_EXTRAS[scheme]}]'"
    )


def _pages_together(first: _Pages, second: _Pages) -> _Pages | None:
    found = objects_together(first[1], second[1])
    return None if found is None else (second[0], found)


def is_missing(answer: Answer) -> bool:
    """Whether the object does not exist; False if the bucket does not exist."""
    return answer.status == 404 and answer.code not in _NO_BUCKET


@dataclass(frozen=True, slots=True)
class Upload:
    """An uncompleted upload in a listing."""

    key: str
    upload_id: str
    begun_ms: int


class Objects(Protocol):
    """The objects of one bucket, by their whole keys: here ``StoredObject.name`` is the key. Each request is
    counted when it is sent. An unsuccessful answer is raised as ``Refusal``: 404 for a missing object, 412 for
    another version, 416 for a range outside the object. All methods may also raise StorageError and
    StoreTimeoutError.
    """

    def check(self) -> None:
        """Check that the bucket exists and that this caller may use it."""
        ...

    def get(self, key: str, start: int = 0, end: int | None = None, version: str = "") -> bytes:
        """The bytes ``[start, end)``, of ``version`` if given; a negative ``start`` counts from the end."""
        ...

    def head(self, key: str, version: str = "") -> StoredObject:
        """The status of an object, of ``version`` if given."""
        ...

    def list(self, key_prefix: str, most: int | None = None, after: str = "") -> _Pages:
        """The objects with this key prefix, after the key ``after``, and the number of pages of the answer; one
        page is a snapshot. Stops after more than ``most`` objects.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete in bulk; a missing key is not an error. Raises: StorageError, which names the keys that could not
        be deleted; StorageAuthorizationError.
        """
        ...

    def uploads(self, key_prefix: str) -> Iterator[Upload]:
        """Every uncompleted upload with this key prefix, if the storage keeps them until they are dropped."""
        ...

    def abort(self, upload: Upload) -> None:
        """Drop an uncompleted upload; it is not an error if the upload has already been dropped or completed."""
        ...

    @property
    def time(self) -> StorageTime:
        """The server's time, from its answers."""
        ...


class StagedWholeCopy(StagedWhole, StagedCopy, Protocol):
    """Stages the bytes of an object for a single request."""


class StagedPartsCopy(StagedParts, StagedCopy, Protocol):
    """Stages the bytes of an object in parts."""


class ObjectStore(ABC):
    """The objects of a bucket whose keys start with a prefix. Pickles contain addresses and options, never
    credentials or connections. Counts include repeated requests.
    """

    def __init__(
        self,
        uri: str,
        options: StoreOptions = _DEFAULTS,
        clock: Clock = _CLOCK,
        new_id: NewId = random_id,
        rng: random.Random | None = None,
    ) -> None:
        """``uri``: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix`` or
        ``abfss://container@account.dfs.core.windows.net/prefix``.

        Raises: UnsupportedStoreError if packages of the client are not installed; see ``resolved``.
        """
        self.options = resolved(uri, options)
        scheme, _, rest = uri.partition("://")
        self.bucket, _, prefix = rest.partition("/")
        self.prefix = prefix.strip("/")
        self._root_uri = f"{scheme}://{self.bucket}"
        self.uri = join(self._root_uri, self.prefix)
        self._tally = Tally()
        self.counts = self._tally.counts
        self._address = uri
        self._clock = clock
        self._new_id = new_id
        self._objects = self._open_objects(scheme, random.Random() if rng is None else rng)

    @abstractmethod
    def _open_objects(self, scheme: str, rng: random.Random) -> Objects:
        """The objects of the bucket. Raises: UnsupportedStoreError."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abstractmethod
    def _in_one(self, name: str, data: bytes) -> StagedWholeCopy:
        """Stage bytes that one request will turn into an object."""

    @abstractmethod
    def _in_parts(self, name: str) -> StagedPartsCopy:
        """Stage an object that is uploaded in parts."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address, self.options, self._clock, self._new_id)

    def create(self, name: str, data: bytes) -> bool:
        """See ``Store.create``. If an answer was lost, False may be due to this call's own success: before you
        treat an existing object as another writer's, read it.
        """
        return self._in_one(check_name(name), data).commit()

    def stage_writer(self, name: str) -> StagedWriter:
        check_name(name)
        return UploadWriter(
            self.uri_of(name),
            self.options.part_bytes,
            lambda data: self._in_one(name, data),
            lambda: self._in_parts(name),
        )

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """See ``Store.stage_copy``. Parts are read and uploaded in parallel."""
        check_name(name)
        size = source_object.size_bytes
        if size <= INLINE_COPY_BYTES:
            with source.open(source_object) as reader:
                data = reader.read()
            if len(data) != size:
                raise SourceChangedError(
                    f"{source.uri_of(source_object.name)} has been replaced since it was listed"
                )
            return self._in_one(name, data)
        upload = self._in_parts(name)
        try:
            self._fill(source, source_object, upload)
            if upload.size_bytes != size:
                raise StorageError(f"{self.uri_of(name)}: {upload.size_bytes} of {size} bytes arrived")
        except BaseException:
            upload.abort()
            raise
        return upload

    def _fill(self, source: Store, source_object: StoredObject, upload: StagedPartsCopy) -> None:
        """Upload all parts of the listed object."""

        def put(index: int, _start: int, data: bytes, crc32: int) -> None:
            upload.put_part(index, data, crc32)

        copy_in_pieces(
            source, source_object, max(self.options.part_bytes, -(-source_object.size_bytes // MOST_PARTS)), put
        )

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See ``Store.read``. One request; two for a range that depends on the size."""
        key = self._key(name)
        try:
            if end is not None and (start < 0 or end <= start):
                start, end = byte_range(start, end, self._objects.head(key).size_bytes)
                if start >= end:
                    return b""
            return self._objects.get(key, start, end)
        except Refusal as refused:
            answer = refused.answer
            if answer.status == 416:  # the range is outside the object
                return b""
            if is_missing(answer):
                raise FileNotFoundError(self.uri_of(name)) from refused
            raise refused.as_error(f"cannot read {self.uri_of(name)}", "read", self.uri_of(name)) from refused

    def stat(self, name: str) -> StoredObject:
        try:
            found = self._objects.head(self._key(name))
        except Refusal as refused:
            if is_missing(refused.answer):
                raise FileNotFoundError(self.uri_of(name)) from refused
            raise refused.as_error(f"cannot look for {self.uri_of(name)}", "read", self.uri_of(name)) from refused
        return StoredObject(name, found.size_bytes, found.modified_ms, found.version)

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. Sends no request until the first read, unless the object is empty."""
        key = self._key(source_object.name)
        version = source_object.version

        def fetch(start: int, end: int) -> bytes:
            try:
                return self._objects.get(key, start, end, version)
            except Refusal as refused:
                uri = self.uri_of(source_object.name)
                if is_missing(refused.answer) or refused.answer.status in (412, 416):
                    raise SourceChangedError(f"{uri} is not the object that was listed") from refused
                raise refused.as_error(f"cannot read {uri}", "read", uri) from refused

        if source_object.size_bytes == 0:  # no later read could detect a change
            self._must_exist(source_object)
        return RangeReader(source_object.size_bytes, fetch).as_file()

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        """See ``Store.list``. An unreachable server, or a missing or refusing bucket, is treated as a missing
        root.
        """

        def agreed(once: _Once, where: str) -> _Pages:
            return stable_listing(once, where, _pages_together, lambda pages: pages[0] == 1)

        return self._listed(prefix, agreed, after)

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self._listed(prefix, lambda once, where: once())

    def _listed(
        self, prefix: str, look: Callable[[_Once, str], _Pages], after: str = ""
    ) -> Sequence[StoredObject]:
        folder = folder_prefix(prefix)
        where = self.uri_of(folder)
        try:
            _, listed = look(partial(self._list_once, folder, after), where)
        except Refusal as refused:
            error = refused.as_error(f"cannot list {where}", "list", where)
            if isinstance(error, StorageAuthorizationError):  # the root exists, but this caller cannot read it
                raise error from refused
            raise BrokerUnreachableError(str(error)) from refused
        except EndpointUnreachableError as error:
            raise BrokerUnreachableError(f"cannot list {where}: {error}") from error
        return listed

    def names(self, prefix: str) -> frozenset[str]:
        return frozenset(listed.name for listed in self.list(prefix))

    def delete(self, names: Iterable[str]) -> None:
        self._objects.delete([self._key(name) for name in names])

    def uri_of(self, name: str) -> str:
        return join(self.uri, name)

    def check(self) -> None:
        """See ``Store.check``. Large objects get their names in a different way than small objects, so both are
        tested. This test cannot detect that a server lets two concurrent writers create one name: see
        ``StoreOptions``. The server must also refuse bytes that do not match their checksum.
        """
        try:
            self._objects.check()
        except Refusal as refused:
            error = refused.as_error(f"{self.uri} cannot be used", "list", self.uri)
            if isinstance(error, StorageAuthorizationError):
                raise error from refused
            raise LogDirError(str(error)) from refused
        except StorageAuthorizationError:
            raise
        except RetriableError as error:
            raise LogDirError(f"{self.uri} cannot be used: {error}") from error
        check_exclusive_create(self, probe_name(self._new_id()))
        try:
            damaged = self._keeps_damaged_bytes(probe_name(self._new_id()))
            large = probe_name(self._new_id())
            for probe in (b"first", b"second"):
                upload = self._in_parts(large)
                try:
                    upload.put_part(0, probe, isal_zlib.crc32(probe))
                    again = upload.commit()
                finally:
                    upload.abort()
            kept = self.read(large)
            drop_probes(self, [large])
        except StorageAuthorizationError:
            raise
        except (RetriableError, FileNotFoundError) as error:
            raise LogDirError(f"{self.uri} cannot be written: {error}") from error
        if damaged:
            raise UnsupportedStoreError(
                f"{self.uri} accepted bytes with a wrong checksum, so it would store bytes damaged in transit. "
                "Use another server"
            )
        if again or kept != b"first":
            raise UnsupportedStoreError(
                f"{self.uri} is a store without exclusive create of large objects: {self.instead()}"
            )

    @property
    def file_system(self) -> str | None:
        """The class of the foreign file system that this store calls, for messages; None if stratalog builds the
        requests and sends each once.
        """
        return None

    def sent_per_creation(self) -> int | None:
        """The number of times that the client sends a create that gets no answer; 0 if it sends nothing to the
        given server, None if it does not use HTTP.
        """
        return 1

    def instead(self) -> str:
        """The remedy for a store that does not create large objects exclusively."""
        return "use another server"

    @abstractmethod
    def _keeps_damaged_bytes(self, probe: str) -> bool:
        """Whether the server accepts an object with a wrong checksum. Leaves no object behind."""

    def now_ms(self) -> int | None:
        return self._objects.time.now_ms(self._ask_for_time)

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """See ``Store.sweep_staging``: the uploads and staged objects under this prefix. Other roots may be below
        this prefix (if it is empty, all roots of the bucket), so uploads to folders that a root does not have are
        not touched.
        """
        now_ms = agreed_ms(self._clock, self)
        if now_ms is None:
            return 0
        before_ms = now_ms - older_than_ms
        try:
            begun = [upload for upload in self._uploads() if upload.begun_ms < before_ms]
            for upload in [] if dry_run else begun:
                self._objects.abort(upload)
            _, staged = self._objects.list(join(self.prefix, STAGING_FOLDER) + "/")
        except Refusal as refused:
            where = self.uri_of(STAGING_FOLDER)
            raise refused.as_error(f"cannot sweep {self.uri}", "delete", where) from refused
        old = [listed.name for listed in staged if listed.modified_ms < before_ms]
        self._objects.delete([] if dry_run else old)
        return len(begun) + len(old)

    def staged(self) -> frozenset[str]:
        try:
            uploads = [f"{upload.key} {upload.upload_id}" for upload in self._uploads()]
            _, objects = self._objects.list(join(self.prefix, STAGING_FOLDER) + "/")
        except Refusal as refused:
            where = self.uri_of(STAGING_FOLDER)
            raise refused.as_error(f"cannot list what is staged in {self.uri}", "list", where) from refused
        return frozenset([*uploads, *(listed.name for listed in objects)])

    def _uploads(self) -> Iterator[Upload]:
        """The uncompleted uploads to folders of this root. Raises: Refusal."""
        root = self.prefix and self.prefix + "/"

        def ours(key: str) -> bool:
            folder = key[len(root) :].partition("/")[0]
            return folder == STAGING_FOLDER or is_top_folder(folder) or is_probe(folder)

        return (upload for upload in self._objects.uploads(root) if ours(upload.key))

    def _ask_for_time(self) -> None:
        """Any answer is sufficient, including that the object is missing."""
        with suppress(Refusal, StratalogError):
            self._objects.head(self._key(BROKER_FILE))

    def _key(self, name: str) -> str:
        return join(self.prefix, check_name(name))

    def _list_once(self, folder: str, after: str) -> tuple[int, Sequence[StoredObject]]:
        """One walk through the pages of a folder. Returns the number of pages, and the objects by name."""
        root = self.prefix and self.prefix + "/"
        most = MOST_NAMES if is_log_folder(folder.rstrip("/")) else None
        pages, listed = self._objects.list(root + folder, most, after and root + folder + after)
        if most is not None and len(listed) > most:
            raise CorruptionError(f"{self.uri_of(folder)} holds {CROWDED}")
        named = (
            replace(o, name=o.name[len(root) :], special=special_key(o.name[len(root) :]))
            for o in listed
            if not o.name.endswith("/") and not o.name.startswith(STAGING_FOLDER + "/", len(root))
        )
        return pages, sorted(named, key=lambda o: o.name)

    def _must_exist(self, listed: StoredObject) -> None:
        try:
            self._objects.head(self._key(listed.name), listed.version)
        except Refusal as refused:
            if refused.answer.status in (404, 412):
                raise SourceChangedError(
                    f"{self.uri_of(listed.name)} is not the object that was listed"
                ) from refused
            uri = self.uri_of(listed.name)
            raise refused.as_error(f"cannot look for {uri}", "read", uri) from refused
