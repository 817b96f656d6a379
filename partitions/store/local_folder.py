"""Opens the folders below a root as descriptors, without following links or entering other volumes.

Any user with write access to a root can put a link, a FIFO or a device under a name of the log. So each call opens
a path from the root, folder by folder (``openat`` with ``O_NOFOLLOW``). A kept descriptor would follow a folder
that was moved away, and would block unmounting. Only the address of the root itself is configuration, and may
contain links and mounts.

An error (``SpecialFileError``) names any object that is neither a file nor a folder; the object stays unchanged.
Files are opened without waiting for a writer, and only regular files are read.

Two gaps remain. Engines that read by path (Spark, delta-rs) follow a link that replaces a file after it was
listed. And a folder of the same volume that is mounted below the root looks like any other folder; ``verify``
detects files shared by two replicas by their inodes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stratalog.partitions.store.protocol import LEFT_ALONE

SEARCHED = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""Flags to open a folder for looking up names."""
READ = os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY
"""Flags to open a folder for scanning or syncing."""
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

_KINDS = {
    stat.S_IFREG: "",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class SpecialFileError(OSError):
    """Under a name of the log, a root has an object of a kind that stratalog never creates."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(errno.ELOOP, f"{path!r} is {what}: {LEFT_ALONE}")


def kind_of(mode: int) -> str:
    """The kind of object with a name; empty for a regular file."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


class RootFolder:
    """The root folder of a store. Names of folders are relative to it; the name of the root is ``""``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._durable: set[str] = set()
        """Folders that this process has synced into their parents, along with the folders above."""

    def path_of(self, name: str) -> str:
        """The path of a name on this machine, for messages."""
        return os.path.join(self.path, name)

    @contextmanager
    def folder(self, name: str, flags: int = SEARCHED, *, make: bool = False) -> Iterator[int]:
        """A context with a descriptor of a folder; see ``open_folder``."""
        descriptor = self.open_folder(name, flags, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open_folder(self, name: str, flags: int = SEARCHED, *, make: bool = False) -> int:
        """A descriptor of a folder, which the caller closes. ``make`` creates the folder and the missing folders
        above it, except the root, so that each survives a power cut. Existing folders are also synced once,
        because their creator may have crashed before syncing them.

        Raises: FileNotFoundError; NotADirectoryError if a file has the name of a folder; SpecialFileError;
        OSError.
        """
        if not name:
            return os.open(self.path, flags)
        parts = name.split("/")
        above = READ if make else SEARCHED
        here = os.open(self.path, above)
        try:
            device = os.fstat(here).st_dev
            for count, part in enumerate(parts, start=1):
                opened = flags if count == len(parts) else above
                folder = "/".join(parts[:count])
                below = self._made(here, part, opened, folder) if make else self._enter(here, part, opened, folder)
                here, left = below, here
                os.close(left)
            if os.fstat(here).st_dev != device:
                raise SpecialFileError(self.path_of(name), "on another volume, which is mounted below the root")
        except BaseException:
            os.close(here)
            raise
        return here

    def open_file(self, name: str) -> tuple[int, os.stat_result]:
        """A descriptor for reading a regular file, which the caller closes, and the file's status. Raises: see
        ``open_folder``.
        """
        folder, _, last = name.rpartition("/")
        with self.folder(folder) as above:
            try:
                descriptor = os.open(last, _FILE, dir_fd=above)
            except OSError:
                self._check_kind(above, last, name)
                raise
        now = os.fstat(descriptor)
        if not stat.S_ISREG(now.st_mode):
            os.close(descriptor)
            raise SpecialFileError(self.path_of(name), kind_of(now.st_mode))
        return descriptor, now

    def _enter(self, above: int, part: str, flags: int, folder: str) -> int:
        try:
            return os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
        except OSError:
            self._check_kind(above, part, folder)
            raise

    def _made(self, above: int, part: str, flags: int, folder: str) -> int:
        try:
            below = self._enter(above, part, flags, folder)
        except FileNotFoundError:
            self._durable.discard(folder)
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=above)
            below = self._enter(above, part, flags, folder)
        if folder not in self._durable:
            try:
                os.fsync(above)
            except BaseException:
                os.close(below)
                raise
            self._durable.add(folder)
        return below

    def _check_kind(self, above: int, part: str, name: str) -> None:
        """The error of a failed open. Raises: SpecialFileError if the kind of the object is the reason."""
        kind = ""
        with suppress(OSError):
            kind = kind_of(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode)
        if kind not in ("", "a folder"):
            raise SpecialFileError(self.path_of(name), kind)
