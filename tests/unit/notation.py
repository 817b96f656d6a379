"""Listings in the shorthand of the protocol's scenarios, for tests of the pure modules.

``2.1`` is the append with base 2 under epoch 1, ``0-2.1`` the merged segment ``[0, 2)`` whose last record
has epoch 1, ``0-2.1.3`` the same range rewritten by the third removal rule, ``4.2.hw`` the high watermark 4
under epoch 2, ``3.local`` and ``1.epoch`` the registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog, parse, resolve
from stratalog.partitions.paths import DataName, EpochName, LocalStartName, Name, WatermarkName
from stratalog.partitions.store.protocol import StoredObject


def name_of(text: str) -> Name:
    head, _, rest = text.partition(".")
    match rest.split("."):
        case ["local"]:
            return LocalStartName(int(head))
        case ["epoch"]:
            return EpochName(int(head))
        case [epoch, "hw"]:
            return WatermarkName(int(head), int(epoch))
        case [epoch, *generation] if "-" in head:
            base, following = head.split("-")
            return DataName(int(base), int(following), int(epoch), *map(int, generation))
        case [epoch]:
            return DataName(int(head), None, int(epoch))
    raise ValueError(text)


def text_of(name: Name) -> str:
    """The shorthand of a name."""
    match name:
        case DataName(base, None, epoch):
            return f"{base}.{epoch}"
        case DataName(base, following, epoch, generation):
            return f"{base}-{following}.{epoch}" + (f".{generation}" if generation else "")
        case WatermarkName(offset, epoch):
            return f"{offset}.{epoch}.hw"
        case LocalStartName(offset):
            return f"{offset}.local"
    raise ValueError(str(name))


GENERATION = 99
"""The generation of the last removal."""
FOLDER = "directory/topic/0.1"
"""The folder of a replica."""


def stored(name: Name, size_bytes: int = 1000, modified_ms: int = 0) -> StoredObject:
    """An object of that name in ``FOLDER``."""
    return StoredObject(f"{FOLDER}/{name}", size_bytes, modified_ms, "1")


def listing_of(
    names: str | Iterable[str],
    *,
    sizes: Mapping[str, int] | None = None,
    modified_ms: Mapping[str, int] | None = None,
) -> Listing:
    """The listing of a folder with these names."""
    texts = names.split() if isinstance(names, str) else list(names)
    objects = [
        stored(name_of(text), (sizes or {}).get(text, 1000), (modified_ms or {}).get(text, 0)) for text in texts
    ]
    return parse(FOLDER, objects, generation=GENERATION)


def log_of(
    names: str | Iterable[str],
    lineage: Iterable[tuple[int, int]] = ((1, 0),),
    *,
    end: int | None = None,
    sizes: Mapping[str, int] | None = None,
    modified_ms: Mapping[str, int] | None = None,
) -> ReplicaLog:
    """The log of a folder with these names; its last append ends at ``end``, or holds one record."""
    listing = listing_of(names, sizes=sizes, modified_ms=modified_ms)

    def end_of_append(file: DataFile) -> int:
        return file.name.base_offset + 1 if end is None else end

    return resolve(listing, Lineage(lineage), end_of_append)


def chain_of(log: ReplicaLog) -> list[str]:
    """The chain as ``file[start,end)``."""
    return [f"{text_of(link.name)}[{link.start},{link.end})" for link in log.chain]


def texts(files: Iterable[DataFile]) -> list[str]:
    """The shorthands of data files."""
    return [text_of(file.name) for file in files]
