"""A folder as the machine tells of it, without a write: its room, and whether this process may write there."""

from __future__ import annotations

import os
from dataclasses import dataclass

_ADDRESS = "file://"


@dataclass(frozen=True, slots=True)
class FolderSpace:
    """The file system of a folder."""

    size_bytes: int
    free_bytes: int
    """For this process: without what is kept for root."""

    @property
    def used_ratio(self) -> float:
        """The part that is used, from 0 to 1."""
        return 1 - self.free_bytes / self.size_bytes if self.size_bytes else 0.0


def folder_path(uri: str) -> str | None:
    """The path of a root by its address; None where it is no folder."""
    return uri.removeprefix(_ADDRESS) if uri.startswith(_ADDRESS) else None


def folder_space(path: str) -> FolderSpace | None:
    """The room of the file system; None where it cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return FolderSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def takes_writes(path: str) -> bool:
    """Whether the mount, the mode and the owner of a folder let this process make files in it."""
    return os.access(path, os.W_OK | os.X_OK)
