"""Computes the memory of a row group's records before decoding, from the headers of its pages.

A few bytes of a page can encode any number of values: indices repeat a long value of a dictionary, a run of levels
counts nulls, a codec unpacks zeros. So each page header is read, within bounds: Arrow would allocate the memory
that the header claims. If the bound is too large because of a dictionary, the dictionary's values are measured. If
it is still too large, the indices are read, which gives the column's exact size instead of a bound.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.partitions.segments.parquet_footer import (
    BYTE_ARRAY,
    CODECS,
    MOST_GROUP_BYTES,
    NOT_OURS,
    ColumnChunk,
    Layout,
    Leaf,
    RowGroup,
)
from stratalog.partitions.segments.thrift import BINARY, I32, I64, STRUCT, TRUE, CompactReader, Field, varint

LEVELS_BYTES = 8
"""Bytes for each value in a list, per enclosing list: for the levels, and for the end offset of the list."""

_DATA, _DICTIONARY = 0, 2
"""Types of pages: only those of version 1, because segments have no others."""
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTAS, _RLE_DICTIONARY = 0, 2, 3, 5, 8
_INDEXED = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_ENCODINGS = (_PLAIN, _RLE, _DELTAS)
_NUMBER = rb"[\x80-\xff]{0,3}[\x00-\x7f]"
_USUAL = re.compile(
    rb"\x15\x00\x15(%b)\x15(%b)\x15[\x80-\xff]{0,4}[\x00-\x7f]\x1c\x15(%b)\x15(%b)\x15\x06\x15\x06\x00\x00"
    % ((_NUMBER,) * 4)
)
"""The header of nearly all pages: the fields of ``_HEADER`` in order, no statistics, small numbers."""
_HEAD_BYTES = 5
"""The maximum size of the head of a run of indices: a varint of 32 bits."""
_AT_ONCE = 64 * 1024
"""The number of indices to unpack at a time; a multiple of eight."""

Read = Callable[[int, int], bytes]
"""Reads the bytes ``[start, end)`` of the file."""


class _Page(NamedTuple):
    """A page: its content is the bytes ``[start, end)`` of the file, after the header."""

    start: int
    end: int
    unpacked_bytes: int
    values: int
    encoding: int


@dataclass(frozen=True, slots=True)
class _Column:
    """A column chunk with its pages."""

    leaf: Leaf
    chunk: ColumnChunk
    dictionary: _Page | None
    pages: tuple[_Page, ...]

    @property
    def fixed_bytes(self) -> int:
        """The memory of the column's values without dictionary content, but with plain variable-length values."""
        bits = self.leaf.bits + 8 * LEVELS_BYTES * self.leaf.repetition
        plain = sum(page.unpacked_bytes for page in self.pages if page.encoding not in _INDEXED)
        return bits * self.chunk.values // 8 + (plain if self.leaf.physical == BYTE_ARRAY else 0)

    @property
    def repeats(self) -> int:
        """The number of values that are indices into a dictionary of variable-length values."""
        if self.leaf.physical != BYTE_ARRAY:
            return 0
        return sum(page.values for page in self.pages if page.encoding in _INDEXED)


def check_row_group(
    layout: Layout, group: RowGroup, columns: Iterable[int], read: Read, most_bytes: int = MOST_GROUP_BYTES
) -> int:
    """An upper bound of the memory of the leaves ``columns`` of a row group, in bytes: at most ``most_bytes``.

    Raises: ValueError for more, and for pages that the segment writer never writes; see ``read``.
    """
    chunks = [(layout.leaves[index], group.chunks[index]) for index in columns]
    found = [_pages(leaf, chunk, read) for leaf, chunk in chunks]
    unpacked = sum(page.unpacked_bytes for column in found for page in (*column.pages, column.dictionary) if page)
    fixed = sum(column.fixed_bytes for column in found)
    repeated = {
        index: column.repeats * column.dictionary.unpacked_bytes
        for index, column in enumerate(found)
        if column.dictionary is not None and column.repeats
    }
    # Try the cheapest bound first, and more expensive bounds only while the result is too large.
    for look in (_by_the_longest, _by_places):
        for index in sorted(repeated, key=lambda index: -repeated[index]):
            if unpacked <= most_bytes and fixed + sum(repeated.values()) > most_bytes >= fixed:
                repeated[index] = min(repeated[index], look(found[index], read))
    total = max(unpacked, fixed + sum(repeated.values()))
    if total > most_bytes:
        raise ValueError(
            f"a row group of {group.num_rows} rows takes {total} bytes in memory, more than "
            f"the {most_bytes} that a row group of a segment may take: {NOT_OURS}"
        )
    return total


