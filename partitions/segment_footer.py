"""What a data file says of itself: the log's own footer, and the checksums beside it.

The footer tells what listings cannot: the end of an append, the producer state after the file, the lineage
it was written under, the largest timestamp. It is JSON under the key ``log.segment`` of Parquet's footer.

Every byte that decides what a reader sees has a checksum: pages Parquet's own; Parquet's footer and the
page index, for which Parquet has none, ours, under the key ``log.segment.crc``.
"""

from __future__ import annotations

import msgspec

from partitions.producers import ProducerEntry

FOOTER_KEY = b"log.segment"
CHECKSUM_KEY = b"log.segment.crc"
WRITER_VERSION = 1
SUFFIX_BYTES = 8  # the length of Parquet's footer, and the magic
NO_CHECKSUM = b"0" * 8  # CRC-32, hexadecimal; that of the footer is taken with these digits in its place
NO_CHECKSUMS = NO_CHECKSUM * 4  # of the footer, of the page index, and (16 digits) where that starts


class SegmentFooter(msgspec.Struct, frozen=True, kw_only=True):
    """What a data file says of itself. Offsets ``[base_offset, next_offset)``; never empty."""

    topic_id: str
    partition: int
    base_offset: int
    next_offset: int
    lineage: tuple[tuple[int, int], ...]
    producers: dict[str, ProducerEntry]
    """Producer state after this file, of the whole partition."""
    min_timestamp_us: int
    """0 when no record has a timestamp."""
    max_timestamp_us: int
    max_timestamp_offset: int | None
    """The first offset that has the largest timestamp; None when no record has one."""
    records: int
    uncompressed_bytes: int
    created_ms: int
    writer_version: int = WRITER_VERSION
    batch_id: str = ""
    """Metadata log only: a digest of lineage and records, for a batch is read in one request and checked whole."""

    @property
    def latest_ms(self) -> int:
        """The largest timestamp in milliseconds, rounded up; where no record has one, when the file was made."""
        return self.created_ms if self.max_timestamp_offset is None else -(-self.max_timestamp_us // 1000)


def checksum_at(footer: bytearray | memoryview) -> int:
    """Where in Parquet's footer the checksums stand; a string is its length and its bytes."""
    text = bytes(footer)
    key = bytes([len(CHECKSUM_KEY)]) + CHECKSUM_KEY
    found = text.rfind(key)
    if found < 0:
        raise ValueError("the footer has no checksum")
    return found + len(key) + 2
