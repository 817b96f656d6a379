"""The same records make the same file, in any batches."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import cache
from io import BytesIO
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.segments.writer import SegmentWriter, _regular, memory_bytes
from tests.unit.segments import BINARY, records

ROWS = 2_500
"""More records and bytes than a page has."""
TYPED = physical_schema(
    value=pa.struct(
        [
            ("flag", pa.bool_()),
            ("price", pa.decimal128(20, 2)),
            ("name", pa.string()),
            ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
            ("inner", pa.struct([("sums", pa.list_(pa.decimal128(38, 4)))])),
        ]
    )
)


def _value(rng: random.Random, typed: bool) -> Any:
    if rng.random() < 0.1:
        return None
    if not typed:
        return rng.randbytes(rng.choice((0, 30, 3_000)))
    return {
        "flag": rng.choice((None, True, False)),
        "price": rng.choice((None, Decimal("7.25"))),
        "name": rng.choice((None, "", "a" * rng.randrange(50))),
        "tags": rng.choice((None, [], [("a", None), ("b", [1, None] * rng.randrange(4))])),
        "inner": rng.choice((None, {"sums": None}, {"sums": [Decimal(1)] * rng.randrange(3)})),
    }


@cache
def everything(typed: bool) -> pa.RecordBatch:
    """All records, with nulls in the latter half alone, so that a batch may have none."""
    rng = random.Random(7)
    keys = [b"k%d" % rng.randrange(900) if row < ROWS // 2 or row % 3 else None for row in range(ROWS)]
    headers = [rng.choice((None, [], [{"key": "h", "value": b"v"}, {"key": "", "value": None}])) for _ in keys]
    values = [_value(rng, typed) for _ in keys]
    times = [rng.randrange(50) for _ in keys]
    schema = TYPED if typed else BINARY
    return records(values, timestamps_us=times, keys=keys, headers=headers, schema=schema)


def written(batches: list[pa.RecordBatch], schema: pa.Schema, row_group_bytes: int) -> tuple[SegmentFooter, bytes]:
    sink = BytesIO()
    writer = SegmentWriter(sink, schema, topic_id="t", partition=0, base_offset=5, row_group_bytes=row_group_bytes)
    for batch in batches:
        writer.write(batch)
    footer = writer.close(lineage=Lineage([(1, 0)]), producers=lambda _: {}, created_ms=1)
    return footer, sink.getvalue()


@cache
def _in_one(typed: bool, row_group_bytes: int) -> tuple[SegmentFooter, bytes]:
    batch = everything(typed)
    return written([batch], TYPED if typed else BINARY, row_group_bytes)


@given(
    st.lists(st.integers(0, ROWS), max_size=60),
    st.booleans(),
    st.booleans(),
    st.sampled_from([40_000, 300_000, 1 << 26]),
)
@example(list(range(0, ROWS, 7)), False, True, 1 << 26)
@example(list(range(0, ROWS, 700)), False, False, 1 << 26)
@example([1024], False, False, 1 << 26)
@example([1000, 2048], False, False, 1 << 26)
@settings(max_examples=25)
@pytest.mark.slow
def test_the_batches_leave_no_trace_in_a_file(
    cuts: list[int], typed: bool, compact: bool, row_group_bytes: int
) -> None:
    """The batches are visible neither in the footer, nor in the ends of row groups and pages."""
    batch, bounds = everything(typed), sorted({0, *cuts, ROWS})
    parts = [batch.slice(start, end - start) for start, end in pairwise(bounds)]
    if compact:  # without the bytes around the slice, and without null bits if there are no nulls
        parts = [pa.RecordBatch.from_pylist(part.to_pylist(), schema=part.schema) for part in parts]
    assert written(parts, TYPED if typed else BINARY, row_group_bytes) == _in_one(typed, row_group_bytes)


def test_only_rows_around_the_ends_of_batches_are_copied() -> None:
    """Values of three batches, which the writer used to join."""
    batches = [pa.array([b"%d" % (row + number) for row in range(5000)], pa.binary()) for number in range(3)]
    pieces = _regular(pa.chunked_array(batches))
    assert pieces.to_pylist() == [value for batch in batches for value in batch.to_pylist()]
    assert all(len(piece) % 1024 == 0 for piece in pieces.chunks[:-1])
    given = {batch.buffers()[2].address for batch in batches}
    copied = sum(len(piece) for piece in pieces.chunks if piece.buffers()[2].address not in given)
    assert copied <= 3 * 1024


@pytest.mark.parametrize("kind", [pa.binary(), pa.int64(), pa.list_(pa.int32())])
def test_a_column_of_one_batch_is_not_copied(kind: pa.DataType) -> None:
    value = {pa.binary(): b"x", pa.int64(): 1, pa.list_(pa.int32()): [1, 2]}[kind]
    for column in (pa.array([value] * 5000, kind), pa.array([value] * 5000, kind).slice(7, 3000)):
        before = pa.total_allocated_bytes()
        assert _regular(pa.chunked_array([column])).chunk(0).equals(column)
        assert pa.total_allocated_bytes() == before
    assert len(_regular(pa.chunked_array([], kind))) == 0


@pytest.mark.parametrize("typed", [False, True])
def test_the_memory_of_records_is_what_arrow_says_but_for_its_rounding(typed: bool) -> None:
    """Levels of lists are additional."""
    batch = everything(typed)
    flat = batch.select(["timestamp", "key", "value"] if not typed else ["timestamp", "key"])
    assert abs(memory_bytes(flat) - flat.nbytes) <= 8 * flat.num_columns + ROWS // 8
    assert memory_bytes(batch) >= batch.nbytes - 8 * 20
