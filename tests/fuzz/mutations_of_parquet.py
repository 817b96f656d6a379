"""Changed Parquet: footers with other fields, pages and page headers, the log's own footer.

Checksums are made right again, so that only the meaning is wrong.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from stratalog.partitions.segments.footer import CHECKSUM_KEY, FOOTER_KEY
from stratalog.snapshots.layout import MARK_KEY
from tests.fuzz import thrift
from tests.fuzz.mutations_of_bytes import Mutated, mutate_bytes
from tests.fuzz.mutations_of_json import mutate_json
from tests.fuzz.sealing import (
    fields_of,
    has_checksums,
    metadata_entries,
    parts_of,
    seal_pages,
    seal_segment,
    whole_file,
)

_ODD = (0, -1, 1, 2, 7, 127, 2**15, 2**31 - 1, -(2**31), 2**31, 2**32, 10**9, 2**40, 2**62, 2**63 - 1, -(2**63))
_CRC, _COMPRESSED_SIZE = 4, 3
"""Field ids of a page header."""


def mutate_footer(rng: random.Random, data: bytes) -> Mutated:
    """Change one to four fields of Parquet's own footer. Raises: ValueError kinds for input that is not
    Parquet."""
    body, footer = parts_of(data)
    fields = fields_of(footer)
    done = [_change_struct(rng, fields) for _ in range(rng.choice((1, 1, 2, 4)))]
    return Mutated(seal_segment(body, thrift.encode_struct(fields)), f"Parquet footer: {'; '.join(done)}", True)


def mutate_log_footer(rng: random.Random, data: bytes) -> Mutated:
    """Change the log's own entry in the footer, or a snapshot's."""
    body, footer = parts_of(data)
    fields = fields_of(footer)
    own = [entry for entry in metadata_entries(fields) if entry[0][2] in (FOOTER_KEY, MARK_KEY)]
    entry = rng.choice(own)
    changed = mutate_json(rng, entry[1][2])
    entry[1][2] = changed.data
    return Mutated(
        seal_segment(body, thrift.encode_struct(fields)), f"{entry[0][2].decode()}: {changed.what}", True
    )


def mutate_metadata_entries(rng: random.Random, data: bytes) -> Mutated:
    """Remove or repeat entries, or change their types; replace checksums by text."""
    body, footer = parts_of(data)
    fields = fields_of(footer)
    entries = metadata_entries(fields)
    at = rng.randrange(len(entries))
    key = entries[at][0][2].decode(errors="replace")
    match rng.randrange(4):
        case 0:
            del entries[at]
            what = "gone"
        case 1:
            entries.append([list(field) for field in entries[at]])
            what = "there twice"
        case 2:
            del entries[at][1:]
            what = "without a value"
        case _:
            changed = mutate_bytes(rng, entries[at][1][2])
            entries[at][1][2] = changed.data
            what = changed.what
    sealing = whole_file if key == CHECKSUM_KEY.decode() else seal_segment
    return Mutated(sealing(body, thrift.encode_struct(fields)), f"entry {key}: {what}", True)


def mutate_page_header(rng: random.Random, data: bytes) -> Mutated:
    """Change a page's header. The following bytes may be moved by a few positions."""
    body, footer = parts_of(data)
    at = rng.choice(list(_pages(body)))
    header, end = thrift.decode_struct(body, at)
    what = _change_struct(rng, header)
    put = thrift.encode_struct(header)
    body = body[:at] + put + body[end:]
    return Mutated(seal_pages(body, footer), f"page at {at}: {what}", True)


def mutate_page(rng: random.Random, data: bytes) -> Mutated:
    """Change bytes of a page, and make its checksum right."""
    body, footer = parts_of(data)
    at = rng.choice(list(_pages(body)))
    header, end = thrift.decode_struct(body, at)
    size = next(value for number, _, value in header if number == _COMPRESSED_SIZE)
    before = end - at
    for _ in range(50):  # the checksum has a variable length, and no other field may move
        page = bytearray(body[end : end + size])
        for _ in range(rng.choice((1, 1, 4, 32))):
            page[rng.randrange(len(page))] = rng.randrange(256)
        for field in header:
            if field[0] == _CRC:
                crc = isal_zlib.crc32(bytes(page))
                field[2] = crc - (1 << 32) if crc >= 1 << 31 else crc
        put = thrift.encode_struct(header)
        if len(put) == before:
            return Mutated(
                seal_pages(body[:at] + put + page + body[end + size :], footer), f"page at {at}: other bytes", True
            )
    return mutate_footer(rng, data)


def mutate_index(rng: random.Random, data: bytes) -> Mutated:
    """Change the page index."""
    body, footer = parts_of(data)
    index_at = max(at for at in _index_offsets(data))
    low = min(at for at in _index_offsets(data))
    at = rng.choice((low, index_at))
    found, end = thrift.decode_struct(body, at)
    what = _change_struct(rng, found)
    body = body[:at] + thrift.encode_struct(found) + body[end:]
    return Mutated(seal_segment(body, footer), f"page index at {at}: {what}", True)


PARQUET = (mutate_footer, mutate_footer, mutate_page_header, mutate_page, mutate_index)
OURS = (*PARQUET, mutate_log_footer, mutate_log_footer, mutate_log_footer, mutate_metadata_entries)


