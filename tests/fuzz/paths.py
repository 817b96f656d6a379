"""The meaning of the files of a cluster's folder by their paths: root, topic, kind; and the offsets in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stratalog.partitions.paths import (
    DELTA_LOG,
    DESCRIPTIONS,
    METADATA_TOPIC,
    DataName,
    base_name,
    parse_name,
    parse_topic_folder,
)

ROOTS = ("b1", "b2", "b3", "remote")
_ENDINGS = {".epoch": "epoch register", ".local": "local start", ".hw": "high watermark", ".claim": "claim"}


@dataclass(frozen=True, slots=True)
class Place:
    """A file of the cluster and its meaning."""

    root: str
    """Empty: outside the roots."""
    kind: str
    topic: str | None = None
    partition: int | None = None


@lru_cache(10_000)
def place_of(path: str) -> Place:
    """The place of a path below the cluster's folder."""
    root, _, rest = path.partition("/")
    name = base_name(path)
    if root not in ROOTS:
        return Place("", {"cluster.toml": "cluster file", "plan.json": "plan"}.get(path, "stranger"))
    parts = rest.split("/")
    folder = next((found for part in parts if (found := parse_topic_folder(part)) is not None), None)
    topic = None if folder is None else folder[0]
    at = None if folder is None else parts[parts.index(f"{folder[0]}-{folder[1]}") + 1 :]
    number = re.match(r"[0-9]+", at[0]) if at else None
    partition = int(number[0]) if number and len(number[0]) < 10 else None
    return Place(root, _kind(root, parts, name, topic), topic, partition)


def _kind(root: str, parts: list[str], name: str, topic: str | None) -> str:
    if name == "broker.json":
        return "broker.json"
    if DELTA_LOG in parts:
        if name == "_last_checkpoint":
            return "delta last checkpoint"
        return "delta entry" if name.endswith(".json") else "delta checkpoint"
    if parts[0] == DESCRIPTIONS:
        return "description"
    metadata = METADATA_TOPIC in parts
    if name.endswith(".checkpoint"):
        return "metadata snapshot" if metadata else "snapshot"
    if name.endswith(".parquet"):
        if metadata:
            return "metadata batch"
        if topic is not None and topic.startswith("__"):
            return "state segment"
        if root == "remote":
            return "foreign file" if parse_name(name) is None else "remote segment"
        return "segment"
    if name.endswith(".schedule"):
        return "schedule"
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), "stranger")


def files_below(folder: Path | str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The relative path and entry of everything except folders; links are not followed."""
    pending = [("", str(folder))]
    while pending:
        prefix, path = pending.pop()
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if entry.is_dir(follow_symlinks=False):
                    pending.append((f"{prefix}{entry.name}/", entry.path))
                else:
                    yield f"{prefix}{entry.name}", entry


def coverage_of(
    folder: Path | str, ends: Mapping[tuple[str, int], int], without: frozenset[str] = frozenset()
) -> dict[tuple[str, int], frozenset[int]]:
    """The offsets of each partition in the data files of all roots, by name; an append reaches to the start of the
    next file in its folder. ``without``: files that do not count.
    """
    folders: dict[tuple[str, str, int], list[DataName]] = {}
    for root in ROOTS:
        if not os.path.isdir(os.path.join(folder, root)):
            continue
        for below, _ in files_below(os.path.join(folder, root)):
            path = f"{root}/{below}"
            name = parse_name(base_name(path))
            if path in without or not isinstance(name, DataName):
                continue
            place = place_of(path)
            if place.topic is not None and place.partition is not None:
                folders.setdefault((path.rpartition("/")[0], place.topic, place.partition), []).append(name)
    found: dict[tuple[str, int], set[int]] = {}
    for (_, topic, partition), names in folders.items():
        last = ends.get((topic, partition), 0)
        bases = sorted({name.base_offset for name in names} | {last})
        for name in names:
            end = name.next_offset
            if end is None:
                end = next((base for base in bases if base > name.base_offset), name.base_offset)
            found.setdefault((topic, partition), set()).update(range(min(name.base_offset, last), min(end, last)))
    return {key: frozenset(offsets) for key, offsets in found.items()}
