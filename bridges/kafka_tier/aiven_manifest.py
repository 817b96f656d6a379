"""The manifest of a segment that Aiven's plugin has written, version 1. Pure."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from stratalog.bridges.kafka_tier.layout import MOST_INDEX_BYTES, IndexKind
from stratalog.bridges.kafka_tier.segment import MOST_SEGMENT_BYTES, RemoteLogSegment
from stratalog.partitions.bounded import decode_json
from stratalog.partitions.errors import CorruptionError, InvalidCallError

MOST_MANIFEST_BYTES = 16 * 1024 * 1024
MOST_CHUNK_BYTES = 64 * 1024 * 1024
"""The maximum size of a chunk, which is decompressed in memory. The plugin's default is 4 MiB."""
_MOST_CHUNKS = 1 << 21
_SLACK = 1024
"""The bytes that compression and encryption may add to an incompressible chunk, in addition to 1/64 of the
chunk.
"""


class _Place(msgspec.Struct):
    position: int
    size: int


class _Chunks(msgspec.Struct, rename="camel"):
    type: str
    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int | None = None
    final_transformed_chunk_size: int | None = None
    transformed_chunks: str | None = None


class _Encryption(msgspec.Struct, rename="camel"):
    data_key: str
    aad: str


class _TopicIdPartition(msgspec.Struct, rename="camel"):
    topic_id: str


class _SegmentId(msgspec.Struct, rename="camel"):
    topic_id_partition: _TopicIdPartition
    id: str


class _Metadata(msgspec.Struct, rename="camel"):
    remote_log_segment_id: _SegmentId
    start_offset: int
    end_offset: int


class _Document(msgspec.Struct, rename="camel"):
    version: str
    chunk_index: _Chunks
    segment_indexes: dict[str, _Place | None]
    compression: bool
    encryption: _Encryption | None = None
    remote_log_segment_metadata: _Metadata | None = None


class _Version(msgspec.Struct):
    version: Any = None


@dataclass(frozen=True, slots=True)
class Encryption:
    """The encrypted data key, ``KEY_ID:BASE64``, and the additional data that each chunk authenticates."""

    data_key: str
    aad: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The positions of a segment's bytes in its object."""

    size_bytes: int
    """The size of the broker's log file."""
    chunk_bytes: int
    """The number of bytes of the log in each chunk except the last."""
    stored_sizes: Sequence[int]
    """The sizes of the chunks, in their order in the object."""
    indexes: Mapping[IndexKind, tuple[int, int]]
    """The position and size in the object of indexes."""
    compressed: bool
    encryption: Encryption | None


def parse_manifest(text: bytes, segment: RemoteLogSegment, overhead: int) -> Manifest:
    """Parse the manifest of a segment. ``overhead`` is the number of bytes that encryption adds to a chunk.

    Raises: InvalidCallError for a newer version or an unknown kind of chunk index; CorruptionError for a manifest
    that contradicts itself or the segment's metadata.
    """
    what = f"{segment}: its manifest"
    version = decode_json(text, _Version, what).version
    if version != "1":
        raise InvalidCallError(f"{what} has version {version!r}, but the layout aiven supports only version '1'")
    found = decode_json(text, _Document, what)
    chunks = found.chunk_index
    if chunks.type not in ("fixed", "variable"):
        raise InvalidCallError(
            f"{what} has a chunk index of type {chunks.type!r}, which the layout does not support"
        )
    its = found.remote_log_segment_metadata
    if its is not None and (
        its.remote_log_segment_id.id != segment.segment_id
        or its.remote_log_segment_id.topic_id_partition.topic_id != segment.topic_id
        or (its.start_offset, its.end_offset) != (segment.start_offset, segment.end_offset)
    ):
        raise CorruptionError(f"{what} belongs to another segment")
    size, chunk = chunks.original_file_size, chunks.original_chunk_size
    if size != segment.size_bytes or not 0 < size <= MOST_SEGMENT_BYTES:
        raise CorruptionError(f"{what} has {size} bytes of log, but the metadata says {segment.size_bytes}")
    if chunk <= 0 or -(-size // chunk) > _MOST_CHUNKS:
        raise CorruptionError(f"{what} has chunks of {chunk} bytes")
    if min(chunk, size) > MOST_CHUNK_BYTES:
        raise InvalidCallError(
            f"{what} has chunks of {chunk} bytes, but a task can hold at most {MOST_CHUNK_BYTES}: read this topic "
            "through the brokers"
        )
    count = -(-size // chunk)
    sizes = _fixed(chunks, count, what) if chunks.type == "fixed" else _variable(chunks, what)
    most = min(chunk, size) + min(chunk, size) // 64 + _SLACK
    if len(sizes) != count or any(not 0 < one <= most for one in sizes):
        raise CorruptionError(f"{what} has {len(sizes)} chunks, but the log has {count} of at most {most} bytes")
    if not found.compression:
        added = 0 if found.encryption is None else overhead
        if sum(sizes) != size + count * added or any(one != chunk + added for one in sizes[:-1]):
            raise CorruptionError(f"{what} has chunks whose sizes do not add up to the log of {size} bytes")
    return Manifest(size, chunk, sizes, _indexes(found, what), found.compression, _encryption(found, what))


def _fixed(chunks: _Chunks, count: int, what: str) -> list[int]:
    if chunks.transformed_chunk_size is None or chunks.final_transformed_chunk_size is None:
        raise CorruptionError(f"{what} has a fixed chunk index without the sizes of its chunks")
    return [chunks.transformed_chunk_size] * (count - 1) + [chunks.final_transformed_chunk_size]


def _variable(chunks: _Chunks, what: str) -> list[int]:
    """Decode the plugin's ChunkSizesBinaryCodec: the number of chunks, and the size of the last chunk at the end.
    If there are several chunks, the lowest size, the width of a difference, and the differences of all chunks but
    the last are in between.
    """
    try:
        packed = base64.b64decode(chunks.transformed_chunks or "", validate=True)
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as source:
            data = source.read(_MOST_CHUNKS * 4 + 16)
        (count,) = struct.unpack_from(">i", data, 0)
        if count == 1:
            (last,) = struct.unpack(">i", data[4:])
            return [last]
        low, width = struct.unpack_from(">ib", data, 4)
        if not 1 <= width <= 4 or not 1 < count <= _MOST_CHUNKS or len(data) != 13 + (count - 1) * width:
            raise ValueError("sizes that do not fit")
        sizes = [low + int.from_bytes(data[at : at + width], "big") for at in range(9, len(data) - 4, width)]
        return [*sizes, struct.unpack(">i", data[-4:])[0]]
    except (ValueError, binascii.Error, struct.error, pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{what} has a damaged list of chunk sizes") from error


def _indexes(found: _Document, what: str) -> dict[IndexKind, tuple[int, int]]:
    places = {}
    for kind in IndexKind:
        place = found.segment_indexes.get(kind)
        if place is None:
            continue
        if place.position < 0 or not 0 <= place.size <= MOST_INDEX_BYTES:
            raise CorruptionError(f"{what} has a {kind} index of {place.size} bytes at {place.position}")
        places[kind] = (place.position, place.size)
    return places


def _encryption(found: _Document, what: str) -> Encryption | None:
    if found.encryption is None:
        return None
    try:
        return Encryption(found.encryption.data_key, base64.b64decode(found.encryption.aad, validate=True))
    except binascii.Error as error:
        raise CorruptionError(f"{what} has an aad that is not base64") from error
