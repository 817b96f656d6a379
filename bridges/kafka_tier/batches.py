"""Parses Kafka's record batches, format 2, in a segment: headers, checksums, payloads.

numpy checks the headers of all batches that were read together. Python only finds the start of each batch, and
computes its checksum. Records are decoded many batches at a time (``columns``), from the bytes that were read,
without a copy unless they are compressed. Every length is checked before use, and sizes are bounded, because any
writer to the bucket may have written the bytes.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise, repeat
from typing import NamedTuple, NoReturn

import numpy as np
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
_MAGIC = 2
_NO_OFFSET = (1 << 63) - 1
_HEADERS = np.dtype(
    [
        ("base", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_delta", ">i4"),
        ("base_ms", ">i8"),
        ("max_ms", ">i8"),
        ("producer", ">i8"),
        ("producer_epoch", ">i2"),
        ("sequence", ">i4"),
        ("records", ">i4"),
    ]
)
_PLACE = struct.Struct(">qi11xi")
"""Three fields of a header: the base offset, the length, and the last offset's delta."""
_CODECS = (None, "gzip", "snappy", "lz4", "zstd")
_CODEC_BITS = 0x07
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
    data: bytes
    """The bytes read together, or the decompressed records."""
    begin: int
    end: int
    """``data[begin:end]`` are the stored records, possibly compressed."""

    @property
    def payload(self) -> memoryview:
        """Its records, without a copy."""
        return memoryview(self.data)[self.begin : self.end]

    @property
    def codec(self) -> str | None:
        """The codec of its records; None if they are not compressed."""
        return _CODECS[self.attributes & _CODEC_BITS]

    @property
    def transactional(self) -> bool:
        """Whether the records of the batch belong to a transaction."""
        return bool(self.attributes & 0x10)

    @property
    def control(self) -> bool:
        """Whether the batch is a marker, which consumers do not get."""
        return bool(self.attributes & 0x20)


def batches_of(data: bytes, position: int, what: str, until: int = _NO_OFFSET) -> list[KafkaBatch]:
    """Return the complete batches in ``data``, up to the first batch that reaches offset ``until``. ``data``
    begins at the start of a batch, at byte ``position`` of a segment. An incomplete batch at the end is left out.

    Raises: InvalidCallError for an older format, an unknown codec, or a batch that is too large for a task;
        CorruptionError for a wrong checksum, or a header that contradicts itself.
    """
    places, reached = _places(data, until)
    bounds = np.array(places, np.int64)
    headers = np.frombuffer(data, np.uint8)[bounds[:-1, None] + np.arange(HEADER_BYTES)].view(_HEADERS)[:, 0]
    crcs = [crc32c(data[start + _CRC_FROM : end]) for start, end in pairwise(places)]
    base, last = headers["base"].astype(np.int64), headers["base"] + headers["last_delta"].astype(np.int64)
    records, attributes = headers["records"].astype(np.int64), headers["attributes"].astype(np.int64)
    good = (headers["magic"] == _MAGIC) & (headers["crc"] == np.array(crcs, np.uint32))
    good &= (base >= 0) & (last >= base) & (last < _NO_OFFSET) & (records >= 0) & (records <= last - base + 1)
    good &= ((attributes & ~_KNOWN_ATTRIBUTES) == 0) & ((attributes & _CODEC_BITS) < len(_CODECS))
    good &= records <= MOST_BATCH_RECORDS
    if not good.all():
        at = int(good.argmin())
        batch_bytes(data, places[at], position, what)
        _refuse(data, places[at], places[at + 1], position, what)
    if not reached:
        batch_bytes(data, places[-1], position, what)
    names = ("leader_epoch", "base_ms", "max_ms", "producer")
    epochs, base_ms, max_ms, producers = (headers[name].tolist() for name in names)
    numbers = (base.tolist(), last.tolist(), epochs, base_ms, max_ms, producers, records.tolist())
    begins = (bounds[:-1] + HEADER_BYTES).tolist()
    positions = (bounds[:-1] + position).tolist()
    same = repeat(data, len(positions))
    rows = zip(*numbers, attributes.tolist(), positions, same, begins, places[1:], strict=True)
    return list(map(KafkaBatch._make, rows))


def _places(data: bytes, until: int) -> tuple[list[int], bool]:
    """Return the starts of the complete batches, the end of the last batch, and whether that batch reaches
    ``until``. At that end the data has no batch, an incomplete one, or an impossible one.
    """
    places, at, size = [0], 0, len(data)
    while at + HEADER_BYTES <= size:
        base, length, delta = _PLACE.unpack_from(data, at)
        length += _PREFIX_BYTES
        if not HEADER_BYTES <= length <= MOST_BATCH_BYTES or at + length > size:
            break
        at += length
        places.append(at)
        if base + delta + 1 >= until:
            return places, True
    return places, False


def batch_bytes(data: bytes, at: int, position: int, what: str) -> int | None:
    """The size of the batch at ``data[at:]``; None if ``data`` ends too early. Raises: see ``batches_of``."""
    if len(data) - at < _PREFIX_BYTES + 5:
        return None
    length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    magic = data[at + 16]
    if magic != _MAGIC:
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


def _refuse(data: bytes, at: int, end: int, position: int, what: str) -> NoReturn:
    """Return the error of ``data[at:end]``, the first bad batch."""
    (header,) = np.frombuffer(data, _HEADERS, 1, at).tolist()
    base, _, _, _, crc, attributes, delta, _, _, _, _, _, count = header
    named = f"{what}: the batch at byte {position + at}"
    if crc32c(data[at + _CRC_FROM : end]) != crc:
        raise CorruptionError(f"{named} has a wrong checksum (CRC-32C)")
    if base < 0 or delta < 0 or not 0 <= count <= delta + 1 or base + delta >= _NO_OFFSET:
        raise CorruptionError(f"{named} has {count} records at offsets {base} to {base + delta}")
    if attributes & ~_KNOWN_ATTRIBUTES or attributes & _CODEC_BITS >= len(_CODECS):
        raise InvalidCallError(
            f"{named} has attributes {attributes:#x}, which are not supported: read this range through the brokers"
        )
    raise _too_large(named, f"{count} records")


def decompressed(batch: KafkaBatch, what: str) -> KafkaBatch:
    """The batch with decompressed records. Raises: CorruptionError for bytes that do not match their codec;
    InvalidCallError for more records than fit into a task.
    """
    codec, size = batch.codec, batch.end - batch.begin
    if codec is not None:
        named = f"{what}: the batch at byte {batch.position}"
        data = _decompressed(bytes(batch.payload), codec, named)
        size = len(data)
        batch = batch._replace(data=data, begin=0, end=size, attributes=batch.attributes & ~_CODEC_BITS)
    if batch.records * _LEAST_RECORD_BYTES > size:
        raise CorruptionError(
            f"{what}: the batch at byte {batch.position} has {batch.records} records in {size} bytes"
        )
    return batch


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
