"""Sinks accept Kafka's columns and the columns of a typed topic, and assign rows to partitions."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from stratalog.engine.driver.report import OperationFailedError
from stratalog.engine.records.produce import RowColumns
from stratalog.engine.spark import stream_sink
from stratalog.engine.spark.batch_sink import BatchSink, batch_sink_options
from stratalog.engine.spark.given_rows import row_columns
from stratalog.engine.spark.short_errors import short_errors
from stratalog.engine.spark.stream_sink import StreamSink, TaskRows, sink_options
from stratalog.engine.spark.types import spark_type
from stratalog.engine.spark.versions import arrow_schema
from stratalog.partitions.declared import ddl, declared
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.runner import values
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    """The topic ``t`` of bytes, and ``cities`` with a typed value; two partitions each."""
    made = LiveCluster(tmp_path)
    made.topic(partitions=2)
    made.cluster.topics.create(
        "cities", partitions=2, replication_factor=2, key="STRING", value="city STRING, people BIGINT"
    )
    driver = cache(made.driver)
    monkeypatch.setattr(stream_sink, "_driver", lambda _: ports_of(driver()))
    return made


def save(live: LiveCluster, schema: str, *tasks: list[dict[str, Any]], **options: str) -> None:
    """A write of one task for each list of rows."""
    sink = BatchSink(batch_sink_options({"cluster": str(live.file), **options}), schema_of_ddl(schema))
    written = [
        sink.write(iter([pa.RecordBatch.from_pylist(rows, arrow_schema(schema_of_ddl(schema)))])) for rows in tasks
    ]
    sink.commit(list(written))


def schema_of_ddl(text: str) -> StructType:
    found = spark_type(declared(text))
    assert isinstance(found, StructType)
    return found


def records(live: LiveCluster, topic: str) -> dict[int, list[tuple[Any, Any]]]:
    """Keys and values by partition."""
    found = {}
    for partition in (0, 1):
        table = live.cluster.fetch(topic, partition, 0).records
        found[partition] = list(
            zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
        )
    return found


def keys(live: LiveCluster, topic: str) -> list[tuple[int, Any]]:
    return sorted((partition, key) for partition, some in records(live, topic).items() for key, _ in some)


def test_kafka_s_columns_go_to_the_partitions_of_produce(live: LiveCluster) -> None:
    """Text is stored as bytes, and the distribution of rows over tasks does not matter."""
    rows = [{"key": f"k{n}", "value": f"v{n}"} for n in range(8)]
    live.cluster.produce("t", [{"key": row["key"], "value": row["value"]} for row in rows])
    expected = keys(live, "t")
    save(live, "key STRING, value STRING", rows[:3], rows[3:], path="t")
    assert keys(live, "t") == sorted(expected * 2)
    assert {partition for partition, _ in expected} == {0, 1}


def test_a_repeated_save_appends_once_and_rows_without_a_key_are_spread(live: LiveCluster) -> None:
    rows = [{"value": f"v{n}"} for n in range(20)]
    for tasks in ((rows,), (rows[:7], rows[7:])):
        save(live, "value STRING", *tasks, path="t", producer="p", sequence="0")
    found = records(live, "t")
    assert sorted(value for some in found.values() for _, value in some) == sorted(
        row["value"].encode() for row in rows
    )
    assert min(map(len, found.values())) > 2


def test_rows_may_have_the_fields_of_a_typed_topic_as_columns(live: LiveCluster) -> None:
    row = {"key": "no", "city": "Oslo", "people": 700}
    save(live, "key STRING, city STRING, people BIGINT", [row], path="cities")
    save(live, "key STRING, city STRING, people BIGINT, partition INT", [{**row, "partition": 1}], path="cities")
    whole = {"key": "no", "value": {"city": "Oslo", "people": 700}, "partition": None, "offset": None}
    schema = "key STRING, value STRUCT<city: STRING, people: BIGINT>, partition INT, offset BIGINT"
    save(live, schema, [whole], path="cities")
    found = records(live, "cities")
    assert found[0] + found[1] == [("no", {"city": "Oslo", "people": 700})] * 3
    with pytest.raises(InvalidRecordError, match=r"'peopl'.*did you mean 'people'"):
        save(live, "city STRING, people BIGINT, peopl INT", [{"city": "x", "peopl": 1}], path="cities")
    grown = "city STRING, people BIGINT, area INT"
    save(live, grown, [{"city": "Rome", "people": 1, "area": 2}], path="cities", onUnknownField="add")
    topic = ports_of(live.cluster).metadata.image().topic("cities")
    assert ddl(topic.value_schema) == "city STRING, people BIGINT, area INT"


def test_a_column_names_the_topic(live: LiveCluster) -> None:
    live.topic("u", partitions=2)
    rows = [{"topic": "u", "value": "b"}, {"topic": "t", "value": "a"}]
    save(live, "topic STRING, value STRING", rows)
    assert [value for some in records(live, "t").values() for _, value in some] == [b"a"]
    assert [value for some in records(live, "u").values() for _, value in some] == [b"b"]
    with pytest.raises(InvalidRecordError, match="a row's topic is 'u': omit the option topic"):
        save(live, "topic STRING, value STRING", rows, path="t")
    with pytest.raises(InvalidRecordError, match="a row has a null topic"):
        save(live, "topic STRING, value STRING", [{"topic": None, "value": "a"}])
    with pytest.raises(InvalidCallError, match="name the topic: save"):
        save(live, "value STRING", [{"value": "a"}])


def test_an_error_about_one_topic_says_what_the_others_got(live: LiveCluster) -> None:
    """The rows of the first topic are appended before those of the second are found bad."""
    keyed = {"partitions": 1, "replication_factor": 2, "configs": {"cleanup.policy": "compact"}}
    for name in ("u", "v"):
        live.cluster.topics.create(name, **keyed)  # type: ignore[arg-type]
    rows = [{"topic": topic, "value": topic} for topic in ("t", "u", "v")]
    schema = "topic STRING, key STRING, value STRING"
    with pytest.raises(OperationFailedError) as caught:
        save(live, schema, [{"key": None, **row} for row in rows], producer="p", sequence="0")
    report = caught.value.report
    assert [(row["topic"], row["outcome"]) for row in report.rows] == [("t", "acknowledged")]
    assert [(one.item, one.code) for one in report.failures] == [("u", "INVALID_RECORD"), ("v", "INVALID_RECORD")]
    assert "run the append again with producer 'p', sequence 0: nothing is appended twice" in str(caught.value)
    fixed = [{"key": None if row["topic"] == "t" else "k", **row} for row in rows]
    save(live, schema, fixed, producer="p", sequence="0")
    for topic in ("t", "u", "v"):
        found = live.cluster.fetch_many({(topic, n): 0 for n in range(2 if topic == "t" else 1)})
        assert sum(table.num_rows for table in (one.records for one in values(found))) == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("key STRING, value STRING, timestampType INT", r"no place for the columns \['timestampType'\]"),
        ("key STRING, text STRING", r"no place for the columns \['text'\]"),
        ("key STRING", "no column value"),
    ],
)
def test_columns_that_have_no_place_are_named(live: LiveCluster, schema: str, message: str) -> None:
    with live.unchanged(), pytest.raises(InvalidRecordError, match=message):
        save(live, schema, [dict.fromkeys(schema_of_ddl(schema).fieldNames())], path="t")


def test_a_batch_of_a_stream_is_appended_once(live: LiveCluster) -> None:
    given = sink_options({"cluster": str(live.file), "topic": "t"})
    schema = schema_of_ddl("key STRING, value STRING")
    rows = [{"key": f"k{n}", "value": f"v{n}"} for n in range(6)]
    for tasks in ((rows,), (rows[4:], rows[:4])):
        sink = StreamSink(given, schema)
        written = [
            TaskRows("q", sink.write(iter([pa.RecordBatch.from_pylist(some, sink._arrow)])).data)  # type: ignore[union-attr]
            for some in tasks
        ]
        sink.commit(list(written), 0)
    assert len(keys(live, "t")) == 6


def test_a_worker_s_report_of_our_errors_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @short_errors
    class Source:
        def wrong(self, error: Exception) -> None:
            raise error

        def rows(self) -> Any:
            yield 1
            raise InvalidCallError("no")

    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(KeyError):
        Source().wrong(KeyError("x"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    with pytest.raises(InvalidCallError):
        list(Source().rows())
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")


def test_the_parts_that_the_value_declares_are_its_fields(live: LiveCluster) -> None:
    live.cluster.topics.create("own", partitions=1, replication_factor=2, value="key STRING, value INT")
    topic = ports_of(live.cluster).metadata.image().topic("own")
    assert row_columns(["key", "value", "timestamp"], topic) == RowColumns(timestamp="timestamp")
