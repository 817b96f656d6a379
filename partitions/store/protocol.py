"""The operations of the replication protocol on a storage root.

Names are relative to the root, parts joined by ``/``. Objects are written once: a name is created
atomically and exclusively, is never changed, and is free again after its deletion. Calls have a
deadline and bounded retries inside; what still fails is raised as one of ``stratalog.partitions.errors``:
``StorageError`` (nothing known to have changed), ``StoreTimeoutError``, ``OutcomeUnknownError``.
Stores are thread-safe. Those of real storage can be pickled (a Spark task opens its own connections).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import BinaryIO, Protocol

from stratalog.partitions.store.address import parse_server
from stratalog.partitions.store.credentials import CredentialSource

LEFT_ALONE = "stratalog never makes one; it is left alone, take it away"
"""The remedy, in messages about links, FIFOs and the like."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as a listing, or ``Store.stat``, saw it."""

    name: str
    size_bytes: int
    modified_ms: int
    version: str
    """Tells this object from any other that ever has the same name (ETag; inode and mtime). Empty where no
    listing has seen the object, and its name is never used again: a segment that a remote table names.
    """
    born: str = field(default="", compare=False)
    """When a file system made the file, where it tells: only ``Store.stat`` asks for it. A copy that keeps all
    that ``version`` is made of (``cp -a`` of a file whose inode is free again) was born at another time.
    """
    special: str = ""
    """The kind of thing with the name, if it is no file: ``a symbolic link``, ``a FIFO``, ``a mount point``.
    Somebody else put it there: it has no bytes, is never read, followed or deleted, and the name is taken all the
    same."""
    late: bool = False
    """A high watermark that came while its log was listed: the listing need not show all records below it."""