def _pages(leaf: Leaf, chunk: ColumnChunk, read: Read) -> _Column:
    """The pages of a chunk. Raises: ValueError for pages that do not fill the chunk exactly."""
    data = read(chunk.start, chunk.end)
    at, values = 0, 0
    most = 512 + chunk.values // 256  # a page has at least 256 values, or is large
    dictionary: _Page | None = None
    pages: list[_Page] = []
    while at < len(data):
        kind, unpacked, packed, count, encoding, at = _header(data, at, leaf)
        if packed < 0 or unpacked < 0 or at + packed > len(data):
            raise ValueError(f"a page of {packed} bytes, {unpacked} unpacked, is longer than its column")
        page = _Page(chunk.start + at, chunk.start + at + packed, unpacked, count, encoding)
        at += packed
        if kind == _DICTIONARY:
            if dictionary is not None or pages or not 0 <= page.values <= chunk.values:
                raise ValueError("a dictionary is not where it should be")
            dictionary = page
            continue
        if encoding not in (_ENCODINGS if dictionary is None else (*_ENCODINGS, *_INDEXED)):
            raise ValueError(f"a page of values has an encoding that segments do not use ({encoding})")
        if page.values < 1:
            raise ValueError(f"a page has {page.values} values")
        values += page.values
        pages.append(page)
        if len(pages) > most:
            raise ValueError(f"a column of {chunk.values} values has more than {most} pages")
    if values != chunk.values:
        raise ValueError(f"a column's pages have {values} values, not {chunk.values}")
    if chunk.has_dictionary != (dictionary is not None):
        raise ValueError("a dictionary is not at the place that the footer names")
    return _Column(leaf, chunk, dictionary, tuple(pages))


def _header(data: bytes, at: int, leaf: Leaf) -> tuple[int, int, int, int, int, int]:
    """The header at a byte: type, unpacked and packed bytes, values, encoding; and its end."""
    plain = _USUAL.match(data, at)
    if plain is not None:
        unpacked, packed, values, encoding = (_zigzag(text) for text in plain.groups())
        return _DATA, unpacked, packed, values, encoding, plain.end()
    header, at = CompactReader(data, 0).struct(at, _HEADER)
    kind = header.get(1)
    what = header.get({_DATA: 5, _DICTIONARY: 7}.get(kind, 0))
    if what is None:
        raise ValueError(f"a page has type {kind}, which segments do not use")
    # Some writers name another encoding for levels even if a page has no levels.
    levels = ((leaf.definition, 3), (leaf.repetition, 4))
    if kind == _DATA and any(there and what.get(number) != _RLE for there, number in levels):
        raise ValueError("a page has levels with an encoding that segments do not use")
    return kind, header.get(2, -1), header.get(3, -1), what.get(1, -1), what.get(2, -1), at


def _zigzag(text: bytes) -> int:
    """A varint of bounded length."""
    value = text[0] & 0x7F
    for place in range(1, len(text)):
        value |= (text[place] & 0x7F) << 7 * place
    return (value >> 1) ^ -(value & 1)


def _by_the_longest(column: _Column, read: Read) -> int:
    """An upper bound of the bytes of dictionary-encoded values: as if all values were as long as the longest
    value.
    """
    return column.repeats * int(_lengths(column, read).max(initial=0))


def _by_places(column: _Column, read: Read) -> int:
    """The exact number of bytes of dictionary-encoded values; a null has 0."""
    lengths = _lengths(column, read)
    return sum(_in_page(column, page, lengths, read) for page in column.pages if page.encoding in _INDEXED)


