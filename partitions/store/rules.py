"""Rules that all stores share: names, ranges, counting, stable listings, transfers in pieces.

Stores access bytes in different ways; rules that must be the same for all are here.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from isal import isal_zlib

from stratalog.partitions.errors import (
    InvalidCallError,
    ListingUnstableError,
    LogDirError,
    OutcomeUnknownError,
    RetriableError,
    SourceChangedError,
    StorageAuthorizationError,
    UnsupportedStoreError,
)
from stratalog.partitions.store.crc32 import PiecewiseCrc32
from stratalog.partitions.store.protocol import Store, StoreCounts, StoredObject

STAGING_FOLDER = ".staging"
"""The folder in which stores on file systems keep bytes without a name; all stores refuse names in it."""

LISTING_ATTEMPTS = 20
TRANSFER_THREADS = 2
"""The number of threads per object. Several objects are transferred at the same time. With four threads each, a
tier run was slower, and the server was busier.
"""

_log = logging.getLogger(__name__)
_FORBIDDEN_PARTS = frozenset({"", ".", ".."})
_CONTROL_CHARACTERS = re.compile(r"[\0-\x1f\x7f]")

T = TypeVar("T")

MOST_NAMES = 1_000_000
"""The limit of names in a log's folder, of a replica or a voter. Listing a fifth of this number took 2.7 s of CPU
and 130 MB. No honest log reaches the limit: each append lists the folder first, so a log without merges and
snapshots would have spent months on listings by then.
"""
CROWDED = (
    f"more than {MOST_NAMES:,} files, which is too many for a log: remove foreign files, or replace this copy "
    "(reassign the replica, replace the voter)"
)


def check_name(name: str) -> str:
    """Returns ``name`` if it is a valid name of an object below the root.

    Raises: InvalidCallError for an absolute name, a name with an empty, ``.`` or ``..`` part, or a name in the
    staging folder.
    """
    parts = name.split("/")
    if not _FORBIDDEN_PARTS.isdisjoint(parts) or parts[0] == STAGING_FOLDER or "\0" in name:
        raise InvalidCallError(
            f"{name!r} is not a name in a store: use relative parts joined by '/', none of them empty, '.' "
            f"or '..', outside {STAGING_FOLDER!r}"
        )
    return name


def special_key(name: str) -> str:
    """The kind of an object below the root whose key is not a valid name; empty for a valid key. S3's requests
    cannot express every control character.
    """
    if _FORBIDDEN_PARTS.isdisjoint(name.split("/")) and not _CONTROL_CHARACTERS.search(name):
        return ""
    return "an object with an empty, '.' or '..' part, or a control character, in its key"


def folder_prefix(prefix: str) -> str:
    """The prefix of the names in a folder: ``a/b/`` for ``a/b`` and ``a/b/``, empty for the root.

    Raises: InvalidCallError.
    """
    folder = prefix.rstrip("/")
    return check_name(folder) + "/" if folder else ""


def byte_range(start: int, end: int | None, size_bytes: int) -> tuple[int, int]:
    """The range ``[start, end)`` of ``Store.read``, clipped to the object's size."""
    low = max(size_bytes + start, 0) if start < 0 else min(start, size_bytes)
    high = size_bytes if end is None else min(end, size_bytes)
    return low, max(low, high)


class Tally:
    """The counts of one store. Thread-safe."""

    def __init__(self) -> None:
        self.counts = StoreCounts()
        self._lock = threading.Lock()

    def add(
        self,
        *,
        creates: int = 0,
        reads: int = 0,
        lists: int = 0,
        deletes: int = 0,
        copies: int = 0,
        read_bytes: int = 0,
        written_bytes: int = 0,
    ) -> None:
        """Add to the counts in place."""
        counts = self.counts
        with self._lock:
            counts.creates += creates
            counts.reads += reads
            counts.lists += lists
            counts.deletes += deletes
            counts.copies += copies
            counts.read_bytes += read_bytes
            counts.written_bytes += written_bytes


