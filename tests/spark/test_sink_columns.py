"""The format as a sink, used like Kafka's: columns and options, and a schema that grows from files to Delta."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog import Cluster
from stratalog.engine.spark.versions import LIMITS, SINK, spark_version
from tests.spark.spark_cluster import ordered
from tests.spark.streams import to_its_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def created(cluster: Cluster, name: str, value: str | None = None, key: str | None = None) -> str:
    cluster.topics.create(name, partitions=2, replication_factor=2, key=key, value=value)
    return name


def options(folder: Path, **more: str) -> dict[str, str]:
    return {"cluster": str(folder / "cluster.toml"), **more}


def test_a_column_routes_rows_with_kafkas_columns_to_their_topics(
    cluster: Cluster, spark: SparkSession, folder: Path
) -> None:
    one, other = created(cluster, "kafka-1"), created(cluster, "kafka-2")
    frame = spark.range(20).selectExpr("concat('kafka-', id % 2 + 1) AS topic", "'k' || id AS key", "'v' AS value")
    frame.write.format("stratalog").options(**options(folder)).mode("append").save()
    frame.select("key", "value").write.format("stratalog").options(**options(folder, topic=one)).mode(
        "append"
    ).save()
    assert [cluster.read(topic).count() for topic in (one, other)] == [30, 10]
    found = cluster.read(one).selectExpr("partition", "offset", "string(key) AS k")
    keys = ordered(found, "k", "partition")
    assert len(set(keys)) == 20, "a key has one partition"
    assert {partition for _, partition in keys} == {0, 1}


@pytest.mark.connect
def test_a_temporary_view_takes_keys_and_values(cluster: Cluster, spark: SparkSession, folder: Path) -> None:
    created(cluster, "by-insert", "n BIGINT, word STRING", "STRING")
    given = ", ".join(f"{name} '{value}'" for name, value in options(folder, subscribe="by-insert").items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_insert USING stratalog OPTIONS ({given})")
    if spark_version() >= (4, 1):  # earlier versions want a value for each column
        spark.sql("INSERT INTO by_insert (key, value) VALUES ('a', struct(1L, 'x'))")
        assert cluster.read("by-insert").selectExpr("key", "value.n").collect() == [("a", 1)]


@pytest.mark.connect
@pytest.mark.parametrize("value", ["x", None])
def test_fields_are_called_as_columns_of_the_log(
    cluster: Cluster, spark: SparkSession, folder: Path, value: str | None
) -> None:
    """The option then names the topic, and the columns are fields, whatever they contain."""
    topic = created(cluster, f"called-{value}", "topic STRING, offset BIGINT, n INT")
    given = "cast(null AS STRING)" if value is None else f"'{value}'"
    number = "cast(null AS BIGINT)" if value is None else "7L"
    frame = spark.sql(f"SELECT {given} AS topic, {number} AS offset, 1 AS n, 0 AS partition")
    for more in (frame, frame.drop("partition")):
        more.write.format("stratalog").options(**options(folder)).mode("append").save(topic)
    expected = (value, None if value is None else 7, 1)
    assert [tuple(row.value) for row in cluster.read(topic).collect()] == [expected] * 2


@pytest.mark.connect
def test_a_void_column_is_null_as_in_spark_s_insert(cluster: Cluster, spark: SparkSession, folder: Path) -> None:
    created(cluster, "voids", "n INT, at STRUCT<x: INT, y: STRING>, many ARRAY<INT>", "STRING")
    frame = spark.sql("SELECT null AS n, struct(1 AS x, null AS y) AS at, array(null) AS many")
    cluster.append("voids", frame)
    frame.write.format("stratalog").options(**options(folder)).mode("append").save("voids")
    expected = (None, None, (1, None), [None])
    assert [(row.key, *row.value) for row in cluster.read("voids").collect()] == [expected] * 2


@pytest.mark.connect
@pytest.mark.skipif(spark_version() < LIMITS, reason="before Spark 4.2 only a worker's traceback has the sentence")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kafka.bootstrap.servers": "b:9092"}, "use the option cluster, the path of the cluster file"),
        ({"topik": "t"}, "unknown option 'topik'; did you mean 'topic'"),
        ({"topic": "nothing"}, "nothing"),
        ({"topic": "short"}, "'m'"),
    ],
)
def test_an_error_of_the_format_is_a_sentence(
    cluster: Cluster, spark: SparkSession, folder: Path, more: dict[str, str], message: str
) -> None:
    if "short" in more.values():
        created(cluster, "short", "n INT")
    writer = spark.sql("SELECT 1 AS n, 2 AS m").write.format("stratalog").options(**options(folder, **more))
    with pytest.raises(Exception, match=message) as caught:
        writer.mode("append").save()
    assert len(str(caught.value).strip().splitlines()) <= 5, str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.nightly
@pytest.mark.skipif(spark_version() < SINK, reason="the sink of a stream needs Spark 4.1")
@pytest.mark.delta
@pytest.mark.long("four queries, from files to Delta")
def test_a_new_field_of_json_files_reaches_delta(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    topic = created(cluster, "json", "id BIGINT, city STRING", "STRING")
    incoming, table = tmp_path / "incoming", str(tmp_path / "table")
    incoming.mkdir()
    file = options(folder)["cluster"]

    def upsert(frame: Any, batch_id: int) -> None:
        writer = frame.select("value.*").write.format("delta").mode("append").option("mergeSchema", "true")
        writer.option("txnAppId", "json").option("txnVersion", batch_id).save(table)

    def through(on_unknown_field: str) -> None:
        schema = spark.read.json(str(incoming)).schema
        rows = spark.readStream.schema(schema).json(str(incoming)).selectExpr("string(id) AS key", "*")
        sink = rows.writeStream.format("stratalog").options(
            cluster=file, topic=topic, onUnknownField=on_unknown_field
        )
        to_its_end(sink, tmp_path / "in")
        reader = spark.readStream.format("stratalog").options(cluster=file, startingOffsets="earliest")
        to_its_end(reader.load(topic).writeStream.foreachBatch(upsert), tmp_path / "out")

    (incoming / "1.json").write_text('{"id": 1, "city": "Oslo"}\n{"id": 2, "city": "Rome"}\n')
    through("fail")
    (incoming / "2.json").write_text('{"id": 3, "city": "Bern", "area": 51.6}\n')
    with pytest.raises(Exception, match="'area'"):
        through("fail")
    assert cluster.read(topic).count() == 2
    through("add")
    found = spark.read.format("delta").load(table).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, "Oslo", None), (2, "Rome", None), (3, "Bern", 51.6)]


@pytest.mark.connect
def test_a_start_that_cannot_be_names_the_option_that_would(
    cluster: Cluster, spark: SparkSession, folder: Path
) -> None:
    topic = created(cluster, "started", "n INT")
    cluster.append(topic, spark.sql("SELECT explode(sequence(1, 9)) AS n, 0 AS p"), partition="p")
    cluster.topics.delete_records(topic, {0: 5})

    def read(**more: str) -> Any:
        return spark.read.format("stratalog").options(**options(folder, **more)).load(topic)

    with pytest.raises(Exception, match="give failOnDataLoss = false"):
        read(startingOffsets='{"0": 0, "1": 0}').collect()
    assert read(startingOffsets='{"0": 0, "1": 0}', failOnDataLoss="false").count() == 4
    late = {"startingTimestamp": "2020-01-01T00:00:00Z"}
    assert read(**late).count() == 4
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy = latest"):
        read(**late, startingOffsetsByTimestampStrategy="error").collect()
