"""Avro files of an Iceberg table are checked before pyiceberg reads them, because its decoder trusts the stated
sizes."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratalog.tiering.iceberg_avro import unpacked_bytes

pytest.importorskip("pyiceberg", reason="needs stratalog[iceberg]")

MOST = 1_000_000
SYNC = b"\0" * 16


def number(value: int) -> bytes:
    """A number in Avro's encoding."""
    rest, out = value << 1 if value >= 0 else (-value << 1) - 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def deflated(data: bytes) -> bytes:
    return zlib.compress(data, 9)[2:-4]


def zstandard(data: bytes) -> bytes:
    from zstandard import ZstdCompressor

    return bytes(ZstdCompressor().compress(data))


PACK: dict[str, Callable[[bytes], bytes]] = {"null": bytes, "deflate": deflated, "zstandard": zstandard}


def record(*types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


def array(items: Any, **more: str) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def nested(levels: int) -> Any:
    schema: Any = "long"
    for _ in range(levels):
        schema = array(schema)
    return schema


def avro(schema: Any, *blocks: tuple[int, bytes], codec: str = "null", described: bytes | None = None) -> bytes:
    """A file with blocks that state this number of records in these bytes."""
    keys = {
        b"avro.schema": json.dumps(schema).encode() if described is None else described,
        b"avro.codec": codec.encode(),
    }
    header = number(len(keys)) + b"".join(text(key) + text(value) for key, value in keys.items()) + b"\0"
    pack = PACK.get(codec, bytes)
    return b"Obj\1" + header + SYNC + b"".join(number(n) + text(pack(data)) + SYNC for n, data in blocks)


STRING = record("string")

GOOD: Sequence[tuple[str, bytes, int]] = (
    ("no blocks", avro(STRING), 0),
    ("strings", avro(STRING, (2, text(b"a") + text(b""))), 3),
    ("two blocks", avro(record("long"), (1, number(-(1 << 63))), (1, number((1 << 63) - 1))), 20),
    ("null, or not", avro(record(["null", "int"]), (2, b"\0\2\1")), 3),
    ("an array", avro(record(array("int")), (1, b"\4\1\1\0")), 4),
    ("an array in groups of known size", avro(record(array("int")), (1, number(-2) + b"\4\1\1\2\1\0")), 7),
    ("a map", avro(record(array(record("int", "bytes"), logicalType="map")), (1, b"\2\1\2x\0")), 5),
    ("no partition", avro(record(record(), "boolean", "float", "double"), (1, b"\1" * 13)), 13),
)

HUGE = number(1 << 31)


def bomb(codec: str, size_bytes: int = 200 * MOST) -> bytes:
    """Compressing it takes a second, so only its test creates it."""
    return avro(STRING, (1, text(bytes(size_bytes))), codec=codec)


BAD: Sequence[tuple[str, bytes | Callable[[], bytes], str]] = (
    ("nothing", b"", "not an Avro file"),
    ("Parquet", b"PAR1" + bytes(100), "not an Avro file"),
    ("a header that ends", b"Obj\1\4", "truncated"),
    ("a header with a length below 0", b"Obj\1\2" + number(-1), "truncated"),
    ("a header with a huge length", b"Obj\1\2" + HUGE, "truncated"),
    ("no schema", avro(STRING, described=b""), "truncated"),
    ("a block that ends", avro(STRING, (1, text(b"a")))[:-1], "truncated"),
    ("a block below 0", avro(STRING) + number(1) + number(-5) + SYNC, "truncated"),
    ("a string of 2 GiB", avro(STRING, (1, HUGE + b"abc")), "truncated"),
    ("a string below 0", avro(STRING, (1, number(-3) + b"abc")), "truncated"),
    ("bytes below 0 that nobody reads", avro(record("int", "bytes"), (1, b"\1" + number(-2))), "truncated"),
    ("a number that does not end", avro(record("long"), (1, b"\xff" * 40)), "truncated"),
    ("a number of 70 bits", avro(record("long"), (1, b"\xff" * 9 + b"\x7f")), "more than 64 bits"),
    ("more records than there are", avro(STRING, (1 << 40, text(b"a"))), "truncated"),
    ("fewer records than there are", avro(STRING, (1, text(b"a") * 2)), "states 1 records, which end at byte 2"),
    ("records below 0", avro(STRING, (-1, text(b"a"))), "states -1 records"),
    ("records of no bytes", avro(record(record()), (1 << 60, b"")), "its records may have zero bytes"),
    ("items of no bytes", avro(record(array(record())), (1, number(1 << 60) + b"\0")), "the type"),
    ("more items than there are", avro(record(array("int")), (1, number(1 << 60) + b"\1\1\0")), "truncated"),
    ("a map of triples", avro(record(array(record("int", "int", "int"), logicalType="map"))), "the type"),
    ("a type that is none of two", avro(record(["null", "int"]), (1, b"\4\1")), "neither of the two"),
    ("another order of two types", avro(record(["int", "null"])), "the type"),
    ("a fixed size", avro(record({"type": "fixed", "name": "f", "size": 1 << 40})), "the type"),
    ("a decimal", avro(record({"type": "bytes", "logicalType": "decimal", "precision": 38})), "the type"),
    ("a name of a type", avro(record("r")), "the type"),
    ("a field without a type", avro({"type": "record", "fields": [{}]}), "without a type"),
    ("a schema that is no record", avro("null", (1 << 60, b"")), "the type"),
    ("a schema of 100,000 levels", avro(STRING, described=b'{"type":' * 100_000), "too deep"),
    (
        "bytes that deflate did not make",
        avro(STRING, codec="deflate") + b"\2\2\xff" + SYNC,
        "cannot be decompressed",
    ),
    (
        "bytes that zstandard did not make",
        avro(STRING, codec="zstandard") + b"\2\2\xff" + SYNC,
        "cannot be decompressed",
    ),
    ("another codec", avro(STRING, (1, text(b"a")), codec="snappy"), "compressed with snappy"),
    *((f"a bomb, {codec}", partial(bomb, codec), "more than 1000000 bytes") for codec in PACK),
    (
        "many small blocks",
        partial(avro, STRING, *[(1, text(bytes(9_000)))] * 200, codec="deflate"),
        "more than 1000000 bytes",
    ),
)


@pytest.mark.parametrize(("file", "size_bytes"), [pytest.param(*each, id=what) for what, *each in GOOD])
@pytest.mark.parametrize("most", [MOST, 20])
def test_files_that_iceberg_writes_are_accepted(file: bytes, size_bytes: int, most: int) -> None:
    assert unpacked_bytes(file, most) == size_bytes


@pytest.mark.sample(12)
@pytest.mark.parametrize(("file", "why"), [pytest.param(*each, id=what) for what, *each in BAD])
def test_a_file_that_states_what_it_does_not_have_or_unpacks_to_too_much_is_refused_at_little_cost(
    file: bytes | Callable[[], bytes], why: str
) -> None:
    file = file if isinstance(file, bytes) else file()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=why):
            unpacked_bytes(file, MOST)
        assert tracemalloc.get_traced_memory()[1] < 20 * MOST + len(file)
    finally:
        tracemalloc.stop()


