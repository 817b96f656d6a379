"""Read as a DataFrame: both tiers at once, exactly the source, pruned, pinned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Cluster, OffsetSpec
from stratalog.engine.reading.plan import FileRange
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.spark.scanning import scan
from stratalog.engine.spark.types import BINARY, record_schema
from stratalog.partitions.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from stratalog.partitions.records import physical_schema
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.rewrites.rewrite import stage_run
from tests.spark.spark_cluster import TIERED, explained, format_cluster, ordered, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

START = datetime(2013, 1, 1, tzinfo=UTC)
BATCH, BATCHES, PARTITIONS = 30, 5, 2
COLUMNS = ("partition", "offset", "us", "key", "value")


def source(spark: SparkSession, batch: int | None = None) -> DataFrame:
    """All batches, or one; row n has the time of second n and is row n // 2 of partition n % 2."""
    first, last = (0, BATCHES) if batch is None else (batch, batch + 1)
    return spark.range(first * BATCH, last * BATCH, numPartitions=1).selectExpr(
        "id",
        f"cast(id % {PARTITIONS} AS INT) AS p",
        "concat('k', id) AS k",
        f"timestamp_seconds(id + {int(START.timestamp())}) AS at",
        "id AS n",
        "sha2(cast(id AS STRING), 256) AS word",
        "struct(id % 7 AS seven, array(id) AS list) AS inner",
    )


def expected(spark: SparkSession) -> DataFrame:
    """The content of the log, with the columns ``COLUMNS``."""
    return source(spark).selectExpr(
        "p AS partition",
        f"id div {PARTITIONS} AS offset",
        "unix_micros(at) AS us",
        "k AS key",
        "struct(n, word, inner) AS value",
    )


def seen(frame: DataFrame) -> Any:
    return rows(frame.selectExpr("*", "unix_micros(timestamp) AS us"), *COLUMNS)


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    """Topic ``t``: three batches in the remote tier (of the last one also a local copy), two only local."""
    made = format_cluster(spark, folder)
    made.topics.create(
        "t",
        partitions=PARTITIONS,
        replication_factor=2,
        key="STRING",
        value="n BIGINT, word STRING, inner STRUCT<seven: BIGINT, list: ARRAY<BIGINT>>",
        configs=TIERED,
    )
    for batch in range(BATCHES):
        made.append(
            "t", source(spark, batch).drop("id"), key="k", partition="p", timestamp="at", order_by=["timestamp"]
        )
        if batch == 2:
            made.tier("t").raise_for_failures()
            for _ in range(2):
                made.retain("t").raise_for_failures()
    return made


def test_a_read_over_both_tiers_is_the_source_row_for_row(cluster: Cluster, spark: SparkSession) -> None:
    plan = cluster.plan_read("t")
    assert {part.remote for part in plan} == {True, False}
    frame = cluster.read("t")
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert seen(frame) == rows(expected(spark), *COLUMNS)
    assert rows(frame, "topic", "headers") == rows(
        spark.sql(f"SELECT 't' AS topic, null AS headers FROM range({BATCH * BATCHES})")
    )


@pytest.mark.parametrize(
    ("start", "end", "condition"),
    [
        pytest.param(7, 70, "offset BETWEEN 7 AND 69", id="offsets over all tiers"),
        pytest.param(40, 41, "offset = 40", id="one offset"),
        pytest.param(
            {0: 10},
            {0: 20, 1: 5},
            "(partition = 0 AND offset BETWEEN 10 AND 19) OR (partition = 1 AND offset < 5)",
            id="by partition",
        ),
        pytest.param(
            START + timedelta(seconds=11),
            START + timedelta(seconds=131),
            "us BETWEEN {0} + 11000000 AND {0} + 130999999",
            id="times",
        ),
        pytest.param(OffsetSpec.EARLIEST_LOCAL, None, "offset >= 30", id="what is local"),
        pytest.param(None, OffsetSpec.EARLIEST_LOCAL, "offset < 30", id="what is not"),
        pytest.param(OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_PENDING_UPLOAD, "offset < 45", id="what is tiered"),
        pytest.param(OffsetSpec.LATEST, None, "false", id="nothing"),
    ],
)
def test_a_range_is_that_part_of_the_source(
    cluster: Cluster, spark: SparkSession, start: Any, end: Any, condition: str
) -> None:
    """By offsets, times, offsets by partition, named positions."""
    wanted = expected(spark).where(condition.format(int(START.timestamp()) * 1_000_000))
    assert seen(cluster.read("t", start, end)) == rows(wanted, *COLUMNS)


def test_a_read_may_choose_partitions(cluster: Cluster, spark: SparkSession) -> None:
    assert seen(cluster.read("t", partitions=[1])) == rows(expected(spark).where("partition = 1"), *COLUMNS)


@pytest.mark.connect
def test_only_the_files_and_columns_that_are_needed_are_scanned(cluster: Cluster) -> None:
    """Contract: "a native Spark DataFrame": pruning and pushed filters reach Parquet."""
    frame = cluster.read("t", 47, 50, [0])
    assert len(frame.inputFiles()) == 1 == len(cluster.plan_read("t", 47, 50, [0]))
    plan = explained(cluster.read("t").where("value.n = 17").select("value.inner.seven"))
    assert "ReadSchema: struct<value:struct<n:bigint,inner:struct<seven:bigint>>>" in plan
    assert "EqualTo(value.n,17)" in plan
    assert "GreaterThanOrEqual(offset,47)" in explained(frame.select("key"))
    assert "value" not in explained(cluster.read("t").select("key"))


