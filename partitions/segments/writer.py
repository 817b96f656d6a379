"""Writes a data file: Parquet, in one streaming pass, with the memory of two row groups.

The same records give the same bytes, in whatever batches they arrive, so a merge of a range does not depend on the
files that hold the range.

The writer produces nothing that readers refuse (``parquet_footer``, ``parquet_pages``): no record that is too
large, no row group beyond the readers' memory, no unbounded footer.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import isal_zlib

from stratalog.partitions.columns import constant, numbers, scalar
from stratalog.partitions.errors import InvalidCallError, RecordTooLargeError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.producer_changes import ProducerPart, whole
from stratalog.partitions.producers import ProducerState
from stratalog.partitions.records import cast, leaf_types
from stratalog.partitions.removal import Rule
from stratalog.partitions.segments.footer import (
    CHECKSUM_KEY,
    FOOTER_KEY,
    MOST_JSON_BYTES,
    NO_CHECKSUMS,
    SegmentFooter,
    TransactionPart,
    checksum_at,
    decode_footer,
    encode_footer,
)
from stratalog.partitions.segments.parquet_footer import MOST_CHUNKS, MOST_GROUP_BYTES, SUFFIX_BYTES, footer_start
from stratalog.partitions.segments.parquet_pages import LEVELS_BYTES
from stratalog.partitions.segments.signature import NO_TAG, TAG_KEY, tag_at, without_tag

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ROW_GROUP_BYTES = 64 * 1024 * 1024
MOST_RECORD_BYTES = MOST_GROUP_BYTES // 2
"""The maximum size in memory of a record, and of a row group."""
DICTIONARY_BYTES = 256 * 1024
"""The maximum size of a column's dictionary in a row group. When a column has more distinct values, the remaining
values are stored without a dictionary. The values before them take a tenth more space than without a dictionary.
"""
PAGE_ROWS = 2048
"""The maximum number of rows of a page: a reader of a range skips pages by their offsets, and reads at least one
page of each column.
"""
_PAGES = {"max_rows_per_page": PAGE_ROWS} if int(pa.__version__.split(".")[0]) >= 23 else {}
"""Before version 23, Arrow cannot bound the rows of pages: they have up to 1 MiB, and readers of a range read
more."""

_BUFFER_BYTES = 64 * 1024
"""Arrow writes a small file in 50 pieces. Each piece would cost a call into Python, and in a thread also a wait
for the GIL.
"""
_WRITE_BATCH_ROWS = 1024
"""The number of rows after which Arrow's writer checks whether a page is full."""

_OFFSET, _OFFSET_BITS = Struct("<i"), 32
"""The offsets to the start of a value's bytes or of a list's elements: their format, and their number of bits."""

Sign = Callable[[bytes], str]
"""Computes the tag of a file from the SHA-256 of the file without its tag."""


