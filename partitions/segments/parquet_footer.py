"""Parses the parts of a Parquet footer that a segment needs, within bounds, before Arrow sees it.

For each byte of a malicious footer Arrow allocates some hundred bytes. Arrow also crashes the process when Python
requests a column chunk with a wrong histogram of levels, so this product never requests column chunks from Arrow.
The invariants of a segment's writer are checked here: column chunks are contiguous from the first byte after the
magic to the page index, and match the schema; there is one page index, and no encryption, bloom filter, or chunk
in another file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from stratalog.partitions.records import COLUMNS
from stratalog.partitions.segments.thrift import (
    BINARY,
    BYTE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    CompactReader,
    Field,
)

MAGIC = b"PAR1"
SUFFIX_BYTES = 8
"""Bytes at the end of a file: the length of the footer, and the magic."""
MOST_FOOTER_BYTES = 64 * 1024 * 1024
"""The maximum size of a footer. A footer takes about 250 bytes per column chunk and 120 per producer, so a 1 GiB
segment with 30 columns has a footer of 100 kB.
"""
MOST_CHUNKS = 128 * 1024
"""The maximum number of column chunks: 500 row groups with 256 columns."""
MOST_ROWS = 2 * 1024 * 1024
"""The maximum number of rows of a row group. A record is counted as more than 50 bytes, so 100 MB have fewer rows.
"""
MOST_GROUP_BYTES = 192 * 1024 * 1024
"""The maximum compressed size of a row group, and the maximum size of its records in memory: twice the size that
``writer`` puts into a row group.
"""
NOT_OURS = "stratalog never writes such a file; run heal, or restore it from a backup"
MOST_LEAVES = 16 * 1024
MOST_DEPTH = 200
"""The maximum nesting of groups in a schema; each list takes two levels."""

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
"""Physical types, by Parquet's numbers."""
_BITS = {BOOLEAN: 1, INT32: 32, INT64: 64, INT96: 96, FLOAT: 32, DOUBLE: 64, BYTE_ARRAY: 32}
"""Bits of a value in memory; for a variable-length value, the bits of its end offset."""
_DECIMAL_BITS = 128
_MOST_FIXED = 16
_CONVERTED = {5: _DECIMAL_BITS, 11: 8, 12: 16, 15: 8, 16: 16}
"""Bits of types that differ in width between memory and file: decimals, and small integers."""
_OPTIONAL, _REPEATED = 1, 2
CODECS = {0: "uncompressed", 1: "snappy", 2: "gzip", 6: "zstd", 7: "lz4_raw"}
"""Allowed compression codecs of segments, by Parquet's numbers."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of values, at any depth of the schema."""

    path: tuple[str, ...]
    physical: int
    bits: int
    """Bits of a value in memory, including its null bit, without the content of variable-length values."""
    definition: int
    """The number of nullable and repeated elements on the path from the root to the leaf, including the leaf."""
    repetition: int
    """The number of lists that contain the leaf."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of a leaf in one row group: bytes ``[start, end)`` of the file."""

    path: tuple[str, ...]
    physical: int
    codec: int
    values: int
    """The number of values, including nulls."""
    start: int
    end: int
    has_dictionary: bool
    nulls: int | None
    """The number of nulls; None if the file does not have it."""
    least: bytes | None
    largest: bytes | None

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        """Least and greatest value (numbers or bytes); None if the file does not have them."""
        if self.least is None or self.largest is None:
            return None
        if self.physical in (INT32, INT64):
            if not len(self.least) == len(self.largest) == _BITS[self.physical] // 8:
                return None
            return int.from_bytes(self.least, "little", signed=True), int.from_bytes(
                self.largest, "little", signed=True
            )
        return (self.least, self.largest) if self.physical in (BYTE_ARRAY, FIXED) else None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: the rows ``[first, end)`` of the file, in the bytes ``[start, stop)``."""

    first: int
    end: int
    chunks: tuple[ColumnChunk, ...]
    """One chunk per leaf, in the file's order."""

    @property
    def num_rows(self) -> int:
        """The number of rows, at least one."""
        return self.end - self.first

    @property
    def start(self) -> int:
        """The first byte."""
        return self.chunks[0].start

    @property
    def stop(self) -> int:
        """The byte after the last."""
        return self.chunks[-1].end


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of all parts of a file."""

    leaves: tuple[Leaf, ...]
    row_groups: tuple[RowGroup, ...]

    @property
    def chunks(self) -> Iterator[ColumnChunk]:
        """All column chunks, in the file's order."""
        return (chunk for group in self.row_groups for chunk in group.chunks)