def test_a_read_is_pinned_to_the_state_at_planning(cluster: Cluster, spark: SparkSession) -> None:
    """Records that are appended later are not visible, however often the DataFrame is evaluated."""
    cluster.topics.create("pinned", replication_factor=2)
    cluster.append("pinned", spark.sql("SELECT 'a' AS value")).raise_for_failures()
    frame = cluster.read("pinned")
    assert frame.count() == 1
    cluster.append("pinned", spark.sql("SELECT 'b' AS value")).raise_for_failures()
    assert frame.count() == 1
    assert cluster.read("pinned").count() == 2


def test_a_read_goes_up_to_the_high_watermark(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("proved", replication_factor=2)
    cluster.append("proved", spark.range(3).selectExpr("cast(id AS STRING) AS value")).raise_for_failures()
    cluster.append("proved", spark.sql("SELECT 'c' AS value"), acks="leader").raise_for_failures()
    assert cluster.read("proved").count() == 3
    with pytest.raises(OffsetOutOfRangeError, match="proved-0"):
        cluster.read("proved", 0, 4)
    cluster.replicate("proved").raise_for_failures()
    assert cluster.read("proved").count() == 4


def test_an_empty_topic_is_an_empty_frame_of_its_schema(cluster: Cluster) -> None:
    cluster.topics.create(
        "empty", partitions=2, replication_factor=1, key="INT", value="a STRING, b DECIMAL(5, 2)"
    )
    frame = cluster.read("empty")
    assert frame.collect() == []
    assert dict(frame.dtypes) == {
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "key": "int",
        "value": "struct<a:string,b:decimal(5,2)>",
        "headers": "array<struct<key:string,value:binary>>",
    }
    assert frame.where("value.a = 'x'").select("value.b").count() == 0


def test_a_topic_that_was_deleted_and_created_again_starts_over(cluster: Cluster, spark: SparkSession) -> None:
    """Protocol, section 1: topics have ids, and every path contains the id."""
    for word in ("old", "new"):
        cluster.topics.create("reborn", replication_factor=2, configs=TIERED)
        cluster.append("reborn", spark.sql(f"SELECT '{word}' AS value")).raise_for_failures()
        cluster.tier("reborn").raise_for_failures()
        assert [bytes(row.value) for row in cluster.read("reborn").collect()] == [word.encode()]
        if word == "old":
            cluster.topics.delete("reborn").raise_for_failures()
            with pytest.raises(UnknownTopicOrPartitionError, match="'reborn'"):
                cluster.read("reborn")


def test_if_segments_overlap_each_record_is_read_once(cluster: Cluster, spark: SparkSession) -> None:
    """Two drivers merged overlapping runs: the log takes from each file the records that the other lacks
    (protocol, section 1, "read from p on"); the scan leaves out the files' other records."""
    cluster.topics.create("overlapping", replication_factor=1)
    for number in range(6):
        source = spark.range(2).selectExpr(f"concat({number}, '-', id) AS value").coalesce(1)
        cluster.append("overlapping", source).raise_for_failures()
    image = cluster.image
    view = image.view(image.topic("overlapping").topic_id, 0)
    assert view.leader is not None
    replica = PartitionReplicas(view, cluster.stores).replica(view.leader)
    store = replica.store
    links = replica.log().chain
    staged = [
        stage_run(store, run, store, replica.path(run.segment_name), compression="zstd", state=dict)[0]
        for run in (Run(links[0:4]), Run(links[2:6]))
    ]
    assert [merged.commit() for merged in staged] == [True, True]
    plan = cluster.plan_read("overlapping")
    assert [(part.start, part.end, part.whole) for part in plan] == [(0, 8, True), (8, 12, False)]
    found = ordered(cluster.read("overlapping"), "offset", "value")
    assert [(offset, bytes(value).decode()) for offset, value in found] == [
        (offset, f"{offset // 2}-{offset % 2}") for offset in range(12)
    ]


@pytest.mark.parametrize("count", [3, 230])
def test_a_read_takes_only_the_planned_offsets_of_each_of_many_files(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    """Beyond some number of ranges a join replaces a filter."""
    schema = physical_schema()
    ranges = []
    for partition in range(count):
        path = tmp_path / f"{partition}.parquet"
        columns: dict[str, Any] = {
            "partition": [partition] * 5,
            "offset": [10, 11, 12, 13, 14],
            "timestamp": [0] * 5,
            "key": [None] * 5,
            "value": [f"{partition}-{offset}".encode() for offset in range(10, 15)],
            "headers": [None] * 5,
            "producer_id": [None] * 5,
            "control": [None] * 5,
        }
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        ranges.append(FileRange(f"file://{path}", partition, 11, 11 + partition % 4, 10, 15, 0, remote=False))
    frame = scan(spark, "t", ranges, record_schema(BINARY, BINARY))
    found = ordered(frame, "partition", "offset")
    assert found == [(p, o) for p in range(count) for o in range(11, 11 + p % 4)]


def test_a_scan_of_a_compacted_topic_has_the_last_record_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    """Over both tiers, of which the remote one was rewritten; all later records are included."""
    cluster = format_cluster(spark, tmp_path)
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    cluster.topics.create("t", partitions=1, replication_factor=2, configs={**TIERED, **compacted})
    for number in range(7):
        ids = spark.range(number * 4, number * 4 + 4, numPartitions=1)
        named = ids.selectExpr("concat('k', id % 6) AS key", "cast(id AS STRING) AS value")
        cluster.append("t", named).raise_for_failures()
        if number == 5:
            cluster.tier().raise_for_failures()
            cluster.retain().raise_for_failures()
    cluster.compact().raise_for_failures()
    found = cluster.read("t").selectExpr("offset", "cast(value AS STRING) AS value")
    assert rows(found) == rows(spark.range(18, 28).selectExpr("id AS offset", "cast(id AS STRING) AS value"))
    assert cluster.read("t").where("offset < 20").count() == 2