def _unpacked(column: _Column, page: _Page, read: Read) -> bytes:
    data = read(page.start, page.end)
    codec = CODECS[column.chunk.codec]
    if codec == "uncompressed":
        unpacked = data
    elif page.unpacked_bytes == 0:
        unpacked = b""
    else:
        unpacked = pa.Codec(codec).decompress(data, page.unpacked_bytes, asbytes=True)
    if len(unpacked) != page.unpacked_bytes:
        raise ValueError(f"a page has {len(unpacked)} bytes, but its header says {page.unpacked_bytes}")
    return unpacked


def _lengths(column: _Column, read: Read) -> npt.NDArray[np.int64]:
    """The lengths of a dictionary's values."""
    assert column.dictionary is not None
    data, count = _unpacked(column, column.dictionary, read), column.dictionary.values
    if count > len(data) // 4:
        raise ValueError(f"a dictionary has {len(data)} bytes for {count} values")
    alike = int.from_bytes(data[:4], "little")
    if count and count * (4 + alike) == len(data):  # all keys often have the same length
        rows = np.frombuffer(data, np.uint8).reshape(count, 4 + alike)[:, :4]
        found: npt.NDArray[np.int64] = np.ascontiguousarray(rows).view("<u4").ravel().astype(np.int64)
        if bool((found == alike).all()):
            return found
    lengths, at = array("q"), 0
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        lengths.append(length)
        at += 4 + length
    if at > len(data):
        raise ValueError("the values of a dictionary are longer than the dictionary")
    return np.array(lengths, np.int64)


def _in_page(column: _Column, page: _Page, lengths: npt.NDArray[np.int64], read: Read) -> int:
    """The sum of the lengths at the indices of a page, which are runs of one index or of bit-packed indices
    (Parquet's RLE).
    """
    data, at = _unpacked(column, page, read), 0
    for levels in (column.leaf.repetition, column.leaf.definition):
        if levels:
            at += 4 + int.from_bytes(data[at : at + 4], "little")
    width = data[at] if at < len(data) else 0
    if width > 32:
        raise ValueError(f"indices into a dictionary have {width} bits")
    at += 1
    total, left = 0, page.values
    while left and at < len(data):
        try:
            head, at = varint(data, at, _HEAD_BYTES)
        except IndexError:
            raise ValueError("a run has no end") from None
        run = (head >> 1) * (8 if head & 1 else 1)
        if not run:
            raise ValueError("a run is empty")
        taken = min(left, run)
        left -= taken
        if head & 1:
            size = (head >> 1) * width
            total += _at_packed_places(lengths, data[at : at + size], width, taken)
        else:
            size = -(-width // 8)
            place = int.from_bytes(data[at : at + size], "little")
            total += taken * int(lengths[place : place + 1].sum())
        at += size
    return total


def _at_packed_places(lengths: npt.NDArray[np.int64], packed: bytes, width: int, count: int) -> int:
    """The sum of the lengths at ``count`` indices of ``width`` bits each, lowest bit first. (Arrow refuses indices
    outside the dictionary.)
    """
    if not width:
        return count * int(lengths[:1].sum())
    total, weights = 0, np.int64(1) << np.arange(width, dtype=np.int64)
    for start in range(0, count, _AT_ONCE):
        rows = min(_AT_ONCE, count - start)
        some = np.frombuffer(packed[start * width // 8 : -(-(start + rows) * width // 8)], np.uint8)
        bits = np.unpackbits(some, bitorder="little")
        whole = min(rows, len(bits) // width)
        places = bits[: whole * width].reshape(whole, width) @ weights
        total += int(lengths[places[places < len(lengths)]].sum())
    return total


_I32, _I64, _TEXT, _FLAG = (Field(kind) for kind in (I32, I64, BINARY, TRUE))
_STATISTICS: dict[int, Any] = {1: _TEXT, 2: _TEXT, 3: _I64, 4: _I64, 5: _TEXT, 6: _TEXT, 7: _FLAG, 8: _FLAG}
_HEADER = Field(
    STRUCT,
    fields={
        1: _I32,  # type
        2: _I32,  # bytes, unpacked
        3: _I32,  # bytes
        4: _I32,  # checksum
        5: Field(STRUCT, fields={1: _I32, 2: _I32, 3: _I32, 4: _I32, 5: Field(STRUCT, fields=_STATISTICS)}),
        6: None,  # of an index
        7: Field(STRUCT, fields={1: _I32, 2: _I32, 3: _FLAG}),
        8: None,  # of version 2
    },
)
