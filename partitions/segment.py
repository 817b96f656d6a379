"""A data file: Parquet with the log's own footer under the key ``log.segment``.

Written in one streaming pass (memory bounded by one row group), never changed. The footer tells what
listings cannot: the end of an append, the producer state after the file, the lineage it was written
under, the largest timestamp. Row groups keep Parquet's statistics and page index, pages a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partitions.errors import CorruptSegmentError, SourceChangedError
from partitions.lineage import Lineage
from partitions.listing import DataFile
from partitions.producers import ProducerEntry
from partitions.records import leaf_paths
from partitions.store.protocol import Store, StoredObject

FOOTER_KEY = b"log.segment"
WRITER_VERSION = 1
ROW_GROUP_BYTES = 64 * 1024 * 1024
_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"


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
    max_timestamp_us: int
    max_timestamp_offset: int
    """The first offset that has the largest timestamp."""
    records: int
    uncompressed_bytes: int
    created_ms: int
    writer_version: int = WRITER_VERSION
    batch_id: str = ""
    """Metadata log only: the id of the batch, by which a retried commit is recognised."""


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
        # Dictionaries pay for keys and typed fields; opaque values and unique offsets only waste the try.
        opaque = {"offset", "value"} if pa.types.is_binary(schema.field("value").type) else {"offset"}
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression="none" if compression == "uncompressed" else compression,
            use_dictionary=[path for path in leaf_paths(schema) if path not in opaque],
            column_encoding={"offset": "DELTA_BINARY_PACKED"},
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._min_timestamp_us: int | None = None
        self._max_timestamp_us = 0
        self._max_timestamp_offset = base_offset
        self._uncompressed_bytes = 0
        self.next_offset = base_offset
        """The offset after the last record written so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of ``batch``."""
        if batch.num_rows == 0:
            return
        self._note_timestamps(batch.column("timestamp"))
        batch = self._complete(batch)
        self.next_offset += batch.num_rows
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= self._row_group_bytes:
            self._flush()

    def close(
        self,
        *,
        lineage: Lineage,
        producers: Callable[[int], dict[str, ProducerEntry]],
        created_ms: int,
        batch_id: str = "",
    ) -> SegmentFooter:
        """Finish the file; the sink stays open.

        ``producers`` gives the producer state for the file's next offset. At least one record must
        have been written.
        """
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
        self._writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer)})
        self._writer.close()
        return footer

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
            "offset": pa.array(range(self.next_offset, self.next_offset + rows), pa.int64()),
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


def read_segment(store: Store, file: DataFile) -> Segment:
    """The footers of a data file, by one ranged read of its end in the common case.

    Raises: CorruptSegmentError for a truncated or foreign file, a missing footer, or one that does
        not fit the file's name; SourceChangedError when the file is gone.
    """
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
    except msgspec.DecodeError as error:
        raise CorruptSegmentError(f"{what}: the footer log.segment cannot be read: {error}") from error
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
    if stored.size_bytes < 12:
        raise CorruptSegmentError(f"{what} has {stored.size_bytes} bytes: truncated, no Parquet file")
    try:
        tail = store.read(stored.name, -min(_TAIL_BYTES, stored.size_bytes))
        if tail[-4:] != _MAGIC:
            raise CorruptSegmentError(f"{what} does not end as a Parquet file: truncated, or foreign")
        needed = int.from_bytes(tail[-8:-4], "little") + 8
        if needed > stored.size_bytes:
            raise CorruptSegmentError(f"{what}: its Parquet footer is longer than the file")
        if needed > len(tail):
            tail = store.read(stored.name, -needed)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    try:
        return pq.read_metadata(pa.BufferReader(tail))
    except (pa.ArrowException, OSError) as error:
        raise CorruptSegmentError(f"{what}: its Parquet footer cannot be read: {error}") from error


def read_batches(
    store: Store, file: DataFile, start: int, end: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records with offsets ``[start, end)`` of a data file, row group by row group, checksums
    verified; row groups that hold none of them are not read.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    what = store.uri_of(file.object.name)
    try:
        with store.open(file.object) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            first = file.name.base_offset
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if first < end and first + rows > start:
                    table = parquet.read_row_group(group, columns=columns)
                    table = table.slice(max(start - first, 0), min(end, first + rows) - max(start, first))
                    yield from table.to_batches()
                first += rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise SourceChangedError(f"{what} was deleted since it was listed") from error
        raise CorruptSegmentError(f"{what} cannot be read: {error}") from error
