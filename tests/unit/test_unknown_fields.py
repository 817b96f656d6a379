"""What an append brings that the topic's type lacks is refused, added or counted, never dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog import Cluster, Report
from stratalog.engine.records.unknown_fields import without
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.records import TIMESTAMP
from tests.unit.cluster_harness import LiveCluster

TYPE = "n BIGINT, a STRUCT<x: BIGINT>, l ARRAY<STRUCT<x: BIGINT>>, m MAP<STRING, STRUCT<x: BIGINT>>"
WHOLE = {"n": 1, "a": {"x": 1}, "l": [{"x": 1}], "m": [("k", {"x": 1})]}
UNKNOWN: Mapping[str, Mapping[str, Any]] = {
    "extra": {**WHOLE, "extra": 5},
    "a.y": {**WHOLE, "a": {"x": 1, "y": 5}},
    "a.X": {**WHOLE, "a": {"X": 5, "x": 1}},
    "l.element.y": {**WHOLE, "l": [{"x": 1}, {"x": 1, "y": 5}]},
    "m.value.y": {**WHOLE, "m": [("k", {"x": 1, "y": 5})]},
    "b": {**WHOLE, "b": {"c": [5]}},
}
"""By the path of the field that is too much: a row."""
CAN_BE_ADDED = {"extra", "a.y", "b"}
"""A type grows in structs alone, and Spark ignores case in names."""


def rows(cluster: Cluster, row: Mapping[str, Any], **options: Any) -> Report:
    return cluster.produce("t", [WHOLE, row], **options)


def frame(cluster: Cluster, row: Mapping[str, Any], **options: Any) -> Report:
    return cluster.produce("t", table(row), **options)


def table(row: Mapping[str, Any]) -> pa.Table:
    fields = [(name, pa.array([value]).type) for name, value in row.items() if name != "m"]
    entries = pa.array([entry[1] for entry in row["m"]]).type
    return pa.Table.from_pylist([dict(row)], pa.schema([*fields, ("m", pa.map_(pa.string(), entries))]))


def batches(cluster: Cluster, row: Mapping[str, Any], **options: Any) -> Report:
    (batch,) = table(row).to_batches()
    named = {field.name: field for field in batch.schema}
    order = [name for name in (*WHOLE, *row) if name in named]
    value = pa.StructArray.from_arrays(
        [batch.column(name) for name in dict.fromkeys(order)],
        fields=[named[name] for name in dict.fromkeys(order)],
    )
    columns = {"timestamp": pa.nulls(1, TIMESTAMP), "key": pa.nulls(1), "value": value, "headers": pa.nulls(1)}
    made = pa.RecordBatch.from_pydict(columns)
    return cluster.append_batches("t", {0: [made]}, **options)


WAYS = [rows, frame, batches]
Way = Callable[..., Report]


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path)
    made.cluster.topics.create("t", partitions=1, value=TYPE)
    return made


def values(live: LiveCluster) -> Sequence[Any]:
    return list(live.driver().fetch("t", 0, 0).records.column("value").to_pylist())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", UNKNOWN)
def test_it_is_refused_by_its_path_and_nothing_is_appended(live: LiveCluster, way: Way, path: str) -> None:
    with live.unchanged(), pytest.raises(InvalidRecordError) as raised:
        way(live.cluster, UNKNOWN[path])
    said = str(raised.value)
    assert f"no record has a field {path!r}" in said
    assert "on_unknown_field='add'" in said
    assert ("row 1: " in said) == (way is rows)
    if path == "a.X":
        assert "did you mean 'a.x'?" in said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", UNKNOWN)
def test_it_is_dropped_on_request_and_counted(live: LiveCluster, way: Way, path: str) -> None:
    report = way(live.cluster, UNKNOWN[path], on_unknown_field="drop")
    assert report.totals["dropped_fields"] == 1
    assert f"fields that the topic lacks were dropped: {path} (1 records)" in report.notes
    assert "5" not in str(values(live))
    assert values(live)[-1]["a"]["x"] == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", UNKNOWN)
def test_it_is_added_on_request_where_a_type_can_grow(live: LiveCluster, way: Way, path: str) -> None:
    if path not in CAN_BE_ADDED:
        with pytest.raises(InvalidRecordError, match="cannot take in the fields"):
            way(live.cluster, UNKNOWN[path], on_unknown_field="add")
        return
    report = way(live.cluster, UNKNOWN[path], on_unknown_field="add")
    assert "dropped_fields" not in report.totals
    last = values(live)[-1]
    for name in path.split("."):
        last = last[name]
    assert last in (5, {"c": [5]})
    assert way(live.cluster, UNKNOWN[path]).ok


def test_a_field_that_is_null_everywhere_has_no_type_and_needs_none(live: LiveCluster) -> None:
    live.cluster.produce("t", [{**WHOLE, "extra": None}], on_unknown_field="add")
    assert values(live) == [{**WHOLE, "m": [("k", {"x": 1})]}]


def test_rows_that_do_not_agree_on_a_type_add_nothing(live: LiveCluster) -> None:
    with live.unchanged(), pytest.raises(InvalidRecordError, match="extra, which is of two types"):
        live.cluster.produce("t", [{**WHOLE, "extra": 1}, {**WHOLE, "extra": "a"}], on_unknown_field="add")


def test_a_policy_that_is_none_is_named(live: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="it takes 'fail', 'add' or 'drop'"):
        live.cluster.produce("t", [WHOLE], on_unknown_field="ignore")  # type: ignore[arg-type]


def test_a_key_that_is_a_struct_is_looked_into_too(live: LiveCluster) -> None:
    live.cluster.topics.create("u", partitions=1, key="k BIGINT", value="n BIGINT")
    row = {"id": {"k": 1, "z": 2}, "n": 1}
    with pytest.raises(InvalidRecordError, match="no record has a field 'z'"):
        live.cluster.produce("u", [row], key="id")
    live.cluster.produce("u", [row], key="id", on_unknown_field="add")
    assert live.driver().fetch("u", 0, 0).records.column("key").to_pylist() == [{"k": 1, "z": 2}]


@pytest.mark.parametrize(
    "given",
    [
        pa.array([{"x": 1, "y": 2}, None, {"x": None, "y": 3}]),
        pa.array([[{"x": 1, "y": 2}], None, [], [{"x": 3, "y": None}, None]]),
        pa.array(
            [[("k", {"x": 1, "y": 2})], None, []],
            pa.map_(pa.string(), pa.struct([("x", "int64"), ("y", "int64")])),
        ),
    ],
    ids=["struct", "list", "map"],
)
@pytest.mark.parametrize("start", [0, 1])
def test_what_is_left_of_a_column_is_the_same_column(given: pa.Array, start: int) -> None:
    """Also of a slice, and with nulls at each depth."""
    narrow = pa.struct([("x", pa.int64())])
    kinds = {pa.types.is_list: pa.list_(narrow), pa.types.is_map: pa.map_(pa.string(), narrow)}
    declared = next((wanted for is_a, wanted in kinds.items() if is_a(given.type)), narrow)
    found = without(given.slice(start), declared)
    assert found.to_pylist() == without_y(given.slice(start).to_pylist())
    assert found.cast(declared).type == declared


def without_y(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name != "y"}
    if isinstance(value, list | tuple):
        return type(value)(without_y(one) for one in value)
    return value
