"""Parses Kafka's record batches, format 2, in a segment: headers, checksums, payloads.

The work here is per batch. Records are decoded many batches at a time (``columns``). Every length is checked
before use, and sizes are bounded, because any writer to the bucket may have written the bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from stratalog.bridges.kafka_tier.checksum import crc32c
from stratalog.partitions.errors import CorruptionError, InvalidCallError

HEADER_BYTES = 61
MOST_BATCH_BYTES = 64 * 1024 * 1024
"""The maximum size of a batch, both stored and decompressed. Kafka's ``max.message.bytes`` is 1 MiB by default."""
MOST_BATCH_RECORDS = 1 << 20
_PREFIX_BYTES = 12
"""The size of the offset and length fields, which the length field does not count."""
_CRC_FROM = 21
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = {0: None, 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL = b"\x82SNAPPY\x00"
_LEAST_RECORD_BYTES = 7
_KNOWN_ATTRIBUTES = 0x7F


class KafkaBatch(NamedTuple):
    """A batch with a valid checksum. Offsets are Kafka's: ``last_offset`` is inclusive."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    records: int
    attributes: int
    position: int
    """The position of its first byte in the segment."""
    payload: bytes
    """The stored records, possibly compressed."""

    @property
    def log_append_time(self) -> bool:
        """Whether all records of the batch have the broker's time, which is ``max_timestamp_ms``."""
        return bool(self.attributes & 0x08)

    @property
    def transactional(self) -> bool:
        """Whether the records of the batch belong to a transaction."""
        return bool(self.attributes & 0x10)

    @property
    def control(self) -> bool:
        """Whether the batch is a marker, which consumers do not get."""
        return bool(self.attributes & 0x20)


def batches_of(data: bytes, position: int, what: str) -> Iterator[KafkaBatch]:
    """The whole batches in ``data``, which begins at byte ``position`` of a segment, at the start of a batch. An
    incomplete batch at the end is left out (``batch_bytes`` says how many bytes it takes).

    Raises: InvalidCallError for an older format, an unknown codec, or a batch that is too large for a task;
        CorruptionError for a wrong checksum, or a header that contradicts itself.
    """
    at = 0
    while (size := batch_bytes(data, at, position, what)) is not None and at + size <= len(data):
        yield _batch(data, at, size, position, what)
        at += size


def batch_bytes(data: bytes, at: int, position: int, what: str) -> int | None:
    """The size of the batch at ``data[at:]``; None if ``data`` ends too early. Raises: see ``batches_of``."""
    if len(data) - at < _PREFIX_BYTES + 5:
        return None
    length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    magic = data[at + 16]
    if magic != 2:
        if magic in (0, 1):
            raise InvalidCallError(
                f"{what}: the batch at byte {position + at} has format {magic}, of Kafka before 0.11: read this "
                "range through the brokers"
            )
        raise CorruptionError(f"{what}: there is no record batch at byte {position + at}")
    size = length + _PREFIX_BYTES
    if size < HEADER_BYTES:
        raise CorruptionError(f"{what}: the batch at byte {position + at} has a length of {length}")
    if size > MOST_BATCH_BYTES:
        raise _too_large(f"{what}: the batch at byte {position + at}", f"{size} bytes")
    return size


def _batch(data: bytes, at: int, size: int, position: int, what: str) -> KafkaBatch:
    base, _, epoch, _, crc, attributes, delta, base_ms, max_ms, producer, _, _, count = _HEADER.unpack_from(
        data, at
    )
    if crc32c(data[at + _CRC_FROM : at + size]) != crc:
        raise CorruptionError(f"{what}: the batch at byte {position + at} has a wrong checksum (CRC-32C)")
    if base < 0 or delta < 0 or not 0 <= count <= delta + 1 or base + delta >= (1 << 63) - 1:
        raise CorruptionError(
            f"{what}: the batch at byte {position + at} has {count} records at offsets {base} to {base + delta}"
        )
    if attributes & ~_KNOWN_ATTRIBUTES or attributes & 7 not in _CODECS:
        raise InvalidCallError(
            f"{what}: the batch at byte {position + at} has attributes {attributes:#x}, which are not supported: "
            "read this range through the brokers"
        )
    if count > MOST_BATCH_RECORDS:
        raise _too_large(f"{what}: the batch at byte {position + at}", f"{count} records")
    payload = data[at + HEADER_BYTES : at + size]
    return KafkaBatch(
        base, base + delta, epoch, base_ms, max_ms, producer, count, attributes, position + at, payload
    )


def decompressed(batch: KafkaBatch, what: str) -> KafkaBatch:
    """The batch with decompressed records. Raises: CorruptionError for bytes that do not match their codec;
    InvalidCallError for more records than fit into a task.
    """
    codec = _CODECS[batch.attributes & 7]
    named = f"{what}: the batch at byte {batch.position}"
    data = batch.payload if codec is None else _decompressed(batch.payload, codec, named)
    if batch.records * _LEAST_RECORD_BYTES > len(data):
        raise CorruptionError(f"{named} has {batch.records} records in {len(data)} bytes")
    if codec is None:
        return batch
    return batch._replace(payload=data, attributes=batch.attributes & ~7)


def _decompressed(data: bytes, codec: str, named: str) -> bytes:
    try:
        match codec:
            case "gzip":
                inflate = zlib.decompressobj(wbits=31)
                plain = inflate.decompress(data, MOST_BATCH_BYTES + 1)
                if not inflate.eof and len(plain) <= MOST_BATCH_BYTES:
                    raise CorruptionError(f"{named} ends in the middle of its gzip stream")
            case "snappy":
                plain = _snappy(data, named)
            case _:
                with pa.CompressedInputStream(pa.BufferReader(data), codec) as source:
                    plain = _read(source)
    except (zlib.error, pa.ArrowException, OSError, ValueError, EOFError, IndexError) as error:
        raise CorruptionError(f"{named} is not compressed by {codec}, contrary to its header") from error
    if len(plain) > MOST_BATCH_BYTES:
        raise _too_large(named, f"more than {MOST_BATCH_BYTES} decompressed bytes")
    return plain


def _read(source: pa.NativeFile) -> bytes:
    """Decompress piece by piece, because a single read would allocate the limit."""
    pieces, left = [], MOST_BATCH_BYTES + 1
    while left > 0 and (piece := source.read(min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _snappy(data: bytes, named: str) -> bytes:
    """Blocks in the framing of xerial's snappy-java, or one block without a frame (librdkafka's)."""
    if not data.startswith(_XERIAL):
        return _block(data, MOST_BATCH_BYTES, named)
    at, pieces, left = 16, [], MOST_BATCH_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size > len(data) - at - 4:
            raise CorruptionError(f"{named} ends in the middle of a snappy block")
        pieces.append(_block(data[at + 4 : at + 4 + size], left, named))
        left -= len(pieces[-1])
        at += 4 + size
    return b"".join(pieces)


def _block(data: bytes, most: int, named: str) -> bytes:
    size = 0
    for number, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    else:
        raise CorruptionError(f"{named} has a snappy block without a size")
    if size > most:
        raise _too_large(named, f"more than {MOST_BATCH_BYTES} decompressed bytes")
    plain: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    return plain


def _too_large(named: str, amount: str) -> InvalidCallError:
    return InvalidCallError(
        f"{named} has {amount}, more than fits into a task: read this range through the brokers"
    )
