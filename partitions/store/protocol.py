"""The operations of the replication protocol on a storage root.

Names are relative to the root, parts joined by ``/``. Objects are written once: a name is created atomically and
exclusively, is never changed, and is free again after its deletion. Calls have an internal deadline and bounded
retries, and then raise an error of ``stratalog.partitions.errors``: ``StorageError`` (no known change),
``StoreTimeoutError``, ``OutcomeUnknownError``. Stores are thread-safe. Stores of real storage can be pickled (a
Spark task opens its own connections).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import BinaryIO, Protocol

from stratalog.partitions.store.address import parse_server
from stratalog.partitions.store.credentials import CredentialSource

LEFT_ALONE = "stratalog never creates one, and leaves it unchanged: remove it"
"""The remedy, in messages about links, FIFOs and the like."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, according to a listing or ``Store.stat``."""

    name: str
    size_bytes: int
    modified_ms: int
    version: str
    """Distinguishes this object from any other object that ever has the same name (ETag; inode and mtime). Empty
    for a name that is never reused and was not listed: a segment from a remote table.
    """
    born: str = field(default="", compare=False)
    """The creation time of a file, if the file system reports it; only ``Store.stat`` sets it. A copy with the
    same ``version`` (``cp -a`` of a file whose inode is free again) has a different creation time.
    """
    special: str = ""
    """The kind of the object, if it is not a file: ``a symbolic link``, ``a FIFO``, ``a mount point``. Such an
    object is foreign: stratalog never reads, follows or deletes it, but the name is taken.
    """
    late: bool = False
    """Whether this is a high watermark that appeared during the listing. The listing may then not show all records
    below it.
    """


