"""The interface of the layouts in which Kafka's storage plugins store segments, and the layouts by name.

KIP-405 defines no format: a plugin (RemoteStorageManager) may cut, compress and encrypt. A layout turns the
metadata of a segment into an ``OpenSegment``, which reads the log and the indexes that the broker passed to the
plugin. Two layouts are included: ``local`` (Kafka's LocalTieredStorage) and ``aiven`` (Aiven's tiered storage for
Apache Kafka). Other packages can add layouts by an entry point in the group ``stratalog.kafka_tier_layouts``: a
function that takes ``LayoutOptions`` and returns a ``RemoteSegmentLayout``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.secret_files import read_secret
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.store import Store

GROUP = "stratalog.kafka_tier_layouts"
MOST_INDEX_BYTES = 64 * 1024 * 1024
"""The maximum size of an index. Kafka's indexes take up to 10 MiB by default (``segment.index.bytes``)."""


class MissingKeyError(InvalidCallError):
    """A segment is encrypted with a key that the caller has not given."""


class IndexKind(StrEnum):
    """Kafka's RemoteStorageManager.IndexType."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


class OpenSegment(Protocol):
    """A segment whose form is known. Tasks read it, so it can be pickled."""

    @property
    def size_bytes(self) -> int:
        """The size of the log."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)`` of the log; fewer only at its end. Raises: SourceChangedError for a deleted
        object; CorruptionError; StorageError kinds.
        """
        ...

    def index(self, kind: IndexKind) -> bytes:
        """The bytes of an index; empty for a transaction index that does not exist. Raises: see ``read``."""
        ...


class RemoteSegmentLayout(Protocol):
    """The layout of a plugin."""

    name: str

    def objects(self, segment: RemoteLogSegment) -> Mapping[str, str]:
        """The names of the segment's objects in the store, by kind."""
        ...

    def open(self, store: Store, segment: RemoteLogSegment) -> OpenSegment:
        """Determine the form of a segment, without reading records. Raises: InvalidCallError for an unknown
        version or codec; MissingKeyError; SourceChangedError for a deleted object; CorruptionError; StorageError
        kinds.
        """
        ...


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    prefix: str = ""
    """The prefix that the plugin puts before each name, unchanged."""
    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Private keys by their ids, in PEM or DER."""


def key_of_file(name: str, path: str | Path) -> bytes:
    """The bytes of a private key. Raises: InvalidCallError."""
    return read_secret(f"key {name!r}", path, Path.read_bytes, InvalidCallError)


def open_layout(name: str, options: LayoutOptions) -> RemoteSegmentLayout:
    """The layout of that name. Raises: InvalidCallError for an unknown layout, or for options that it refuses."""
    from stratalog.bridges.kafka_tier.aiven import AivenLayout
    from stratalog.bridges.kafka_tier.local import LocalTieredStorageLayout

    known: dict[str, Callable[[], Callable[[LayoutOptions], RemoteSegmentLayout]]] = {
        "local": lambda: LocalTieredStorageLayout,
        "aiven": lambda: AivenLayout,
    }
    for point in entry_points(group=GROUP):
        known.setdefault(point.name, point.load)
    if name not in known:
        hint = did_you_mean(name, known) or f": use one of {', '.join(sorted(known))}"
        raise InvalidCallError(f"unknown layout {name!r} of remote segments{hint}")
    return known[name]()(options)