@dataclass(slots=True)
class StoreCounts:
    """The calls of a store so far: requests by kind, bytes moved by this process."""

    creates: int = 0
    reads: int = 0
    lists: int = 0
    deletes: int = 0
    copies: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def requests(self) -> int:
        """Requests of every kind."""
        return self.creates + self.reads + self.lists + self.deletes + self.copies

    def __add__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def snapshot(self) -> StoreCounts:
        """A copy of the present counts."""
        return StoreCounts(*(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach stores; never holds a secret (those come from the environment, a profile, the machine, or a
    provider). ``resolving.resolved`` fills in what the environment or a profile names."""

    endpoint_url: str | None = None
    """The server; None, once that is resolved: Amazon's or Google's own."""
    region: str | None = None
    profile: str | None = None
    account: str | None = None
    """The storage account of Azure."""
    kms_key_id: str | None = None
    """The key with which S3 (SSE-KMS), or Google, encrypts what is written; None: as the bucket says."""
    encryption_scope: str | None = None
    """The scope with whose key Azure encrypts what is written; None: as the container says."""
    plain_http: bool = False
    """Whether a server other than this machine may be reached without TLS."""
    credentials: CredentialSource | None = None
    """The provider that gives credentials; None: the environment, the profile, the machine."""
    timeout_s: float = 30.0
    retries: int = 5
    part_bytes: int = 16 * 1024 * 1024
    exclusive_multipart: bool | None = None
    """Whether *completing a multipart upload* with ``If-None-Match: *`` is atomic on this endpoint. None:
    on Amazon (no ``endpoint_url``) yes, elsewhere no; then a staged object is named by ``CopyObject``."""
    driver: str | None = None
    """``fsspec``: requests are sent by a file system of fsspec; None: by our own clients."""
    file_system: str | None = None
    """With ``driver``: a function that returns the file system, as package.module:function; None: s3fs, adlfs or
    gcsfs, as the address says."""
    bytes_with_name: bool = field(default=False, compare=False)
    """Whether ``Store.stage_copy`` may leave it to ``commit`` to move the bytes, where that saves moving them
    twice. Not for replicas: what a name there vouches for is looked at after the bytes were read, and before the
    name. Segments in the remote tier count only once they are committed, which looks after both."""
    resolved: bool = field(default=False, compare=False)
    """Whether ``endpoint_url``, ``region`` and ``account`` are final: nobody looks for them elsewhere."""

    def __post_init__(self) -> None:
        """Raises: UnsupportedStoreError for an ``endpoint_url`` that is no address of a server."""
        if self.endpoint_url is not None:
            parse_server(self.endpoint_url, "endpoint_url")


class Staged(Protocol):
    """Bytes that are in place under no name yet: a temporary file, an uncompleted upload."""

    @property
    def size_bytes(self) -> int:
        """Bytes staged so far."""
        ...

    def commit(self) -> bool:
        """Give the bytes their name. True: this call created the object. False: the name is taken
        (what has it stays as it is; the staged bytes are dropped).

        Raises: StorageError, OutcomeUnknownError.
        """
        ...

    def abort(self) -> None:
        """Drop the bytes. Harmless after ``commit``."""
        ...


class StagedCopy(Staged, Protocol):
    """A staged object with the bytes of another one."""

    @property
    def crc32(self) -> int:
        """CRC-32 of all bytes, taken of the very buffers that were written or sent (or told by a server of what it
        has copied itself). ``stratalog.partitions.segment_check`` compares it with the expected one before
        ``commit``: storage that gave out other bytes than were written is found here, and nothing gets the name.
        """
        ...


class StagedWriter(Staged, Protocol):
    """A staged object that the caller is still writing."""

    file: BinaryIO
    """Where to write, sequentially; ``commit`` flushes and closes it, if the caller has not."""

    def replace(self) -> None:
        """Give the bytes their name in the place of whatever has it, in one step: at any moment the name has the
        one or the other. Only for bytes that are what the name stands for already (a damaged object is healed):
        everything else is created exclusively.

        Raises: StorageError; it may have happened all the same.
        """
        ...


class Readable(Protocol):
    """The means to read a listed object: every store, and stand-ins for one."""

    def __hash__(self) -> int: ...

    def open(self, source_object: StoredObject) -> BinaryIO:
        """As ``Store.open``."""
        ...

    def uri_of(self, name: str) -> str:
        """As ``Store.uri_of``; for messages."""
        ...


class Store(Protocol):
    """One storage root."""

    uri: str
    counts: StoreCounts

    def __hash__(self) -> int: ...

    def create(self, name: str, data: bytes) -> bool:
        """Create ``name`` with ``data``, atomically, exclusively and durably. True: created by this
        call. False: the name is taken, and nothing was changed.

        Raises: StorageError, OutcomeUnknownError.
        """
        ...

    def stage_writer(self, name: str) -> StagedWriter:
        """Begin an object of any size that the caller streams; invisible until ``commit``."""
        ...

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """Copy the bytes of the listed object the fastest way that tells their checksum; invisible until
        ``commit``.

        Raises: SourceChangedError when the object is gone, or is not the one that was listed.
        """
        ...

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes ``[start, end)`` of an object, to its end when ``end`` is None; a negative
        ``start`` counts from the end.

        Raises: FileNotFoundError, StorageError; CorruptionError where what has the name is no file.
        """
        ...

    def stat(self, name: str) -> StoredObject:
        """The object of that name now, asked for by itself: one request, counted as a read. As a listing
        has it, but for ``born``, and for fractions of a second of ``modified_ms`` on object stores: compare
        those with what another ``stat`` said.

        Raises: as ``read``.
        """
        ...

    def open(self, source_object: StoredObject) -> BinaryIO:
        """A seekable reader of the listed object; on object stores every read is one ranged request.

        Raises: SourceChangedError when the object is gone, or is not the one that was listed
        (at the latest at the first read); CorruptSegmentError where what has the name is no file.
        """
        ...

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        """All objects whose name starts with the folder ``prefix`` (``""``: the whole root), sorted
        by name. Where one scan is no snapshot, what two in a row say together (``two_scans``): of a log, all that
        was there when the listing began, without a hole; what came behind its end meanwhile is left out.
        Staged objects are not listed. A missing folder is empty. With ``after``, a name in
        the folder, only what sorts behind it: that costs what is there, however much lies before.

        ``known`` is what this store has answered of the same folder before, ``()`` at first. With it, a store may
        take what is there under the same name for the same file, and not ask about it again, for a minute at most.
        Bytes that change under a name, which nothing honest does, it need not see before they are read. Where
        nothing has come or gone, the answer may be ``known`` itself.

        Raises: BrokerUnreachableError when the root itself is not there; StorageAuthorizationError when it may not
            be listed; ListingUnstableError; CorruptionError where what should be the folder is a link or another
            volume, or where it holds more of others than is passed over.
        """
        ...

    def names(self, prefix: str) -> frozenset[str]:
        """The names of what ``list`` returns, by the same rule, and nothing else: a file system need not be asked
        about each file.

        Raises: as ``list``.
        """
        ...

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        """As ``list``, looking once: names that were there all the while are in it, those that came or went may
        be. For folders that are too large, or too busy, for two listings to agree.

        Raises: BrokerUnreachableError, CorruptionError.
        """
        ...

    def now_ms(self) -> int | None:
        """The time there: the ``Date`` of its answers, the time that a file system gives to a file just
        made. None where it does not tell, or cannot be asked. One request at most, and none where it has answered
        anything in the last minute.
        """
        ...

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """Remove what writers that died left under no name: what was not written to for that long by the clocks
        of the driver and of the storage; nothing where these do not agree (``stratalog.partitions.agreed_time``).
        Returns how many. ``dry_run`` only counts.

        Raises: StorageError, StoreTimeoutError.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files in bulk; a name that is not there is no error. Anything but a file stays.

        Raises: StorageError naming what could not be deleted; the others are gone.
        """
        ...

    def uri_of(self, name: str) -> str:
        """The address of an object for Spark and Delta: ``file:///...`` or ``s3://bucket/...``."""
        ...

    def check(self) -> None:
        """Find out at once whether the root is there, is writable, and creates exclusively.

        Raises: LogDirError, UnsupportedStoreError, StorageAuthorizationError.
        """
        ...