class SegmentWriter:
    """Writes one data file into ``sink``.

    Batches have the record columns of ``stratalog.partitions.records`` (and optionally ``producer_id`` and
    ``control``). The writer adds the partition, and offsets starting at ``base_offset``, in order of arrival.
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
        sign: Sign | None = None,
    ) -> None:
        """``sign``: sign the file with a tag (``signature``)."""
        self._schema = schema
        self._topic_id = topic_id
        self._partition = partition
        self._base_offset = base_offset
        self._row_group_bits = 8 * min(row_group_bytes, MOST_RECORD_BYTES)
        self._signed = sign is not None
        self._sink = _CheckedTail(sink, sign)
        self._buffer = pa.output_stream(self._sink, buffer_size=_BUFFER_BYTES)
        leaves = leaf_types(schema)
        self._leaves, self._chunks = len(leaves), 0
        # Dictionaries pay off for keys and typed fields, but not for opaque values. Offsets and timestamps ascend,
        # so their differences are small and are stored instead.
        plain = {"value"} if pa.types.is_binary(schema.field("value").type) else set()
        ascending = {"offset", "timestamp"}
        self._writer = pq.ParquetWriter(
            self._buffer,
            schema,
            compression="none" if compression == "uncompressed" else compression,
            use_dictionary=[path for path in leaves if path not in plain | ascending],
            dictionary_pagesize_limit=DICTIONARY_BYTES,
            column_encoding=dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
            # Parquet's bounds omit NaN, but Spark orders NaN above all numbers. With bounds, Spark would skip such
            # rows.
            write_statistics=[path for path, leaf in leaves.items() if not pa.types.is_floating(leaf)],
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
            write_batch_size=_WRITE_BATCH_ROWS,
            **_PAGES,
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bits = 0
        self._bits = 0
        self._min_timestamp_us: int | None = None
        self._max_timestamp_us = 0
        self._max_timestamp_offset: int | None = None
        self.next_offset = base_offset
        """The offset after the last record written so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of ``batch``; a batch larger than a row group becomes several.

        Raises: RecordTooLargeError for a record of more than ``MOST_RECORD_BYTES``. In that case, no file is
        written.
        """
        if batch.num_rows == 0:
            return
        batch = self._complete(batch)
        self._note_timestamps(batch.column("timestamp"))
        self.next_offset += batch.num_rows
        self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        """Add records; a row group ends where the next record does not fit, not where a batch ends."""
        while batch.num_rows:
            rows, bits = self._fitting(batch)
            if rows:
                self._pending.append(batch.slice(0, rows))
                self._pending_bits += bits
                self._bits += bits
            if rows < batch.num_rows:
                self._flush()
            batch = batch.slice(rows)

    def _fitting(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """The number of these records that still fit into the row group, and their size in bits. An oversized
        record gets its own group.
        """

        def bits(rows: int) -> int:
            return _bits(batch.slice(0, rows))

        room, size = self._row_group_bits - self._pending_bits, _bits(batch)
        if size <= room:
            return batch.num_rows, size
        rows = bisect_right(range(1, batch.num_rows), room, key=bits)
        if rows or self._pending:
            return rows, bits(rows)
        if (size := bits(1)) > 8 * MOST_RECORD_BYTES:
            raise RecordTooLargeError(
                f"partition {self._partition} of topic {self._topic_id}: a record takes {-(-size // 8)} bytes, "
                f"more than the {MOST_RECORD_BYTES} that readers can hold: store the value outside the log, "
                "and only its address in the log; nothing was appended"
            )
        return 1, size

    def close(
        self,
        *,
        lineage: Lineage,
        producers: Callable[[int], ProducerState],
        created_ms: int,
        batch_id: str = "",
        transaction: TransactionPart | None = None,
        last_transactional_offset: int | None = None,
        markers: tuple[TransactionPart, ...] = (),
        first_created_ms: int | None = None,
        part: Callable[[ProducerState, int], ProducerPart] = whole,
        rule: Rule | None = None,
        gaps: int | None = None,
        metadata: Callable[[], Mapping[bytes, bytes]] = dict,
    ) -> SegmentFooter:
        """Finish the file; the sink stays open.

        ``producers`` gives the producer state for the file's next offset. ``part`` gives the part of that state
        for the footer, given the number of bytes of the records. ``metadata`` is called when the bytes of all
        records are in the sink. It gives more metadata for the Parquet footer, which the footer's checksum covers.

        Raises: ValueError when no record was written; InvalidCallError for a footer that could not be read again,
        because a number has more than 64 bits, or the footer is too long.
        """
        try:
            if self.next_offset == self._base_offset:
                raise ValueError("a segment holds at least one record")
            self._flush()
            self._buffer.flush()
            held = part(producers(self.next_offset), self._sink.passed_bytes)
            footer = SegmentFooter(
                topic_id=self._topic_id,
                partition=self._partition,
                base_offset=self._base_offset,
                next_offset=self.next_offset,
                lineage=tuple((entry.epoch, entry.start_offset) for entry in lineage),
                producers=dict(held.entries),
                producers_since=held.since,
                min_timestamp_us=self._min_timestamp_us or 0,
                max_timestamp_us=self._max_timestamp_us,
                max_timestamp_offset=self._max_timestamp_offset,
                records=self.next_offset - self._base_offset,
                uncompressed_bytes=-(-self._bits // 8),
                created_ms=created_ms,
                batch_id=batch_id,
                transaction=transaction,
                last_transactional_offset=last_transactional_offset,
                markers=markers,
                first_created_ms=first_created_ms,
                rule=rule,
                gaps=gaps,
            )
            encoded = _encoded(footer)
            self._check_chunks()
            tag = {TAG_KEY: NO_TAG} if self._signed else {}
            self._writer.add_key_value_metadata(
                {**metadata(), **tag, FOOTER_KEY: encoded, CHECKSUM_KEY: NO_CHECKSUMS}
            )
            self._sink.hold()
            self._writer.close()
            self._buffer.flush()
            self._sink.release()
        except BaseException:
            self.abort()
            raise
        return footer

    def _check_chunks(self) -> None:
        if self._chunks > MOST_CHUNKS:
            raise InvalidCallError(
                f"partition {self._partition} of topic {self._topic_id}: {self._chunks} column chunks are more "
                f"than the {MOST_CHUNKS} of a segment: append fewer records at once; nothing was written"
            )

    def abort(self) -> None:
        """Stop writing: the bytes so far do not become a file. Harmless after ``close``. Without it, Arrow would
        write the rest when the garbage collector finds the writer, perhaps into a sink that is closed."""
        self._sink.drop()
        with suppress(pa.ArrowException, OSError):
            self._writer.close()

    def _note_timestamps(self, timestamps: pa.Array) -> None:
        micros = timestamps.cast(pa.int64())
        bounds = pc.min_max(micros).as_py()
        smallest, largest = bounds["min"], bounds["max"]
        if largest is None:
            return
        if self._min_timestamp_us is None or largest > self._max_timestamp_us:
            self._max_timestamp_us = largest
            self._max_timestamp_offset = self.next_offset + pc.index(micros, scalar(largest, pa.int64())).as_py()
        if self._min_timestamp_us is None or smallest < self._min_timestamp_us:
            self._min_timestamp_us = smallest

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        added = {
            "partition": constant(self._partition, pa.int32(), rows),
            "offset": numbers(self.next_offset, self.next_offset + rows),
        }
        columns = []
        for field in self._schema:
            if field.name in added:
                columns.append(added[field.name])
            elif (index := batch.schema.get_field_index(field.name)) >= 0:
                column = batch.column(index)
                columns.append(column if column.type == field.type else cast(column, field.type))
            else:
                columns.append(pa.nulls(rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _flush(self) -> None:
        if not self._pending:
            return
        # The boundaries of Parquet's pages depend on the pieces, so these must not depend on the batches.
        pieces = pa.Table.from_batches(self._pending, schema=self._schema)
        table = pa.Table.from_arrays([_regular(column) for column in pieces.columns], schema=self._schema)
        self._pending, self._pending_bits = [], 0
        self._chunks += self._leaves
        self._writer.write_table(table, row_group_size=table.num_rows)


def _regular(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in pieces that give the same pages as one piece. Arrow's writer ends pages only after a multiple
    of ``_WRITE_BATCH_ROWS`` rows of a piece. So pieces of bytes end there, and only rows around the ends of
    batches are copied. In lists the writer counts elements instead, so lists become one piece.
    """
    kind = column.type
    if column.num_chunks < 2:
        return column  # combining would copy it
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        return column.combine_chunks()
    pieces: list[pa.Array] = []
    rest: list[pa.Array] = []
    rows = 0  # of ``rest``
    for chunk in column.chunks:
        if rows:
            rest.append(chunk.slice(0, _WRITE_BATCH_ROWS - rows))
            rows += len(rest[-1])
            if rows < _WRITE_BATCH_ROWS:
                continue
            pieces.append(pa.concat_arrays(rest))
            chunk = chunk.slice(len(rest[-1]))
        whole = len(chunk) // _WRITE_BATCH_ROWS * _WRITE_BATCH_ROWS
        if whole:
            pieces.append(chunk.slice(0, whole))
        rest, rows = [chunk.slice(whole)], len(chunk) - whole
    return pa.chunked_array([*pieces, *([pa.concat_arrays(rest)] if rows else [])], kind)


