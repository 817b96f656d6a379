"""The listing that two scans of the same folders make, one after the other.

A scan is no snapshot: names come and go while it runs. Every file system and bucket has to guarantee this much:
**a scan shows each name once that was there before it began and is still there when it ends.** It may show a
name that comes or goes meanwhile, or not. POSIX says so of ``readdir``. Linux keeps to it on ext4, xfs, btrfs,
tmpfs and overlay. NFS keeps to it where the server's cookies last, and where no client caches folders. The
listing of a bucket goes on behind the last key of the page before, and S3, GCS and Azure promise that each page
is consistent.

One scan is not enough. Two appends may come while it runs, and it shows the second one alone: a hole, and the
file before it would seem to end where the second append begins. Or a merge ends behind its back, and the appends
go before it reaches them: it shows neither. A second scan, begun when the first has ended, shows everything that
came before that, and so everything that a name of the first rests on. The two need not be equal, and beside a
busy producer they never are:

- **Registers**, and every name that is no file of a log, have to be the same in both. They are few, they come
  seldom, and decisions rest on them: a listing shows a moment at which no epoch began and no log start moved.
- **A name that has gone** stays in the listing: a listed file may be gone at any time when it is opened. A file
  goes only when another one stands for it, which the first scan shows, or else the second.
- **A merged segment that has come** is taken from the second scan: it stands for the files that it hides. One
  that begins behind all that the first scan shows is left out where the append at its base is still there: that
  append, and so the whole segment, came after the first scan had begun. Otherwise both scans are made again.
- **An append that has come** is taken where the first scan shows a later one of its epoch, or a high watermark
  above its base: it fills a hole, for appends of an epoch are made in the order of their offsets. Behind all
  that the first scan shows it is left out, as if it had come after the listing: the second scan may have holes
  there.
- **A high watermark that has come** is taken, for it is true. Beyond all that the first scan shows it is
  ``late``: the whole listed log is committed, and the log may go on behind the listing.

So a listing holds each file that was there all the while, and, in some file, each record that was there when it
began. It has no hole. The decisions that rest on a listing follow:

- *The log end, for an append or a take-over*: the listing shows every record that was acknowledged before it
  began. The exclusive create finds a later append, and the look after it shows one's own file, which was there.
- *Sync and the high watermark*: followers are listed before their leader, so the leader's listing shows all that
  theirs do. Without holes, the log end of a follower stands for all records below it.
- *Verify*: a hole in a listing is a hole in storage.
- *Merge, retention, vacuum*: they go by the files that cover others, below the high watermark. Those were there.

One thing is missed: a file that comes after the first scan began, is merged, and is deleted before the second
scan ends. Two equal listings would miss it, too. It takes a ``file.delete.delay.ms`` shorter than a listing.
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
"""Of an append, a high watermark or the register of a leader epoch."""


def together(
    first: Mapping[str, V], second: Mapping[str, V], folder: str = ""
) -> tuple[dict[str, V], AbstractSet[str]] | None:
    """The listing that two scans make, and those of its names that are late high watermarks; None: scan again.
    Names are those below ``folder`` (empty, or with ``/`` at its end), each with what the scan saw of it.
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
    """By leader epoch of which a scan of a log shows something: the greatest offset up to which no append can come
    any more, for the scan shows a later one, or a high watermark; -1 where it shows the register alone."""
    found: dict[int, int] = {}
    for name in names:
        if m := _EPOCH_OF.match(paths.base_name(name)):
            epoch = int(m[2])
            found[epoch] = max(found.get(epoch, -1), -1 if m[1] is None else int(m[1]))
    return found


def objects_together(
    first: Sequence[StoredObject], second: Sequence[StoredObject]
) -> Sequence[StoredObject] | None:
    """As ``together``, of objects by name."""
    found = together({one.name: one for one in first}, {one.name: one for one in second})
    if found is None:
        return None
    objects, late = found
    return sorted(
        (replace(one, late=True) if name in late else one for name, one in objects.items()),
        key=attrgetter("name"),
    )


def names_together(first: AbstractSet[str], second: AbstractSet[str]) -> frozenset[str] | None:
    """As ``together``, of names alone."""
    found = together(dict.fromkeys(first), dict.fromkeys(second))
    return None if found is None else frozenset(found[0])
