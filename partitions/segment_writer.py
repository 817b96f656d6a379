"""Writing a data file: Parquet, in one streaming pass, memory bounded by one row group."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import isal_zlib

from partitions.errors import InvalidCallError
from partitions.lineage import Lineage
from partitions.producers import ProducerEntry
from partitions.records import leaf_types
from partitions.segment_footer import (
    CHECKSUM_KEY,
    FOOTER_KEY,
    NO_CHECKSUMS,
    SUFFIX_BYTES,
    SegmentFooter,
    TransactionPart,
    checksum_at,
    decode_footer,
    encode_footer,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ROW_GROUP_BYTES = 64 * 1024 * 1024
PAGE_ROWS = 2048
"""At most, of every column: a reader of a range skips pages by their offsets, and reads at least one of each."""


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
            max_rows_per_page=PAGE_ROWS,
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
        transaction: TransactionPart | None = None,
        last_transactional_offset: int | None = None,
        markers: tuple[TransactionPart, ...] = (),
        metadata: Callable[[], Mapping[bytes, bytes]] = dict,
    ) -> SegmentFooter:
        """Finish the file; the sink stays open.

        ``producers`` gives the producer state for the file's next offset. ``metadata`` is more for the Parquet
        footer, under its checksum; it is asked for when every record's bytes are in the sink.

        Raises: ValueError when no record was written; InvalidCallError for a footer that could not be read again,
            since one of its numbers is none.
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
            transaction=transaction,
            last_transactional_offset=last_transactional_offset,
            markers=markers,
        )
        encoded = _encoded(footer)
        self._writer.add_key_value_metadata({**metadata(), FOOTER_KEY: encoded, CHECKSUM_KEY: NO_CHECKSUMS})
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


def _encoded(footer: SegmentFooter) -> bytes:
    """Raises: InvalidCallError unless it would be read again as it is."""
    try:
        encoded = encode_footer(footer)
        if decode_footer(encoded) == footer:
            return encoded
        why = "it would be read as another one"
    except (TypeError, ValueError) as error:
        why = str(error)
    raise InvalidCallError(
        f"partition {footer.partition} of topic {footer.topic_id}: the footer of offsets [{footer.base_offset}, "
        f"{footer.next_offset}) could not be read again: {why}; nothing was written"
    )


class _CheckedTail(io.RawIOBase):
    """Passes bytes on to a sink, and takes their checksum on the way; what comes after ``hold`` (the page index
    and Parquet's footer) waits for the checksums, which stand inside the footer itself.
    """

    def __init__(self, sink: BinaryIO) -> None:
        super().__init__()
        self._sink = sink
        self._passed_bytes = 0
        self._passed_crc32 = 0
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
            self._passed_crc32 = isal_zlib.crc32(view, self._passed_crc32)
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
        footer_at = len(tail) - SUFFIX_BYTES - int.from_bytes(tail[-SUFFIX_BYTES:-4], "little")
        footer = memoryview(tail)[footer_at:-SUFFIX_BYTES]
        at = checksum_at(footer)
        body_crc32 = isal_zlib.crc32(memoryview(tail)[:footer_at], self._passed_crc32)
        index_crc32 = isal_zlib.crc32(memoryview(tail)[:footer_at])
        stated = b"%08x%016x%08x" % (body_crc32, self._passed_bytes, index_crc32)
        footer[at + 8 : at + len(NO_CHECKSUMS)] = stated
        footer[at : at + 8] = b"%08x" % isal_zlib.crc32(footer)
        self._sink.write(tail)
