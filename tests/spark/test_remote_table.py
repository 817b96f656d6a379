"""Other readers of a remote table agree with ours: delta-spark (scan, skipping, time travel, history, stream),
deltalake, polars."""

from __future__ import annotations

import io
import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stratalog.partitions.clock import SystemClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import TIMESTAMP, physical_schema
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.statistics import statistics_json
from tests.unit.segments import listed
from tests.unit.tiering_harness import OURS, segment, table_in, uploaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.delta]

VALUE = pa.struct(
    [
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("day", pa.date32()),
        ("at", TIMESTAMP),
        ("ntz", pa.timestamp("us")),
        ("money", pa.decimal128(38, 10)),
        ("flag", pa.bool_()),
        ("inner", pa.struct([("deep", pa.int16())])),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
START = datetime(2013, 1, 1, tzinfo=UTC)
MONEY = Decimal("123456789012345.0123456789")
ROWS_PER_FILE, FILES, PARTITIONS = 50, 4, 2


def record(partition: int, offset: int) -> dict[str, Any] | None:
    """A value with edge cases of statistics: nulls, NaN, long strings, microseconds."""
    if offset % 17 == 16:
        return None
    return {
        "n": None if offset % 7 == 6 else offset * (1 if partition else -1),
        "big": 2**53 + offset,
        "d": float("nan") if offset % 11 == 10 else offset / 8,
        "s": f"{offset:05d}" + "é" * (offset % 40),
        "day": date(2013, 1, 1) + timedelta(days=offset),
        "at": START + timedelta(seconds=offset, microseconds=999_999),
        "ntz": datetime(1969, 12, 31, 23) + timedelta(minutes=offset, microseconds=1),
        "money": offset * MONEY,
        "flag": offset % 2 == 0,
        "inner": {"deep": offset},
        "tags": [str(offset)],
    }


def write_file(partition: int, base: int, value: pa.DataType = VALUE) -> tuple[bytes, str, RemoteSegment]:
    """The bytes of a segment, its statistics, and the segment; fields that ``VALUE`` lacks are "new"."""
    offsets = range(base, base + ROWS_PER_FILE)
    schema = physical_schema(value=value)
    added = {field.name: "new" for field in value if VALUE.get_field_index(field.name) < 0}

    def later(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return row and {**row, **added, "inner": {**row["inner"], "deeper": "new"}}

    sink = io.BytesIO()
    writer = SegmentWriter(
        sink, schema, topic_id="f" * 32, partition=partition, base_offset=base, row_group_bytes=4_000
    )
    arrays = [
        pa.array([START + timedelta(seconds=n, microseconds=1) for n in offsets], TIMESTAMP),
        pa.array([str(n).encode() for n in offsets], pa.binary()),
        pa.array([later(record(partition, n)) for n in offsets], value),
        pa.nulls(ROWS_PER_FILE, schema.field("headers").type),
    ]
    writer.write(pa.RecordBatch.from_arrays(arrays, ["timestamp", "key", "value", "headers"]))
    footer = writer.close(lineage=Lineage([(1, 0)]), producers=lambda _: {}, created_ms=0)
    data = sink.getvalue()
    name = DataName(base, footer.next_offset, 1)
    store = MemoryStore()
    store.create(str(name), data)
    return (
        data,
        statistics_json(read_segment(store, listed(store, name))),
        RemoteSegment(partition, name, footer.next_offset, len(data)),
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTopicTable:
    """Two partitions of four files each, in two versions."""
    remote = LocalStore(str(tmp_path_factory.mktemp("remote")))
    made = table_in(remote)
    made.ensure(physical_schema(value=VALUE))
    for files in (range(2), range(2, FILES)):
        batch = []
        for partition in range(PARTITIONS):
            for index in files:
                data, statistics, segment = write_file(partition, index * ROWS_PER_FILE)
                assert remote.create(made.path(segment), data)
                batch.append(Uploaded(segment, 1_700_000_000_000, statistics, len(data)))
        made.commit(batch, histories=OURS)
    return made


@pytest.fixture
def frame(spark: SparkSession, table: DeltaTopicTable) -> DataFrame:
    return spark.read.format("delta").load(table.uri)


def rows_without_skipping(spark: SparkSession, table: DeltaTopicTable) -> DataFrame:
    """The same files through Spark's Parquet reader, which ignores Delta's statistics."""
    files = [str(Path(table.uri) / s.path) for s in table.load().all_segments()]
    return spark.read.schema(spark.read.format("delta").load(table.uri).schema).parquet(*files)


@pytest.mark.long("runs a dozen Spark queries")
def test_spark_and_delta_rs_read_the_same_records(frame: DataFrame, table: DeltaTopicTable) -> None:
    wanted = [
        (partition, offset, record(partition, offset))
        for partition in range(PARTITIONS)
        for offset in range(FILES * ROWS_PER_FILE)
    ]
    columns = ["partition", "offset", "value"]
    ours = (
        DeltaTable(table.uri)
        .to_pyarrow_table(columns=columns)
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    theirs = frame.select(*columns).orderBy("partition", "offset").collect()
    assert frame.count() == len(wanted) == ours.num_rows
    for row, spark_row, (partition, offset, value) in zip(ours.to_pylist(), theirs, wanted, strict=True):
        assert (row["partition"], row["offset"]) == (spark_row.partition, spark_row.offset) == (partition, offset)
        assert plain(row["value"]) == plain(value)
        mine = None if spark_row.value is None else spark_row.value.asDict(recursive=True)
        if mine is not None:
            mine["at"] = mine["at"].astimezone(UTC)
        assert plain(mine) == plain(value)


def plain(value: dict[str, Any] | None) -> str:
    """A value as text, NaN equal to itself."""
    if value is None:
        return "null"
    return json.dumps({k: str(v.astimezone(UTC)) if k == "at" else str(v) for k, v in value.items()})


FILTERS = [
    "offset = 73",
    "offset >= 150 AND offset < 152",
    "partition = 1 AND offset > 190",
    "timestamp = timestamp'2013-01-01 00:01:39.000001Z'",
    "timestamp > timestamp'2013-01-01 00:03:18.000000Z'",
    "timestamp <= timestamp'2013-01-01 00:00:00.000001Z'",
    "value.n = 100",
    "value.n < -180",
    "value.n IS NULL",
    "value IS NULL",
    "value.big = 9007199254741100",
    "value.d > 24.0",
    "value.d = double('NaN')",
    "value.d < 0.5",
    "value.s = concat('00039', repeat('é', 39))",
    "value.s > '00198'",
    "value.s LIKE '0015%'",
    "value.day = date'2013-02-21'",
    "value.at >= timestamp'2013-01-01 00:03:19.999999Z'",
    "value.at = timestamp'2013-01-01 00:00:49.999999Z'",
    "value.ntz = timestamp_ntz'1970-01-01 00:39:00.000001'",
    "value.ntz < timestamp_ntz'1969-12-31 23:00:01'",
    f"value.money = {49 * MONEY}",
    f"value.money > {198 * MONEY}",
    "value.flag AND offset < 10",
    "value.inner.deep = 120",
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("condition", FILTERS)
def test_skipping_files_and_row_groups_loses_no_row(
    spark: SparkSession, frame: DataFrame, table: DeltaTopicTable, condition: str
) -> None:
    key = ["partition", "offset"]
    found = frame.where(condition).select(*key).collect()
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    wanted = rows_without_skipping(spark, table).where(condition).select(*key).collect()
    spark.conf.unset("spark.sql.parquet.filterPushdown")
    assert sorted(found) == sorted(wanted)
    assert wanted


@pytest.mark.sample(6)
@pytest.mark.classic("it asks the JVM which files a scan has listed")
@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("offset = 73", 2),
        ("partition = 0 AND offset = 73", 1),
        ("timestamp > timestamp'2013-01-01 00:03:00Z'", 2),
        ("value.n = 190", 1),
        ("value.s > '00198'", 2),
        ("value.day = date'2013-02-21'", 2),
        ("value.at < timestamp'2013-01-01 00:00:30Z'", 2),
        ("value.ntz < timestamp_ntz'1969-12-31 23:30:00'", 2),
        (f"value.money > {198 * MONEY}", 2),
        ("value.inner.deep = 120", 2),
        ("value.d < 3.0", 8),  # no bounds of floats: NaN might be anywhere
    ],
)
def test_spark_reads_only_files_that_can_match(
    spark: SparkSession, table: DeltaTopicTable, condition: str, files: int
) -> None:
    scan = spark.read.format("delta").load(table.uri).where(condition)
    scanned = scan.select("_metadata.file_path").distinct().count()
    jvm_plan = scan._jdf.queryExecution().executedPlan()  # type: ignore[operator]
    jvm_plan.executeCollect()
    listed = int(jvm_plan.collectLeaves().head().metrics().apply("numFiles").value())
    assert scanned <= listed == files


@pytest.mark.nightly
@pytest.mark.long("runs a dozen Spark queries")
def test_delta_offers_time_travel_history_detail_and_vacuum_on_the_remote_table(
    spark: SparkSession, table: DeltaTopicTable
) -> None:
    older = spark.read.format("delta").option("versionAsOf", 1).load(table.uri)
    assert older.count() == 2 * ROWS_PER_FILE * PARTITIONS
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").orderBy("version").collect()
    assert [(row.version, row.operation) for row in history] == [(0, "CREATE TABLE"), (1, "WRITE"), (2, "WRITE")]
    assert spark.sql(f"VACUUM delta.`{table.uri}` DRY RUN").count() == 0
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table.uri}`").first()
    assert detail is not None
    assert (detail.name, detail.numFiles) == ("t", FILES * PARTITIONS)
    assert detail.properties["stratalog.topic_id"] == "f" * 32


def test_the_least_and_greatest_offset_come_from_the_statistics(frame: DataFrame) -> None:
    """delta-spark answers MIN and MAX of numbers from the log alone if possible, so bounds must be exact."""
    row = frame.selectExpr("min(offset)", "max(offset)", "min(partition)", "max(partition)", "count(*)").first()
    assert row is not None
    assert tuple(row) == (0, FILES * ROWS_PER_FILE - 1, 0, PARTITIONS - 1, FILES * ROWS_PER_FILE * PARTITIONS)


def test_delta_rs_skips_by_the_same_statistics(table: DeltaTopicTable) -> None:
    found = DeltaTable(table.uri).to_pyarrow_table(columns=["offset"], filters=[("offset", "=", 73)])
    assert found["offset"].to_pylist() == [73, 73]


# ------------------------------------------------------------------- a table that changes


@pytest.fixture
def changing(tmp_path: Path) -> DeltaTopicTable:
    """A separate table with one version of one file."""
    made = table_in(LocalStore(str(tmp_path)))
    made.ensure(physical_schema(value=VALUE))
    add(made, 0, VALUE)
    return made


def add(table: DeltaTopicTable, base: int, value: pa.DataType) -> None:
    """Write and commit one file of partition 0, of records with this type."""
    data, statistics, segment = write_file(0, base, value)
    assert table.remote.create(table.path(segment), data)
    table.commit([Uploaded(segment, 1_700_000_000_000, statistics, len(data))], histories=OURS)


def test_older_files_have_nulls_in_fields_that_were_added(spark: SparkSession, changing: DeltaTopicTable) -> None:
    """The three readers agree on a table whose schema has grown; time travel shows the older one."""
    wider = pa.struct([*VALUE, ("grown", pa.string())])
    changing.ensure(physical_schema(value=wider))
    add(changing, ROWS_PER_FILE, wider)
    frame = spark.read.format("delta").load(changing.uri)
    ours = changing.load().of_partition(0)
    files = [str(Path(changing.uri) / segment.path) for segment in ours]
    plain_scan = spark.read.schema(frame.schema).parquet(*files)
    for read in (frame, plain_scan):
        rows = (
            read.selectExpr("offset", "value.n", "value.grown", "value IS NULL AS none")
            .orderBy("offset")
            .collect()
        )
        assert [row.offset for row in rows] == list(range(2 * ROWS_PER_FILE))
        assert {row.grown for row in rows[:ROWS_PER_FILE]} == {None}
        assert {row.grown for row in rows[ROWS_PER_FILE:] if not row.none} == {"new"}
        assert rows[1].n == -1
    theirs = DeltaTable(changing.uri).to_pyarrow_table(columns=["offset", "value"]).sort_by("offset").to_pylist()
    assert {row["value"]["grown"] for row in theirs[:ROWS_PER_FILE] if row["value"]} == {None}
    assert {row["value"]["grown"] for row in theirs[ROWS_PER_FILE:] if row["value"]} == {"new"}
    older = spark.read.format("delta").option("versionAsOf", 1).load(changing.uri)
    assert "grown" not in older.schema["value"].dataType.fieldNames()  # type: ignore[attr-defined]
    assert older.count() == ROWS_PER_FILE


def test_deltalake_polars_and_delta_spark_read_the_same_of_a_table_with_a_history(
    spark: SparkSession, changing: DeltaTopicTable
) -> None:
    """Several partitions, a schema that has grown (also inside a struct), files that have left the table."""
    inner = pa.field("inner", pa.struct([("deep", pa.int16()), ("deeper", pa.string())]))
    wider = pa.struct([*(inner if field.name == "inner" else field for field in VALUE), ("grown", pa.string())])
    add(changing, ROWS_PER_FILE, VALUE)
    changing.ensure(physical_schema(value=wider))
    for partition, base in ((0, 2 * ROWS_PER_FILE), (1, 0)):
        data, statistics, segment = write_file(partition, base, wider)
        assert changing.remote.create(changing.path(segment), data)
        changing.commit([Uploaded(segment, 1_700_000_000_000, statistics, len(data))], histories=OURS)
    changing.commit((), [changing.load().of_partition(0)[0]])

    fields = ("n", "s", "day", "money", "flag", "grown")
    names = ("partition", "offset", *fields, "deep", "deeper")

    def plain_row(row: dict[str, Any]) -> tuple[Any, ...]:
        value = row["value"] or {}
        within = value.get("inner") or {}
        return (row["partition"], row["offset"], *map(value.get, fields), within.get("deep"), within.get("deeper"))

    by_spark = spark.sql(
        f"SELECT partition, offset, {', '.join(f'value.{name}' for name in fields)}, value.inner.deep, "
        f"value.inner.deeper FROM delta.`{changing.uri}`"
    )
    expected = sorted((tuple(row) for row in by_spark.collect()), key=lambda row: row[:2])
    assert [row[:2] for row in expected] == [
        *((0, offset) for offset in range(ROWS_PER_FILE, 3 * ROWS_PER_FILE)),
        *((1, offset) for offset in range(ROWS_PER_FILE)),
    ]
    for name in ("grown", "deeper"):
        assert {row[names.index(name)] for row in expected} == {None, "new"}
    by_arrow = DeltaTable(changing.uri).to_pyarrow_table().to_pylist()
    by_polars = polars.read_delta(changing.uri).to_dicts()
    for found in (by_arrow, by_polars):
        assert sorted(map(plain_row, found), key=lambda row: row[:2]) == expected

    for partition, low in ((0, 2 * ROWS_PER_FILE), (1, 10)):
        lazy = polars.scan_delta(changing.uri).filter(
            polars.col("partition") == partition, polars.col("offset") >= low
        )
        found = lazy.select("offset", polars.col("value").struct.field("grown")).sort("offset").collect().rows()
        assert found == [
            (row[1], row[names.index("grown")]) for row in expected if row[0] == partition and row[1] >= low
        ]


@pytest.mark.long("runs a dozen Spark queries")
def test_time_travel_sees_files_that_left_the_remote_log_until_vacuum_deletes_them(
    spark: SparkSession, changing: DeltaTopicTable
) -> None:
    """Retention, and histories lost in an unclean election, remove files from the newest version only."""

    def offsets(version: int | None = None) -> list[int]:
        read = spark.read.format("delta")
        read = read if version is None else read.option("versionAsOf", version)
        return [row.offset for row in read.load(changing.uri).orderBy("offset").collect()]

    add(changing, ROWS_PER_FILE, VALUE)
    first = changing.load().of_partition(0)[0]
    changing.commit((), [first])
    later = list(range(ROWS_PER_FILE, 2 * ROWS_PER_FILE))
    assert (offsets(), offsets(2)) == (later, list(range(2 * ROWS_PER_FILE)))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{changing.uri}`").orderBy("version").collect()
    assert [row.version for row in history] == [0, 1, 2, 3]
    assert changing.vacuum(0) == [changing.path(first)]
    assert offsets() == later


@pytest.mark.long("runs a Spark batch for each version")
def test_a_stream_sees_every_record_once_across_versions_that_also_remove(
    spark: SparkSession, changing: DeltaTopicTable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A reader sets ``ignoreChanges``: a version that removes files may also add them, and added records are
    always new."""
    place = tmp_path_factory.mktemp("stream")

    def catch_up() -> list[int]:
        stream = spark.readStream.format("delta").option("ignoreChanges", "true").load(changing.uri)
        query = (
            stream.select("offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(place / "out"))
        )
        query.awaitTermination()
        return sorted(row.offset for row in spark.read.parquet(str(place / "out")).collect())

    assert catch_up() == list(range(ROWS_PER_FILE))
    first = changing.load().of_partition(0)[0]
    data, statistics, segment = write_file(0, ROWS_PER_FILE, VALUE)
    assert changing.remote.create(changing.path(segment), data)
    changing.commit([Uploaded(segment, 1_700_000_000_000, statistics, len(data))], [first], OURS)
    assert catch_up() == list(range(2 * ROWS_PER_FILE))
    wider = pa.struct([*VALUE, ("grown", pa.string())])
    changing.ensure(physical_schema(value=wider))
    add(changing, 2 * ROWS_PER_FILE, wider)
    assert catch_up() == list(range(3 * ROWS_PER_FILE)), "started again, it goes on where the schema has grown"


@pytest.mark.long("makes versions until Delta writes checkpoints")
def test_checkpoints_are_read_by_both_and_old_log_entries_go(
    spark: SparkSession, changing: DeltaTopicTable
) -> None:
    """delta.checkpointInterval, delta.logRetentionDuration: the cost of opening depends on the live files, not on
    the number of versions."""
    for base in range(ROWS_PER_FILE, 45 * ROWS_PER_FILE, ROWS_PER_FILE):
        changing.commit([uploaded(segment(base, base + ROWS_PER_FILE))], histories=OURS)
    log = Path(changing.uri) / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) >= 2
    long_ago = SystemClock().now_ms() / 1000 - 40 * 24 * 60 * 60
    for path in log.iterdir():
        os.utime(path, (long_ago, long_ago))
    for base in range(45 * ROWS_PER_FILE, 66 * ROWS_PER_FILE, ROWS_PER_FILE):
        changing.commit([uploaded(segment(base, base + ROWS_PER_FILE))], histories=OURS)
    assert len(list(log.glob("*.json"))) <= 45, "commits clean up behind their checkpoints"
    assert changing.load().end(0) == 66 * ROWS_PER_FILE
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{changing.uri}`").first()
    assert detail is not None
    assert detail.numFiles == 66
