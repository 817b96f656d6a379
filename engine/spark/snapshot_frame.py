"""The latest snapshots of a topic as a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StructType

from stratalog.engine.driver.context import Context
from stratalog.engine.spark.reducing import snapshot_rows
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.upkeep.snapshots.read_snapshot import locate
from stratalog.partitions.records import RECORD_COLUMNS


def read_snapshot_frame(
    context: Context, spark: SparkSession, topic: str, partitions: Sequence[int] | None = None
) -> DataFrame:
    """The latest snapshots as one DataFrame, columns ``topic, partition, end_offset, timestamp, key, value,
    headers``: of a topic of a user the latest record of each key below ``end_offset``.

    Raises: as ``locate``.
    """
    topic_image, found = locate(context, topic, partitions)
    schema = record_schema(spark_type(topic_image.key_schema), spark_type(topic_image.value_schema))
    files = {located.partition: (located.uri, located.snapshot_id.end_offset) for located in found}
    return _frame(spark, topic, files, schema)


def _frame(spark: SparkSession, topic: str, files: Mapping[int, tuple[str, int]], schema: StructType) -> DataFrame:
    """The records of the snapshots ``files``, by partition (address, end offset), with the columns ``topic,
    partition, end_offset, timestamp, key, value, headers``."""
    ends = F.create_map(*(F.lit(number) for partition, (_, end) in files.items() for number in (partition, end)))
    rows = snapshot_rows(spark, [uri for uri, _ in files.values()], schema) if files else None
    if rows is None:
        rows, ends = spark.createDataFrame([], schema), F.create_map(F.lit(0), F.lit(0))
    end_offset = F.element_at(ends, F.col("partition")).cast("bigint").alias("end_offset")
    return rows.select(F.lit(topic).alias("topic"), "partition", end_offset, *RECORD_COLUMNS)
