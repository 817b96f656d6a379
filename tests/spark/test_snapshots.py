"""Snapshots with Spark: partitions larger than memory, and reading them as a DataFrame (KIP-630)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bench.memory import worker_peak
from stratalog import Cluster
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.erasing import plan as planning
from stratalog.partitions.errors import InvalidRecordError
from stratalog.snapshots.reader import read_snapshot
from tests.spark.spark_cluster import format_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CONFIGS = {"cleanup.policy": "snapshot", "retention.ms": "-1"}
IN_MEMORY, OUT_OF_CORE = 1 << 30, 0


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Cluster:
    """Topic ``cities``: typed, two partitions, keyed by a struct."""
    made = format_cluster(spark, tmp_path)
    made.topics.create(
        "cities",
        partitions=2,
        replication_factor=2,
        key="land STRING, number INT",
        value="name STRING, people DOUBLE",
        configs=CONFIGS,
    )
    return made


def append(spark: SparkSession, cluster: Cluster, frame: DataFrame) -> None:
    """Append the columns ``n`` (the key), ``name`` (null: a tombstone), ``at`` (seconds)."""
    frame.createOrReplaceTempView("given")
    rows = spark.sql(
        """SELECT named_struct('land', IF(n % 3 = 0, NULL, 'no'), 'number', CAST(n AS INT)) AS key,
                  IF(name IS NULL, NULL, named_struct('name', name, 'people', CAST(n AS DOUBLE))) AS value,
                  CAST(at AS TIMESTAMP) AS at
           FROM given"""
    )
    columns = {"key": "key", "value": "value", "timestamp": "at"}
    cluster.append("cities", rows, **columns, order_by=["timestamp"]).raise_for_failures()


def numbers(spark: SparkSession, keys: int, name: str, at: int, *, gone: bool = False) -> DataFrame:
    shown = "NULL" if gone else f"concat('{name}-', id)"
    return spark.range(keys).selectExpr("id AS n", f"CAST({shown} AS STRING) AS name", f"{at} + id AS at")


def by_key(rows: DataFrame) -> dict[str, Any]:
    """Key to value, without tombstones; every key once."""
    found = [(str(row.key), row.value) for row in rows.select("key", "value").collect()]
    assert len({key for key, _ in found}) == len(found)
    return {key: value for key, value in found if value is not None}


def latest(rows: DataFrame) -> dict[str, Any]:
    """Key to value of a log, reduced by its offsets."""
    found = sorted(rows.select("offset", "key", "value").collect(), key=lambda row: row.offset)
    return {key: value for key, value in {str(row.key): row.value for row in found}.items() if value is not None}


@pytest.mark.sample(1)
@pytest.mark.parametrize("memory_bytes", [OUT_OF_CORE, IN_MEMORY], ids=["by Spark", "in memory"])
def test_a_snapshot_and_the_log_after_it_are_the_whole_log_reduced_by_key(
    spark: SparkSession, cluster: Cluster, memory_bytes: int
) -> None:
    """KIP-630, "Loading Snapshots": load the snapshot, then apply the log from its end offset on. A snapshot on
    top of a snapshot gives the same result."""
    append(spark, cluster, numbers(spark, 300, "first", 0))
    cluster.snapshot("cities", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    append(spark, cluster, numbers(spark, 100, "second", 1000))
    append(spark, cluster, numbers(spark, 20, "gone", 2000, gone=True))
    made = cluster.snapshot("cities", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    assert made.totals["made"] == 2
    append(spark, cluster, numbers(spark, 30, "third", 3000))

    snapshot = cluster.read_snapshot("cities")
    assert snapshot.columns == ["topic", "partition", "end_offset", "timestamp", "key", "value", "headers"]
    ends = {
        row.partition: row.end_offset for row in snapshot.select("partition", "end_offset").distinct().collect()
    }
    assert sorted(ends) == [0, 1]
    whole = cluster.read("cities", start=ends)
    state = by_key(snapshot)
    for key, value in {str(row.key): row.value for row in whole.orderBy("offset").collect()}.items():
        state[key] = value
    expected = {f"third-{n}" for n in range(30)} | {f"second-{n}" for n in range(30, 100)}
    expected |= {f"first-{n}" for n in range(100, 300)}
    assert {value.name for value in state.values() if value is not None} == expected
    assert len(latest(whole)) == 30


@pytest.mark.sample(1)
@pytest.mark.parametrize("memory_bytes", [OUT_OF_CORE, IN_MEMORY], ids=["by Spark", "in memory"])
def test_a_snapshot_continues_where_the_schema_has_grown(
    spark: SparkSession, cluster: Cluster, memory_bytes: int
) -> None:
    """A key with a new field that is null equals the older key without it."""
    append(spark, cluster, numbers(spark, 20, "first", 0))
    cluster.snapshot("cities", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    cluster.topics.alter(
        "cities", key="land STRING, number INT, part STRING", value="name STRING, people DOUBLE, y INT"
    )
    append(spark, cluster, numbers(spark, 10, "second", 1000))
    newer = spark.range(5).selectExpr(
        """named_struct('land', IF(id % 3 = 0, NULL, 'no'), 'number', CAST(id AS INT),
                        'part', CAST(NULL AS STRING)) AS key""",
        "named_struct('name', concat('third-', id), 'people', 0D, 'y', CAST(id AS INT)) AS value",
    )
    cluster.append("cities", newer, key="key", value="value").raise_for_failures()
    cluster.snapshot("cities", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    found = {(row.name, row.y) for row in by_key(cluster.read_snapshot("cities")).values()}
    assert found == (
        {(f"third-{n}", n) for n in range(5)}
        | {(f"second-{n}", None) for n in range(5, 10)}
        | {(f"first-{n}", None) for n in range(10, 20)}
    )


@dataclass(frozen=True)
class Kind:
    """Types of a topic, and SQL for the key and the value of record ``n``."""

    key_type: str | None
    value_type: str | None
    key: str
    value: str


STRUCT_KEY = "named_struct('land', IF(n % 3 = 0, NULL, 'no'), 'at', IF(n % 5 = 0, NULL, named_struct('i', n)))"
KINDS = {
    "binary": Kind(None, None, "unhex(lpad(hex(n % 40), 4, '0'))", "CAST(concat('v', n) AS BINARY)"),
    "text": Kind("STRING", "STRING", "concat('k', n % 40, IF(n % 2 = 0, 'ü', ''))", "repeat('x', CAST(n AS INT))"),
    "numbers": Kind("DECIMAL(9,2)", "DOUBLE", "CAST((n % 40) / 4 AS DECIMAL(9,2))", "CAST(n AS DOUBLE) / 3"),
    "times": Kind(
        "TIMESTAMP",
        "ARRAY<MAP<STRING, DATE>>",
        "TIMESTAMP '2013-06-01 12:00:00' + make_interval(0, 0, 0, 0, 0, 0, n % 40)",
        "array(map('d', date_add(DATE '2013-06-01', CAST(n AS INT))), NULL)",
    ),
    "structs": Kind(
        "land STRING, at STRUCT<i: BIGINT>",
        "name STRING, people DOUBLE",
        STRUCT_KEY,
        "named_struct('name', concat('v', n), 'people', 0.5D * n)",
    ),
}


def put(spark: SparkSession, cluster: Cluster, kind: Kind, first: int, count: int, producer: str) -> None:
    """Append records ``first`` and the ``count - 1`` after it, in this order: every seventh a tombstone, every
    third with headers, every eleventh without a time."""
    rows = (
        spark.range(first, first + count, 1, 1)
        .selectExpr("id AS n")
        .selectExpr(
            "n",
            f"{kind.key} AS key",
            f"IF(n % 7 = 0, NULL, {kind.value}) AS value",
            "IF(n % 3 = 0, array(named_struct('key', concat('h', n), 'value', CAST('1' AS BINARY)), "
            "named_struct('key', '', 'value', CAST(NULL AS BINARY))), NULL) AS headers",
            "timestamp_micros(n * 1000001) AS at",
            "0 AS partition",
        )
    )
    cluster.append(
        "t",
        rows,
        key="key",
        value="value",
        headers="headers",
        timestamp="at",
        partition="partition",
        producer=producer,
        sequence=0,
        order_by=["timestamp"],
    ).raise_for_failures()


def snapshots_of(cluster: Cluster) -> list[pa.Table]:
    """The content of the snapshots of partition 0 on every broker, as Arrow tables of the files."""
    image = cluster.image
    replicas = PartitionReplicas(image.view(image.topic("t").topic_id, 0), cluster.stores)
    found = []
    for broker in replicas.view.replicas:
        replica = replicas.replica(broker)
        for _, stored in replica.log().listing.checkpoints:
            snapshot = read_snapshot(
                replica.store, replica.folder, stored, owner=replica.topic_id, partition=replica.partition
            )
            found.append(pa.Table.from_batches(snapshot.batches()).combine_chunks())
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_spark_and_memory_make_the_same_snapshot(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    """The two ways have one result: the same rows in the same order with the same times, headers and types, the
    same tombstones left out; for an empty log, and on top of an earlier snapshot."""
    made = []
    for name, memory_bytes in (("memory", IN_MEMORY), ("spark", OUT_OF_CORE)):
        (tmp_path / name).mkdir()
        cluster = format_cluster(spark, tmp_path / name)
        configs = {**CONFIGS, "delete.retention.ms": str(10**15)}
        cluster.topics.create(
            "t", partitions=1, replication_factor=2, key=kind.key_type, value=kind.value_type, configs=configs
        )
        put(spark, cluster, kind, 0, 100, "p")
        cluster.snapshot("t", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
        put(spark, cluster, kind, 113, 30, "q")
        put(spark, cluster, kind, 90, 10, "r")
        cluster.topics.alter_configs("t", {"delete.retention.ms": str(10**9)})
        cluster.snapshot("t", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
        made.append(snapshots_of(cluster))
    memory, by_spark = made
    assert [table.num_rows for table in memory] == [table.num_rows for table in by_spark]
    assert len(memory) == 4
    assert memory == by_spark
    assert any(table.column("value").null_count for table in memory)
    assert all(table.column("headers").null_count < table.num_rows for table in memory)


def test_a_record_without_a_key_is_refused(spark: SparkSession, cluster: Cluster) -> None:
    """The append refuses it, like Kafka's compacted topics, and writes nothing."""
    nobody = spark.sql("SELECT CAST(NULL AS STRUCT<land: STRING, number: INT>) AS key, 0 AS partition")
    with pytest.raises(
        InvalidRecordError, match="the key is null, but the topic keeps the latest record of each key"
    ):
        cluster.append(
            "cities",
            nobody,
            key="key",
            value=F.lit(None).cast("struct<name: string, people: double>"),
            partition="partition",
        )
    assert cluster.read("cities").count() == 0


