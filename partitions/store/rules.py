"""Rules that all stores share: names, ranges, counting, stable listings, transfers in pieces.

The stores differ in how they reach bytes; a rule that must not differ between them stands here once.
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
"""Where stores on file systems keep bytes that have no name yet; a name in it is refused by all."""

LISTING_ATTEMPTS = 20
TRANSFER_THREADS = 2
"""Of one object. Several objects travel at once: with four each, a tier run was slower, and the server busier."""

_log = logging.getLogger(__name__)
_FORBIDDEN_PARTS = frozenset({"", ".", ".."})
_CONTROL_CHARACTERS = re.compile(r"[\0-\x1f\x7f]")

T = TypeVar("T")

MOST_NAMES = 1_000_000
"""Of a log, in the folder of a replica or a voter. A fifth of it was listed in 2.7 s of CPU and 130 MB.

No honest log has as many. Each append lists the folder first, and that takes longer from append to append: a log
that nobody merges, and no snapshot shortens, has spent months on listings when it gets there.
"""
CROWDED = (
    f"more than {MOST_NAMES:,} files, and no log has as many: remove those that others have put there, or give up "
    "this copy (reassign the replica, replace the voter)"
)


def check_name(name: str) -> str:
    """``name`` itself, if it names an object below the root and nothing else.

    Raises: InvalidCallError for an absolute name, an empty, ``.`` or ``..`` part, the staging folder.
    """
    parts = name.split("/")
    if not _FORBIDDEN_PARTS.isdisjoint(parts) or parts[0] == STAGING_FOLDER or "\0" in name:
        raise InvalidCallError(
            f"{name!r} is no name in a store: use relative parts joined by '/', none of them empty, '.' "
            f"or '..', outside {STAGING_FOLDER!r}"
        )
    return name


def special_key(name: str) -> str:
    """The kind of an object below the root whose key is no valid name in a store; empty for a valid one. The
    requests of S3 cannot express each control character."""
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
    """``[start, end)`` as ``Store.read`` takes it, clipped to an object of that size."""
    low = max(size_bytes + start, 0) if start < 0 else min(start, size_bytes)
    high = size_bytes if end is None else min(end, size_bytes)
    return low, max(low, high)


class Tally:
    """The counts of one store, kept exact under threads."""

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
    """A listing that is a snapshot, or else what two in a row say ``together`` (``two_scans``).

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
        f"{where} changed during each of {LISTING_ATTEMPTS} listings, and not by appends alone; list a smaller "
        "folder, or try again"
    )


def copy_in_pieces(
    source: Store,
    source_object: StoredObject,
    piece_bytes: int,
    put: Callable[[int, int, bytes, int], None],
) -> int:
    """Read the listed object in pieces, a few at once, and hand each to ``put(index, start, data, crc32)``.
    Returns the CRC-32 of all bytes.

    Pieces come in any order and from several threads; at most ``TRANSFER_THREADS`` are in memory. All
    bytes are those of the listed object: each piece is read through a reader that checks.

    Raises: SourceChangedError, and what ``put`` raises.
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
    starts = range(0, max(size, 1), piece_bytes)  # an empty object has one empty piece: opening it checks it
    pieces = [(i, start, min(start + piece_bytes, size)) for i, start in enumerate(starts)]
    run_pieces([partial(move, *piece) for piece in pieces])
    return passed.value


def run_pieces(actions: Sequence[Callable[[], None]]) -> None:
    """Run all actions, a few at once. The first failure is raised after the running ones have ended;
    those not yet begun are dropped."""
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
    """Create ``probe`` twice in a store and delete it, where that is allowed: what ``Store.check`` rests on.

    Raises: StorageAuthorizationError, LogDirError when the store refuses to write, UnsupportedStoreError when it
        lets the second creation through.
    """
    try:
        first = store.create(probe, b"first")
        second = store.create(probe, b"second")
        kept = store.read(probe)
        drop_probes(store, [probe])
    except StorageAuthorizationError:
        raise
    except (RetriableError, OutcomeUnknownError, FileNotFoundError) as error:
        raise LogDirError(f"{store.uri} cannot be written: {error}") from error
    if not first or second or kept != b"first":
        raise UnsupportedStoreError(
            f"{store.uri} is a store without exclusive create: a name that was taken could be created "
            "again, and concurrent drivers would overwrite each other's records"
        )


def drop_probes(store: Store, probes: Sequence[str]) -> None:
    """Delete the files that were created to find out how a store behaves. A caller without the right to delete
    leaves them to ``vacuum``, and the log says so: a few bytes under a name without meaning.

    Raises: StorageError.
    """
    try:
        store.delete(probes)
    except StorageAuthorizationError as error:
        _log.warning("probes stay in %s, which harms nobody: %s", store.uri, error)


def media_type(name: str) -> str:
    """The type under which object storage gives an object out: a browser shows a page, and saves the rest."""
    return "text/html; charset=utf-8" if name.endswith(".html") else "application/octet-stream"
