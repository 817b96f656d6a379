"""The footer of a data file: the log's own part, and the checksums next to it.

The footer has the data that listings lack: the end of an append, the producer state after the file, the lineage
under which the file was written, and the largest timestamp. The log's own part is JSON under the key
``log.segment`` of Parquet's footer.

Every byte has a checksum. Pages have Parquet's own checksums, by which readers find damage. The log's checksums,
under the key ``log.segment.crc``, cover the Parquet footer and all bytes before it: a copy decodes nothing, and
compares the checksum of the copied bytes with ``file_crc32``, which is in the last bytes of the file. The page
index has its own checksum, for readers that use it to skip pages and read little else (``check_tail``).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from isal import isal_zlib

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.numbers import Epoch, Int64, Natural
from stratalog.partitions.producer_changes import ProducerPart
from stratalog.partitions.producers import ProducerEntry, plain
from stratalog.partitions.removal import Rule
from stratalog.partitions.segments.parquet_footer import MAGIC, SUFFIX_BYTES, footer_start
from stratalog.partitions.store.protocol import Readable, StoredObject
from stratalog.partitions.store.reader import read_range

FOOTER_KEY = b"log.segment"
CHECKSUM_KEY = b"log.segment.crc"
WRITER_VERSION = 1
MOST_JSON_BYTES = 16 * 1024 * 1024
"""The maximum size of the log's own footer: 100,000 producers."""
NO_CHECKSUM = b"0" * 8  # CRC-32, hexadecimal; the footer's CRC is computed with these digits in its place
# CRC of the footer, CRC of all bytes before it, start of the page index (16 digits), CRC of the page index.
NO_CHECKSUMS = NO_CHECKSUM * 5


class TransactionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a transaction in an append: records, or its end (a marker)."""

    producer_id: str
    producer_epoch: Int64
    """The producer epoch; for a marker, the raised epoch."""
    control: Int64 | None = None
    """For a marker: ``records.ABORT`` or ``records.COMMIT``; None for records."""
    first_offset: Int64 | None = None
    """For a marker: the start of the transaction that it ended in this partition; None if none was open."""


class SegmentFooter(msgspec.Struct, frozen=True, kw_only=True):
    """The log's description of a data file with the offsets ``[base_offset, next_offset)``, at least one."""

    topic_id: str
    partition: Int64
    base_offset: Natural
    next_offset: Natural
    lineage: tuple[tuple[Epoch, Natural], ...]
    producers: dict[str, ProducerEntry | None]
    """The producer state of the partition after this file; or only the producers touched since
    ``producers_since``, with None for dropped producers (``producer_changes``).
    """
    min_timestamp_us: Int64
    """The smallest timestamp, and ``max_timestamp_us`` the largest; both 0 when no record has a timestamp."""
    max_timestamp_us: Int64
    max_timestamp_offset: Int64 | None
    """The first offset with the largest timestamp; None if no record has one."""
    records: Natural
    uncompressed_bytes: Natural
    created_ms: Int64
    writer_version: int = WRITER_VERSION
    batch_id: str = ""
    """Only in the metadata log: a digest of lineage and records, because a batch is read by one request and
    checked as a whole.
    """
    transaction: TransactionPart | None = None
    """Set for an append in a transaction, and for a marker. None for other files; in merged segments, each record
    has its outcome.
    """
    last_transactional_offset: Int64 | None = None
    """The base offset of the last append up to this file's end that is transactional or has gaps
    (``records.GAP``); None if there is none.
    """
    markers: tuple[TransactionPart, ...] = ()
    """In a merged segment: its markers that end transactions that began before the segment."""
    first_created_ms: Int64 | None = None
    """In a merged segment: the creation time of its first append; None: ``created_ms``."""
    producers_since: Natural | None = None
    """The offset since which ``producers`` has the changes; at most ``base_offset``. None if ``producers`` is the
    complete state.
    """

    rule: Rule | None = None
    """In a segment from which records were removed: the rule that it follows (``partitions.removal``)."""
    gaps: Natural | None = None
    """With a rule: the number of offsets without a record."""

    @property
    def producer_part(self) -> ProducerPart:
        """The part of the producer state in this footer."""
        return ProducerPart(self.producers, self.producers_since)

    @property
    def may_hold_control(self) -> bool:
        """Whether rows of the file may have a ``control``; for a transactional append ``transaction`` describes
        them.
        """
        return self.last_transactional_offset is not None and self.last_transactional_offset >= self.base_offset

    @property
    def oldest_ms(self) -> int:
        """The creation time of the file's first append."""
        return self.created_ms if self.first_created_ms is None else self.first_created_ms

    @property
    def latest_ms(self) -> int:
        """The largest timestamp in milliseconds, rounded up; the creation time of the file if no record has
        one.
        """
        return self.created_ms if self.max_timestamp_offset is None else -(-self.max_timestamp_us // 1000)


_OPTIONAL = (
    *("transaction", "last_transactional_offset", "markers", "first_created_ms", "producers_since"),
    *("rule", "gaps"),
)


def encode_footer(footer: SegmentFooter) -> bytes:
    """The footer as JSON; default fields are left out."""
    fields = msgspec.structs.asdict(footer) | {"producers": plain(footer.producers)}
    return msgspec.json.encode(
        {name: v for name, v in fields.items() if v not in (None, ()) or name not in _OPTIONAL}
    )


def decode_footer(data: bytes) -> SegmentFooter:
    """Parse a footer. Raises: ValueError for bytes that are not a footer (the caller knows which file to name)."""
    if len(data) > MOST_JSON_BYTES:
        raise ValueError(f"it has {len(data)} bytes, more than {MOST_JSON_BYTES}")
    footer = parse_json(data, SegmentFooter)
    if footer.producers_since is None:
        if None in footer.producers.values():
            raise ValueError("its producer state is marked complete, but lacks some producers")
    elif footer.producers_since > footer.base_offset:
        raise ValueError(f"its producers refer to offset {footer.producers_since}, after its own start")
    return footer


def checksum_at(footer: bytearray | memoryview) -> int:
    """The position of the checksums in the Parquet footer. Raises: ValueError for a footer without them."""
    try:
        return value_at(footer, CHECKSUM_KEY)
    except ValueError as error:
        raise ValueError("the footer has no checksum") from error


def value_at(footer: bytes | bytearray | memoryview, key: bytes) -> int:
    """The position of a key's value in the Parquet footer. Key and value have less than 128 bytes each, and a
    string is stored as its length and its bytes. Raises: ValueError without the key.
    """
    return bytes(footer).rindex(bytes([len(key)]) + key) + 1 + len(key) + 2


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksum of the bytes before the Parquet footer, from that footer."""

    body_crc32: int
    """The CRC-32 of all bytes before the Parquet footer."""
    index_start: int
    """The start of the page index, which ends at the footer."""
    index_crc32: int


def checksums_of(raw: bytes, what: str) -> Checksums:
    """The checksums in a data file's Parquet footer as stored; ``what`` names the file in errors.

    Raises: CorruptSegmentError when the footer does not match its own stated checksum.
    """
    footer = bytearray(raw)
    try:
        at = checksum_at(footer)
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: {error}") from error
    stated = bytes(footer[at : at + len(NO_CHECKSUMS)])
    footer[at : at + len(NO_CHECKSUM)] = NO_CHECKSUM
    if stated[:8] != b"%08x" % isal_zlib.crc32(footer):
        raise CorruptSegmentError(f"{what}: its Parquet footer is damaged: the checksum differs")
    try:
        return Checksums(int(stated[8:16], 16), int(stated[16:32], 16), int(stated[32:], 16))
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: its footer states checksums that cannot be read: {error}") from error


def file_crc32(end: bytes | memoryview, body_crc32: int) -> int:
    """The CRC-32 of a complete file, combined from two parts: the CRC-32 of all bytes before the Parquet footer,
    which the footer states, and the CRC-32 of ``end``, the footer and everything after it.
    """
    return isal_zlib.crc32(end, body_crc32)


_TAIL_BYTES = 64 * 1024
"""The size of the first read, which covers the tail of most files."""
_PIECE_BYTES = 8 * 1024 * 1024


def check_tail(store: Readable, stored: StoredObject) -> None:
    """Compare the page index and Parquet footer with their checksums, by one ranged read of the file's end, or up
    to three if they are large.

    Readers such as Spark check pages but trust the rest: a wrong statistic would make them skip row groups, and a
    wrong name would make a column null.

    Raises: CorruptSegmentError; SourceChangedError when the file is gone, or was replaced; StorageError kinds.
    """
    what, size = store.uri_of(stored.name), stored.size_bytes
    try:
        with store.open(stored) as source:
            begin = max(0, size - _TAIL_BYTES)
            tail = read_range(source, begin, size, what)
            footer_at = footer_start(tail, size)
            if footer_at < begin:
                begin, tail = footer_at, read_range(source, footer_at, size, what)
            stated = checksums_of(tail[footer_at - begin : -SUFFIX_BYTES], what)
            index_at = stated.index_start
            if not len(MAGIC) <= index_at <= footer_at:
                raise CorruptSegmentError(f"{what}: its footer places the page index outside the file")
            crc32 = 0
            for start in range(index_at, begin, _PIECE_BYTES):
                piece = read_range(source, start, min(start + _PIECE_BYTES, begin), what)
                crc32 = isal_zlib.crc32(piece, crc32)
            crc32 = isal_zlib.crc32(tail[max(0, index_at - begin) : footer_at - begin], crc32)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} has been deleted since it was listed") from error
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: {error}") from error
    if stated.index_crc32 != crc32:
        raise CorruptSegmentError(f"{what}: its page index is damaged: the checksum differs")
