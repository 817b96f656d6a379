"""A listing from two scans of the same folders, one after the other.

A scan is no snapshot: names come and go while it runs. Every file system and bucket has to guarantee one thing:
**a scan shows each name that was there before it began and is still there when it ends, once.** A name that
comes or goes meanwhile may be shown or not. So says POSIX of ``readdir``; Linux keeps to it on ext4, xfs, btrfs,
tmpfs and overlay, also where a folder is changed under the scan; NFS does where the server's cookies are stable
(those of Linux and of all filers we know are), without a cache of folders. A bucket's listing goes on behind the
last key of the page before, and each page is as strong as a read (S3, GCS and Azure say so).

One scan is not enough. An append and the one after it may both come while it runs, and it shows the second alone:
a hole, and the file before it would seem to end where the second begins. Or a merge ends behind its back, and the
appends go before it reaches them: it shows neither. A second scan, begun after it, settles both. It
shows all that came before the first had ended, and so all that any name of the first rests on. Both need not be
equal, which they never are beside a busy producer:

- **Registers**, and whatever is no file of a log, have to be the same in both. They are few, come seldom, and what
  they say is decided on: a listing shows a moment at which no epoch began and no log start moved.
- **What has gone** by the second scan stays in the listing: a file that is gone when it is opened is no news to
  anybody. Nothing goes before what stands for it is there. That is shown by the first scan, or else
- **a merged segment that has come** is taken from the second. It holds whatever it has hidden. One that begins
  behind all that the first scan shows is left out where the append at its base is there still: that, and all of
  the segment, came after the first scan had begun. Else both are made again: nothing tells what lies between.
- **An append that has come** is taken where the first scan shows a later one of its epoch, or a high watermark
  above its base. Appends of an epoch are made in the order of their offsets, so it fills a hole. Behind all that
  the first scan shows it is left out, as if it had come after the listing: of what is that young, the second scan
  may show holes, too.
- **A high watermark that has come** is taken, for it is true. Beyond what the first scan shows it is ``late``:
  it says that all of the log that is listed is committed, but not that the log listed is cut off.

So a listing holds each file that was there all the while, each record that was there when it began in some file,
and no hole. Each decision that rests on one follows:

- *The log end, of an append and of a take-over*: the listing has all records that were acknowledged before it
began.
  The exclusive create finds later ones, or the listing after it does, which shows one's own file.
- *Sync, and the high watermark*: followers are listed before their leader, so what they show it had. No hole means
  that what a log end stands for is there.
- *Verify*: no hole is seen that storage has not made, and a file that both scans miss was not there.
- *Merge, retention, vacuum*: they go by what is covered in the listing, and below the high watermark. The files
  that cover were there; the truth can only be more of both.

Missed is only what comes after the first scan began, is merged, and is deleted before the second ends: both scans
may pass over a file that lives so short. Two equal listings would have missed it, too. It takes a
``file.delete.delay.ms`` shorter than a listing.
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
        ends = reached[paths.folder_of(name)]
        match parsed[name]:
            case DataName(base_offset, None, epoch):
                behind = base_offset >= ends.get(epoch, -1)
                if behind and epoch != max(ends, default=None):
                    return None
                if behind:
                    continue
            case WatermarkName(offset, epoch):
                behind = offset > ends.get(epoch, -1)
                if behind and epoch != max(ends, default=None):
                    return None
                if behind:
                    late.add(name)
            case DataName(base_offset, _, epoch):
                if base_offset > ends.get(epoch, -1):
                    if paths.join(paths.folder_of(name), str(DataName(base_offset, None, epoch))) in second:
                        continue
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