def test_damage_that_the_task_finds_is_a_failure_of_its_partition(spark: SparkSession, cluster: Cluster) -> None:
    """Spark has read the keys, and not the values; damage that Python finds there is an error of stratalog, and
    the other partitions continue."""
    append(spark, cluster, numbers(spark, 40, "first", 0))
    leader = PartitionReplicas(
        cluster.image.view(cluster.image.topic("cities").topic_id, 0), cluster.stores
    ).leader
    (file,) = leader.log().listing.data
    path = Path(leader.store.uri_of(file.object.name).removeprefix("file:"))
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    name = next(column for column in columns if column.path_in_schema == "value.name")
    content, before = bytearray(path.read_bytes()), path.stat()
    content[name.data_page_offset + name.total_compressed_size // 2] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk tells nobody
    report = cluster.snapshot("cities", by_hand=True, memory_bytes=OUT_OF_CORE, check=False)
    assert [(failure.item, failure.code) for failure in report.failures] == [("cities-0", "CORRUPT_SEGMENT")]
    assert report.totals["made"] == 1


def test_python_sees_one_batch_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    """For any size of the partition, the writing task holds one row group of it and little else."""
    cluster = format_cluster(spark, tmp_path)
    cluster.topics.create("t", partitions=1, replication_factor=2, configs=CONFIGS)
    records, value_bytes = 150_000, 4096
    rows = spark.range(records).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", f"CAST(repeat('x', {value_bytes}) AS BINARY) AS value"
    )
    cluster.append("t", rows, key="key", value="value").raise_for_failures()
    with worker_peak() as before:
        spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    with worker_peak() as peak:
        made = cluster.snapshot("t", by_hand=True, memory_bytes=OUT_OF_CORE).raise_for_failures()
    assert made.rows[0]["records"] == records
    assert before.bytes is not None
    assert peak.bytes is not None
    assert peak.bytes - before.bytes < records * value_bytes / 2


