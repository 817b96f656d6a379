"""Produce: rows and frames of this process are appended without Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType

from stratalog.engine.records.partitioner import partitions_of
from stratalog.engine.spark.types import spark_type
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.records import type_to_json
from tests.unit.cluster_harness import LiveCluster

ROWS = [{"id": "a", "n": 1, "at": datetime(2026, 1, 2, tzinfo=UTC)}, {"id": None, "n": None, "at": None}]
VALUE = pa.struct([("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path)
    made.topic(partitions=4)
    return made


def typed(live: LiveCluster) -> None:
    live.cluster.topics.create(
        "typed", partitions=4, replication_factor=2, key=StringType(), value=spark_type(type_to_json(VALUE))
    )


def records(live: LiveCluster, topic: str = "t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in range(4):
        table = live.cluster.fetch(topic, partition, 0).records
        found += [{**row, "partition": partition} for row in table.to_pylist()]
    return found


def values(live: LiveCluster) -> list[bytes]:
    return sorted(row["value"] for row in records(live))


def test_texts_and_bytes_are_values(live: LiveCluster) -> None:
    live.cluster.produce("t", ["é", b"\0"]).raise_for_failures()
    assert values(live) == [b"\0", "é".encode()]


def test_rows_without_a_key_go_to_one_partition(live: LiveCluster) -> None:
    report = live.cluster.produce("t", iter("abcdef"))
    assert [row["records"] for row in report.rows if row["records"]] == [6]


def test_rows_have_keys_headers_and_times(live: LiveCluster) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        {"k": "a", "v": "1", "h": {"x": b"y"}, "t": at},
        {"k": "b", "v": b"2", "h": [("x", None)], "t": None},
        {"k": None, "v": None, "h": None, "t": None},
    ]
    live.cluster.produce("t", rows, key="k", value="v", headers="h", timestamp="t").raise_for_failures()
    found = {row["key"]: row for row in records(live)}
    assert (found[b"a"]["value"], found[b"a"]["timestamp"]) == (b"1", at)
    assert found[b"a"]["headers"] == [{"key": "x", "value": b"y"}]
    assert found[b"b"]["headers"] == [{"key": "x", "value": None}]
    assert found[None]["value"] is None


AT = datetime(2026, 1, 2, tzinfo=UTC)
KAFKA_ROWS: list[dict[str, Any]] = [
    {"key": b"a", "value": b"1", "timestamp": AT, "partition": 2, "headers": [{"key": "x", "value": b"y"}]},
    {"key": None, "value": b"2", "timestamp": None, "partition": 0, "headers": None},
]


@pytest.mark.parametrize("frame", ["rows", "arrow", "polars"])
def test_rows_with_the_columns_of_a_record_are_records_without_any_option(live: LiveCluster, frame: str) -> None:
    """The shape of Kafka records, of which any part except the value may be absent."""
    live.cluster.produce("t", FRAMES[frame](KAFKA_ROWS))
    found = {row["value"]: row for row in records(live)}
    assert [found[b"1"][name] for name in ("key", "timestamp", "partition")] == [b"a", AT, 2]
    assert found[b"1"]["headers"] == [{"key": "x", "value": b"y"}]
    assert [found[b"2"][name] for name in ("key", "partition")] == [None, 0]
    live.cluster.produce("t", FRAMES[frame]([{"key": "b", "value": "3"}]))
    assert {row["value"]: row for row in records(live)}[b"3"]["key"] == b"b"


@pytest.mark.parametrize("frame", ["rows", "arrow", "polars"])
@pytest.mark.parametrize("partition", [3, "p"])
def test_a_named_partition_names_no_other_column(live: LiveCluster, frame: str, partition: int | str) -> None:
    row = {"key": "k", "value": "v", "timestamp": AT} | ({"p": 3} if partition == "p" else {})
    live.cluster.produce("t", FRAMES[frame]([row]), partition=partition).raise_for_failures()
    assert [(row["partition"], row["key"], row["value"], row["timestamp"]) for row in records(live)] == [
        (3, b"k", b"v", AT)
    ]


@pytest.mark.parametrize("frame", ["rows", "arrow", "polars"])
def test_a_column_that_no_part_of_a_record_uses_is_refused_or_counted(live: LiveCluster, frame: str) -> None:
    """The other columns are still those of a record. A key must not vanish because of another column."""
    rows = FRAMES[frame]([{"key": "k", "value": "v", "city": "Bern"}])
    with live.unchanged(), pytest.raises(InvalidRecordError, match="no part of the records uses column 'city'"):
        live.cluster.produce("t", rows)
    report = live.cluster.produce("t", rows, on_unknown_field="drop").raise_for_failures()
    assert report.totals["dropped_fields"] == 1
    assert [(row["key"], row["value"]) for row in records(live)] == [(b"k", b"v")]


@pytest.mark.parametrize("frame", ["arrow", "polars"])
def test_whoever_names_the_value_of_a_frame_chooses_among_its_columns(live: LiveCluster, frame: str) -> None:
    live.cluster.produce("t", FRAMES[frame]([{"key": "k", "value": "v", "city": "Bern"}]), value="city")
    assert [(row["key"], row["value"]) for row in records(live)] == [(None, b"Bern")]


def test_a_column_that_no_record_has_cannot_be_added_to_a_type(live: LiveCluster) -> None:
    with pytest.raises(InvalidRecordError, match=r"name the column as key.* or set on_unknown_field") as raised:
        live.cluster.produce("t", [{"id": "a", "value": "b"}])
    assert '"drop"' in str(raised.value)
    assert '"add"' not in str(raised.value)


def test_a_record_of_a_typed_topic_has_its_value_in_one_column_or_in_columns_of_its_own(live: LiveCluster) -> None:
    typed(live)
    value = {"n": 1, "at": AT}
    live.cluster.produce("typed", [{"key": "a", "value": value}])
    live.cluster.produce("typed", [{"id": "b", **value}], key="id")
    assert sorted((row["key"], row["value"]) for row in records(live, "typed")) == [("a", value), ("b", value)]


def test_declared_fields_with_the_names_of_a_record_are_fields(live: LiveCluster) -> None:
    live.cluster.topics.create("metrics", partitions=4, key="STRING", value="key STRING, value DOUBLE")
    live.cluster.produce("metrics", [{"key": "load", "value": 0.5}])
    assert [(row["key"], row["value"]) for row in records(live, "metrics")] == [
        (None, {"key": "load", "value": 0.5})
    ]


FRAMES = {
    "rows": lambda rows: rows,
    "arrow": pa.Table.from_pylist,
    "batch": lambda rows: pa.RecordBatch.from_pylist(rows),
    "pandas": lambda rows: pd.DataFrame(rows).astype({"n": "Int64"}),
    "polars": pl.DataFrame,
}


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_gives_the_declared_columns_of_a_typed_topic(live: LiveCluster, frame: str) -> None:
    typed(live)
    live.cluster.produce("typed", FRAMES[frame](ROWS), key="id").raise_for_failures()
    found = [(row["key"], row["value"]) for row in records(live, "typed")]
    assert sorted(found, key=str) == [
        ("a", {"n": 1, "at": datetime(2026, 1, 2, tzinfo=UTC)}),
        (None, {"n": None, "at": None}),
    ]


def test_a_key_has_the_same_partition_in_every_call(live: LiveCluster) -> None:
    for number in range(3):
        live.cluster.produce("t", [{"k": f"key-{k}", "value": f"{number}"} for k in range(20)], key="k")
    by_key: dict[bytes, set[int]] = {}
    for row in records(live):
        by_key.setdefault(row["key"], set()).add(row["partition"])
    assert len(by_key) == 20
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert len(set.union(*by_key.values())) == 4


def test_the_same_sequence_is_produced_once_wherever_rows_without_a_key_went(live: LiveCluster) -> None:
    rows = [{"k": f"{k}" if k % 2 else None, "value": f"{k}"} for k in range(10)]
    for _ in range(2):
        live.cluster.produce("t", rows, key="k", producer="p", sequence=7).raise_for_failures()
    assert len(records(live)) == 10


def test_a_retry_goes_where_it_went_before_the_topic_grew(live: LiveCluster) -> None:
    rows = [{"k": f"{k}", "value": f"{k}"} for k in range(10)]
    live.cluster.produce("t", rows, key="k", producer="p", sequence=0).raise_for_failures()
    live.cluster.topics.create_partitions("t", 7)
    live.driver().produce("t", rows, key="k", producer="p", sequence=0).raise_for_failures()
    assert len(records(live)) == 10


def test_the_caller_may_give_the_partition(live: LiveCluster) -> None:
    live.cluster.produce("t", ["a"], partition=3).raise_for_failures()
    live.cluster.produce("t", pl.DataFrame({"p": [1, 2], "value": ["b", "c"]}), partition="p").raise_for_failures()
    assert [(row["partition"], row["value"]) for row in records(live)] == [(1, b"b"), (2, b"c"), (3, b"a")]


def test_the_number_of_a_partition_is_any_whole_number(live: LiveCluster) -> None:
    live.cluster.produce("t", ["a"], partition=np.int64(2)).raise_for_failures()  # type: ignore[arg-type]
    assert [(row["partition"], row["value"]) for row in records(live)] == [(2, b"a")]
    for wrong in (2.0, True, 2**70):
        with live.unchanged(), pytest.raises(InvalidCallError, match="give a whole number"):
            live.cluster.produce("t", ["a"], partition=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        (
            [{"value": "a", "valeu": "b"}],
            {},
            "row 0: no part of the records uses column 'valeu'; did you mean 'value'",
        ),
        ([{"value": "a"}, {}], {}, "row 1 lacks column 'value'"),
        ([{"value": "a"}], {"key": "k"}, "no row has the column 'k' of key='k'"),
        (["a", 7], {}, "row 1 is a int"),
        (["a", {"value": 7}], {}, "row 1: column 'value' is declared binary"),
        ("abc", {}, "a str is not a list of rows"),
        ({"value": "a"}, {}, "a dict is not a list of rows"),
        (["a"], {"partition": 4}, "row 0: partition 4: the topic has partitions 0 to 3"),
        ([{"value": "a", "p": None}], {"partition": "p"}, "a row has null in column 'p'"),
        ([{"value": "a", "t": "now"}], {"timestamp": "t"}, "row 0: column 't' is declared timestamp"),
        (pa.table({"v": ["a"]}), {}, "column 'value' is not in the frame, which has"),
        (pa.table({"value": [1]}), {}, "column 'value' is int64, but is declared as binary: cast it"),
        (
            pa.table({"value": ["a"], "t": [1]}),
            {"timestamp": "t"},
            "column 't' is int64, but is declared as timestamp",
        ),
    ],
)
def test_rows_that_do_not_fit_are_named_and_nothing_is_appended(
    live: LiveCluster, rows: Any, arguments: dict[str, Any], message: str
) -> None:
    with live.unchanged(), pytest.raises(InvalidRecordError, match=message):
        live.cluster.produce("t", rows, **arguments)


def test_numbers_of_a_frame_fit_as_long_as_nothing_is_lost(live: LiveCluster) -> None:
    typed(live)
    at = pa.array([None], pa.timestamp("ms", "UTC"))
    live.cluster.produce("typed", pa.table({"n": [2**31 - 1], "at": at})).raise_for_failures()
    with (
        live.unchanged(),
        pytest.raises(InvalidRecordError, match="column 'n' is int64, but is declared as int32"),
    ):
        live.cluster.produce("typed", pa.table({"n": [2**31], "at": at}))


def test_fields_that_a_type_has_grown_by_may_be_absent(live: LiveCluster) -> None:
    typed(live)
    wider = pa.struct([*VALUE, ("more", pa.string())])
    live.cluster.topics.alter("typed", value=spark_type(type_to_json(wider)))
    for rows in (ROWS, pa.Table.from_pylist(ROWS)):
        live.cluster.produce("typed", rows, key="id").raise_for_failures()
    assert {row["value"]["more"] for row in records(live, "typed")} == {None}


def test_a_key_that_only_spark_can_hash_is_refused(live: LiveCluster) -> None:
    with pytest.raises(InvalidRecordError, match=r"a key of decimal128\(38, 2\) can be partitioned only by Spark"):
        partitions_of(pa.array([Decimal("1.00")], pa.decimal128(38, 2)), 4, "spark_hash")


def test_an_append_of_nothing_is_no_append(live: LiveCluster) -> None:
    with live.unchanged():
        live.cluster.produce("t", []).raise_for_failures()


def test_producing_needs_no_pyspark(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    live.cluster.produce("t", [{"k": np.str_("a"), "value": "b"}], key="k").raise_for_failures()
