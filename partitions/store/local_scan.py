"""Scans a folder of a POSIX file system."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from typing import TypeVar

from stratalog.partitions import paths
from stratalog.partitions.store.local_folder import READ, RootFolder, kind_of
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.rules import CROWDED, MOST_NAMES, STAGING_FOLDER

MOST_STRANGERS = 1_000
"""The limit of foreign files in a log's folder: each listing reads their names, and an append lists several
times.
"""
MOST_STRANGERS_ELSEWHERE = 100_000
"""The limit of foreign files below a root that is listed as a whole, or in a folder that other programs may
use.
"""
DEEPEST = 32
"""The limit of nested folders; the product's folders are four deep."""


class CrowdedFolderError(OSError):
    """A folder holds too many foreign files to be listed."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path!r} holds {what}")
        self.strerror = str(self)


Seen = tuple[str, int, int, int, str]
"""The status of a name: size, mtime in nanoseconds, inode, and the kind if it is not a file."""
Entry = tuple[str, os.DirEntry[str]]
"""An entry of a scan, with its path from the root. The entry is not a folder, or it is a folder of another volume.
"""

Listed = TypeVar("Listed", bound=Sized)


def scan_folder(root: RootFolder, folder: str) -> Iterator[Entry]:
    """Every name below a folder (with ``/`` at its end; empty: the root), once, except staged files. Links and
    other volumes are names; the scan does not enter them. A missing folder has no names. Limits bound the time and
    memory of a scan: at most ``MOST_STRANGERS`` foreign names in a log's folder, ``MOST_STRANGERS_ELSEWHERE`` in
    other places, and ``MOST_NAMES`` names in all in a log's folder.

    Raises: CrowdedFolderError, SpecialFileError, OSError.
    """
    try:
        descriptor = root.open_folder(folder.rstrip("/"), READ)
    except (FileNotFoundError, NotADirectoryError):
        return
    foreign = 0
    of_log = paths.is_log_folder(folder.rstrip("/"))
    most = MOST_STRANGERS if of_log else MOST_STRANGERS_ELSEWHERE
    try:
        entries = _scan(root, descriptor, folder, os.fstat(descriptor).st_dev, 0)
        for number, (name, entry) in enumerate(entries, 1):
            if of_log and number > MOST_NAMES:
                raise CrowdedFolderError(os.path.join(root.path, folder.rstrip("/")), CROWDED)
            if not paths.may_be_ours(entry.name):
                foreign += 1
                if foreign > most:
                    raise CrowdedFolderError(
                        os.path.join(root.path, name.rpartition("/")[0]),
                        f"more than {most} foreign files: move them elsewhere; the folder cannot be listed until "
                        "then",
                    )
            yield name, entry
    finally:
        os.close(descriptor)


def _scan(root: RootFolder, descriptor: int, folder: str, device: int, depth: int) -> Iterator[Entry]:
    if depth > DEEPEST:
        raise CrowdedFolderError(os.path.join(root.path, folder), "too many nested folders: move them elsewhere")
    seen: set[str] = set()
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = folder + entry.name
            if name == STAGING_FOLDER or name in seen:  # tmpfs may restart a scan during writes
                continue
            seen.add(name)
            if not entry.is_dir(follow_symlinks=False):
                yield name, entry
            else:
                try:
                    below = os.open(entry.name, READ | os.O_NOFOLLOW, dir_fd=descriptor)
                except FileNotFoundError:
                    continue
                try:
                    if os.fstat(below).st_dev == device:
                        yield from _scan(root, below, name + "/", device, depth + 1)
                    else:
                        yield name, entry
                finally:
                    os.close(below)


def check_crowd(root: RootFolder, folder: str, names: int, foreign: int) -> None:
    """Check the limits of a log's folder (with ``/`` at its end): the number of all names, and the number of
    foreign names.
    Raises: CrowdedFolderError.
    """
    path = os.path.join(root.path, folder.rstrip("/"))
    if names > MOST_NAMES:
        raise CrowdedFolderError(path, CROWDED)
    if foreign > MOST_STRANGERS:
        raise CrowdedFolderError(path, f"more than {MOST_STRANGERS} foreign files: move them elsewhere")


def names_of(entries: Iterator[Entry]) -> frozenset[str]:
    """Only the names; the status of files is not read."""
    return frozenset(name for name, _ in entries)


def in_order(entries: Iterator[Entry]) -> list[StoredObject]:
    """The files with these names, by name, without files that were deleted meanwhile."""
    found = []
    for name, entry in entries:
        with suppress(FileNotFoundError):
            found.append(seen_as(name, entry.stat(follow_symlinks=False)))
    return objects(sorted(found))


def seen_as(name: str, now: os.stat_result) -> Seen:
    """The status of a name from ``stat``."""
    if stat.S_ISREG(now.st_mode):
        return name, now.st_size, now.st_mtime_ns, now.st_ino, ""
    special = "a mount point" if stat.S_ISDIR(now.st_mode) else kind_of(now.st_mode)
    return name, 0, now.st_mtime_ns, now.st_ino, special


def at_once(scan: Callable[[], Listed], where: str) -> Listed:
    """The rule of ``Store.walk``, instead of ``rules.stable_listing``."""
    return scan()


def objects(seen: Sequence[Seen]) -> list[StoredObject]:
    """The scanned files as ``StoredObject``."""
    return [
        StoredObject(name, size, mtime_ns // 1_000_000, version_of(inode, mtime_ns, size), special=special)
        for name, size, mtime_ns, inode, special in seen
    ]


def version_of(inode: int, mtime_ns: int, size: int) -> str:
    """An identity that distinguishes the successive files of a name."""
    return f"{inode:x}.{mtime_ns:x}.{size:x}"
