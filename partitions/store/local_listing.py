"""The listing of a log's folder on a file system, as an update of an earlier listing.

A name is created once, for a complete file, and every honest writer gives it the same bytes (protocol, sections 1
and I8). So a listing reuses the size and times of a file from an earlier listing while name and inode are
unchanged; a scan of the folder returns both. A file system may reuse an inode for the next file. For data files,
and for high watermarks, which are empty, this is safe: a file created again under its name has the same bytes, or
a reader detects the change when it opens the file. Registers decide about the log and are few, so each scan reads
their status.

A scan is also unnecessary if the folder has not changed since the last scan. The folder's *stamp* shows this: its
own times, which the kernel updates for each name that is added or removed. The kernel's clock ticks at least every
10 ms, and two changes within a tick leave the same stamp. So a stamp is reliable only if it was ``SETTLED_NS`` old
before the scan began, and is unchanged after the scan: then the scan began after that tick, and later changes get
a later time. (Git treats its index in the same way: Documentation/technical/racy-git.) Such a scan is a snapshot,
and needs no second scan (``two_scans``).

Stamps are used only on file systems that only this kernel changes (``_LOCAL``). On other file systems, each
listing scans names twice. One gap remains: the clock is set back, and then a change happens at exactly the
nanosecond of an earlier change. A listing older than ``LOOK_AGAIN_S`` is never reused.

Until then a listing misses a file that was changed in place, which stratalog never does. A reader that opens the
file detects the change by its version, and so does a listing from scratch.
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
"""The time for which a file's status is reused."""
SETTLED_NS = 100_000_000
"""Ten ticks of a slow kernel."""
_LOCAL = frozenset({"ext4", "xfs", "tmpfs"})
"""File systems that stamp a folder for each change of a name, under its lock, and that only this kernel
changes.
"""
_ONCE = (".parquet", ".hw")
"""Names whose status a scan can reuse."""
_MOUNTS = "/proc/self/mountinfo"
_NAME = attrgetter("name")


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """One name of a folder."""

    inode: int
    """The inode according to the folder entry."""
    object: StoredObject
    ours: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a folder."""

    files: Mapping[str, _KnownFile]
    """The entries by their name in the folder."""
    stamp: tuple[int, ...]
    """The stamp of the folder if no name was added or removed during the scan, and each later change will change
    the stamp; otherwise empty.
    """

    def __len__(self) -> int:
        return len(self.files)

    @property
    def is_snapshot(self) -> bool:
        """Whether the scan is a snapshot, which needs no second scan."""
        return bool(self.stamp)


class LocalListing(tuple[StoredObject, ...]):
    """The objects of one folder, by name, with the state for the next listing."""

    scan: Scan
    asked_s: float
    """The time since which statuses have been reused, by the clock of the store."""
    doubts: int
    """The store's count of changed files at that time."""

    @classmethod
    def of(cls, scan: Scan, last: Sequence[StoredObject], asked_s: float, doubts: int) -> LocalListing:
        """``last`` is an earlier listing, whose order is nearly the same."""
        now = {id(file.object): file.object for file in scan.files.values()}
        ordered = [stored for stored in last if now.pop(id(stored), None) is not None]
        if now:
            ordered += now.values()
            ordered.sort(key=_NAME)
        listing = cls(ordered)
        listing.scan, listing.asked_s, listing.doubts = scan, asked_s, doubts
        return listing


class FolderInLogError(Exception):
    """The folder of a log contains a folder, which stratalog never creates there."""


@dataclass(slots=True)
class Scanner:
    """Scans of one log's folder; each scan reuses the results of the previous scan."""

    root: RootFolder
    folder: str
    """The folder's name, with ``/`` at its end."""
    now_ms: Callable[[], int]
    """The machine's clock, from which the kernel takes file times."""
    files: Mapping[str, _KnownFile]
    """The entries whose status is reused."""

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
        """See ``two_scans.together``; the result is not a snapshot."""
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
    """Whether a folder's times show its changes, on the file system with this device number. Checked each time,
    because device numbers are reused after unmounting.
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