def mutate_parquet(rng: random.Random, data: bytes) -> Mutated:
    """Apply one of these changes; change the bytes of a file that is not Parquet."""
    try:
        ours = has_checksums(parts_of(data)[1])
        return rng.choice(OURS if ours else PARQUET)(rng, data)
    except (ValueError, IndexError, StopIteration):
        return mutate_bytes(rng, data)


def _pages(body: bytes) -> Iterator[int]:
    """The offsets of pages, which are contiguous from the magic on."""
    at, found = 4, 0
    while at < len(body):
        try:
            header, end = thrift.decode_struct(body, at)
            size = next(
                value for number, kind, value in header if (number, kind) == (_COMPRESSED_SIZE, thrift.I32)
            )
        except (ValueError, IndexError, StopIteration):
            break
        if not {1, 2, 3} <= {field[0] for field in header} or end + size > len(body):
            break
        found += 1
        yield at
        at = end + size
    if not found:
        raise ValueError("no pages")


def _index_offsets(data: bytes) -> Iterator[int]:
    for group in _lists(fields_of(parts_of(data)[1]), 4):
        for chunk in _lists(group, 1):
            for number, _, value in chunk:
                if number in (4, 6):
                    yield value


def _lists(fields: list[Any], number: int) -> list[Any]:
    return next((value[1] for found, _, value in fields if found == number), [])


def _structs(fields: list[Any], path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Every struct of a tree that has a field; the tree itself comes first."""
    if fields:
        yield path, fields
    for number, kind, value in fields:
        if kind == thrift.STRUCT:
            yield from _structs(value, f"{path}.{number}")
        elif kind == thrift.LIST and value[0] == thrift.STRUCT:
            for at, one in enumerate(value[1]):
                yield from _structs(one, f"{path}.{number}[{at}]")


def _change_struct(rng: random.Random, fields: list[Any]) -> str:
    """Make one change in a tree; returns its description."""
    path, holder = rng.choice(list(_structs(fields)))
    at = rng.randrange(len(holder))
    number, kind, value = holder[at]
    where = f"{path}.{number}"
    match rng.randrange(10):
        case 0:
            del holder[at]
            return f"{where} gone"
        case 1:
            holder.insert(at, list(holder[at]))
            return f"{where} twice"
        case 2:
            holder[at][1:] = rng.choice(
                ([thrift.I32, 7], [thrift.BINARY, b"x"], [thrift.STRUCT, []], [thrift.TRUE, True])
            )
            return f"{where} of another type"
        case 3:
            holder[at][0] = rng.choice((number + 1, 0, 99, -1, 32767))
            return f"{where} as {holder[at][0]}"
    match kind:
        case 1 | 2:
            holder[at][2] = not value
        case 4 | 5 | 6:
            near = (value + 1, value - 1, value * 2, value ^ 1, value + 8)
            holder[at][2] = rng.choice(_ODD) if rng.random() < 0.6 else rng.choice(near)
            return f"{where}: {value} -> {holder[at][2]}"
        case 8:
            changed = mutate_bytes(rng, value)
            holder[at][2] = changed.data
            return f"{where}: {changed.what}"
        case 9:
            return f"{where}: {_change_list(rng, holder[at])}"
        case _:
            del holder[at]
            return f"{where} gone"
    return f"{where} changed"


def _change_list(rng: random.Random, field: list[Any]) -> str:
    element, values = field[2][0], field[2][1]
    match rng.randrange(5):
        case 0:
            size = rng.choice((0, 1, 14, 15, 127, 2**20, 2**31 - 1, 2**32))
            field[2] = element, values, size
            return f"says {size} elements"
        case 1 if values:
            values.append(values[rng.randrange(len(values))])
            return "one element twice"
        case 2 if values:
            del values[rng.randrange(len(values))]
            return "one element gone"
        case 3 if element in thrift.INTEGERS and values:
            values[rng.randrange(len(values))] = rng.choice(_ODD)
            return "one odd number"
        case 3 if element in thrift.INTEGERS:
            values.extend([rng.choice(_ODD)] * rng.choice((1, 3, 100)))
            return "odd numbers in it"
    rng.shuffle(values)
    return "in another order"


def bomb(rng: random.Random, data: bytes) -> Mutated:
    """A replacement for the data file ``data``: thousands of rows share one large value through a dictionary, in
    some kilobytes. Raises: ValueError if ``data`` is not a data file of the log.
    """
    rows, size = rng.choice(((2000, 1 << 20), (100_000, 1 << 16), (3, 1 << 20)))
    parts_of(data)
    entries = dict(pq.read_metadata(pa.BufferReader(data)).metadata or {})
    if FOOTER_KEY not in entries:
        raise ValueError("no data file of the log")
    own = json.loads(entries[FOOTER_KEY])
    own |= {"records": rows, "next_offset": own["base_offset"] + rows, "uncompressed_bytes": rows * size}
    entries[FOOTER_KEY] = json.dumps(own, separators=(",", ":")).encode()
    value = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([b"x" * size], pa.binary()))
    schema = pq.read_schema(pa.BufferReader(data))
    columns = {field.name: pa.nulls(rows, field.type) for field in schema}
    columns |= {"value": value, "offset": pa.array(np.arange(own["base_offset"], own["next_offset"]))}
    table = pa.table({field.name: columns[field.name] for field in schema})
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        store_schema=False,
        write_page_checksum=True,
        use_dictionary=["value"],
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(entries)
    return Mutated(seal_segment(*parts_of(sink.getvalue())), f"{rows} records of one value of {size} bytes", True)