def test_spark_counts_what_has_changed(spark: SparkSession, cluster: Cluster) -> None:
    """KIP-630, "When to Snapshot": new records do not count, changes of records in the snapshot do."""
    cluster.topics.alter_configs("cities", {"metadata.log.max.record.bytes.between.snapshots": "1"})
    append(spark, cluster, numbers(spark, 100, "first", 0))
    assert cluster.snapshot("cities", memory_bytes=OUT_OF_CORE).raise_for_failures().totals["made"] == 2
    append(spark, cluster, numbers(spark, 110, "new", 1000).where("n >= 100"))
    append(spark, cluster, numbers(spark, 30, "changed", 2000))
    waiting = cluster.snapshot("cities", memory_bytes=OUT_OF_CORE).raise_for_failures()
    assert waiting.totals["made"] == 0
    assert all("min.changed_records.ratio" in str(row["why"]) for row in waiting.rows)
    append(spark, cluster, numbers(spark, 100, "changed", 3000))
    assert cluster.snapshot("cities", memory_bytes=OUT_OF_CORE).raise_for_failures().totals["made"] == 2


def test_a_snapshot_of_nothing_but_old_tombstones_is_empty(spark: SparkSession, cluster: Cluster) -> None:
    """Spark runs no task without rows; the snapshot exists nevertheless."""
    append(spark, cluster, numbers(spark, 10, "", 0, gone=True))
    made = cluster.snapshot("cities", by_hand=True, memory_bytes=OUT_OF_CORE).raise_for_failures()
    assert [row["records"] for row in made.rows] == [0, 0]
    assert cluster.read_snapshot("cities").collect() == []