@dataclass(slots=True)
class StoreCounts:
    """The requests of a store so far by kind, and the bytes moved by this process."""

    creates: int = 0
    reads: int = 0
    lists: int = 0
    deletes: int = 0
    copies: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return self.creates + self.reads + self.lists + self.deletes + self.copies

    def __add__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def snapshot(self) -> StoreCounts:
        """A copy of the current counts."""
        return StoreCounts(*(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of stores. They contain no secrets: these come from the environment, a profile, the machine, or
    a provider. ``resolving.resolved`` adds the values of the environment or a profile.
    """

    endpoint_url: str | None = None
    """The server; None in resolved options: the cloud's default server."""
    region: str | None = None
    profile: str | None = None
    account: str | None = None
    """The storage account of Azure."""
    kms_key_id: str | None = None
    """The key with which S3 (SSE-KMS) or Google encrypts new objects; None: the bucket's default."""
    encryption_scope: str | None = None
    """The scope whose key Azure uses to encrypt new objects; None: the container's default."""
    plain_http: bool = False
    """Whether connections without TLS to servers on other machines are allowed."""
    credentials: CredentialSource | None = None
    """The provider that gives credentials; None: they come from the environment, the profile or the machine."""
    timeout_s: float = 30.0
    retries: int = 5
    part_bytes: int = 16 * 1024 * 1024
    exclusive_multipart: bool | None = None
    """Whether *completing a multipart upload* with ``If-None-Match: *`` is atomic on this endpoint. None: yes on
    Amazon (no ``endpoint_url``), no elsewhere. If it is not atomic, ``CopyObject`` gives a staged object its name.
    """
    driver: str | None = None
    """``fsspec``: a file system of fsspec sends the requests; None: stratalog's own clients do."""
    file_system: str | None = None
    """With ``driver``: a function that returns the file system, as package.module:function; None: s3fs, adlfs or
    gcsfs, depending on the address.
    """
    bytes_with_name: bool = field(default=False, compare=False)
    """Whether ``Store.stage_copy`` may let ``commit`` move the bytes, if that avoids moving them twice. This is
    not allowed for replicas, whose caller checks the log between reading the bytes and creating the name. It is
    allowed for segments in the remote tier: they take effect only after a commit to the table, which checks the
    log after both steps.
    """
    resolved: bool = field(default=False, compare=False)
    """Whether ``endpoint_url``, ``region`` and ``account`` are final, with no further lookup."""

    def __post_init__(self) -> None:
        """Raises: UnsupportedStoreError for an ``endpoint_url`` that is not the address of a server."""
        if self.endpoint_url is not None:
            parse_server(self.endpoint_url, "endpoint_url")


class Staged(Protocol):
    """Bytes in the storage without a name yet: a temporary file, an uncompleted upload."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes staged so far."""
        ...

    def commit(self) -> bool:
        """Give the bytes their name. True: this call created the object. False: the name is taken (the existing
        object does not change, and the staged bytes are dropped).

        Raises: StorageError, OutcomeUnknownError.
        """
        ...

    def abort(self) -> None:
        """Drop the bytes. Harmless after ``commit``."""
        ...


class StagedCopy(Staged, Protocol):
    """A staged copy of another object."""

    @property
    def crc32(self) -> int:
        """The CRC-32 of all bytes, computed from the buffers that were written or sent, or reported by a server
        that copied them itself. Before ``commit``, ``stratalog.partitions.segments.check`` compares it with the
        expected checksum, so bytes that the source storage has damaged never get a name.
        """
        ...


class StagedWriter(Staged, Protocol):
    """A staged object that the caller is still writing."""

    file: BinaryIO
    """The stream for sequential writes; ``commit`` flushes and closes it, if the caller has not."""

    def replace(self) -> None:
        """Replace the object of the name atomically: at any moment the name has the old or the new bytes. Use it
        only to heal a damaged object with the bytes that its name promises; everything else is created
        exclusively. Raises: StorageError; the replacement may have happened nevertheless.
        """
        ...


class Readable(Protocol):
    """A source from which to read listed objects: a store, or a substitute."""

    def __hash__(self) -> int: ...

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``."""
        ...

    def uri_of(self, name: str) -> str:
        """See ``Store.uri_of``; for messages."""
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
        """Begin an object of any size, which the caller streams; invisible until ``commit``."""
        ...

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """Copy the bytes of the listed object in the fastest way that yields their checksum; invisible until
        ``commit``. Raises: SourceChangedError if the object has been deleted or replaced since it was listed.
        """
        ...

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes ``[start, end)`` of an object, to its end when ``end`` is None; a negative
        ``start`` counts from the end.

        Raises: FileNotFoundError, StorageError; CorruptionError if the object of the name is not a file.
        """
        ...

    def stat(self, name: str) -> StoredObject:
        """The current object of that name, by one request, which counts as a read. It equals the object of a
        listing except for ``born``, and, on object stores, the fractions of a second of ``modified_ms``: compare
        these only between two ``stat`` calls.

        Raises: see ``read``.
        """
        ...

    def open(self, source_object: StoredObject) -> BinaryIO:
        """A seekable reader of the listed object; on object stores every read is one ranged request.

        Raises: SourceChangedError if the object has been deleted or replaced since it was listed (raised at the
        first read at the latest); CorruptSegmentError if the object of the name is not a file.
        """
        ...

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        """All objects whose name starts with the folder ``prefix`` (``""``: the whole root), sorted by name. If
        one scan is not a snapshot, the listing combines two scans (``two_scans``). For a log, the listing shows
        all files that existed when it began, without a gap, and omits files that were appended at the log's end in
        the meantime. Staged objects are not listed. A missing folder is empty. With ``after``, a name in the
        folder, only later names are listed, at a cost that does not depend on the earlier ones.

        ``known`` is this store's previous listing of the same folder, ``()`` at first. With it, a store may assume
        for up to a minute that an unchanged name is the same file, and reuse its status. A store that does so may
        miss that the bytes under a name have changed, until they are read. (No honest writer changes bytes.) If no
        name was added or removed, the result may be ``known`` itself.

        Raises: BrokerUnreachableError if the root does not exist; StorageAuthorizationError if the caller is not
            allowed to list it; ListingUnstableError; CorruptionError if the folder is a link or another volume, or
            has too many foreign files.
        """
        ...

    def names(self, prefix: str) -> frozenset[str]:
        """The names that ``list`` would return, without reading the status of each file. Raises: see ``list``."""
        ...

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        """Like ``list``, by a single scan: it shows names that existed throughout, and may show names that were
        added or removed meanwhile. It is for folders that are too large or too busy for two listings to agree.

        Raises: BrokerUnreachableError, CorruptionError.
        """
        ...

    def now_ms(self) -> int | None:
        """The storage's time: the ``Date`` of its answers, or the time that a file system gives to a new file.
        None if the storage does not report it, or does not answer. Sends at most one request, and none if the
        storage has answered anything in the last minute.
        """
        ...

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """Remove staged objects of dead writers: objects that have not been written to for that long, by the
        clocks of both driver and storage; none if the clocks disagree (``stratalog.partitions.agreed_time``).
        Returns their number. ``dry_run`` only counts.

        Raises: StorageError, StoreTimeoutError; BrokerUnreachableError if the root does not exist.
        """
        ...

    def staged(self) -> frozenset[str]:
        """Identities of all staged objects, of any age: bytes of writers, living or dead, that have no name yet.
        Objects that the storage neither lists nor lets anyone read are not included. Raises: see
        ``sweep_staging``.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files in bulk; a missing name is not an error. Anything but a file remains.

        Raises: StorageError. If the storage refused to delete some files, the error names them, or the first of
        many, and all other files are deleted. If the storage did not answer, or refused a whole batch, files may
        remain that the error does not name.
        """
        ...

    def uri_of(self, name: str) -> str:
        """The address of an object for Spark and Delta: ``file:///...`` or ``s3://bucket/...``."""
        ...

    def check(self) -> None:
        """Check that the root exists, is writable, and creates exclusively.

        Raises: LogDirError, UnsupportedStoreError, StorageAuthorizationError.
        """
        ...
