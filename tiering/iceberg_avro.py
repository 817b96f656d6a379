"""Checks an Avro file before pyiceberg reads it: a list of manifests, or a manifest of a table.

pyiceberg unpacks a block in one step, and its decoder trusts every length and count: 5 bytes can end the process,
or make it loop for hours. So each file is unpacked here within a bound, and walked value by value. Only the types
that Iceberg writes for a table without partitions are accepted, so both decoders agree on where values end.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.printable import printable

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_PIECE_BYTES: Final = 1024 * 1024
_CUT_OFF: Final = "it is truncated, or one of its lengths is wrong"

_Walk = Callable[[bytes, int], int]
"""Returns the end of the value that begins at a position in some bytes. Raises: ValueError, IndexError if it does
not end.
"""


_checked: BoundedCache[bytes, int] = BoundedCache(10_000)
"""The checked sizes, by the digest of a file's bytes. (An operation reads each file several times.)"""


def unpacked_bytes(data: bytes, most_bytes: int) -> int:
    """The uncompressed size of the records of an Avro file, in bytes.

    Raises: ValueError for a file that is not Avro, unpacks to more than ``most_bytes``, or whose values contradict
        its lengths and counts.
    """
    digest = hashlib.blake2b(data, digest_size=32).digest()
    if (known := _checked.get(digest)) is not None and known <= most_bytes:
        return known
    try:
        size_bytes = _unpacked_bytes(data, most_bytes)
    except IndexError:
        raise ValueError(_CUT_OFF) from None
    except RecursionError as error:
        raise ValueError("its schema nests too deeply") from error
    _checked.put(digest, size_bytes)
    return size_bytes


def _unpacked_bytes(data: bytes, most_bytes: int) -> int:
    if not data.startswith(_MAGIC):
        raise ValueError("it is not an Avro file")
    described, at = _header(data, len(_MAGIC))
    unpack = _codec(described.get(b"avro.codec", b"null"))
    schema = parse_json(described.get(b"avro.schema", b""))
    width, walk = _type_of(schema)
    if width == 0:
        raise ValueError("its records may have zero bytes")
    at, total = at + _SYNC_BYTES, 0
    while at < len(data):
        count, at = _number(data, at)
        packed, at = _bytes(data, at)
        at += _SYNC_BYTES
        if at > len(data):
            raise ValueError(_CUT_OFF)
        pieces: list[bytes] = []
        for piece in unpack(packed):
            total += len(piece)
            if total > most_bytes:
                raise ValueError(f"it unpacks to more than {most_bytes} bytes")
            pieces.append(piece)
        block, end = b"".join(pieces), 0
        for _ in range(count):
            end = walk(block, end)
        if count < 0 or end != len(block):
            raise ValueError(f"a block of {len(block)} bytes states {count} records, which end at byte {end}")
    return total


# ---------------------------------------------------------------------------------------- values


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A 64-bit number and its end: 7 bits per byte, the lowest first, with the sign in the lowest bit."""
    first = data[at]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), at + 1
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
        if shift >= 70:
            raise ValueError(_CUT_OFF)
    if value >> 64:
        raise ValueError("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = _after_bytes(data, at)
    _, at = _number(data, at)
    return data[at:end], end


def _after_number(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 0x80 else _number(data, at)[1]


def _after_bytes(data: bytes, at: int) -> int:
    size_bytes, at = _number(data, at)
    if not 0 <= size_bytes <= len(data) - at:
        raise ValueError(_CUT_OFF)
    return at + size_bytes


def _after_fixed(size_bytes: int) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        if size_bytes > len(data) - at:
            raise ValueError(_CUT_OFF)
        return at + size_bytes

    return walk


def _after_optional(inner: _Walk) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        if data[at] == 0:
            return at + 1
        if data[at] != 2:
            raise ValueError("a value has neither of the two possible types")
        return inner(data, at + 1)

    return walk


def _after_record(fields: tuple[_Walk, ...]) -> _Walk:
    if len(fields) == 2:  # most values of a manifest are in its maps
        key, value = fields
        return lambda data, at: value(data, key(data, at))

    def walk(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return walk


def _after_items(item: _Walk) -> _Walk:
    """The items of an array, in groups that state their number of items; a negative number is followed by the
    group's size in bytes.
    """

    def walk(data: bytes, at: int) -> int:
        count, at = _number(data, at)
        while count:
            if count < 0:
                at = _after_number(data, at)
            for _ in range(abs(count)):
                at = item(data, at)
            count, at = _number(data, at)
        return at

    return walk


def _header(data: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """The file's metadata, and its end."""
    found: dict[bytes, bytes] = {}
    count, at = _number(data, at)
    while count:
        if count < 0:
            at = _after_number(data, at)
        for _ in range(abs(count)):
            key, at = _bytes(data, at)
            found[key], at = _bytes(data, at)
        count, at = _number(data, at)
    return found, at


# ---------------------------------------------------------------------------------------- schemas

_PRIMITIVES: Final[dict[str, tuple[int, _Walk]]] = {
    "boolean": (1, _after_fixed(1)),
    "int": (1, _after_number),
    "long": (1, _after_number),
    "float": (4, _after_fixed(4)),
    "double": (8, _after_fixed(8)),
    "bytes": (1, _after_bytes),
    "string": (1, _after_bytes),
}
"""By type: the minimum size of a value in bytes, and the function that walks a value."""


def _type_of(schema: Any) -> tuple[int, _Walk]:
    """The minimum size of a value of this type in bytes, and the function that walks a value.

    Raises: ValueError for a type that Iceberg does not write, and for arrays whose items may be of zero bytes.
    """
    match schema:
        case str() if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        case ["null", inner]:
            return 1, _after_optional(_type_of(inner)[1])
        case {"type": "record", "fields": list(fields)} if "logicalType" not in schema:
            if not all(isinstance(field, dict) and "type" in field for field in fields):
                raise ValueError("its schema has a field without a type")
            types = [_type_of(field["type"]) for field in fields]
            return sum(width for width, _ in types), _after_record(tuple(walk for _, walk in types))
        case {"type": "array", "items": items}:
            width, walk = _type_of(items)
            is_map = "logicalType" in schema
            if width and (not is_map or (schema["logicalType"] == "map" and _is_pair(items))):
                return 1, _after_items(walk)
    raise ValueError(f"its schema has the type {printable(str(schema))[:100]}")


def _is_pair(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "record" and len(schema["fields"]) == 2


# ---------------------------------------------------------------------------------------- packed blocks

_Unpack = Callable[[bytes], Iterator[bytes]]


def _codec(name: bytes) -> _Unpack:
    found = {b"null": _stored, b"deflate": _deflated, b"zstandard": _zstandard}.get(name)
    if found is None:
        shown = printable(name.decode(errors="replace"))[:40]
        raise ValueError(
            f"it is compressed with {shown}: set write.avro.compression-codec to gzip, zstd or uncompressed"
        )
    return found


def _stored(block: bytes) -> Iterator[bytes]:
    yield block


def _deflated(block: bytes) -> Iterator[bytes]:
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        while piece := unpacking.decompress(block, _PIECE_BYTES):
            yield piece
            block = unpacking.unconsumed_tail
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error


def _zstandard(block: bytes) -> Iterator[bytes]:
    from zstandard import ZstdDecompressor, ZstdError  # pyiceberg depends on it

    try:
        with ZstdDecompressor().stream_reader(io.BytesIO(block)) as reader:
            while piece := reader.read(_PIECE_BYTES):
                yield piece
    except ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
