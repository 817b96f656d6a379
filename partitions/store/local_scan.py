"""The content of a folder of a POSIX file system, in one scan."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from stratalog.partitions import paths
from stratalog.partitions.store.local_folder import READ, RootFolder, kind_of
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.rules import CROWDED, MOST_NAMES, STAGING_FOLDER

MOST_STRANGERS = 1_000
"""Files of others in the folder of a log: each listing passes them, and an append makes several."""
MOST_STRANGERS_ELSEWHERE = 100_000
"""Files of others below a root that is listed as a whole, or in a folder that others may use, too."""
DEEPEST = 32
"""Folders inside each other; ours are four deep."""


class CrowdedFolderError(OSError):
    """A folder holds too many foreign files to be listed."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path!r} holds {what}")
        self.strerror = str(self)


Seen = tuple[str, int, int, int, str]
"""A name as it was looked at: size, mtime in nanoseconds, inode, and what it is if it is no file."""
Entry = tuple[str, os.DirEntry[str]]
"""A name as a scan found it, from the root on. It is no folder, or one of another volume."""

Listed = TypeVar("Listed", bound=Sized)


def scan_folder(root: RootFolder, folder: str) -> Iterator[Entry]:
    """Every name below a folder (with ``/`` at its end; empty: the root), once; but for what is staged. Links are
    names, and other volumes too, which are not entered. A folder that is not there has none.

    The time that a scan takes, and what a listing keeps in memory, are bounded by what is ours: names of others
    are counted, and more than ``MOST_STRANGERS`` in the folder of a log, or ``MOST_STRANGERS_ELSEWHERE``, are too
    many. So are more than ``MOST_NAMES`` in the folder of a log, whosever they are.

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
                        f"more than {most} files of others: move them out of there, nothing can be listed before",
                    )
            yield name, entry
    finally:
        os.close(descriptor)


def _scan(root: RootFolder, descriptor: int, folder: str, device: int, depth: int) -> Iterator[Entry]:
    if depth > DEEPEST:
        raise CrowdedFolderError(
            os.path.join(root.path, folder), "folders inside each other without end: move them out of there"
        )
    seen: set[str] = set()
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = folder + entry.name
            if name == STAGING_FOLDER or name in seen:  # tmpfs may begin again beside a writer
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


def scan_behind(root: RootFolder, folder: str, after: str) -> list[Seen]:
    """The files in the folder of a log (with ``/`` at its end) whose names sort behind ``after``, by name. Of the
    other names only the name is read: nothing is asked about them. The same bounds as those of ``scan_folder``.

    Raises: CrowdedFolderError, SpecialFileError, OSError.
    """
    try:
        descriptor = root.open_folder(folder.rstrip("/"), READ)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        with os.scandir(descriptor) as entries:
            names = {entry.name for entry in islice(entries, MOST_NAMES + 1)}
        behind = sorted(name for name in names if name > after)
        check_crowd(root, folder, len(names), sum(not paths.may_be_ours(name) for name in behind))
        device = os.fstat(descriptor).st_dev
        found = []
        for name in behind:
            with suppress(FileNotFoundError):
                now = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISDIR(now.st_mode) or now.st_dev != device:
                    found.append(seen_as(folder + name, now))
        return found
    finally:
        os.close(descriptor)


def check_crowd(root: RootFolder, folder: str, names: int, foreign: int) -> None:
    """Whether the folder of a log (with ``/`` at its end) is small enough to be listed, by the number of its names
    and of those that are foreign. Raises: CrowdedFolderError."""
    path = os.path.join(root.path, folder.rstrip("/"))
    if names > MOST_NAMES:
        raise CrowdedFolderError(path, CROWDED)
    if foreign > MOST_STRANGERS:
        raise CrowdedFolderError(path, f"more than {MOST_STRANGERS} files of others: move them out of there")


def names_of(entries: Iterator[Entry]) -> frozenset[str]:
    """The names alone: no file is asked about."""
    return frozenset(name for name, _ in entries)


def in_order(entries: Iterator[Entry]) -> list[StoredObject]:
    """The files of the names, by name; those that have vanished are left out."""
    found = []
    for name, entry in entries:
        with suppress(FileNotFoundError):
            found.append(seen_as(name, entry.stat(follow_symlinks=False)))
    return objects(sorted(found))


def seen_as(name: str, now: os.stat_result) -> Seen:
    """A name, as ``stat`` describes it."""
    if stat.S_ISREG(now.st_mode):
        return name, now.st_size, now.st_mtime_ns, now.st_ino, ""
    special = "a mount point" if stat.S_ISDIR(now.st_mode) else kind_of(now.st_mode)
    return name, 0, now.st_mtime_ns, now.st_ino, special


def at_once(scan: Callable[[], Listed], where: str) -> Listed:
    """The rule of ``Store.walk``, in the place of ``rules.stable_listing``."""
    return scan()


def objects(seen: Sequence[Seen]) -> list[StoredObject]:
    """As the store tells of them."""
    return [
        StoredObject(name, size, mtime_ns // 1_000_000, version_of(inode, mtime_ns, size), special=special)
        for name, size, mtime_ns, inode, special in seen
    ]


def version_of(inode: int, mtime_ns: int, size: int) -> str:
    """An identity that tells one file of a name from another."""
    return f"{inode:x}.{mtime_ns:x}.{size:x}"
