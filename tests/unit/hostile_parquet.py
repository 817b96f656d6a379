"""Hostile segments: taken apart, changed, and put together again, with valid checksums.

``Taken(data)`` has the footer as a tree and the bytes of each column chunk; ``sealed()`` is a file again. A struct
is ``{field: (kind, value)}``, a list ``(kind, [values])``, by Thrift's compact protocol.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pyarrow as pa

from stratalog.partitions.paths import DataName
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.footer import CHECKSUM_KEY, FOOTER_KEY, NO_CHECKSUMS, checksum_at
from stratalog.partitions.segments.thrift import BINARY, BYTE, FALSE, I16, I32, I64, LIST, STRUCT, TRUE
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.segments import records, write_segment

Struct = dict[int, tuple[int, Any]]


def number(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    return number(value << 1 ^ value >> 63 if value < 0 else value << 1)


def encode(struct: Struct) -> bytes:
    """A struct in the compact protocol."""
    out, before = b"", 0
    for field, (kind, value) in sorted(struct.items()):
        shown = (TRUE if value else FALSE) if kind == TRUE else kind
        delta = field - before
        out += bytes([delta << 4 | shown]) if 0 < delta < 16 else bytes([shown]) + zigzag(field)
        out += b"" if kind == TRUE else _value(kind, value)
        before = field
    return out + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return zigzag(value)
    if kind == BYTE:
        return bytes([value])
    if kind == BINARY:
        return number(len(value)) + bytes(value)
    if kind == STRUCT:
        return encode(value)
    assert kind == LIST
    inner, values = value
    head = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([0xF0 | inner]) + number(len(values))
    return head + b"".join(_value(inner, each) for each in values)


def decode(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at a byte, and where it ends."""
    found: Struct = {}
    field = 0
    while head := data[at]:
        at += 1
        field, kind = field + (head >> 4), head & 15
        assert head >> 4
        if kind in (TRUE, FALSE):
            found[field] = TRUE, kind == TRUE
        else:
            value, at = _decoded(data, at, kind)
            found[field] = kind, value
    return found, at + 1


