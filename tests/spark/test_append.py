"""Append from DataFrames: keys, values, partitions, time, order, and exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog import Cluster
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError, UnknownTopicOrPartitionError
from tests.spark.spark_cluster import files, ordered, rows
from tests.unit.together import together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    before = files(folder)
    yield
    assert files(folder) == before


# ------------------------------------------------------------------------------ what is stored

VALUE = """
    n BIGINT, small SMALLINT, price DECIMAL(20, 4), at TIMESTAMP, day DATE, name STRING, raw BINARY,
    inner STRUCT<deep: STRUCT<x: DOUBLE>, flag: BOOLEAN>, tags ARRAY<STRING>, points ARRAY<STRUCT<x: INT>>,
    extra MAP<STRING, INT>
"""


def typed_rows() -> list[dict[str, Any]]:
    at = datetime(2013, 1, 1, 5, 15, 0, 123456)
    full = {
        "n": 2**60,
        "small": -3,
        "price": Decimal("-12345678901234.5678"),
        "at": at,
        "day": at.date(),
        "name": "Zürich \U0001f600",
        "raw": bytearray(b"\0\xff"),
        "inner": {"deep": {"x": 0.1}, "flag": True},
        "tags": ["a", None, ""],
        "points": [{"x": 1}, None, {"x": None}],
        "extra": {"k": 1, "l": None},
    }
    return [
        {"key": "full", **full},
        {"key": "nulls", **dict.fromkeys(full)},
        {"key": "empty", **full, "tags": [], "points": [], "extra": {}, "inner": None},
        {"key": None, **full, "inner": {"deep": None, "flag": None}},
    ]


def test_typed_values_come_back_as_they_were(cluster: Cluster, spark: SparkSession) -> None:
    """Nested structs, arrays, maps, decimals, timestamps to the microsecond, nulls everywhere. Keys are null or
    not, and a value with a map is hashed if there is no key."""
    cluster.topics.create("typed", partitions=3, replication_factor=2, key="STRING", value=VALUE)
    source = spark.createDataFrame(typed_rows(), f"key STRING, {VALUE}")
    report = cluster.append("typed", source, key="key").raise_for_failures()
    assert report.totals["records"] == 4
    back = cluster.read("typed")
    assert rows(back.select("key", "value.*")) == rows(source)
    cluster.verify("typed", deep=True).raise_for_failures()


def test_binary_keys_values_and_headers_come_back_as_they_were(cluster: Cluster, spark: SparkSession) -> None:
    """Text becomes its UTF-8 bytes automatically; null stays null."""
    cluster.topics.create("binary", partitions=1, replication_factor=2)
    source = spark.createDataFrame(
        [
            (0, "k", bytearray(b"\0v"), [("h", bytearray(b"1")), ("h", None)]),
            (1, "ü", None, []),
            (2, None, bytearray(b""), None),
        ],
        "n INT, key STRING, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
    ).coalesce(1)
    cluster.append("binary", source.drop("n")).raise_for_failures()
    back = cluster.read("binary")
    assert [(k and bytes(k), v and bytes(v)) for k, v in ordered(back, "key", "value")] == [
        (b"k", b"\0v"),
        ("ü".encode(), None),
        (None, b""),
    ]
    assert [None if h is None else [(x.key, x.value) for x in h] for (h,) in ordered(back, "headers")] == [
        [("h", bytearray(b"1")), ("h", None)],
        [],
        None,
    ]
    assert back.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def test_a_typed_topic_takes_its_value_from_one_column_too(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("struct", replication_factor=2, value="n BIGINT")
    source = spark.range(3).selectExpr("struct(id AS n) AS v")
    cluster.append("struct", source, value="v").raise_for_failures()
    assert sorted(row.n for row in cluster.read("struct").select("value.*").collect()) == [0, 1, 2]


# ---------------------------------------------------------------------------------- partitions


def test_rows_go_where_the_partition_column_says(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("placed", partitions=4, replication_factor=1)
    source = spark.range(20).selectExpr("cast(id AS STRING) AS value", "id % 3 AS p")
    report = cluster.append("placed", source, partition="p").raise_for_failures()
    assert {row["partition"]: row["records"] for row in report.rows} == {0: 7, 1: 7, 2: 6}
    back = cluster.read("placed").selectExpr("cast(cast(value AS STRING) AS INT) % 3 AS p", "partition")
    assert back.where("p != partition").count() == 0


def test_equal_keys_go_to_one_partition_in_every_append(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("hashed", partitions=4, replication_factor=1)
    for parts in (1, 3):
        source = spark.range(60).selectExpr("concat('k', id % 12) AS key", "cast(id AS STRING) AS value")
        cluster.append("hashed", source.repartition(parts), key="key").raise_for_failures()
    back = cluster.read("hashed")
    assert back.select("key", "partition").distinct().count() == 12
    assert back.select("partition").distinct().count() > 1
    keyless = spark.range(60).selectExpr("cast(id AS STRING) AS value")
    report = cluster.append("hashed", keyless).raise_for_failures()
    assert len(report.rows) == 4, "records without a key are spread by their values"


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ("if(id = 7, null, 0)", "append to refused: a row's partition is null"),
        ("if(id = 7, 2, 0)", "append to refused: a row's partition is 2, but the topic has partitions 0 to 1"),
        ("if(id = 7, -1, 0)", "a row's partition is -1"),
        ("'0'", "the partition column is string, but must be an integer"),
        ("0.0", "the partition column is decimal"),
    ],
)
def test_a_row_without_a_place_is_refused_and_nothing_is_written(
    cluster: Cluster, spark: SparkSession, folder: Path, partition: str, message: str
) -> None:
    """Bad input: "partition out of range; null partition"."""
    if "refused" not in cluster.image.topic_ids:
        cluster.topics.create("refused", partitions=2, replication_factor=1)
    source = spark.range(10).selectExpr("cast(id AS STRING) AS value", f"{partition} AS p")
    with unchanged(folder), pytest.raises(InvalidRecordError, match=message):
        cluster.append("refused", source, partition="p")


def test_columns_that_are_missing_or_of_another_type_are_named(
    cluster: Cluster, spark: SparkSession, folder: Path
) -> None:
    """Bad input: "a DataFrame without the declared value columns or with other types"."""
    cluster.topics.create("declared", replication_factor=1, key="INT", value="n BIGINT, word STRING")
    good = spark.range(1).selectExpr(
        "id AS n", "'w' AS word", "1 AS k", "array(1) AS arr", "struct(1 AS x) AS inner"
    )
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (good.drop("word"), {}, r"lacks the declared value columns \['word'\]; it has \['n', 'k'"),
        (
            good.selectExpr("cast(n AS DOUBLE) AS n", "word"),
            {},
            "value column 'n' is double, but is declared as bigint: cast it",
        ),
        (good, {"key": "word"}, "append to declared: key is string, but is declared as int"),
        (good, {"key": "nokey"}, "key: column 'nokey' is not in the DataFrame"),
        (good, {"value": "n"}, "value is bigint, but is declared as struct<n:bigint,word:string>"),
        (good, {"timestamp": "when"}, "timestamp: column 'when' is not in the DataFrame"),
        (good, {"headers": "n"}, "append to declared: .*cannot cast"),
        (good, {"timestamp": "arr"}, "timestamp is array<int>: make it a time"),
        (good, {"timestamp": "n"}, "timestamp is bigint: make it a time, by timestamp_millis"),
        (good, {"timestamp": "word"}, "timestamp is string: make it a time"),
        (good, {"key": "inner.nothing"}, "append to declared: "),
        (good, {"partition": "p"}, "partition: column 'p' is not in the DataFrame"),
        (good, {"order_by": ["nothing"]}, r"order_by \['nothing'\]"),
        (good, {"order_by": "nothing"}, r"order_by \['nothing'\]"),
    ]
    with unchanged(folder):
        for frame, options, message in refused:
            with pytest.raises(InvalidRecordError, match=message):
                cluster.append("declared", frame, on_unknown_field="drop", **options)
        with pytest.raises(InvalidCallError, match="acks is 'most'"):
            cluster.append("declared", good, key="k", acks="most", on_unknown_field="drop")
        with pytest.raises(UnknownTopicOrPartitionError, match="'undeclared' does not exist"):
            cluster.append("undeclared", good)


def test_dataframes_from_before_a_schema_grew_are_appended_next_to_newer_ones(
    cluster: Cluster, spark: SparkSession, folder: Path
) -> None:
    """Only added fields may be absent: a missing field that was always declared is an error."""
    inner = "inner STRUCT<a: STRING>"
    cluster.topics.create("grown", partitions=1, replication_factor=1, key="k INT", value=f"n BIGINT, {inner}")
    older = spark.range(2).selectExpr(
        "id AS n", "IF(id = 0, named_struct('a', 'u'), NULL) AS inner", "named_struct('k', 1) AS key"
    )
    cluster.append("grown", older, key="key").raise_for_failures()
    wide = "n BIGINT, inner STRUCT<a: STRING, b: INT>, at DATE, deep STRUCT<x: INT>"
    added = cluster.topics.alter("grown", key="k INT, l STRING", value=wide)
    assert [row["field"] for row in added.rows] == ["key.l", "value.inner.b", "value.at", "value.deep"]
    cluster.append("grown", older, key="key").raise_for_failures()
    packed = older.selectExpr("struct(n, inner) AS v", "key")
    cluster.append("grown", packed, key="key", value="v").raise_for_failures()
    newer = spark.sql(
        """SELECT 7L AS n, named_struct('a', 'v', 'b', 8) AS inner, DATE '2013-01-01' AS at,
                  named_struct('x', 9) AS deep, named_struct('k', 1, 'l', 'm') AS key"""
    )
    cluster.append("grown", newer, key="key").raise_for_failures()
    found = [tuple(row) for row in cluster.read("grown").orderBy("offset").selectExpr("key", "value.*").collect()]
    first = ((1, None), 0, ("u", None), None, None)
    second = ((1, None), 1, None, None, None)
    assert sorted(found[:6], key=str) == sorted([first, second] * 3, key=str)
    assert found[6:] == [((1, "m"), 7, ("v", 8), datetime(2013, 1, 1).date(), (9,))]
    assert cluster.read("grown").where("value.inner.b = 8").count() == 1
    assert cluster.read("grown").where("value IS NOT NULL AND value.at IS NULL").count() == 6
    refused = [
        (newer.drop("inner", "key"), None, r"lacks the declared value columns \['inner'\]"),
        (newer.selectExpr("n", "named_struct('b', 1) AS inner"), None, "value column 'inner' is struct<b:int>"),
        (newer.selectExpr("struct(inner, n) AS v"), "v", "value is struct<inner:"),
    ]
    with unchanged(folder):
        for frame, value, message in refused:
            with pytest.raises(InvalidRecordError, match=message):
                cluster.append("grown", frame, value=value)


# -------------------------------------------------------------------------------- time, order


def test_event_time_is_the_datas_own_or_that_of_the_append(cluster: Cluster, spark: SparkSession) -> None:
    """message.timestamp.type: CreateTime, LogAppendTime. A record without a time gets the current time."""
    event = datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    source = spark.createDataFrame([("a", event), ("b", None)], "value STRING, at TIMESTAMP").coalesce(1)
    for topic, kind in (("created", "CreateTime"), ("stamped", "LogAppendTime")):
        cluster.topics.create(topic, replication_factor=1, configs={"message.timestamp.type": kind})
        before_us = SystemClock().now_ms() * 1000
        cluster.append(topic, source, timestamp="at").raise_for_failures()
        after_us = (SystemClock().now_ms() + 1) * 1000
        found = ordered(cluster.read(topic).selectExpr("*", "unix_micros(timestamp) AS us"), "us")
        first, second = (us for (us,) in found)
        assert before_us <= second <= after_us
        if kind == "CreateTime":
            assert first == int(event.timestamp()) * 1_000_000 + 1
        else:
            assert first == second


def test_the_rows_of_a_partition_can_be_ordered(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("sorted", partitions=2, replication_factor=1, value="n BIGINT")
    source = spark.range(0, 200, numPartitions=5).selectExpr("(id * 37) % 200 AS n", "id % 2 AS p")
    cluster.append("sorted", source, partition="p", order_by=["value.n"]).raise_for_failures()
    for partition in range(2):
        found = [n for (n,) in ordered(cluster.read("sorted", partitions=[partition]), "value.n")]
        assert found == sorted(found)
        assert len(found) == 100


def test_a_column_may_have_dots_in_its_name(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("dotted", replication_factor=1, key="STRING")
    source = spark.createDataFrame([("a", "v", ("b",))], "`my.key` STRING, value STRING, s STRUCT<key: STRING>")
    for name in ("my.key", "s.key"):
        cluster.append("dotted", source, key=name, value="value").raise_for_failures()
    assert {key for (key,) in cluster.read("dotted").select("key").collect()} == {"a", "b"}


# ------------------------------------------------------------------------------- exactly once


def test_with_acks_leader_records_show_after_the_next_replicate(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("attempted", replication_factor=2)
    cluster.append("attempted", spark.sql("SELECT 'a' AS value"), acks="leader").raise_for_failures()
    assert cluster.read("attempted").count() == 0
    cluster.replicate("attempted").raise_for_failures()
    assert cluster.read("attempted").count() == 1


def test_a_job_that_is_run_again_appends_nothing_twice(cluster: Cluster, spark: SparkSession) -> None:
    """Contract: "safe for ... a re-run of the whole job"."""
    cluster.topics.create("again", partitions=3, replication_factor=2)
    source = spark.range(100).selectExpr("cast(id AS STRING) AS key", "cast(id AS STRING) AS value")
    runs = [
        cluster.append("again", source, key="key", producer="job", sequence=4).raise_for_failures()
        for _ in range(2)
    ]
    assert [row["outcome"] for row in runs[1].rows] == ["duplicate"] * 3
    places = [{row["partition"]: row["base_offset"] for row in run.rows} for run in runs]
    assert places[0] == places[1]
    assert cluster.read("again").count() == 100


def test_a_job_that_is_run_again_after_the_topic_has_grown_appends_nothing_twice(
    cluster: Cluster, spark: SparkSession
) -> None:
    """Kafka's producer fixes a record's partition before it retries."""
    cluster.topics.create("wider", partitions=2, replication_factor=2)
    source = spark.range(100).selectExpr("cast(id AS STRING) AS key", "cast(id AS STRING) AS value")

    def run(sequence: int) -> list[tuple[object, object]]:
        report = cluster.append("wider", source, key="key", producer="job", sequence=sequence).raise_for_failures()
        return [(row["partition"], row["outcome"]) for row in report.rows]

    run(4)
    cluster.topics.create_partitions("wider", 4)
    assert run(4) == [(0, "duplicate"), (1, "duplicate")]
    assert cluster.read("wider").count() == 100
    assert run(5) == [(partition, "acknowledged") for partition in range(4)]


@pytest.mark.classic("the function of foreachBatch holds a list of the driver, and the cluster")
def test_a_stream_that_crashed_before_its_checkpoint_appends_each_record_once(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Contract: "usable in foreachBatch": the repeated batch has the same id."""
    cluster.topics.create("streamed", partitions=2, replication_factor=2)
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(10)))

    class CrashError(Exception):
        pass

    def run(crash_after: int | None) -> list[int]:
        done: list[int] = []

        def append(batch: Any, batch_id: int) -> None:
            cluster.append("streamed", batch, producer="s", sequence=batch_id).raise_for_failures()
            done.append(batch_id)
            if batch_id == crash_after:
                raise CrashError

        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(tmp_path / "in"))
            .writeStream.foreachBatch(append)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(Exception, match="CrashError") if crash_after is not None else nullcontext():
            query.awaitTermination()
        return done

    assert run(crash_after=1) == [0, 1]
    assert run(crash_after=None) == [1, 2], "the batch that had been appended comes again"
    back = cluster.read("streamed").selectExpr("cast(value AS STRING) AS value")
    assert sorted(row.value for row in back.collect()) == sorted(f"{n}-{i}" for n in range(3) for i in range(10))


