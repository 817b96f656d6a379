"""Fields of a DataFrame that its topic's type lacks: refused, added, or left out, for every way to append with
Spark."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from stratalog import Cluster
from stratalog.engine.spark.versions import SINK, spark_version
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from tests.spark.streams import Seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TYPE = "n BIGINT, a STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"
WHOLE = {
    "n": "1L AS n",
    "a": "named_struct('x', 1) AS a",
    "l": "array(named_struct('x', 1), NULL) AS l",
    "m": "map('p', named_struct('x', 1)) AS m",
}
INNER = "named_struct('x', 1, 'z', 2)"
WIDER = {
    "nn": {"nn": "2L AS nn"},
    "a.z": {"a": f"{INNER} AS a"},
    "l.element.z": {"l": f"array({INNER}, NULL) AS l"},
    "m.value.z": {"m": f"map('p', {INNER}) AS m"},
}


def test_no_column_of_an_untyped_record_vanishes(cluster: Cluster, spark: SparkSession) -> None:
    """Spark's Kafka source has columns that are no part of a record. The key must not vanish because of them, or
    because the caller names the partition. Whoever names the value chooses among the columns."""
    cluster.topics.create("bytes", partitions=3, replication_factor=1)
    frame = spark.createDataFrame([(b"k", b"v", 1)], "key BINARY, value BINARY, offset LONG")
    with pytest.raises(InvalidRecordError, match="no part of the records uses column 'offset'"):
        cluster.append("bytes", frame)
    with pytest.raises(InvalidRecordError, match="no part of the records uses column 'offset'"):
        cluster.append("bytes", frame, key="key")
    report = cluster.append("bytes", frame, on_unknown_field="drop").raise_for_failures()
    assert report.totals["dropped_fields"] == 1
    for named in ({"partition": "offset"}, {"partition": F.col("offset")}, {"key": "key", "value": "value"}):
        cluster.append("bytes", frame, **named).raise_for_failures()
    cluster.append("bytes", frame.drop("offset"), partition=F.lit(1)).raise_for_failures()
    assert {(row.key, row.value) for row in cluster.read("bytes").collect()} == {(b"k", b"v")}


def test_every_policy_for_unknown_fields_applies_at_every_depth(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("t", partitions=1, replication_factor=1, value=TYPE)
    everything = {**WHOLE, **{name: text for more in WIDER.values() for name, text in more.items()}}
    frame = spark.range(1).selectExpr(*everything.values())
    for path, more in WIDER.items():
        one = spark.range(1).selectExpr(*{**WHOLE, **more}.values())
        with pytest.raises(InvalidRecordError, match=f"no field '{path}'"):
            cluster.append("t", one)
    assert cluster.read("t").count() == 0

    report = cluster.append("t", frame, on_unknown_field="drop").raise_for_failures()
    dropped = {one["reason"]: one["records"] for one in report.rows if one["outcome"] == "dropped"}
    assert dropped == {f"no field {path}": 1 for path in WIDER}
    expected = spark.range(1).selectExpr(*WHOLE.values()).collect()
    assert cluster.read("t").select("value.*").collect() == expected

    with pytest.raises(InvalidCallError, match=r"cannot grow by the field 'l\.element\.z'"):
        cluster.append("t", frame, on_unknown_field="add")
    taken = spark.range(1).selectExpr(*{**WHOLE, **WIDER["nn"], **WIDER["a.z"]}.values())
    planned = cluster.append("t", taken, on_unknown_field="add", dry_run=True)
    assert any("grew" in note for note in planned.notes)
    assert cluster.read("t").select("value.*").columns == ["n", "a", "l", "m"]
    cluster.append("t", taken, on_unknown_field="add").raise_for_failures()
    assert cluster.read("t").where("value.nn = 2 AND value.a.z = 2").count() == 1


def test_columns_that_an_expression_uses_are_no_fields(cluster: Cluster, spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    cluster.topics.create("used", partitions=1, replication_factor=1, key="STRING", value="n BIGINT")
    frame = spark.range(2).selectExpr("id AS n", "id AS k", "id AS other")
    key: Any = F.col("k").cast("string")
    cluster.append("used", frame.drop("other"), key=key).raise_for_failures()
    with pytest.raises(InvalidRecordError, match="no field 'other'"):
        cluster.append("used", frame, key=key)


def test_the_sinks_do_the_same(cluster: Cluster, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    cluster.topics.create("sunk", partitions=1, replication_factor=1, value="n BIGINT, a STRUCT<x: INT>")
    wide = spark.range(1).selectExpr("1L AS n", f"{INNER} AS a", "3L AS extra")
    with pytest.raises(InvalidRecordError, match="no field 'extra'"):
        cluster.records("sunk", wide)
    with caplog.at_level(logging.WARNING):
        records = cluster.records("sunk", wide, on_unknown_field="drop")
    assert "'a.z' is dropped" in caplog.text
    assert records.selectExpr("value.*").columns == ["n", "a"]
    cluster.topics.alter_configs(None, {"transaction.state.log.replication.factor": "1"})
    with cluster.transactions.begin("loader") as t, pytest.raises(InvalidRecordError, match="no field 'extra'"):
        t.append("sunk", wide)

    rows = spark.range(1).selectExpr("0 AS partition", f"named_struct('n', 1L, 'a', {INNER}) AS value")
    write: Any = (
        rows.write.format("stratalog").mode("append").option("cluster", str(cluster._ports.storage.file.path))
    )
    with pytest.raises(Exception, match=r"no field 'value\.a\.z'"):
        write.save("sunk")
    write.option("onUnknownField", "drop").save("sunk")
    assert [tuple(row) for row in cluster.read("sunk").selectExpr("value.n", "value.a.x").collect()] == [(1, 1)]
    write.option("onUnknownField", "add").save("sunk")
    assert cluster.read("sunk").where("value.a.z = 2").count() == 1

    writer = cluster.stream_writer("sunk", producer="s", on_unknown_field="add")
    writer(wide, 0)
    assert cluster.read("sunk").where("value.extra = 3").count() == 1


@pytest.mark.skipif(spark_version() < SINK, reason="a stream's sink takes Spark 4.1")
@pytest.mark.parametrize(
    ("policy", "stored"),
    [("fail", None), ("drop", (1, None)), ("add", (1, 2))],
)
def test_the_sink_of_a_stream_does_the_same(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, policy: str, stored: tuple[int, int | None] | None
) -> None:
    name = f"streams-{policy}"
    cluster.topics.create(name, partitions=1, replication_factor=1, value="a STRUCT<x: INT>")
    rows = spark.range(1).selectExpr("0 AS partition", f"named_struct('a', {INNER}) AS value")
    rows.write.parquet(str(tmp_path / "rows"))
    stream: Any = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows")).writeStream
    stream = stream.format("stratalog").option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = stream.options(cluster=str(cluster._ports.storage.file.path), onUnknownField=policy, producer=policy)
    query = stream.trigger(availableNow=True).start(name)
    if stored is None:
        with pytest.raises(Exception, match=r"no field 'value\.a\.z'"):
            query.awaitTermination(60)
        assert cluster.read(name).count() == 0
        return
    assert query.awaitTermination(60)
    z = "value.a.z" if policy == "add" else "CAST(NULL AS INT)"
    assert [tuple(row) for row in cluster.read(name).selectExpr("value.a.x", z).collect()] == [stored]


def test_a_running_query_ends_before_it_passes_records_with_a_new_field(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.topics.create("streamed", partitions=1, replication_factor=1, value="n BIGINT")

    def started(checkpoint: str, **options: str) -> tuple[Any, Seen]:
        reader: Any = spark.readStream.format("stratalog").option("startingOffsets", "earliest")
        frame = reader.options(cluster=str(cluster._ports.storage.file.path), **options).load("streamed")
        seen = Seen("value")
        sink = frame.writeStream.foreachBatch(seen)
        return sink.option("checkpointLocation", str(tmp_path / checkpoint)).start(), seen

    def values(seen: Seen) -> list[dict[str, Any]]:
        return [value.asDict() for value in seen.all]

    cluster.append("streamed", spark.range(1).selectExpr("1L AS n")).raise_for_failures()
    (query, all_seen), (old, old_seen) = started("c"), started("old", failOnNewFields="false")
    query.processAllAvailable()
    old.processAllAvailable()
    assert values(all_seen) == values(old_seen) == [{"n": 1}]
    wider = spark.range(1).selectExpr("2L AS n", "'w' AS word")
    cluster.append("streamed", wider, on_unknown_field="add").raise_for_failures()
    old.processAllAvailable()
    old.stop()
    assert values(old_seen) == [{"n": 1}, {"n": 2}]
    with pytest.raises(Exception, match=r"'streamed' has gained value\.word since .*: restart the query"):
        query.awaitTermination(60)
    assert values(all_seen) == [{"n": 1}]
    again, later_seen = started("c")
    again.processAllAvailable()
    again.stop()
    assert values(later_seen) == [{"n": 2, "word": "w"}]