def test_a_file_that_was_checked_is_held_to_a_lower_bound_too() -> None:
    file = avro(STRING, (1, text(bytes(5000))))
    assert unpacked_bytes(file, MOST) == 5002
    with pytest.raises(ValueError, match="more than 5001 bytes"):
        unpacked_bytes(file, 5001)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_lists_and_manifests_as_pyiceberg_writes_them_pass(tmp_path: Path, version: Any, codec: Any) -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import (
        DataFile,
        ManifestEntry,
        ManifestEntryStatus,
        write_manifest,
        write_manifest_list,
    )
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Record
    from pyiceberg.types import LongType, NestedField

    io = PyArrowFileIO()
    schema = Schema(NestedField(1, "a", LongType(), required=False))
    one, of = tmp_path / "manifest.avro", tmp_path / "list.avro"
    file = DataFile.from_args(
        content=0,
        file_path="s3://bucket/0.parquet",
        file_format="PARQUET",
        partition=Record(),
        record_count=1,
        file_size_in_bytes=2,
        block_size_in_bytes=64 * 1024,
        column_sizes={1: 300, 2: 5},
        value_counts={},
        lower_bounds={1: b"x" * 200},
        split_offsets=[4, 400],
    )
    output = io.new_output(f"file://{one}")
    with write_manifest(version, UNPARTITIONED_PARTITION_SPEC, schema, output, 7, codec) as writer:
        for _ in range(3):
            writer.add_entry(
                ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=7, data_file=file)
            )
    with write_manifest_list(version, io.new_output(f"file://{of}"), 7, None, 1, codec) as listed:
        listed.add_manifests([writer.to_manifest_file()])
    for path in (one, of):
        assert unpacked_bytes(path.read_bytes(), MOST) > 50