def footer_start(end: bytes | bytearray, size_bytes: int, most_bytes: int = MOST_FOOTER_BYTES) -> int:
    """The start of a file's Parquet footer; ``end`` is the file's last bytes, at least ``SUFFIX_BYTES``. Footer
    and suffix together have at most ``most_bytes``.

    Raises: ValueError for a file that does not end as Parquet, or claims a larger footer.
    """
    if len(end) < SUFFIX_BYTES or end[-4:] != MAGIC:
        raise ValueError("it does not end like a Parquet file: it is truncated, or foreign")
    footer_bytes = int.from_bytes(end[-SUFFIX_BYTES:-4], "little") + SUFFIX_BYTES
    if footer_bytes > size_bytes - len(MAGIC):
        raise ValueError("its Parquet footer is longer than the file")
    if footer_bytes > most_bytes:
        raise ValueError(f"its Parquet footer has {footer_bytes} bytes, more than the limit of {most_bytes}")
    return size_bytes - footer_bytes


def parse_layout(footer: bytes, records_end: int) -> Layout:
    """The layout in the Parquet footer of a segment whose column chunks end at byte ``records_end``.

    Raises: ValueError for anything that the segment writer never writes.
    """
    layout = _parse(footer)
    if tuple(dict.fromkeys(leaf.path[0] for leaf in layout.leaves)) != COLUMNS:
        raise ValueError(f"its columns are not the columns of a segment: {', '.join(COLUMNS)}")
    if not layout.row_groups:
        raise ValueError("it has no records")
    at = len(MAGIC)
    for chunk in layout.chunks:
        if chunk.start != at:
            raise ValueError(
                f"its column {'.'.join(chunk.path)} is at bytes [{chunk.start}, {chunk.end}), but the column "
                f"before it ends at {at}"
            )
        at = chunk.end
    if records_end != at:
        raise ValueError(f"its column chunks end at byte {at}, not at {records_end}")
    return layout


def parse_foreign_layout(footer: bytes, footer_at: int) -> Layout:
    """The layout in the Parquet footer of any file, which begins at byte ``footer_at``: with any columns, anywhere
    before the footer, and possibly without records.

    Raises: ValueError for values outside the bounds of segments.
    """
    layout = _parse(footer)
    for chunk in layout.chunks:
        if chunk.start < len(MAGIC) or chunk.end > footer_at:
            raise ValueError(f"its column {'.'.join(chunk.path)} is at bytes [{chunk.start}, {chunk.end})")
    return layout


def key_values(footer: bytes) -> dict[bytes, bytes]:
    """The key-value metadata of a Parquet footer. Raises: ValueError for bytes that are not a Parquet footer."""
    found, _ = CompactReader(footer, 16 * MOST_CHUNKS).struct(0, _KEY_VALUES)
    return {entry.get(1, b""): entry.get(2, b"") for entry in found.get(5, ())}


def _parse(footer: bytes) -> Layout:
    found, _ = CompactReader(footer, 16 * MOST_CHUNKS).struct(0, _FILE)
    leaves = tuple(_leaves(found.get(2, [])))
    groups = found.get(4, [])
    ends = list(accumulate((rows for rows, _ in groups), initial=0))
    row_groups = tuple(
        RowGroup(first, first + rows, chunks) for first, (rows, chunks) in zip(ends, groups, strict=False)
    )
    if found.get(3) != ends[-1]:
        raise ValueError(f"it has {found.get(3)} rows, but its row groups have {ends[-1]}")
    for group in row_groups:
        _check_group(group, leaves)
    return Layout(leaves, row_groups)


