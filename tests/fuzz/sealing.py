"""Fixes checksums and digests, so that a mutation reaches the code behind them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from isal import isal_zlib

from stratalog.partitions.register import sealed
from stratalog.partitions.segments.footer import CHECKSUM_KEY, NO_CHECKSUM, NO_CHECKSUMS, checksum_at
from stratalog.partitions.segments.parquet_footer import SUFFIX_BYTES
from stratalog.snapshots.layout import MARK_KEY
from tests.fuzz.thrift import decode_struct, encode_struct

KEY_VALUES = 5
"""The field id in Parquet's FileMetaData."""


def parts_of(data: bytes) -> tuple[bytes, bytes]:
    """The bytes before Parquet's footer, and the footer. Raises: ValueError."""
    at = len(data) - SUFFIX_BYTES - int.from_bytes(data[-SUFFIX_BYTES:-4], "little")
    if data[-4:] != b"PAR1" or at < 4:
        raise ValueError("no Parquet file")
    return data[:at], data[at:-SUFFIX_BYTES]


def whole_file(body: bytes, footer: bytes) -> bytes:
    """A Parquet file of the two parts."""
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def fields_of(footer: bytes) -> list[Any]:
    """Parquet's FileMetaData as a tree. Raises: ValueError, IndexError."""
    return decode_struct(footer)[0]


def seal_segment(body: bytes, footer: bytes) -> bytes:
    """A data file of the log with these parts and its own checksums, if it has a place for them."""
    found = bytearray(footer)
    try:
        at = checksum_at(found)
    except ValueError:
        return whole_file(body, footer)
    try:
        index_at = int(found[at + 16 : at + 32], 16)
    except ValueError:
        index_at = len(body)
    found[at : at + len(NO_CHECKSUMS)] = NO_CHECKSUM + b"%08x%016x%08x" % (
        isal_zlib.crc32(body),
        index_at,
        isal_zlib.crc32(body[index_at:]),
    )
    found[at : at + len(NO_CHECKSUM)] = b"%08x" % isal_zlib.crc32(found)
    return whole_file(body, bytes(found))


def seal_pages(body: bytes, footer: bytes) -> bytes:
    """Seal like ``seal_segment`` after a change of bytes before the page index: a snapshot contains their
    checksum."""
    fields = fields_of(footer)
    for entry in metadata_entries(fields):
        if entry[0][2] == MARK_KEY:
            mark = json.loads(entry[1][2])
            mark["record_crc"] = isal_zlib.crc32(body[: mark["record_bytes"]])
            entry[1][2] = json.dumps(mark, separators=(",", ":")).encode()
    return seal_segment(body, encode_struct(fields))


def metadata_entries(fields: list[Any]) -> list[Any]:
    """The entries of Parquet's key-value metadata, each ``[[1, BINARY, key], [2, BINARY, value]]``."""
    return next((value[1] for number, _, value in fields if number == KEY_VALUES), [])


def has_checksums(footer: bytes) -> bool:
    """Whether the footer is that of a file of the log; Delta's checkpoints have no such checksums."""
    return CHECKSUM_KEY in footer


def seal_register(line: bytes) -> bytes:
    """The content of an ``.epoch`` or a ``.local``."""
    return sealed(line)


def seal_schedule(line: bytes) -> bytes:
    """The content of a ``.schedule``."""
    return line + b"\n" + hashlib.blake2b(line, digest_size=16).hexdigest().encode()


def description_digest(data: bytes) -> str:
    """The digest of a description in its name."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