def stable_listing(
    list_once: Callable[[], T],
    where: str,
    together: Callable[[T, T], T | None],
    is_snapshot: Callable[[T], bool] = lambda _listing: False,
) -> T:
    """A listing that is a snapshot, or the combination of two in a row by ``together`` (``two_scans``).

    Raises: ListingUnstableError naming ``where``.
    """
    before = list_once()
    if is_snapshot(before):
        return before
    for _ in range(LISTING_ATTEMPTS):
        after = list_once()
        if after == before or is_snapshot(after):
            return after
        if (found := together(before, after)) is not None:
            return found
        before = after
    raise ListingUnstableError(
        f"{where} changed during each of {LISTING_ATTEMPTS} listings, and not only by appends; list a smaller "
        "folder, or try again"
    )


def copy_in_pieces(
    source: Store,
    source_object: StoredObject,
    piece_bytes: int,
    put: Callable[[int, int, bytes, int], None],
) -> int:
    """Read the listed object in pieces, some in parallel, and pass each to ``put(index, start, data, crc32)``.
    Returns the CRC-32 of all bytes.

    Pieces come in any order and from several threads; at most ``TRANSFER_THREADS`` are in memory. Each read checks
    that the object is still the listed object. Raises: SourceChangedError; errors from ``put``.
    """

    passed = PiecewiseCrc32()

    def move(index: int, start: int, end: int) -> None:
        with source.open(source_object) as reader:
            reader.seek(start)
            data = reader.read(end - start)
        if len(data) != end - start:
            raise SourceChangedError(
                f"{source.uri_of(source_object.name)} ended at byte {start + len(data)} of "
                f"{source_object.size_bytes}: list it again"
            )
        crc32 = isal_zlib.crc32(data)
        put(index, start, data, crc32)
        passed.add(index, crc32, len(data))

    size = source_object.size_bytes
    starts = range(
        0, max(size, 1), piece_bytes
    )  # an empty object still has one piece, so that opening it checks the object
    pieces = [(i, start, min(start + piece_bytes, size)) for i, start in enumerate(starts)]
    run_pieces([partial(move, *piece) for piece in pieces])
    return passed.value


def run_pieces(actions: Sequence[Callable[[], None]]) -> None:
    """Run all actions, some in parallel. After a failure no further action starts; the first failure is raised
    once the running actions have ended.
    """
    if len(actions) <= 1:
        for action in actions:
            action()
        return
    with ThreadPoolExecutor(min(TRANSFER_THREADS, len(actions)), thread_name_prefix="transfer") as pool:
        futures = [pool.submit(action) for action in actions]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


def check_exclusive_create(store: Store, probe: str) -> None:
    """Create ``probe`` twice in a store, and delete it if that is allowed; the core of ``Store.check``. Raises:
    StorageAuthorizationError; LogDirError if the store refuses to write; UnsupportedStoreError if the second
    create succeeds.
    """
    try:
        store.create(probe, b"first")  # False after a lost answer: only the bytes show that it succeeded
        second = store.create(probe, b"second")
        kept = store.read(probe)
        drop_probes(store, [probe])
    except StorageAuthorizationError:
        raise
    except (RetriableError, OutcomeUnknownError, FileNotFoundError) as error:
        raise LogDirError(f"{store.uri} cannot be written: {error}") from error
    if second or kept != b"first":
        raise UnsupportedStoreError(
            f"{store.uri} is a store without exclusive create: an existing name could be created again, and "
            "concurrent drivers would overwrite each other's records"
        )


def drop_probes(store: Store, probes: Sequence[str]) -> None:
    """Delete the files of a store's test. If the caller has no right to delete, the files remain for ``vacuum``,
    and a line is logged. The files have only a few bytes.

    Raises: StorageError.
    """
    try:
        store.delete(probes)
    except StorageAuthorizationError as error:
        _log.warning("probes remain in %s, which does no harm: %s", store.uri, error)


def media_type(name: str) -> str:
    """The content type of an object: a browser shows pages, and saves other objects."""
    return "text/html; charset=utf-8" if name.endswith(".html") else "application/octet-stream"