def _check_group(group: RowGroup, leaves: tuple[Leaf, ...]) -> None:
    """Check the structure of a row group. Raises: ValueError."""
    if not 1 <= group.num_rows <= MOST_ROWS:
        raise ValueError(f"it has a row group of {group.num_rows} rows")
    if len(group.chunks) != len(leaves):
        raise ValueError(f"it has a row group of {len(group.chunks)} columns, but its schema has {len(leaves)}")
    for chunk, leaf in zip(group.chunks, leaves, strict=True):
        if chunk.path != leaf.path or chunk.physical != leaf.physical:
            raise ValueError(f"its column {'.'.join(leaf.path)} is at the wrong position in the schema")
        if chunk.values < group.num_rows or (not leaf.repetition and chunk.values != group.num_rows):
            raise ValueError(
                f"its column {'.'.join(leaf.path)} has {chunk.values} values in {group.num_rows} rows"
            )
    if (size_bytes := sum(chunk.end - chunk.start for chunk in group.chunks)) > MOST_GROUP_BYTES:
        raise ValueError(
            f"it has a row group of {size_bytes} bytes, more than the {MOST_GROUP_BYTES} "
            f"that a row group of a segment may have: {NOT_OURS}"
        )


def _leaves(elements: list[dict[int, Any]]) -> Iterator[Leaf]:
    """The leaves of a schema, a tree in pre-order."""
    if not elements:
        raise ValueError("it has no schema")
    waiting = iter(elements)
    root = next(waiting)
    # For each open group: the number of remaining children, its path, and its levels.
    opened: list[tuple[int, tuple[str, ...], int, int]] = [(root.get(5, 0), (), 0, 0)]
    while opened:
        left, path, definition, repetition = opened.pop()
        if left < 0:
            raise ValueError("its schema has a group with a negative number of children")
        if left == 0:
            continue
        opened.append((left - 1, path, definition, repetition))
        element = next(waiting, None)
        if element is None:
            raise ValueError("its schema ends too soon")
        kind = element.get(3, 0)
        definition += kind in (_OPTIONAL, _REPEATED)
        repetition += kind == _REPEATED
        path = (*path, element.get(4, b"").decode())
        if len(path) > MOST_DEPTH:
            raise ValueError(f"its schema is more than {MOST_DEPTH} levels deep")
        if 5 in element:
            opened.append((element[5], path, definition, repetition))
        else:
            yield _leaf(path, element, definition, repetition)
    if next(waiting, None) is not None:
        raise ValueError("its schema continues after its end")


def _leaf(path: tuple[str, ...], element: dict[int, Any], definition: int, repetition: int) -> Leaf:
    physical = cast(int, element.get(1))
    if physical not in _BITS and not (physical == FIXED and 1 <= element.get(2, 0) <= _MOST_FIXED):
        raise ValueError(f"its column {'.'.join(path)} has a type that segments do not have ({physical})")
    bits = _BITS.get(physical, _DECIMAL_BITS)
    logical = element.get(10, {})
    if 5 in logical:
        bits = _DECIMAL_BITS
    elif 10 in logical:
        bits = min(bits, max(8, logical[10].get(1, bits)))
    elif not logical:
        bits = _CONVERTED.get(element.get(6, -1), bits)
    return Leaf(path, physical, bits + 1, definition, repetition)


def _chunk(found: dict[int, Any]) -> ColumnChunk:
    column = found.get(3)
    if column is None or not column.keys() >= _NEEDED:
        raise ValueError("it has a column chunk without a position")
    data_page = column[9]
    dictionary = column.get(11) or None
    if dictionary is not None and dictionary >= data_page:
        raise ValueError("it has a dictionary after its values")
    if column[4] not in CODECS:
        raise ValueError(f"it has a column with a compression that segments do not use ({column[4]})")
    start = data_page if dictionary is None else dictionary
    statistics = column.get(12, {})
    if column[7] < 0 or data_page >= start + column[7] or column[5] < 0:
        raise ValueError(f"it has a column chunk of {column[7]} bytes with {column[5]} values")
    return ColumnChunk(
        tuple(name.decode() for name in column[3]),
        column[1],
        column[4],
        column[5],
        start,
        start + column[7],
        dictionary is not None,
        statistics.get(3),
        statistics.get(6),
        statistics.get(5),
    )


