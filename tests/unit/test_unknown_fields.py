"""Fields that a topic's type lacks are refused, added, or left out and counted, in the same way by every kind of
append.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.engine.spark.types import spark_type
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.growth import grown_schema
from stratalog.partitions.records import HEADERS, TIMESTAMP, type_to_json
from tests.unit.cluster_harness import LiveCluster

POINT = pa.struct([("x", pa.int64())])
VALUE = pa.struct(
    [("amount", pa.int64()), ("a", POINT), ("l", pa.list_(POINT)), ("m", pa.map_(pa.string(), POINT))]
)
WHOLE = {"amount": 1, "a": {"x": 1}, "l": [{"x": 1}], "m": [("p", {"x": 1})]}
WIDER: dict[str, tuple[dict[str, Any], str]] = {
    "amuont": ({**WHOLE, "amuont": 2}, "amuont"),
    "a.y": ({**WHOLE, "a": {"x": 1, "y": 2}}, "a.y"),
    "l.element.z": ({**WHOLE, "l": [{"x": 1, "z": 2}]}, "l.element.z"),
    "m.value.z": ({**WHOLE, "m": [("p", {"x": 1, "z": 2})]}, "m.value.z"),
    "another case": ({**WHOLE, "Amount": 2}, "Amount"),
}

Way = Callable[[LiveCluster, dict[str, Any], str], Report]


def _table(row: dict[str, Any]) -> pa.Table:
    kinds = {}
    for name, value in row.items():
        kinds[name] = pa.infer_type([value])
        if name == "m":
            inner = pa.infer_type([value[0][1]])
            kinds[name] = pa.map_(pa.string(), inner)
    return pa.table({name: pa.array([value], kinds[name]) for name, value in row.items()})


def _mappings(live: LiveCluster, row: dict[str, Any], policy: str) -> Report:
    return live.cluster.produce("t", [row], on_unknown_field=policy)  # type: ignore[arg-type]


def _arrow(live: LiveCluster, row: dict[str, Any], policy: str) -> Report:
    return live.cluster.produce("t", _table(row), on_unknown_field=policy)  # type: ignore[arg-type]


def _batch(row: dict[str, Any]) -> pa.RecordBatch:
    value = _table(row).to_struct_array().combine_chunks()
    parts = [pa.nulls(1, TIMESTAMP), pa.nulls(1, pa.string()), value, pa.nulls(1, HEADERS)]
    return pa.RecordBatch.from_arrays(parts, ["timestamp", "key", "value", "headers"])


def _batches(live: LiveCluster, row: dict[str, Any], policy: str) -> Report:
    return live.cluster.append_batches("t", {0: [_batch(row)]}, on_unknown_field=policy)  # type: ignore[arg-type]


def _transaction(live: LiveCluster, row: dict[str, Any], policy: str) -> Report:
    with live.cluster.transactions.begin("loader") as t:
        return t.append_batches("t", {0: [_batch(row)]}, on_unknown_field=policy)  # type: ignore[arg-type]


WAYS: dict[str, Way] = {"mappings": _mappings, "arrow": _arrow, "batches": _batches, "transaction": _transaction}


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path)
    made.cluster.topics.create(
        "t", partitions=1, replication_factor=2, key=StringType(), value=spark_type(type_to_json(VALUE))
    )
    return made


def value_type(live: LiveCluster) -> StructType:
    found = spark_type(live.cluster.image.topic("t").value_schema)
    assert isinstance(found, StructType)
    return found


def rows(live: LiveCluster) -> list[Any]:
    return live.cluster.fetch("t", 0, 0).records.column("value").to_pylist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", WIDER)
def test_an_unknown_field_is_refused_by_its_whole_path(live: LiveCluster, way: str, field: str) -> None:
    row, path = WIDER[field]
    with pytest.raises(InvalidRecordError) as caught:
        WAYS[way](live, row, "fail")
    text = str(caught.value)
    assert f"{path}'" in text
    assert "on_unknown_field" in text
    if field == "amuont":
        assert "did you mean 'amount'?" in text
    if field == "another case":
        assert "'amount' differs only in case" in text
    assert rows(live) == []


@pytest.mark.parametrize("method", ["produce", "append_batches"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"acks": "1"}, "acks is '1'"),
        ({"on_bad_record": "topic", "bad_record_topic": "nowhere"}, "'nowhere' does not exist"),
        ({}, "it mirrors"),
    ],
)
def test_the_type_does_not_grow_by_a_call_that_is_refused(
    live: LiveCluster, method: str, wrong: dict[str, str], message: str
) -> None:
    """Fields cannot be removed again."""
    if not wrong:
        live.cluster.topics.delete("t")
        configs = {"mirror.source": f"cluster/{'x' * 22}"}
        live.cluster.topics.create("t", value=spark_type(type_to_json(VALUE)), configs=configs)
    row, _ = WIDER["amuont"]
    given: Any = [row] if method == "produce" else {0: [_batch(row)]}
    with live.unchanged(), pytest.raises(InvalidCallError, match=message):
        getattr(live.cluster, method)("t", given, on_unknown_field="add", **wrong)
    assert value_type(live).fieldNames() == VALUE.names


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", WIDER)
def test_it_is_dropped_and_counted_by_path(live: LiveCluster, way: str, field: str) -> None:
    row, path = WIDER[field]
    report = WAYS[way](live, row, "drop").raise_for_failures()
    dropped = [one for one in report.rows if one["outcome"] == "dropped"]
    assert [(str(one["reason"]).endswith(path), one["records"]) for one in dropped] == [(True, 1)]
    assert report.totals["dropped_fields"] == 1
    assert any(path in note for note in report.notes)
    assert rows(live) == [WHOLE]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", ["amuont", "a.y"])
def test_the_type_grows_by_it(live: LiveCluster, way: str, field: str) -> None:
    row, _ = WIDER[field]
    report = WAYS[way](live, row, "add").raise_for_failures()
    assert any("grew by" in note for note in report.notes)
    assert rows(live) == [row]
    WAYS[way](live, WHOLE | {"a": {"x": 1}}, "fail").raise_for_failures() if way != "mappings" else None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", ["l.element.z", "m.value.z", "another case"])
def test_a_type_that_cannot_grow_so_is_refused(live: LiveCluster, way: str, field: str) -> None:
    row, path = WIDER[field]
    before = live.cluster.image.topic("t").value_schema
    with pytest.raises(InvalidCallError, match=f"cannot grow by the field '(value.)?{path}'"):
        WAYS[way](live, row, "add")
    assert live.cluster.image.topic("t").value_schema == before
    assert rows(live) == []


def test_a_field_of_nulls_alone_says_no_type(live: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="its values do not determine its type"):
        _mappings(live, {**WHOLE, "new": None}, "add")


def test_a_type_that_no_topic_can_have_is_refused(live: LiveCluster) -> None:
    table = _table(WHOLE).append_column("new", pa.array([1], pa.duration("s")))
    with pytest.raises(InvalidCallError, match=r"cannot grow by the field 'new'.*duration"):
        live.cluster.produce("t", table, on_unknown_field="add")


def test_another_driver_that_adds_a_field_at_the_same_time_is_waited_for(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = type(live.cluster._ports.metadata)
    submit, raced = metadata.submit, []

    def racing(self: Any, command: Any, **how: Any) -> Any:
        if isinstance(command, AlterTopic) and not raced:
            raced.append(command)
            present = live.cluster.image.topic("t").value_schema
            other = pa.struct([*VALUE, pa.field("other", pa.string())])
            assert present is not None
            submit(self, AlterTopic("t", None, grown_schema(present, type_to_json(other), "value")[0]))
        return submit(self, command, **how)

    monkeypatch.setattr(metadata, "submit", racing)
    live.cluster.produce("t", [{**WHOLE, "new": "n"}], on_unknown_field="add").raise_for_failures()
    assert raced
    assert value_type(live).fieldNames()[-2:] == ["other", "new"]


def test_extra_columns_of_pandas_are_refused_too(live: LiveCluster) -> None:
    frame = pd.DataFrame({"amount": [1], "amuont": [2]})
    with pytest.raises(InvalidRecordError, match="'amuont'"):
        live.cluster.produce("t", frame)


@pytest.mark.parametrize("frame", [True, False])
@pytest.mark.parametrize("name", ["key", "partition", "headers", "timestamp"])
def test_a_misspelled_column_of_a_record_is_named_before_unknown_fields(
    live: LiveCluster, frame: bool, name: str
) -> None:
    row = {**WHOLE, "identity": "a"}
    with pytest.raises(InvalidRecordError, match=f"the column 'identty' of {name}=.*; did you mean 'identity'"):
        live.cluster.produce("t", _table(row) if frame else [row], **{name: "identty"})  # type: ignore[arg-type]


def test_an_unknown_column_may_be_a_part_of_the_record(live: LiveCluster) -> None:
    with pytest.raises(InvalidRecordError, match="name the column as key, headers, timestamp or partition"):
        live.cluster.produce("t", [{**WHOLE, "id": "a"}])
    with pytest.raises(InvalidRecordError) as caught:
        live.cluster.produce("t", [WIDER["a.y"][0]])
    assert "name the column as" not in str(caught.value)


def test_columns_next_to_a_named_value_are_no_fields(live: LiveCluster) -> None:
    live.topic("bytes")
    table = pa.table({"payload": ["a"], "other": [1]})
    live.cluster.produce("bytes", table, value="payload").raise_for_failures()


def test_the_policy_is_one_of_three(live: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="use 'fail', 'add' or 'drop'"):
        _mappings(live, WHOLE, "merge")
