"""A driver's cache of the metadata between its runs: a file on its machine.

An observer's local state (KIP-630, "Loading Snapshots"): opening a cluster reads the cache, and then only the
later part of the log. The cache is used if the cluster's log continues it, by offset, epoch and lineage; a stale
or damaged cache is ignored. Deleting it is safe.

The file is a digest, then the content in MessagePack. Reading it takes about 0.1 s at 100,000 partitions.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.contents import Note
from stratalog.engine.quorum.state import LogState
from stratalog.partitions.bounded import described
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import CommittedRule

SAVE_AFTER = 50
"""The number of newer log records after which the cache is written again."""

_DIGEST_BYTES = 16


class _Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file: ``LogState`` and its ``ClusterImage``."""

    layout: str
    cluster_id: str
    epoch: int
    start: int
    appended_ms: int
    signed: bool
    lineage: tuple[tuple[int, int], ...]
    files: tuple[tuple[int, int], ...]
    """Base offset and epoch of each batch starting at ``start``."""
    voters: tuple[VoterId, ...]
    replaced: tuple[int, ...] = msgspec.field(name="awaited")
    brokers: dict[int, BrokerImage]
    configs: dict[str, str]
    topics: dict[str, TopicImage]
    rules: dict[str, dict[int, tuple[CommittedRule, ...]]]
    erasures: dict[str, dict[int, tuple[Erasure, ...]]]
    next_offset: int


@cache
def _layout() -> str:
    """A digest of the image's structure in this release, because a field that another release added or removed
    would be read as its default.
    """
    return hashlib.blake2b(msgspec.json.encode(structure()), digest_size=_DIGEST_BYTES).hexdigest()


def structure() -> Any:
    """All structs of the file with their fields; a partition is an array, whose schema has no names."""
    return msgspec.json.schema(_Remembered), PartitionImage.__struct_fields__


def cache_file(folder: Path, cluster_id: str) -> Path:
    """The file of a cluster in the cache folder."""
    return folder / f"{cluster_id}.metadata"


def save_cache(folder: Path, cluster_id: str, state: LogState, note: Note) -> None:
    """Save a log. If that fails, ``note`` receives the reason."""
    data = _encode(cluster_id, state)
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            temporary = Path(file.name)
            file.write(_digest(data))
            file.write(data)
        os.replace(temporary, cache_file(folder, cluster_id))
    except OSError as error:
        note(f"the metadata could not be cached in {folder}: {error.strerror}")
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def load_cache(folder: Path, cluster_id: str, note: Note) -> LogState:
    """The log in the cache; an empty log if the cache is missing or damaged."""
    path = cache_file(folder, cluster_id)
    try:
        return _decode(path.read_bytes(), cluster_id)
    except FileNotFoundError:
        return LogState()
    except (OSError, ValueError, CorruptionError) as error:
        note(f"the cache of the metadata in {path} is ignored: {error}")
        return LogState()


def _encode(cluster_id: str, state: LogState) -> bytes:
    image = state.image
    return msgspec.msgpack.encode(
        _Remembered(
            layout=_layout(),
            cluster_id=cluster_id,
            epoch=state.epoch,
            start=state.start,
            appended_ms=state.appended_ms,
            signed=state.signed,
            lineage=tuple((entry.epoch, entry.start_offset) for entry in state.lineage),
            files=tuple((name.base_offset, name.epoch) for name in sorted(state.files)),
            voters=image.voters,
            replaced=image.replaced,
            brokers=dict(image.brokers),
            configs=dict(image.configs),
            topics=dict(image.topics),
            rules={topic_id: dict(of) for topic_id, of in image.rules.items()},
            erasures={topic_id: dict(of) for topic_id, of in image.erasures.items()},
            next_offset=image.next_offset,
        )
    )


def _decode(file: bytes, cluster_id: str) -> LogState:
    """Raises: CorruptionError, ValueError."""
    digest, data = file[:_DIGEST_BYTES], memoryview(file)[_DIGEST_BYTES:]
    if digest != _digest(data):
        raise CorruptionError("it is damaged or truncated: its digest is wrong")
    found = msgspec.msgpack.decode(data, type=described(_Remembered))
    if found.layout != _layout():
        raise CorruptionError("it was written by another release")
    if found.cluster_id != cluster_id:
        raise CorruptionError(f"it belongs to cluster {found.cluster_id!r}")
    return LogState(
        image=ClusterImage(
            cluster_id=cluster_id,
            voters=found.voters,
            replaced=found.replaced,
            brokers=found.brokers,
            topics=found.topics,
            topic_ids={topic.name: topic_id for topic_id, topic in found.topics.items()},
            configs=found.configs,
            rules=found.rules,
            erasures=found.erasures,
            next_offset=found.next_offset,
        ),
        lineage=Lineage(found.lineage),
        epoch=found.epoch,
        start=found.start,
        files=frozenset(DataName(base, None, epoch) for base, epoch in found.files),
        appended_ms=found.appended_ms,
        signed=found.signed,
    )


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