def test_several_drivers_append_at_once_and_lose_nothing(
    cluster: Cluster, spark: SparkSession, folder: Path
) -> None:
    """Protocol, section 2, step 3: if another driver appended first, start again."""
    cluster.topics.create("shared", partitions=2, replication_factor=2)
    drivers = [Cluster.open(folder / "cluster.toml", spark) for _ in range(2)]

    def append(number: int) -> None:
        for sequence in range(3):
            source = spark.range(20).selectExpr(f"concat('{number}-{sequence}-', id) AS value", "id % 2 AS p")
            drivers[number].append(
                "shared", source, partition="p", producer=f"d{number}", sequence=sequence
            ).raise_for_failures()

    together(*(partial(append, number) for number in range(2)))
    found = ordered(cluster.read("shared"), "partition", "offset", "value")
    assert [(p, o) for p, o, _ in found] == [(p, o) for p in range(2) for o in range(60)]
    expected = {f"{n}-{s}-{i}" for n in range(2) for s in range(3) for i in range(20)}
    assert {bytes(value).decode() for _, _, value in found} == expected
    cluster.verify("shared", deep=True).raise_for_failures()


@pytest.mark.long("Spark tries a task again")
@pytest.mark.nightly
@pytest.mark.classic("it starts a session of its own")
def test_a_task_whose_worker_dies_is_retried_and_appends_once(tmp_path: Path) -> None:
    """Contract: "safe for task retries". In a separate session, the first Python worker that has named its file
    dies before it can report this. The append names no producer, so no producer state detects the duplicate."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.dying_worker", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [
        "died",
        "yes",
        "outcomes",
        "acknowledged,acknowledged",
        "records",
        "40",
        "distinct",
        "40",
    ]
