"""The layout of Aiven's tiered storage for Apache Kafka: a log in chunks, one object of indexes, a manifest.

The manifest says whether chunks are compressed by zstd, and whether they are then encrypted by AES-GCM. Indexes
are never compressed, only encrypted. Source: the plugin's public code, release 1.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa

from stratalog.bridges.kafka_tier.aiven_keys import IV_BYTES, TAG_BYTES, KeyRing, decrypted
from stratalog.bridges.kafka_tier.aiven_manifest import MOST_MANIFEST_BYTES, Manifest, parse_manifest
from stratalog.bridges.kafka_tier.fields import Fields
from stratalog.bridges.kafka_tier.layout import IndexKind, LayoutOptions
from stratalog.bridges.kafka_tier.local import gone
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store import Store

_OBJECT_PREFIX, _OBJECT_KEY = 1, 2
"""Tags of the custom metadata; 0 is the size of all objects."""
_SAFE = re.compile(r"[A-Za-z0-9._=/+@ -]*\Z")


@dataclass(frozen=True, slots=True)
class AivenSegment:
    """A segment in chunks."""

    store: Store
    named: str
    names: Mapping[str, str]
    manifest: Manifest
    data_key: bytes | None = field(default=None, repr=False)
    aad: bytes = b""

    @property
    def size_bytes(self) -> int:
        """See ``OpenSegment``."""
        return self.manifest.size_bytes

    def read(self, start: int, end: int) -> bytes:
        """See ``OpenSegment``. One ranged request for all chunks of the range."""
        end = min(end, self.size_bytes)
        if start >= end:
            return b""
        chunk = self.manifest.chunk_bytes
        first, last = start // chunk, (end - 1) // chunk
        sizes = self.manifest.stored_sizes[first : last + 1]
        begin = sum(self.manifest.stored_sizes[:first])
        data = self._object("log", begin, begin + sum(sizes))
        ends = list(accumulate(sizes))
        pieces = [
            self._chunk(number, data[stop - size : stop])
            for number, size, stop in zip(range(first, last + 1), sizes, ends, strict=True)
        ]
        return b"".join(pieces)[start - first * chunk : end - first * chunk]

    def index(self, kind: IndexKind) -> bytes:
        """See ``OpenSegment``."""
        place = self.manifest.indexes.get(kind)
        if place is None:
            if kind is IndexKind.TRANSACTION:
                return b""
            raise CorruptionError(f"{self.named}: its manifest has no {kind} index")
        data = self._object("indexes", place[0], place[0] + place[1])
        return data if self.data_key is None or not data else self._plain(data, f"{kind} index")

    def _object(self, what: str, start: int, end: int) -> bytes:
        try:
            data = self.store.read(self.names[what], start, end)
        except FileNotFoundError as error:
            raise gone(self.named, what) from error
        if len(data) != end - start:
            raise CorruptionError(f"{self.named}: its {what} ends before byte {end}, contrary to its manifest")
        return data

    def _chunk(self, number: int, data: bytes) -> bytes:
        what = f"chunk {number}"
        if self.data_key is not None:
            data = self._plain(data, what)
        size = min(self.manifest.chunk_bytes, self.size_bytes - number * self.manifest.chunk_bytes)
        if self.manifest.compressed:
            try:
                data = pa.Codec("zstd").decompress(data, size, asbytes=True)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise CorruptionError(f"{self.named}: {what} is not {size} bytes compressed by zstd") from error
        if len(data) != size:
            raise CorruptionError(f"{self.named}: {what} has {len(data)} bytes, but its manifest says {size}")
        return data

    def _plain(self, data: bytes, what: str) -> bytes:
        assert self.data_key is not None
        return decrypted(data, self.data_key, self.aad, f"{self.named}: {what}")


class AivenLayout:
    """``[PREFIX]TOPIC-TOPICID/P/OFFSET20-SEGMENTID.{log,indexes,rsm-manifest}``."""

    name = "aiven"

    def __init__(self, options: LayoutOptions) -> None:
        """Raises: InvalidCallError for invalid keys; EnvironmentUnusableError if the package for decryption is
        missing.
        """
        self._prefix = options.prefix
        self._keys = KeyRing(options.keys)

    def objects(self, segment: RemoteLogSegment) -> Mapping[str, str]:
        """See ``RemoteSegmentLayout``. A name in the custom metadata replaces the prefix and the usual name.

        Raises: CorruptionError for custom metadata that is damaged, or points outside the store.
        """
        usual = f"{segment.topic}-{segment.topic_id}/{segment.partition}/"
        usual += f"{segment.start_offset:020d}-{segment.segment_id}"
        kept = _custom(segment)
        stem = kept.get(_OBJECT_PREFIX, self._prefix) + kept.get(_OBJECT_KEY, usual)
        if ".." in stem.split("/") or stem.startswith("/") or segment.segment_id not in stem:
            raise CorruptionError(
                f"{segment}: its custom metadata contains the name of an object of another segment"
            )
        return {what: f"{stem}.{what}" for what in ("log", "indexes", "rsm-manifest")}

    def open(self, store: Store, segment: RemoteLogSegment) -> AivenSegment:
        """See ``RemoteSegmentLayout``."""
        names = self.objects(segment)
        try:
            text = read_bounded(store, names["rsm-manifest"], MOST_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise gone(segment, "manifest") from error
        manifest = parse_manifest(text, segment, IV_BYTES + TAG_BYTES)
        if manifest.encryption is None:
            return AivenSegment(store, str(segment), names, manifest)
        data_key = self._keys.data_key(manifest.encryption.data_key, str(segment))
        return AivenSegment(store, str(segment), names, manifest, data_key, manifest.encryption.aad)


def _custom(segment: RemoteLogSegment) -> dict[int, str]:
    """The prefix and the object key in the plugin's custom metadata (SegmentCustomMetadataSerde)."""
    found: dict[int, str] = {}
    if segment.custom_metadata is None:
        return found
    fields = Fields(segment.custom_metadata, f"{segment}: its custom metadata")
    for tag, data in fields.tagged():
        if tag in (_OBJECT_PREFIX, _OBJECT_KEY):
            text = Fields(data, fields.what).compact_string()
            if not _SAFE.match(text):
                raise CorruptionError(f"{segment}: its custom metadata contains a name with unusual characters")
            found[tag] = text
    return found
