"""Delta's per-file statistics: exact if possible, wide if not, absent if unknown."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import TIMESTAMP, physical_schema
from stratalog.partitions.segments.reader import Segment, read_segment
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering.statistics import INDEXED_COLUMNS, STRING_PREFIX, statistics_json
from tests.unit.segments import listed, records, write_segment

NAME = DataName(10, None, 0)


def segment_of(data: bytes) -> Segment:
    store = MemoryStore()
    store.create(str(NAME), data)
    return read_segment(store, listed(store, NAME))


def stats_of(
    values: Sequence[object],
    value_type: pa.DataType,
    times: Sequence[int] | None = None,
    row_group_bytes: int = 10**9,
) -> dict[str, Any]:
    """The statistics of a segment with these values from offset 10 on, partition 3; one batch per record."""
    schema = physical_schema(value=value_type)
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink, schema, topic_id="t", partition=3, base_offset=10, row_group_bytes=row_group_bytes
    )
    for index, value in enumerate(values):
        arrays = [
            pa.array([times[index] if times else index], TIMESTAMP),
            pa.array([b"k"], pa.binary()),
            pa.array([value], value_type),
            pa.nulls(1, schema.field("headers").type),
        ]
        writer.write(pa.RecordBatch.from_arrays(arrays, ["timestamp", "key", "value", "headers"]))
    writer.close(lineage=Lineage([(0, 0)]), producers=lambda _: {}, created_ms=0)
    parsed: dict[str, Any] = json.loads(statistics_json(segment_of(sink.getvalue())))
    return parsed


def bounds_of(
    values: Sequence[object], of_type: pa.DataType, row_group_bytes: int = 10**9
) -> tuple[Any, Any, Any]:
    """Minimum, maximum and null count of the field x of a struct."""
    stats = stats_of([{"x": value} for value in values], pa.struct([("x", of_type)]), None, row_group_bytes)
    found = tuple(stats[kind].get("value", {}).get("x") for kind in ("minValues", "maxValues", "nullCount"))
    return found[0], found[1], found[2]


def test_statistics_bound_the_columns_of_the_log() -> None:
    stats = stats_of([b"a", None], pa.binary(), [1_500, 2_500])
    assert stats["numRecords"] == 2
    assert stats["minValues"] == {"partition": 3, "offset": 10, "timestamp": "1970-01-01T00:00:00.001Z"}
    assert stats["maxValues"] == {"partition": 3, "offset": 11, "timestamp": "1970-01-01T00:00:00.003Z"}
    assert stats["nullCount"]["value"] == 1
    assert stats["nullCount"]["offset"] == 0
    assert "headers" not in stats["nullCount"]


@pytest.mark.parametrize(
    ("values", "of_type", "wanted"),
    [
        ([3, -4, None], pa.int8(), (-4, 3, 1)),
        ([2**62, 1], pa.int64(), (1, 2**62, 0)),
        ([None, None], pa.int32(), (None, None, 2)),
        (["b", "a"], pa.string(), ("a", "b", 0)),
        ([True, False], pa.bool_(), (None, None, 0)),
        ([date(1969, 12, 31), date(2024, 2, 29)], pa.date32(), ("1969-12-31", "2024-02-29", 0)),
        (
            [datetime(1960, 1, 1, 0, 0, 0, 1)],
            pa.timestamp("us"),
            ("1960-01-01T00:00:00.000", "1960-01-01T00:00:00.001", 0),
        ),
        (
            [datetime(2013, 1, 1, 5, tzinfo=UTC)],
            TIMESTAMP,
            ("2013-01-01T05:00:00.000Z", "2013-01-01T05:00:00.000Z", 0),
        ),
        # Segments keep no statistics of floats: Parquet's bounds leave NaN out, and Spark would skip such rows.
        ([1.5, float("nan")], pa.float64(), (None, None, None)),
        (["x" * 5000, "a"], pa.string(), (None, None, 0)),  # Parquet keeps no bounds so long
    ],
)
def test_bounds_depend_on_the_type_of_a_column(
    values: list[object], of_type: pa.DataType, wanted: tuple[object, object, int]
) -> None:
    assert bounds_of(values, of_type) == wanted


def test_decimals_keep_every_digit() -> None:
    schema = physical_schema(value=pa.struct([("x", pa.decimal128(38, 10))]))
    value = {"x": Decimal("-1234567890123456789012345678.0123456789")}
    store = MemoryStore()
    text = statistics_json(
        read_segment(store, write_segment(store, NAME, [records([value], schema=schema)], schema=schema))
    )
    assert text.count('"value":{"x":-1234567890123456789012345678.0123456789}') == 2


def test_years_beyond_what_a_text_can_hold_are_left_out() -> None:
    stats = stats_of([b""], pa.binary(), [2**62])
    assert "timestamp" not in stats["minValues"]
    assert stats["maxValues"]["offset"] == 10


def test_bounds_go_over_all_row_groups() -> None:
    assert bounds_of([5, None, 1, 9], pa.int32(), row_group_bytes=1) == (1, 9, 1)
    assert bounds_of([None, 4], pa.int32(), row_group_bytes=1) == (4, 4, 1)
    assert bounds_of(["x" * 5000, "a"], pa.string(), row_group_bytes=1) == (None, None, 0)


def test_structs_nest_and_lists_and_maps_are_left_out() -> None:
    inner = pa.struct([("y", pa.int32()), ("list", pa.list_(pa.field("element", pa.int32())))])
    of_type = pa.struct([("inner", inner), ("map", pa.map_(pa.string(), pa.int32())), ("z", pa.int32())])
    stats = stats_of([{"inner": {"y": 1, "list": [5]}, "map": [("a", 1)], "z": 2}, None], of_type)
    assert stats["minValues"]["value"] == {"inner": {"y": 1}, "z": 2}
    assert stats["nullCount"]["value"] == {"inner": {"y": 1}, "z": 1}


def test_wide_values_stop_where_readers_stop_looking() -> None:
    of_type = pa.struct([(f"c{n:03d}", pa.int32()) for n in range(100)])
    stats = stats_of([{f"c{n:03d}": n for n in range(100)}], of_type)
    assert len(stats["minValues"]["value"]) == INDEXED_COLUMNS - 4  # partition, offset, timestamp, key
    assert "producer_id" not in stats["nullCount"]


@given(st.lists(st.text(max_size=STRING_PREFIX + 3), min_size=1, max_size=4))
def test_string_bounds_hold_for_every_value(values: list[str]) -> None:
    lowest, highest, _ = bounds_of(values, pa.string())
    assert lowest <= min(values)
    assert highest is None or highest >= max(values)
    assert len(lowest) <= STRING_PREFIX


@given(st.lists(st.integers(-(2**55), 2**55), min_size=1, max_size=4))
def test_timestamp_bounds_hold_for_every_value(times: list[int]) -> None:
    stats = stats_of([b""] * len(times), pa.binary(), times)
    for kind, bound in (("minValues", min(times)), ("maxValues", max(times))):
        found = datetime.fromisoformat(stats[kind]["timestamp"])
        micros = (found - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000
        assert abs(micros - bound) <= 1_010
        assert micros <= bound + 10 if kind == "minValues" else micros >= bound - 10
