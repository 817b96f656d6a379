"""Spark's changes of a remote table: OPTIMIZE is silently reverted, a DELETE is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.records import physical_schema
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.spark.test_remote_table import ROWS_PER_FILE, VALUE, add, changing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
__all__ = ["changing"]


@pytest.fixture
def tiered(changing: DeltaTopicTable) -> DeltaTopicTable:
    """Three segments of typed values, in three versions."""
    for number in (1, 2):
        add(changing, number * ROWS_PER_FILE, VALUE)
    return changing


@pytest.mark.nightly
@pytest.mark.delta
def test_an_optimize_by_spark_is_reverted_and_no_reader_sees_a_record_twice(
    spark: SparkSession, tiered: DeltaTopicTable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("stream")
    wanted = list(range(3 * ROWS_PER_FILE))

    def streamed() -> list[int]:
        """The total number of records that a continuous stream has written."""
        (
            spark.readStream.format("delta")
            .load(tiered.uri)
            .select("offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(place / "out"))
            .awaitTermination()
        )
        return sorted(row.offset for row in spark.read.parquet(str(place / "out")).collect())

    def read(version: int) -> list[int]:
        frame = spark.read.format("delta").option("versionAsOf", version).load(tiered.uri)
        return sorted(row.offset for row in frame.select("offset").collect())

    before, schema = tiered.load(), physical_schema(value=VALUE)
    money = f"SELECT count(*) FROM delta.`{tiered.uri}` WHERE value.money > 1000 AND offset >= 50"
    (counted,) = spark.sql(money).collect()
    assert streamed() == wanted
    spark.sql(f"OPTIMIZE delta.`{tiered.uri}`").collect()
    log = tiered.load()
    assert log.segments == before.segments
    assert f"OPTIMIZE at version {log.version} with Apache-Spark/" in str(log.rewrite)
    for segment in before.all_segments():  # a lost one could be created again
        written = pq.read_table(Path(tiered.uri) / segment.path).select(schema.names).cast(schema)
        found = pa.Table.from_batches(list(tiered.records(segment, schema)))
        assert str(found.to_pylist()) == str(written.to_pylist()), "as text: NaN equals nothing else"
    righted = tiered.undo_rewrites()
    assert [read(version) for version in range(before.version, righted.version + 1)] == [wanted] * 3
    assert spark.sql(money).collect() == [counted], "statistics are what they were"
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tiered.uri}`").where(f"version = {righted.version}").first()
    assert history is not None
    assert "reverts: another writer has rewritten the table" in str(history.userMetadata)
    assert streamed() == wanted


@pytest.mark.delta
def test_a_delete_by_spark_is_refused_and_restored_as_the_error_says(
    spark: SparkSession, tiered: DeltaTopicTable
) -> None:
    spark.sql(f"DELETE FROM delta.`{tiered.uri}` WHERE offset = 60").collect()
    with pytest.raises(CorruptionError, match="DELETE at version 4 with Apache-Spark/") as refused:
        tiered.load()
    spark.sql("RESTORE TABLE " + str(refused.value).partition("RESTORE TABLE ")[2]).collect()
    assert tiered.load().end(0) == 3 * ROWS_PER_FILE
    assert {Path(segment.path).suffix for segment in tiered.load().all_segments()} == {".parquet"}
    add(tiered, 3 * ROWS_PER_FILE, VALUE)
    assert spark.read.format("delta").load(tiered.uri).count() == 4 * ROWS_PER_FILE
