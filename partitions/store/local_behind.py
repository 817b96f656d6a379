"""Finds the files of a log's folder after a name, at a cost that does not grow with the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

from stratalog.partitions import paths
from stratalog.partitions.store.local_folder import READ, RootFolder
from stratalog.partitions.store.local_listing import stamps_count
from stratalog.partitions.store.local_scan import check_crowd, objects, seen_as
from stratalog.partitions.store.local_watch import WATCHES
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.rules import MOST_NAMES
from stratalog.partitions.store.two_scans import objects_together


@dataclass(frozen=True, slots=True)
class LookBehind:
    """One listing of the files after a name."""

    files: Sequence[StoredObject]
    is_snapshot: bool
    """Whether the kernel has reported all changes, so that no second listing is needed (``local_watch``)."""

    def __len__(self) -> int:
        return len(self.files)

    def together(self, second: LookBehind) -> LookBehind | None:
        """See ``two_scans.together``."""
        found = objects_together(self.files, second.files)
        return None if found is None else LookBehind(found, is_snapshot=False)


def look_behind(root: RootFolder, folder: str, after: str) -> LookBehind:
    """The files in a log's folder (with ``/`` at its end) whose names sort after ``after``, by name. The status of
    other files is not read. Limits as in ``scan_folder``.

    Raises: CrowdedFolderError, SpecialFileError, OSError.
    """
    try:
        descriptor = root.open_folder(folder.rstrip("/"), READ)
    except (FileNotFoundError, NotADirectoryError):
        return LookBehind((), is_snapshot=False)

    def scanned() -> set[str]:
        with os.scandir(descriptor) as entries:
            names = {entry.name for entry in islice(entries, MOST_NAMES + 1)}
        check_crowd(root, folder, len(names), 0)
        return names

    try:
        device = os.fstat(descriptor).st_dev
        reported = WATCHES.names_behind(descriptor, after, scanned, partial(stamps_count, device))
        names = scanned() if reported is None else reported
        behind = sorted(name for name in names if name > after)
        check_crowd(root, folder, 0, sum(not paths.may_be_ours(name) for name in behind))
        found = []
        for name in behind:
            with suppress(FileNotFoundError):
                now = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISDIR(now.st_mode) or now.st_dev != device:
                    found.append(seen_as(folder + name, now))
        return LookBehind(objects(found), reported is not None)
    finally:
        os.close(descriptor)
