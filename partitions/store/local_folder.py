"""The folders below a root as descriptors: no link is followed, no other volume is entered.

Anybody with write access to a root can put a link, a FIFO or a device under a name of ours. So each name is walked
from the root, folder by folder (``openat`` with ``O_NOFOLLOW``), and anew for each call: a descriptor that was
kept would follow a folder that was moved away, and keep a volume from being unmounted. Only the address of the
root itself is configuration: it may lead over links and mounts.

An error (``SpecialFileError``) names anything that is there instead of a file or a folder, and it is left alone.
Files are opened without waiting for a writer, and only regular ones are read.

Left to others: engines that read by path (Spark, delta-rs) would follow what takes the place of a file after it
was listed; and a folder of the same volume that is mounted below the root looks like any other, but what two
replicas have in one place ``verify`` tells by the inodes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stratalog.partitions.store.protocol import LEFT_ALONE

SEARCHED = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""How to open a folder that names are looked up in."""
READ = os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY
"""How to open a folder that is scanned or synced."""
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
    """A root holds something under a name of ours that this product never makes."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(errno.ELOOP, f"{path!r} is {what}: {LEFT_ALONE}")


def kind_of(mode: int) -> str:
    """The kind of thing behind a name; empty for a regular file."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


class RootFolder:
    """The folder that a store's names are relative to. Folders are named as in a store; the root is ``""``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._durable: set[str] = set()
        """Folders of which this process has synced the name, and those above."""

    def path_of(self, name: str) -> str:
        """Where a name leads on this machine, for messages."""
        return os.path.join(self.path, name)

    @contextmanager
    def folder(self, name: str, flags: int = SEARCHED, *, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder for as long as the context lasts, as ``open_folder``."""
        descriptor = self.open_folder(name, flags, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open_folder(self, name: str, flags: int = SEARCHED, *, make: bool = False) -> int:
        """A descriptor of a folder, to be closed. ``make``: it and those above it, but for the root, are made
        where they are missing, and each survives a power cut. Those found in place are synced too, once: their
        maker may have crashed before it did.

        Raises: FileNotFoundError; NotADirectoryError where a file has the name of a folder; SpecialFileError;
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
        """A descriptor of a regular file to read from, to be closed; and what the file is.

        Raises: as ``open_folder``.
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
        """Why something could not be opened. Raises: SpecialFileError, where its kind is the reason."""
        kind = ""
        with suppress(OSError):
            kind = kind_of(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode)
        if kind not in ("", "a folder"):
            raise SpecialFileError(self.path_of(name), kind)
