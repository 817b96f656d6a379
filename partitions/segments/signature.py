"""The tag of a data file that is signed with the cluster key (``cluster_key``): metadata batches, snapshots.

The tag is in the Parquet footer, under ``log.segment.tag``, and covers all bytes of the file except its own digits
and the footer's checksum, which is computed with the tag. It is verified before anything of the file is decoded.
"""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

from stratalog.partitions.cluster_key import TAG_DIGITS, ClusterKey
from stratalog.partitions.segments.footer import NO_CHECKSUM, checksum_at, value_at
from stratalog.partitions.segments.parquet_footer import SUFFIX_BYTES, footer_start

TAG_KEY = b"log.segment.tag"
NO_TAG = b"0" * TAG_DIGITS

_PIECE_BYTES = 8 * 1024 * 1024


def tag_at(footer: bytes | bytearray | memoryview) -> int | None:
    """The position of the tag in the Parquet footer; None if there is no tag."""
    try:
        at = value_at(footer, TAG_KEY)
    except ValueError:
        return None
    return at if at + TAG_DIGITS <= len(footer) else None


def without_tag(footer: bytes | memoryview, at: int) -> bytes:
    """The part of the Parquet footer that the tag at ``at`` covers. Raises: ValueError without a checksum."""
    bare = bytearray(footer)
    bare[at : at + TAG_DIGITS] = NO_TAG
    checksum = checksum_at(bare)
    bare[checksum : checksum + len(NO_CHECKSUM)] = NO_CHECKSUM
    return b"%d %d\n%s" % (at, checksum, bare)


def check_signature(key: ClusterKey | None, kind: str, name: str, file: BinaryIO, what: str) -> None:
    """Verify the tag of a file; does nothing without a key. ``what`` names the file in errors. Raises:
    UnsignedError; see ``file``.
    """
    if key is None or key.trusting:
        return
    digest, tag = _stated(file)
    key.check(kind, name, digest, tag, what)


def check_signature_of(key: ClusterKey | None, kind: str, name: str, data: bytes, what: str) -> None:
    """Verify the tag of a file's bytes; see ``check_signature``."""
    check_signature(key, kind, name, io.BytesIO(data), what)


def _stated(file: BinaryIO) -> tuple[bytes, str]:
    """The bytes that a file's tag covers, and the tag; an empty tag if none can be read."""
    size_bytes = file.seek(0, io.SEEK_END)
    file.seek(max(0, size_bytes - SUFFIX_BYTES))
    suffix = file.read(SUFFIX_BYTES)
    try:
        body_bytes = footer_start(suffix, size_bytes)
        file.seek(body_bytes)
        footer = file.read(size_bytes - SUFFIX_BYTES - body_bytes)
        at = tag_at(footer)
        if at is None:
            return b"", ""
        bare = without_tag(footer, at)
    except ValueError:
        return b"", ""
    digest = hashlib.sha256()
    file.seek(0)
    left = body_bytes
    while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
        digest.update(piece)
        left -= len(piece)
    digest.update(bare)
    digest.update(suffix)
    return digest.digest(), footer[at : at + TAG_DIGITS].decode("latin-1")