def _row_group(found: dict[int, Any]) -> tuple[int, tuple[ColumnChunk, ...]]:
    return found.get(3, 0), tuple(found.get(1, ()))


_I16, _I32, _I64, _TEXT, _FLAG = (Field(kind) for kind in (I16, I32, I64, BINARY, TRUE))
_ANYTHING = Field(STRUCT)  # none of its fields is kept
_KEY_VALUE = Field(STRUCT, fields={1: _TEXT, 2: _TEXT})
_STATISTICS = Field(STRUCT, fields={1: _TEXT, 2: _TEXT, 3: _I64, 4: _I64, 5: _TEXT, 6: _TEXT, 7: _FLAG, 8: _FLAG})
_LEVELS = Field(LIST, of=_I64, most=2 * MOST_DEPTH)
_SIZES = Field(STRUCT, fields={1: _I64, 2: _LEVELS, 3: _LEVELS})
_ENCODING = Field(STRUCT, fields={1: _I32, 2: _I32, 3: _I32})
_COLUMN = Field(
    STRUCT,
    fields={
        1: _I32,  # physical type
        2: Field(LIST, of=_I32, most=16),  # encodings
        3: Field(LIST, of=_TEXT, most=MOST_DEPTH),  # path
        4: _I32,  # codec
        5: _I64,  # values
        6: _I64,  # bytes without compression
        7: _I64,  # bytes
        8: None,  # keys and values
        9: _I64,  # first data page
        10: None,  # index page
        11: _I64,  # dictionary page
        12: _STATISTICS,
        13: Field(LIST, of=_ENCODING, most=64),
        14: None,  # bloom filter
        15: None,
        16: _SIZES,
        17: None,  # geography
    },
)
_NEEDED = {1, 3, 4, 5, 7, 9}
_CHUNK = Field(
    STRUCT,
    fields={
        1: None,  # another file
        2: _I64,
        3: _COLUMN,
        4: _I64,  # page index
        5: _I32,
        6: _I64,
        7: _I32,
        8: None,  # encryption
        9: None,
    },
    make=_chunk,
)
_ROW_GROUP = Field(
    STRUCT,
    fields={
        1: Field(LIST, of=_CHUNK, most=MOST_LEAVES),
        2: _I64,
        3: _I64,  # rows
        4: None,  # order
        5: _I64,
        6: _I64,
        7: _I16,
    },
    make=_row_group,
)
_ELEMENT = Field(
    STRUCT,
    fields={
        1: _I32,  # physical type
        2: _I32,  # width
        3: _I32,  # repetition
        4: _TEXT,  # name
        5: _I32,  # children
        6: _I32,
        7: _I32,
        8: _I32,
        9: _I32,
        10: Field(STRUCT, fields={5: _ANYTHING, 10: Field(STRUCT, fields={1: Field(BYTE), 2: _FLAG})}),
    },
)
_KEY_VALUES = Field(STRUCT, fields={5: Field(LIST, of=_KEY_VALUE, most=64)})
_FILE = Field(
    STRUCT,
    fields={
        1: _I32,
        2: Field(LIST, of=_ELEMENT, most=2 * MOST_LEAVES),
        3: _I64,  # rows
        4: Field(LIST, of=_ROW_GROUP, most=MOST_CHUNKS),
        5: Field(LIST, of=_KEY_VALUE, most=64),
        6: _TEXT,
        7: Field(LIST, of=_ANYTHING, most=MOST_LEAVES),
        8: None,  # encryption
        9: None,
    },
)
