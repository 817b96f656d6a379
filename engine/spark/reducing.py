"""The latest record of each key of a partition that is larger than memory, by Spark's own aggregation.

    latest snapshot + log after it -> group by key, the last one of each -> sort by place in the log
    -> one task that streams batches into the snapshot

Aggregation, shuffle and sort spill to disk; Python sees one batch at a time. The same fold as
``engine.state.latest_by_key``, and the same rows in the same order.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import IntegerType, StructField, StructType

from engine.operations.snapshot_partition import (
    Made,
    Planned,
    SnapshotWork,
    freeze,
    look_and_mend,
    open_writer,
    reason_not_to,
    tombstone_horizon_us,
)
from engine.reading.plan import PartitionPieces, file_ranges
from engine.spark.scanning import scan
from engine.spark.types import record_schema, spark_type
from partitions.listing import ReplicaLog
from partitions.lookup import Piece
from partitions.paths import join
from partitions.records import RECORD_COLUMNS, type_to_json
from partitions.replica import Replica
from snapshots.reader import Snapshot
from snapshots.snapshot_id import SnapshotId

_ORDER = "__order"
_TOUCHED = "__touched"


def make_large_snapshot(spark: SparkSession, work: SnapshotWork) -> tuple[Planned, Made | None]:
    """As ``engine.operations.snapshot_partition.make_snapshot``, whatever the size of the partition.

    Raises: as that.
    """
    began_s = work.clock.monotonic_s()
    leader = work.site.leader
    log, planned, earlier = look_and_mend(work)
    if planned.wait is not None:
        return planned, None
    rows = _rows(spark, work, leader, log, earlier, planned.next.end_offset)
    if earlier is not None and not work.by_hand:
        refused = reason_not_to(work, planned, earlier, _changed(rows))
        if refused is not None:
            return refused, None
    horizon_us = tombstone_horizon_us(work, leader, log, planned.next.end_offset)
    records, new = _write(work, _latest(rows, horizon_us), log, planned.next)
    return planned, Made(planned.next, records, new, 1000 * (work.clock.monotonic_s() - began_s))


def snapshot_rows(spark: SparkSession, uris: list[str], schema: StructType) -> DataFrame:
    """The records of snapshots: the columns of ``schema`` (see ``record_schema``), without control records."""
    with_control = StructType([*schema.fields, StructField("control", IntegerType())])
    return spark.read.schema(with_control).parquet(*uris).where(F.col("control").isNull()).drop("control")


def snapshot_frame(
    spark: SparkSession, topic: str, files: Mapping[int, tuple[str, int]], schema: StructType
) -> DataFrame:
    """The records of the snapshots ``files``, by partition (address, end offset), with the columns ``topic,
    partition, end_offset, timestamp, key, value, headers``."""
    ends = F.create_map(*(F.lit(number) for partition, (_, end) in files.items() for number in (partition, end)))
    rows = snapshot_rows(spark, [uri for uri, _ in files.values()], schema) if files else None
    if rows is None:
        rows, ends = spark.createDataFrame([], schema), F.create_map(F.lit(0), F.lit(0))
    end_offset = F.element_at(ends, F.col("partition")).cast("bigint").alias("end_offset")
    return rows.select(F.lit(topic).alias("topic"), "partition", end_offset, *RECORD_COLUMNS)


def _rows(
    spark: SparkSession,
    work: SnapshotWork,
    leader: Replica,
    log: ReplicaLog,
    earlier: Snapshot | None,
    end: int,
) -> DataFrame:
    """The records of the latest snapshot and of the log after it, with their place among each other and whether
    they are the log's (1) or the snapshot's (0)."""
    schema = record_schema(*(spark_type(type_to_json(work.schema.field(name).type)) for name in ("key", "value")))
    start = 0 if earlier is None else earlier.snapshot_id.end_offset
    pieces = [
        Piece(leader.store, link.file, link.start, min(link.end, end)) for link in log.chain if link.start < end
    ]
    readable = PartitionPieces(leader.topic, leader.partition, log.local_start, end, pieces, log.local_start)
    ranges = file_ranges(readable, start, end)
    rows = _placed(scan(spark, leader.topic, ranges, schema), F.col("offset"), touched=1)
    if earlier is not None:
        uri = leader.store.uri_of(join(leader.folder, str(earlier.snapshot_id.name)))
        # Its rows count from 0 on: all of them before the log's.
        place = F.col("offset") - F.lit(earlier.records + 2)
        rows = _placed(snapshot_rows(spark, [uri], schema), place, touched=0).unionAll(rows)
    return rows.where(F.col("key").isNotNull())


def _placed(rows: DataFrame, place: Column, *, touched: int) -> DataFrame:
    return rows.select(
        place.cast("bigint").alias(_ORDER),
        F.lit(touched).alias(_TOUCHED),
        *RECORD_COLUMNS,
    )


def _changed(rows: DataFrame) -> int:
    """How many records have changed since the latest snapshot (``snapshots.policy.counts_as_changed``)."""
    touched = rows.groupBy("key").agg(F.sum(_TOUCHED).alias("touched"), F.min(_TOUCHED).alias("new"))
    changed = (F.col("touched") > 1) | ((F.col("touched") > 0) & (F.col("new") == 0))
    return touched.where(changed).count()


def _latest(rows: DataFrame, horizon_us: int) -> DataFrame:
    record = F.struct(_ORDER, "timestamp", "value", "headers")
    latest = rows.groupBy("key").agg(F.max_by(record, _ORDER).alias("latest"))
    old = F.unix_micros("latest.timestamp") <= F.lit(horizon_us)
    kept = latest.where(F.col("latest.value").isNotNull() | ~F.coalesce(old, F.lit(False)))
    return kept.select(
        F.col(f"latest.{_ORDER}").alias(_ORDER), "latest.timestamp", "key", "latest.value", "latest.headers"
    )


def _write(work: SnapshotWork, rows: DataFrame, log: ReplicaLog, snapshot_id: SnapshotId) -> tuple[int, bool]:
    """One task writes; how many records there were, and whether the snapshot is this call's."""

    def write(batches: Iterator[pa.RecordBatch]) -> tuple[int, bool]:
        records = 0
        with open_writer(work, work.site.leader, log, snapshot_id) as writer:
            for batch in batches:
                writer.write(_as_declared(batch, work.schema))
                records += batch.num_rows
            return records, freeze(work, writer, snapshot_id)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = pickle.dumps(write(batches))
        yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})

    ordered = rows.repartition(1).sortWithinPartitions(_ORDER)
    results = ordered.mapInArrow(task, "result binary").collect()
    if not results:  # of no rows Spark makes no task
        return write(iter(()))
    records, new = pickle.loads(bytes(results[0][0]))
    return int(records), bool(new)


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The record columns in the topic's own types: Spark's timestamps carry the session's time zone."""
    columns = [batch.column(name).cast(schema.field(name).type) for name in RECORD_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, list(RECORD_COLUMNS))
