"""Combines two successive scans of the same folders into one listing.

A scan is not a snapshot, because names are added and removed while it runs. Every file system and bucket must
guarantee this: **a scan shows exactly once each name that existed before it began and still exists when it ends.**
It may or may not show a name that is added or removed meanwhile. POSIX requires this of ``readdir``. Linux
guarantees it on ext4, xfs, btrfs, tmpfs and overlay. NFS guarantees it if the server's cookies stay valid and no
client caches folders. A bucket's listing continues after the last key of the previous page, and S3, GCS and Azure
promise that each page is consistent.

One scan is not enough. Two appends may happen while it runs, and the scan shows only the second. Then the listing
has a gap, and the file before the gap would seem to end where the second append begins. Likewise, if a merge ends
during the scan and its appends are deleted before the scan reaches them, the scan shows neither the segment nor
the appends. A second scan, begun after the first, shows everything that was created before it began, including all
files on which the names of the first scan depend. The two scans need not be equal, and with a busy producer they
never are:

- **Registers**, and all names that are not files of a log, must be equal in both scans. Such names are few and
  rarely created. Decisions depend on them: if they are equal, no epoch began and no log start moved between the
  two scans.
- **A removed name** remains in the listing, because any listed file may be deleted before a reader opens it. A
  file is deleted only after another file has replaced it, and the first or the second scan shows the replacement.
- **A new merged segment** is taken from the second scan, because it replaces the files that it covers. A segment
  that begins after all files of the first scan is omitted if the append at the segment's base offset still exists:
  that append, and so the whole segment, is newer than the start of the first scan. If that append no longer
  exists, both scans are repeated.
- **A new append** is accepted if the first scan shows a later append of the same epoch, or a high watermark above
  the new append's base offset. Appends of an epoch are created in the order of their offsets, so the new append
  fills a gap of the first scan. A new append after all files of the first scan is omitted, as if it were newer
  than the listing, because the second scan may have gaps there.
- **A new high watermark** is accepted, because a high watermark never overstates. If it is above all files of the
  first scan, it is marked ``late``: the whole listed log is committed, and the log may continue after the listing.

So a listing has every file that existed during both scans. Every record that existed when the listing began is in
some listed file. A listing has no gap. The decisions based on a listing are therefore right:

- *The log end, for an append or a take-over*: the listing shows every record that was acknowledged before it
  began. The exclusive create detects a later append, and the next listing shows the new file, because the file
  existed before that listing.
- *Sync and the high watermark*: followers are listed before their leader, so the leader's listing includes all
  their files. Without gaps, a follower has all records below its log end.
- *Verify*: a gap in a listing is a gap in storage.
- *Merge, retention, vacuum*: they depend on files that cover other files, below the high watermark. Such files
  existed during both scans.

The two scans miss one case: a file that is created after the first scan began, then merged, and deleted before the
second scan ends. Two equal listings would miss such a file, too. This case requires a ``file.delete.delay.ms``
shorter than a listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from stratalog.partitions import paths
from stratalog.partitions.paths import DataName, WatermarkName
from stratalog.partitions.store.protocol import StoredObject

V = TypeVar("V")

_EPOCH_OF = re.compile(r"(?:([0-9]{20})\.)?([0-9]{10})\.(?:parquet|hw|epoch)\Z")
"""The names of appends, high watermarks and epoch registers: the offset, if any, and the leader epoch."""


def together(
    first: Mapping[str, V], second: Mapping[str, V], folder: str = ""
) -> tuple[dict[str, V], AbstractSet[str]] | None:
    """The listing of two scans, and its late high watermarks; None: scan again. Names are below ``folder`` (empty,
    or with ``/`` at its end), each with its status in the scan.
    """
    gone, come = first.keys() - second.keys(), second.keys() - first.keys()
    logs = {paths.folder_of(name) for name in gone | come}
    if any(paths.parse_replica_path(paths.join(folder, log)) is None for log in logs):
        return None
    parsed = {name: paths.parse_name(paths.base_name(name)) for name in gone | come}
    if not all(isinstance(name, DataName | WatermarkName) for name in parsed.values()):
        return None
    if any(seen != first[name] for name, seen in second.items() if name in first):
        return None
    found, late = dict(first), set[str]()
    reached = {log: _reached(name for name in first if paths.folder_of(name) == log) for log in logs}
    for name in come:
        log, ends = paths.folder_of(name), reached[paths.folder_of(name)]
        latest = max(ends, default=None)
        match parsed[name]:
            case DataName(base_offset, None, epoch) if base_offset < ends.get(epoch, -1):
                pass
            case DataName(base_offset, int(), epoch) if base_offset <= ends.get(epoch, -1):
                pass
            case WatermarkName(offset, epoch) if offset <= ends.get(epoch, -1):
                pass
            case WatermarkName(_, epoch) if epoch == latest:
                late.add(name)
            case DataName(_, None, epoch) if epoch == latest:
                continue
            case DataName(base_offset, int(), epoch) if (
                paths.join(log, str(DataName(base_offset, None, epoch))) in second
            ):
                continue
            case _:
                return None
        found[name] = second[name]
    return found, late


def _reached(names: Iterable[str]) -> dict[int, int]:
    """For each leader epoch in a scan of a log: the greatest offset below which no append can be created any more,
    because the scan shows a later append or a high watermark; -1 if the scan shows only the register.
    """
    found: dict[int, int] = {}
    for name in names:
        if m := _EPOCH_OF.match(paths.base_name(name)):
            epoch = int(m[2])
            found[epoch] = max(found.get(epoch, -1), -1 if m[1] is None else int(m[1]))
    return found


def objects_together(
    first: Sequence[StoredObject], second: Sequence[StoredObject]
) -> Sequence[StoredObject] | None:
    found = together({one.name: one for one in first}, {one.name: one for one in second})
    if found is None:
        return None
    objects, late = found
    return sorted(
        (replace(one, late=True) if name in late else one for name, one in objects.items()),
        key=attrgetter("name"),
    )


def names_together(first: AbstractSet[str], second: AbstractSet[str]) -> frozenset[str] | None:
    found = together(dict.fromkeys(first), dict.fromkeys(second))
    return None if found is None else frozenset(found[0])
