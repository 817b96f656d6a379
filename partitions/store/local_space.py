"""The free space of a folder, and obstacles to writing there, determined without a write."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.local_folder import kind_of
from stratalog.partitions.store.local_rights import refusal
from stratalog.partitions.store.protocol import LEFT_ALONE
from stratalog.partitions.store.rules import STAGING_FOLDER
from stratalog.partitions.unwritable import UnwritableStorageError

_ADDRESS = "file://"


@dataclass(frozen=True, slots=True)
class FolderSpace:
    """The file system of a folder."""

    size_bytes: int
    free_bytes: int
    """The bytes available to this process, without those reserved for the superuser."""

    @property
    def used_ratio(self) -> float:
        """The used fraction, from 0 to 1."""
        return 1 - self.free_bytes / self.size_bytes if self.size_bytes else 0.0


def folder_path(uri: str) -> str | None:
    """The path of a root, from its address; None if it is not a folder."""
    return uri.removeprefix(_ADDRESS) if uri.startswith(_ADDRESS) else None


def staging_in_the_way(uri: str) -> CorruptionError | None:
    """The error if an object that is not a folder has the name of a root's staging folder, so that no driver can
    create a file. None if there is no obstacle, or if it is unknown.
    """
    path = folder_path(uri)
    if path is None:
        return None
    staging = os.path.join(path, STAGING_FOLDER)
    try:
        mode = os.lstat(staging).st_mode
    except OSError:
        return None
    if stat.S_ISDIR(mode):
        return None
    what = kind_of(mode) or "a file"
    return CorruptionError(f"no file can be created in {path!r}: {staging!r} is {what}: {LEFT_ALONE}")


def takes_no_files(uri: str) -> UnwritableStorageError | None:
    """The error if the file system of a root is mounted read-only, or full. None if no problem is known; other
    problems show only when a file is created.
    """
    path = folder_path(uri)
    if path is None:
        return None
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    full = found.f_blocks > 0 and found.f_bavail == 0
    number = errno.EROFS if found.f_flag & os.ST_RDONLY else errno.ENOSPC if full else None
    if number is None:
        return None
    error = refusal("create", path, f"no file can be created in {path!r}: {os.strerror(number)}", number)
    return error if isinstance(error, UnwritableStorageError) else None


def mount_point(path: str) -> str:
    """The folder where the file system of a path is mounted."""
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def folder_space(path: str) -> FolderSpace | None:
    """The space of the file system; None if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return FolderSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def takes_writes(path: str) -> bool:
    """Whether mount, mode and owner of a folder allow this process to create files in it."""
    return os.access(path, os.W_OK | os.X_OK)