def memory_bytes(batch: pa.RecordBatch) -> int:
    """The memory of records; ``parquet_pages`` computes at most twice as much for reading them."""
    return -(-_bits(batch) // 8)


def _bits(batch: pa.RecordBatch) -> int:
    """The bits of each record, summed. Independent of batching: every value counts a null bit, even in a batch
    without nulls."""
    return sum(_bits_of(column, 0, 0) for column in batch.columns)


def _bits_of(array: pa.Array, around: int, lists: int) -> int:
    """The bits of values in lists, and of the lists ``around`` them, which may be empty."""
    kind, rows = array.type, len(array)
    if pa.types.is_struct(kind):
        return rows + sum(_bits_of(child, around, lists) for child in array.flatten())
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        begin, end = _extent(array)
        below = (array.keys, array.items) if pa.types.is_map(kind) else (array.values,)
        inner = (_bits_of(values.slice(begin, end - begin), around + rows, lists + 1) for values in below)
        return (1 + _OFFSET_BITS) * rows + sum(inner)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        begin, end = _extent(array)
        bits = (1 + _OFFSET_BITS) * rows + 8 * (end - begin)
    else:
        bits = (1 + kind.bit_width) * rows
    if lists:
        levels = max(8 * LEVELS_BYTES * lists, kind.bit_width if pa.types.is_decimal(kind) else 0)
        bits += levels * (around + rows)
    return bits


def _extent(array: pa.Array) -> tuple[int, int]:
    """The start and end of the values in an array of lists, or of bytes."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return 0, 0
    (begin,), (end,) = (_OFFSET.unpack_from(offsets, 4 * (array.offset + at)) for at in (0, len(array)))
    return begin, end


def _encoded(footer: SegmentFooter) -> bytes:
    """The encoded footer. Raises: InvalidCallError if it could not be read again unchanged."""
    try:
        encoded = encode_footer(footer)
        if len(encoded) > MOST_JSON_BYTES:
            why = f"it has {len(encoded)} bytes, {len(footer.producers)} producers; let some of them expire"
        elif decode_footer(encoded) == footer:
            return encoded
        else:
            why = "it would be read back differently"
    except (TypeError, ValueError) as error:
        why = str(error)
    raise InvalidCallError(
        f"partition {footer.partition} of topic {footer.topic_id}: the footer of offsets [{footer.base_offset}, "
        f"{footer.next_offset}) could not be read back: {why}; nothing was written"
    )


class _CheckedTail(io.RawIOBase):
    """Passes bytes on to a sink and computes their checksum; bytes after ``hold`` (the page index and Parquet's
    footer) are held back until the checksums and the tag are known, which are inside the footer itself.
    """

    def __init__(self, sink: BinaryIO, sign: Sign | None) -> None:
        super().__init__()
        self._sink = sink
        self._sign = sign
        self._digest = hashlib.sha256()
        self.passed_bytes = 0
        """The number of bytes passed to the sink."""
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
            self.passed_bytes += view.nbytes
            self._passed_crc32 = isal_zlib.crc32(view, self._passed_crc32)
            if self._sign is not None:
                self._digest.update(view)
        else:
            self._held.append(bytes(view))
        return view.nbytes

    def drop(self) -> None:
        """Stop using the sink, which may already be closed."""
        self._dropped = True

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        tail = bytearray(b"".join(self._held or ()))
        try:
            footer_at = footer_start(tail, self.passed_bytes + len(tail)) - self.passed_bytes
        except ValueError as error:
            raise InvalidCallError(f"{error}: append fewer records at once; nothing was written") from error
        footer = memoryview(tail)[footer_at:-SUFFIX_BYTES]
        at = checksum_at(footer)
        body_crc32 = isal_zlib.crc32(memoryview(tail)[:footer_at], self._passed_crc32)
        index_crc32 = isal_zlib.crc32(memoryview(tail)[:footer_at])
        stated = b"%08x%016x%08x" % (body_crc32, self.passed_bytes, index_crc32)
        footer[at + 8 : at + len(NO_CHECKSUMS)] = stated
        if self._sign is not None:
            tagged = tag_at(footer)
            assert tagged is not None
            self._digest.update(memoryview(tail)[:footer_at])
            self._digest.update(without_tag(footer, tagged))
            self._digest.update(memoryview(tail)[-SUFFIX_BYTES:])
            footer[tagged : tagged + len(NO_TAG)] = self._sign(self._digest.digest()).encode()
        footer[at : at + 8] = b"%08x" % isal_zlib.crc32(footer)
        self._sink.write(tail)
