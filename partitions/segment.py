"""A data file: Parquet with the log's own footer under the key ``log.segment``.

Written in one streaming pass (memory bounded by one row group), never changed. The footer tells what
listings cannot: the end of an append, the producer state after the file, the lineage it was written
under, the largest timestamp. Row groups keep Parquet's statistics and page index.

Every byte that decides what a reader sees has a checksum: pages Parquet's own; Parquet's footer and the
page index, for which Parquet has none, ours, under the key ``log.segment.crc``.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partitions.errors import CorruptSegmentError, SourceChangedError
from partitions.lineage import Lineage
from partitions.listing import DataFile
from partitions.producers import ProducerEntry
from partitions.records import leaf_types
from partitions.store.protocol import Store, StoredObject

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FOOTER_KEY = b"log.segment"
CHECKSUM_KEY = b"log.segment.crc"
WRITER_VERSION = 1
ROW_GROUP_BYTES = 64 * 1024 * 1024
_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"
_SUFFIX_BYTES = 8  # the length of Parquet's footer, and the magic
_NO_CHECKSUM = b"0" * 8  # CRC-32, hexadecimal; that of the footer is taken with these digits in its place
_NO_CHECKSUMS = _NO_CHECKSUM * 4  # of the footer, of the page index, and (16 digits) where that starts


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


@dataclass(frozen=True, slots=True)
class Segment:
    """A data file that was looked into: its footer and Parquet's own."""

    file: DataFile
    footer: SegmentFooter
    parquet: pq.FileMetaData


