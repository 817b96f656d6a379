"""The latest snapshots of a topic as a DataFrame: by Spark's own reader, or by Python tasks where a provider gives
the credentials."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from stratalog.engine.driver.context import Context
from stratalog.engine.spark.reducing import snapshot_rows
from stratalog.engine.spark.task_frame import has_provider, slices_frame
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.upkeep.snapshots.read_snapshot import locate
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.paths import DataName
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
    stores = [context.stores[each.broker_id] for each in found]
    if has_provider(context, stores):
        # The first row of a snapshot and its last one are no records.
        slices = [
            FileSlice(store, DataFile(DataName(0, None, each.snapshot_id.epoch), each.stored), 1, each.records + 1)
            for store, each in zip(stores, found, strict=True)
        ]
        rows = slices_frame(spark, slices, schema)
    elif found:
        uris = [store.uri_of(each.stored.name) for store, each in zip(stores, found, strict=True)]
        rows = snapshot_rows(spark, uris, schema)
    else:
        rows = spark.createDataFrame([], schema)
    numbers = [F.lit(number) for each in found for number in (each.partition, each.snapshot_id.end_offset)]
    ends = F.create_map(*numbers or (F.lit(0), F.lit(0)))
    end_offset = F.element_at(ends, F.col("partition")).cast("bigint").alias("end_offset")
    return rows.select(F.lit(topic).alias("topic"), "partition", end_offset, *RECORD_COLUMNS)