def test_the_lag_of_a_group_is_available_as_a_dataframe(spark: SparkSession, cluster: Cluster) -> None:
    """Lag per partition as a DataFrame."""
    cluster.topics.alter_configs(
        None, {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "2"}
    )
    append(spark, cluster, numbers(spark, 40, "first", 0))
    cluster.groups.commit("g", {("cities", 0): 3})
    frame = cluster.groups.lag_frame("g")
    assert frame.columns == list(cluster.groups.lag("g").rows[0])
    assert {row.expires for row in frame.collect()} == {frame.first().expires}
    by_partition = {row.partition: row for row in frame.collect()}
    assert (by_partition[0].committed, by_partition[1].committed) == (3, None)
    assert sum(row.lag for row in by_partition.values()) == 40 - 3


def test_keys_leave_snapshots_that_spark_makes(
    spark: SparkSession, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the snapshot from which the keys leave, and the next one, exceed the memory of a task."""
    monkeypatch.setattr(planning, "MEMORY_BYTES", OUT_OF_CORE)
    append(spark, cluster, numbers(spark, 40, "first", 0))
    keys = [{"land": None, "number": 3}, {"land": "no", "number": 4}]
    assert cluster.erase("cities", keys, now=True).whole
    append(spark, cluster, numbers(spark, 2, "second", 1000))
    cluster.snapshot("cities", by_hand=True, memory_bytes=OUT_OF_CORE).raise_for_failures()
    kept = {f"first-{n}" for n in range(2, 40) if n not in (3, 4)} | {"second-0", "second-1"}
    assert {value.name for value in by_key(cluster.read_snapshot("cities")).values()} == kept
