"""The listing of a log's folder on a file system, going on from an earlier one.

A name is given once, to a file that is complete, and whatever is honest has the same bytes under it (protocol,
sections 1 and I8). So a file that an earlier look has asked about (its size, its times) is not asked about again
while its name and its inode are as they were. Names and inodes are what a scan of the folder tells anyway. A file
system may give the inode of a file to the next one that is made. Of records, and of high watermarks, which are
empty, whatever is made again under a name is the same, or it is found out when it is opened. Registers are few,
and what they say is decided on: each scan asks about them.

A scan is left out, too, where nothing has happened in the folder since the last one. Its *stamp* tells: the times
at which the kernel last changed the folder itself, as it does for each name that comes or goes. The clock of the
kernel ticks, every 10 ms at most, and two changes within a tick leave the same stamp. So a stamp counts only where
it was ``SETTLED_NS`` old before the scan began, and is the same after it: then the scan began after that tick, and
whatever changes from then on gets a later time. (Git holds its index the same way: Documentation/technical/
racy-git.) Such a scan is a snapshot, and needs no second one (``two_scans``).

Stamps count on file systems that only this kernel changes (``_LOCAL``); elsewhere each look scans names, twice.
One gap is left: a clock that is set back, and a change at the very nanosecond of an earlier one. No look goes on
from one that is older than ``LOOK_AGAIN_S``.

A file that somebody has changed in its place, which nothing of ours does, is not seen meanwhile. Whatever opens it
finds out, by its version, and so does each caller that lists without an earlier look.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from stratalog.partitions import paths
from stratalog.partitions.store.local_folder import READ, RootFolder
from stratalog.partitions.store.local_scan import check_crowd, objects, seen_as
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.two_scans import together

LOOK_AGAIN_S = 60.0
"""So long a file is not asked about again."""
SETTLED_NS = 100_000_000
"""Ten ticks of a slow kernel."""
_LOCAL = frozenset({"ext4", "xfs", "tmpfs"})
"""File systems that stamp a folder for each change of a name, under its lock, and that nobody else can change."""
_ONCE = (".parquet", ".hw")
"""Names that a scan need not ask about again."""
_MOUNTS = "/proc/self/mountinfo"
_NAME = attrgetter("name")


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """One name of a folder."""

    inode: int
    """As the folder tells it."""
    object: StoredObject
    ours: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a folder."""

    files: Mapping[str, _KnownFile]
    """By name in the folder."""
    stamp: tuple[int, ...]
    """Of the folder, where nothing came or went during the scan, and whatever does later will change it; else
    empty."""

    def __len__(self) -> int:
        return len(self.files)

    @property
    def is_snapshot(self) -> bool:
        """Whether it needs no second one."""
        return bool(self.stamp)


class LocalListing(tuple[StoredObject, ...]):
    """The objects of one folder, by name, with what the next look at it goes on from."""

    scan: Scan
    asked_s: float
    """Since when files were not asked about again, on the clock of the store."""
    doubts: int
    """How often the store had found a file to be another one than was listed, by then."""

    @classmethod
    def of(cls, scan: Scan, last: Sequence[StoredObject], asked_s: float, doubts: int) -> LocalListing:
        """``last`` is an earlier listing: its order is nearly the order of this one."""
        now = {id(file.object): file.object for file in scan.files.values()}
        ordered = [stored for stored in last if now.pop(id(stored), None) is not None]
        if now:
            ordered += now.values()
            ordered.sort(key=_NAME)
        listing = cls(ordered)
        listing.scan, listing.asked_s, listing.doubts = scan, asked_s, doubts
        return listing


class FolderInLogError(Exception):
    """A folder of a log has another one inside, which it does not have from us."""


@dataclass(slots=True)
class Scanner:
    """Scans of the folder of one log: each goes on from the one before."""

    root: RootFolder
    folder: str
    """With ``/`` at its end."""
    now_ms: Callable[[], int]
    """The clock of the machine: the kernel takes its times from it."""
    files: Mapping[str, _KnownFile]
    """Those that need not be asked about."""

    def scan(self) -> Scan:
        """Raises: FolderInLogError, CrowdedFolderError, SpecialFileError, OSError."""
        try:
            descriptor = self.root.open_folder(self.folder.rstrip("/"), READ)
        except (FileNotFoundError, NotADirectoryError):
            return Scan({}, ())
        try:
            before, now_ns = _stamp(descriptor), self.now_ms() * 1_000_000
            with os.scandir(descriptor) as entries:
                self.files = self._files(entries)
            settled = before == _stamp(descriptor) and now_ns - max(before[2:]) > SETTLED_NS
            return Scan(self.files, before if settled and stamps_count(before[0]) else ())
        finally:
            os.close(descriptor)

    def together(self, first: Scan, second: Scan) -> Scan | None:
        """As ``two_scans.together``; nothing of it is a snapshot."""
        found = together(first.files, second.files, self.folder)
        if found is None:
            return None
        files, late = found
        for name in late:
            files[name] = replace(files[name], object=replace(files[name].object, late=True))
        return Scan(files, ())

    def unchanged(self, stamp: tuple[int, ...]) -> bool:
        """Whether the folder still has this stamp. Raises: SpecialFileError, OSError."""
        try:
            descriptor = self.root.open_folder(self.folder.rstrip("/"))
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return _stamp(descriptor) == stamp
        finally:
            os.close(descriptor)

    def _files(self, entries: Iterable[os.DirEntry[str]]) -> dict[str, _KnownFile]:
        known, found, foreign = self.files, dict[str, _KnownFile](), 0
        for entry in entries:
            name, inode = entry.name, entry.inode()
            file = known.get(name)
            if file is None or file.inode != inode or file.object.late or not name.endswith(_ONCE):
                if entry.is_dir(follow_symlinks=False):
                    raise FolderInLogError(self.folder + name)
                with suppress(FileNotFoundError):
                    now = entry.stat(follow_symlinks=False)
                    [stored] = objects([seen_as(self.folder + name, now)])
                    if file is None or file.object != stored:
                        file = _KnownFile(inode, stored, paths.may_be_ours(name))
                    found[name] = file
            else:
                found[name] = file
            if file is not None and not file.ours:
                foreign += 1
        check_crowd(self.root, self.folder, len(found), foreign)
        return found


def _stamp(descriptor: int) -> tuple[int, ...]:
    now = os.fstat(descriptor)
    return now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns


def stamps_count(device: int) -> bool:
    """Whether the times of a folder tell whether it has changed, on the file system with this device number.
    Asked anew each time: the number of one that was unmounted is given to another.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            kinds = {
                fields.partition(" - ")[2].split(" ")[0] for fields in mounts if fields.split(" ")[2] == number
            }
    except (OSError, IndexError):
        return False
    return bool(kinds) and kinds <= _LOCAL
