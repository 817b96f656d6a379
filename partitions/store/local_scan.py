"""What a folder of a POSIX file system holds, in one scan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from partitions.store.protocol import StoredObject
from partitions.store.rules import STAGING_FOLDER

Entry = tuple[str, os.DirEntry[str]]
"""A file as a scan found it, by its name in the store."""
Seen = tuple[str, int, int, int]
"""A file as it was looked at: name, size, mtime in nanoseconds, inode."""

Listed = TypeVar("Listed", list[Seen], frozenset[str])


def scan_folder(folder: str, prefix: str) -> Iterator[Entry]:
    """Every file below a folder, once; but for those that are staged. Raises: OSError."""
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if name != STAGING_FOLDER:
                    yield from scan_folder(entry.path, name + "/")
            elif entry.is_file(follow_symlinks=False):
                yield name, entry


def names_of(entries: Iterator[Entry]) -> frozenset[str]:
    """The names alone: no file is asked about."""
    return frozenset(name for name, _ in entries)


def in_order(entries: Iterator[Entry]) -> list[Seen]:
    """What the files are, by name; those that have vanished are left out."""
    found = []
    for name, entry in entries:
        with suppress(FileNotFoundError):
            now = entry.stat(follow_symlinks=False)
            found.append((name, now.st_size, now.st_mtime_ns, now.st_ino))
    return sorted(found)


def at_once(scan: Callable[[], Listed], where: str) -> Listed:
    """The rule of ``Store.walk``, in the place of ``rules.settle``."""
    return scan()


def objects(seen: Sequence[Seen]) -> list[StoredObject]:
    """As the store tells of them."""
    return [
        StoredObject(name, size, mtime_ns // 1_000_000, version_of(inode, mtime_ns, size))
        for name, size, mtime_ns, inode in seen
    ]


def version_of(inode: int, mtime_ns: int, size: int) -> str:
    """What tells one file of a name from another."""
    return f"{inode:x}.{mtime_ns:x}.{size:x}"