def _decoded(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return decode(data, at)
    if kind == BYTE:
        return data[at], at + 1
    if kind == LIST:
        head, at = data[at], at + 1
        size = head >> 4
        if size == 15:
            size, at = _varint(data, at)
        values = []
        for _ in range(size):
            value, at = _decoded(data, at, head & 15)
            values.append(value)
        return (head & 15, values), at
    value, at = _varint(data, at)
    if kind == BINARY:
        return data[at : at + value], at + value
    assert kind in (I16, I32, I64)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


class Taken:
    """A segment in its parts."""

    def __init__(self, data: bytes) -> None:
        footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        self.footer, _ = decode(data[footer_at:-8])
        self.chunks: list[list[bytes]] = []
        """Bytes by row group and column, in the file's order."""
        for group in self.groups:
            self.chunks.append([])
            for column in self.columns_of(group):
                start = column.get(11, column[9])[1]
                self.chunks[-1].append(data[start : start + column[7][1]])

    @property
    def groups(self) -> list[Struct]:
        """The row groups of the footer."""
        found: list[Struct] = self.footer[4][1][1]
        return found

    @staticmethod
    def columns_of(group: Struct) -> list[Struct]:
        """The metadata of the columns in a row group (ColumnMetaData)."""
        return [chunk[3][1] for chunk in group[1][1][1]]

    def column(self, name: str, group: int = 0) -> tuple[int, Struct]:
        """The place of a column, by its dotted path, and its metadata."""
        columns = self.columns_of(self.groups[group])
        names = [b".".join(column[3][1][1]).decode() for column in columns]
        return names.index(name), columns[names.index(name)]

    @property
    def log_footer(self) -> dict[str, Any]:
        """The log's own footer."""
        found: dict[str, Any] = msgspec.json.decode(self._entry(FOOTER_KEY)[2][1])
        return found

    def set_log_footer(self, **changes: Any) -> None:
        """Replace the log's own footer."""
        self._entry(FOOTER_KEY)[2] = BINARY, msgspec.json.encode(self.log_footer | changes)

    def _entry(self, key: bytes) -> Struct:
        return next(entry for entry in self.footer[5][1][1] if entry[1][1] == key)

    def pages(self, name: str, group: int = 0) -> list[tuple[Struct, bytes]]:
        """The pages of a column chunk: headers, and the packed bytes after them."""
        data, at, found = self.chunks[group][self.column(name, group)[0]], 0, []
        while at < len(data):
            header, at = decode(data, at)
            found.append((header, data[at : at + header[3][1]]))
            at += header[3][1]
        return found

    def set_pages(self, name: str, pages: list[tuple[Struct, bytes]], group: int = 0) -> None:
        """Replace the pages; sizes and checksums of packed bytes are made right."""
        data = b""
        for header, packed in pages:
            header[3] = I32, len(packed)
            header[4] = I32, int.from_bytes(zlib.crc32(packed).to_bytes(4, "big"), "big", signed=True)
            data += encode(header) + packed
        self.chunks[group][self.column(name, group)[0]] = data

    def sealed(self, *, tiled: bool = True) -> bytes:
        """The file without a page index. ``tiled``: offsets in the footer are made right, too."""
        body = b"PAR1"
        for group, chunks in zip(self.groups if tiled else (), self.chunks, strict=False):
            for entry, column, data in zip(group[1][1][1], self.columns_of(group), chunks, strict=True):
                for field in (4, 5, 6, 7):
                    entry.pop(field, None)
                start = len(body)
                if 11 in column:
                    header, at = decode(data)
                    column[11], start = (I64, start), start + at + header[3][1]
                column[9], column[7] = (I64, start), (I64, len(data))
                body += data
        if not tiled:
            body += b"".join(data for chunks in self.chunks for data in chunks)
        entry = self._entry(CHECKSUM_KEY)
        entry[2] = BINARY, b"%08x%08x%016x%08x" % (0, zlib.crc32(body), len(body), 0)
        assert len(entry[2][1]) == len(NO_CHECKSUMS)
        return sealed(body, encode(self.footer))


def sealed(body: bytes, footer: bytes) -> bytes:
    """A file of these bytes and a footer whose own checksum is made right."""
    end = bytearray(footer)
    at = checksum_at(end)
    end[at : at + 8] = b"0" * 8
    end[at : at + 8] = b"%08x" % zlib.crc32(end)
    return body + bytes(end) + len(end).to_bytes(4, "little") + b"PAR1"


def honest(rows: int = 20, base: int = 100, *, schema: pa.Schema | None = None, **columns: Any) -> bytes:
    """A valid segment to begin with; all its keys are equal, so that there is a dictionary."""
    store = MemoryStore()
    given = {"keys": [b"k"] * rows, "headers": [[{"key": "h", "value": b"x"}]] * rows} | columns
    schema = physical_schema() if schema is None else schema
    values = given.pop("values", [b"v%d" % row for row in range(rows)])
    batch = records(values, schema=schema, **given)
    return store.read(write_segment(store, DataName(base, None, 1), [batch], schema=schema).object.name)


def wrong_level_histogram(data: bytes) -> bytes:
    """Arrow ends the process when the description of this column chunk is requested."""
    taken = Taken(data)
    _, column = taken.column("key")
    column[16] = STRUCT, {3: (LIST, (I64, [1, 2, 3, 4, 5]))}
    return taken.sealed()


def dictionary_bomb(data: bytes, value_bytes: int = 1024 * 1024) -> bytes:
    """A file of a few kilobytes whose keys have a megabyte each, through a dictionary."""
    taken = Taken(data)
    (header, _), *pages = taken.pages("key")
    plain = value_bytes.to_bytes(4, "little") + bytes(value_bytes)
    header[2] = I32, len(plain)
    taken.set_pages("key", [(header, pa.Codec("zstd").compress(plain, asbytes=True)), *pages])
    return taken.sealed()


def header_bomb(data: bytes, value_bytes: int = 1024 * 1024) -> bytes:
    """Billions of headers in a list, by a run of levels."""
    taken = Taken(data)
    name = "headers.list.element.value"
    (header, _), *pages = taken.pages(name)
    plain = value_bytes.to_bytes(4, "little") + bytes(value_bytes)
    header[2] = I32, len(plain)
    taken.set_pages(name, [(header, pa.Codec("zstd").compress(plain, asbytes=True)), *pages])
    return taken.sealed()


def unpacking_bomb(data: bytes, unpacked_bytes: int = 2**31 - 1) -> bytes:
    """A page that claims to unpack to gigabytes."""
    taken = Taken(data)
    pages = taken.pages("value")
    pages[-1][0][2] = I32, unpacked_bytes
    taken.set_pages("value", pages)
    return taken.sealed()


def rows_bomb(data: bytes, rows: int = 2**31) -> bytes:
    """Billions of records, all null except runs of a few bytes."""
    taken = Taken(data)
    taken.footer[3] = I64, rows
    taken.groups[0][3] = I64, rows
    for column in taken.columns_of(taken.groups[0]):
        column[5] = I64, rows
    log = taken.log_footer
    taken.set_log_footer(records=rows, next_offset=log["base_offset"] + rows)
    return taken.sealed()


def levels_bomb(data: bytes, values: int = 2**31 - 1) -> bytes:
    """One record with billions of headers, by a run of levels."""
    taken = Taken(data)
    for name in ("headers.list.element.key", "headers.list.element.value"):
        pages = taken.pages(name)
        pages[-1][0][5][1][1] = I32, values
        taken.column(name)[1][5] = I64, values
        taken.set_pages(name, pages)
    return taken.sealed()


def overlapping_row_groups(data: bytes, groups: int = 200) -> bytes:
    """A footer that lists the same bytes repeatedly."""
    taken = Taken(data)
    rows = taken.footer[3][1]
    taken.footer[4] = LIST, (STRUCT, taken.groups[:1] * groups)
    taken.footer[3] = I64, rows * groups
    taken.set_log_footer(records=rows * groups, next_offset=taken.log_footer["base_offset"] + rows * groups)
    return taken.sealed(tiled=False)


def deep_schema(data: bytes, depth: int = 20_000) -> bytes:
    """A schema of deeply nested groups."""
    taken = Taken(data)
    elements = taken.footer[2][1][1]
    group: Struct = {3: (I32, 0), 4: (BINARY, b"g"), 5: (I32, 1)}
    taken.footer[2] = LIST, (STRUCT, [*elements[:1], *[group] * depth, *elements[1:]])
    return taken.sealed()


def many_columns(data: bytes, columns: int = 300_000) -> bytes:
    """A footer of a few megabytes that takes Arrow gigabytes."""
    taken = Taken(data)
    entries = taken.groups[0][1][1][1]
    small: Struct = {2: (I64, 0)}
    group = {**taken.groups[0], 1: (LIST, (STRUCT, [*entries, *[small] * columns]))}
    taken.footer[4] = LIST, (STRUCT, [group])
    return taken.sealed(tiled=False)


def many_epochs(data: bytes, epochs: int = 3_000_000) -> bytes:
    """An endless lineage in the log's own footer."""
    taken = Taken(data)
    taken.set_log_footer(lineage=[[1, 0]] * epochs)
    return taken.sealed()


def encrypted(data: bytes) -> bytes:
    """A footer that requires a key."""
    taken = Taken(data)
    taken.footer[8] = STRUCT, {1: (STRUCT, {})}
    return taken.sealed()


def elsewhere(data: bytes) -> bytes:
    """A column chunk in another file, according to the footer."""
    taken = Taken(data)
    taken.groups[0][1][1][1][0][1] = BINARY, b"/etc/passwd"
    return taken.sealed()


def without_offsets(data: bytes) -> bytes:
    """A file without a column of that name."""
    taken = Taken(data)
    taken.column("offset")[1][3] = LIST, (BINARY, [b"offse7"])
    element = next(each for each in taken.footer[2][1][1] if each[4][1] == b"offset")
    element[4] = BINARY, b"offse7"
    return taken.sealed()


FOOTERS = [many_columns, many_epochs, deep_schema, encrypted, elsewhere, rows_bomb, overlapping_row_groups]
PAGES = [dictionary_bomb, header_bomb, unpacking_bomb, levels_bomb, wrong_level_histogram, without_offsets]
EVERY = [*FOOTERS, *PAGES]
"""Functions that make a hostile segment of a valid one."""