class SegmentWriter:
    """Writes one data file into ``sink``.

    Batches carry the record columns of ``partitions.records`` (and, where given, ``producer_id`` and
    ``control``); partition and offsets are added here, from ``base_offset`` on, in order of arrival.
    """

    def __init__(
        self,
        sink: BinaryIO,
        schema: pa.Schema,
        *,
        topic_id: str,
        partition: int,
        base_offset: int,
        compression: str = "zstd",
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self._schema = schema
        self._topic_id = topic_id
        self._partition = partition
        self._base_offset = base_offset
        self._row_group_bytes = row_group_bytes
        self._sink = _CheckedTail(sink)
        leaves = leaf_types(schema)
        # Dictionaries pay for keys and typed fields; for opaque values they only waste the try. Offsets and
        # timestamps ascend: their differences are small.
        plain = {"value"} if pa.types.is_binary(schema.field("value").type) else set()
        ascending = {"offset", "timestamp"}
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="none" if compression == "uncompressed" else compression,
            use_dictionary=[path for path in leaves if path not in plain | ascending],
            column_encoding=dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
            # Parquet's bounds leave NaN out, Spark counts it as the greatest number: it would skip such rows.
            write_statistics=[path for path, leaf in leaves.items() if not pa.types.is_floating(leaf)],
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._min_timestamp_us: int | None = None
        self._max_timestamp_us = 0
        self._max_timestamp_offset: int | None = None
        self._uncompressed_bytes = 0
        self.next_offset = base_offset
        """The offset after the last record written so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of ``batch``; a batch larger than a row group becomes several."""
        if batch.num_rows == 0:
            return
        batch = self._complete(batch)
        self._note_timestamps(batch.column("timestamp"))
        self.next_offset += batch.num_rows
        pieces = -(-batch.nbytes // self._row_group_bytes)
        rows = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, rows):
            self._add(batch.slice(start, rows))

    def _add(self, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        if self._pending_bytes + size > self._row_group_bytes:
            self._flush()
        self._pending.append(batch)
        self._pending_bytes += size

    def close(
        self,
        *,
        lineage: Lineage,
        producers: Callable[[int], dict[str, ProducerEntry]],
        created_ms: int,
        batch_id: str = "",
    ) -> SegmentFooter:
        """Finish the file; the sink stays open.

        ``producers`` gives the producer state for the file's next offset.

        Raises: ValueError when no record was written.
        """
        if self.next_offset == self._base_offset:
            raise ValueError("a segment holds at least one record")
        self._flush()
        footer = SegmentFooter(
            topic_id=self._topic_id,
            partition=self._partition,
            base_offset=self._base_offset,
            next_offset=self.next_offset,
            lineage=tuple((entry.epoch, entry.start_offset) for entry in lineage),
            producers=producers(self.next_offset),
            min_timestamp_us=self._min_timestamp_us or 0,
            max_timestamp_us=self._max_timestamp_us,
            max_timestamp_offset=self._max_timestamp_offset,
            records=self.next_offset - self._base_offset,
            uncompressed_bytes=self._uncompressed_bytes,
            created_ms=created_ms,
            batch_id=batch_id,
        )
        encoded = msgspec.json.encode(footer)
        self._writer.add_key_value_metadata({FOOTER_KEY: encoded, CHECKSUM_KEY: _NO_CHECKSUMS})
        self._sink.hold()
        self._writer.close()
        self._sink.release()
        return footer

    def abort(self) -> None:
        """Give up: what was written so far is no file, and no more is written. Harmless after ``close``."""
        self._sink.drop()
        self._writer.close()

    def _note_timestamps(self, timestamps: pa.Array) -> None:
        micros = timestamps.cast(pa.int64())
        bounds = pc.min_max(micros).as_py()
        smallest, largest = bounds["min"], bounds["max"]
        if largest is None:
            return
        if self._min_timestamp_us is None or largest > self._max_timestamp_us:
            self._max_timestamp_us = largest
            self._max_timestamp_offset = self.next_offset + pc.index(micros, largest).as_py()
        if self._min_timestamp_us is None or smallest < self._min_timestamp_us:
            self._min_timestamp_us = smallest

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        added = {
            "partition": pa.repeat(pa.scalar(self._partition, pa.int32()), rows),
            "offset": pa.arange(self.next_offset, self.next_offset + rows),
        }
        columns = []
        for field in self._schema:
            if field.name in added:
                columns.append(added[field.name])
            elif (index := batch.schema.get_field_index(field.name)) >= 0:
                column = batch.column(index)
                columns.append(column if column.type == field.type else column.cast(field.type))
            else:
                columns.append(pa.nulls(rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _flush(self) -> None:
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, schema=self._schema)
        self._pending, self._pending_bytes = [], 0
        self._uncompressed_bytes += table.nbytes
        self._writer.write_table(table, row_group_size=table.num_rows)


class _CheckedTail(io.RawIOBase):
    """Passes bytes on to a sink; what comes after ``hold`` (the page index and Parquet's footer) waits
    for its checksums, which stand inside the footer itself.
    """

    def __init__(self, sink: BinaryIO) -> None:
        super().__init__()
        self._sink = sink
        self._passed_bytes = 0
        self._held: list[bytes] | None = None
        self._dropped = False

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        if self._dropped:
            return view.nbytes
        if self._held is None:
            self._sink.write(view)
            self._passed_bytes += view.nbytes
        else:
            self._held.append(bytes(view))
        return view.nbytes

    def drop(self) -> None:
        """The sink is not to be touched any more: it may be closed already."""
        self._dropped = True

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        tail = bytearray(b"".join(self._held or ()))
        footer_at = len(tail) - _SUFFIX_BYTES - int.from_bytes(tail[-_SUFFIX_BYTES:-4], "little")
        footer = memoryview(tail)[footer_at:-_SUFFIX_BYTES]
        at = _checksum_at(footer)
        index_crc = zlib.crc32(memoryview(tail)[:footer_at])
        footer[at + 8 : at + len(_NO_CHECKSUMS)] = b"%08x%016x" % (index_crc, self._passed_bytes)
        footer[at : at + 8] = b"%08x" % zlib.crc32(footer)
        self._sink.write(tail)


def _checksum_at(footer: bytearray | memoryview) -> int:
    """Where in Parquet's footer the checksums stand; a string is its length and its bytes."""
    text = bytes(footer)
    key = bytes([len(CHECKSUM_KEY)]) + CHECKSUM_KEY
    found = text.rfind(key)
    if found < 0:
        raise ValueError("the footer has no checksum")
    return found + len(key) + 2


def read_segment(store: Store, file: DataFile) -> Segment:
    """The footers of a data file, by one ranged read of its end in the common case.

    Raises: CorruptSegmentError for a truncated or foreign file, a missing footer, or one that does
        not fit the file's name; SourceChangedError when the file is gone.
    """
    if not file.object.version:  # nothing tells the object from another of its name: look every time
        return _read_segment.__wrapped__(store, file)
    return _read_segment(store, file)


@lru_cache(maxsize=8192)  # files are written once, and the key holds the object's version
def _read_segment(store: Store, file: DataFile) -> Segment:
    what = store.uri_of(file.object.name)
    parquet = _read_parquet_footer(store, file.object, what)
    raw = (parquet.metadata or {}).get(FOOTER_KEY)
    if raw is None:
        raise CorruptSegmentError(f"{what} is Parquet, but no segment of a log: its footer lacks log.segment")
    try:
        footer = msgspec.json.decode(raw, type=SegmentFooter)
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: the footer log.segment cannot be read: {error}") from error
    if footer.records < 1:
        raise CorruptSegmentError(f"{what}: its footer says {footer.records} records; no segment is empty")
    name = file.name
    if footer.base_offset != name.base_offset or name.next_offset not in (None, footer.next_offset):
        raise CorruptSegmentError(
            f"{what}: its footer says offsets [{footer.base_offset}, {footer.next_offset}), its name does not"
        )
    if footer.records != parquet.num_rows or footer.records != footer.next_offset - footer.base_offset:
        raise CorruptSegmentError(
            f"{what}: {parquet.num_rows} rows, but its footer says {footer.records} records for offsets "
            f"[{footer.base_offset}, {footer.next_offset})"
        )
    return Segment(file, footer, parquet)


def _read_parquet_footer(store: Store, stored: StoredObject, what: str) -> pq.FileMetaData:
    if stored.size_bytes < len(_MAGIC) + _SUFFIX_BYTES:
        raise CorruptSegmentError(f"{what} has {stored.size_bytes} bytes: truncated, no Parquet file")
    with _translated(what), store.open(stored) as source:

        def tail_of(size_bytes: int) -> bytes:
            source.seek(stored.size_bytes - size_bytes)
            return source.read(size_bytes)

        tail = tail_of(min(_TAIL_BYTES, stored.size_bytes))
        whole = len(tail) == stored.size_bytes
        if tail[-4:] != _MAGIC or (whole and tail[:4] != _MAGIC):
            raise CorruptSegmentError(f"{what} does not begin and end as a Parquet file: truncated, or foreign")
        needed = int.from_bytes(tail[-_SUFFIX_BYTES:-4], "little") + _SUFFIX_BYTES
        if needed > stored.size_bytes:
            raise CorruptSegmentError(f"{what}: its Parquet footer is longer than the file")
        if needed > len(tail):
            tail = tail_of(needed)
        parquet = pq.read_metadata(pa.BufferReader(tail))
    _check_footer(parquet, tail[-needed:-_SUFFIX_BYTES], what)
    return parquet


def _check_footer(parquet: pq.FileMetaData, raw: bytes, what: str) -> None:
    """Raises: CorruptSegmentError when Parquet's footer, as stored, has not the checksum it says."""
    if FOOTER_KEY not in (parquet.metadata or {}):
        raise CorruptSegmentError(f"{what} is Parquet, but no segment of a log: its footer lacks log.segment")
    stated = parquet.metadata.get(CHECKSUM_KEY, b"")[:8]
    footer = bytearray(raw)
    try:
        at = _checksum_at(footer)
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: {error}") from error
    footer[at : at + len(_NO_CHECKSUM)] = _NO_CHECKSUM
    if stated != b"%08x" % zlib.crc32(footer):
        raise CorruptSegmentError(f"{what}: its Parquet footer is damaged, the checksum differs")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Arrow's complaints about the content of a file, in our words; the store's own errors pass."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptSegmentError(f"{what} cannot be read: {error}") from error


def read_row_groups(
    store: Store,
    file: DataFile,
    start: int,
    end: int,
    columns: list[str] | None = None,
    wanted: Callable[[pq.RowGroupMetaData], bool] = lambda _: True,
) -> Iterator[tuple[int, pa.Table]]:
    """``(first offset, records)`` of the part of each row group with offsets ``[start, end)``, checksums
    verified; row groups that hold none of them, or are not ``wanted``, are not read.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    metadata = read_segment(store, file).parquet
    what = store.uri_of(file.object.name)
    with _translated(what), store.open(file.object) as source:
        parquet = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True, pre_buffer=False)
        first = file.name.base_offset
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            low, high = max(start, first), min(end, first + group.num_rows)
            if low < high and wanted(group):
                table = parquet.read_row_group(index, columns=columns)
                if table.num_rows != group.num_rows:
                    raise CorruptSegmentError(
                        f"{what}: row group {index} has {table.num_rows} records, not {group.num_rows}"
                    )
                yield low, table.slice(low - first, high - low)
            first += group.num_rows


def read_batches(
    store: Store, file: DataFile, start: int, end: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records with offsets ``[start, end)`` of a data file, row group by row group.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    for _, table in read_row_groups(store, file, start, end, columns):
        yield from table.to_batches()


def verify_segment(store: Store, file: DataFile) -> Segment:
    """Read all of a data file and compare every checksum: footers, page index, pages, offsets.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    segment = read_segment(store, file)
    what = store.uri_of(file.object.name)
    stated = segment.parquet.metadata[CHECKSUM_KEY]
    index_crc, index_at = stated[8:16], int(stated[16:], 16)
    footer_bytes = segment.parquet.serialized_size + _SUFFIX_BYTES
    with _translated(what), store.open(file.object) as source:
        if source.read(len(_MAGIC)) != _MAGIC:
            raise CorruptSegmentError(f"{what} does not begin as a Parquet file")
        source.seek(index_at)
        index = source.read(file.object.size_bytes - footer_bytes - index_at)
        if index_crc != b"%08x" % zlib.crc32(index):
            raise CorruptSegmentError(f"{what}: its page index is damaged, the checksum differs")
    name = file.name
    for first, table in read_row_groups(store, file, name.base_offset, segment.footer.next_offset):
        offsets = table.column("offset")
        if offsets.null_count or not offsets.combine_chunks().equals(pa.arange(first, first + table.num_rows)):
            raise CorruptSegmentError(f"{what}: the records from offset {first} on have other offsets")
    return segment
