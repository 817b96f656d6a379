"""Finds the latest record of each key in a partition that is larger than memory, by Spark's own aggregation.

    keys of the latest snapshot and of the log after it -> group by key, with the last place of each -> sort
    -> one task that streams the files in their order, and keeps the records at these places

Aggregation and sort can spill to disk, and handle only keys and places. Python handles one batch at a time, and
copies records unchanged from the files. The result equals that of ``stratalog.engine.state.latest_by_key``, row by
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import IntegerType, StructField, StructType

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.storage import Storage
from stratalog.engine.reading.plan import PartitionPieces, file_ranges
from stratalog.engine.replication.snapshots import checkpoints_of
from stratalog.engine.spark.aborted import aborted_as
from stratalog.engine.spark.read_errors import read_errors
from stratalog.engine.spark.runner import RESULT, result, results
from stratalog.engine.spark.scanning import pinned_files, scan
from stratalog.engine.spark.task_frame import has_provider, slices_frame
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.spark.worker_garbage import in_worker
from stratalog.engine.state import latest_by_key
from stratalog.engine.state.latest_by_key import without_tombstones
from stratalog.engine.upkeep.snapshots.partition import (
    PartitionSnapshot,
    SnapshotPlan,
    SnapshotWork,
    committed_batches,
    committed_links,
    committed_runs,
    freeze,
    open_writer,
    plan_and_repair,
    reason_not_to,
    tombstone_horizon_us,
)
from stratalog.partitions.errors import RetriableError, StratalogError
from stratalog.partitions.growth import fitted
from stratalog.partitions.listing import DataFile, ReplicaLog
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import RECORD_COLUMNS, type_to_json
from stratalog.partitions.replica import errors_of
from stratalog.partitions.segments.footer import check_tail
from stratalog.partitions.segments.reader import read_batches
from stratalog.snapshots.reader import Snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.writer import SnapshotWriter

_ROWS_AT_ONCE = 2048
_PLACE = "__place"
_TOUCHED = "__touched"


@dataclass(frozen=True, slots=True)
class _Source:
    """The input of a snapshot: the latest snapshot, if any, and the log after it."""

    work: SnapshotWork
    log: ReplicaLog
    end: int
    earlier: DataFile | None
    earlier_records: int
    """The number of records of the latest snapshot. Their places are ``[-earlier_records, 0)``, before the places
    of the log's records.
    """
    start: int
    """The first offset of the log after the latest snapshot."""

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """``(first place, records)``, in order, a few thousand records at a time."""
        for first, batch in self._row_groups():
            for index in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield first + index, batch.slice(index, _ROWS_AT_ONCE)

    def _row_groups(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        leader, place = self.work.replicas.leader, -self.earlier_records
        if self.earlier is not None:
            columns = list(RECORD_COLUMNS)
            for batch in read_batches(leader.store, self.earlier, 1, self.earlier_records + 1, columns):
                yield place, batch
                place += batch.num_rows
        yield from committed_batches(leader, self.log, self.start, self.end, list(RECORD_COLUMNS))


def make_large_snapshot(
    spark: SparkSession, storage: Storage, execution: Execution, work: SnapshotWork
) -> tuple[SnapshotPlan, PartitionSnapshot | None]:
    """Do the same as ``stratalog.engine.upkeep.snapshots.partition.make_snapshot``, for a partition of any size. A
    task writes the file. With ``Execution.driver_only``, this process writes the file, and fetches the places of
    all records.

    Raises: see ``make_snapshot``; RetriableError when Spark aborted the job.
    """
    began_s = work.clock.monotonic_s()
    leader = work.replicas.leader
    log, planned, earlier = plan_and_repair(work)
    if planned.wait is not None:
        return planned, None
    source = _source(work, log, earlier, planned.next.end_offset)
    given = aborted_as(RetriableError, f"no snapshot of {work} was made: run the operation again")
    # The writer is opened before any record is read, so that a concurrent erasure finds it. If a task writes the
    # file, it opens its own writer, and this one only marks the work.
    with (
        given,
        errors_of(leader),
        open_writer(work, leader, log, planned.next) as writer,
        read_errors([leader.store]),
    ):
        keys = _keys(spark, source, by_tasks=has_provider(storage, [leader.store]))
        if earlier is not None and not work.by_hand:
            refused = reason_not_to(work, planned, earlier, _changed(keys))
            if refused is not None:
                return refused, None
        horizon_us = tombstone_horizon_us(work, leader, log, source.end)
        places = _places(keys)
        if execution.driver_only:
            fetched = _Places(iter(places.toArrow().to_batches()))
            records, new = _write_all(fetched, source, writer, planned.next, horizon_us)
        else:
            records, new = _write(places, source, planned.next, horizon_us)
    return planned, PartitionSnapshot(planned.next, records, new, 1000 * (work.clock.monotonic_s() - began_s))


def _source(work: SnapshotWork, log: ReplicaLog, earlier: Snapshot | None, end: int) -> _Source:
    if earlier is None:
        return _Source(work, log, end, None, 0, 0)
    name = earlier.snapshot_id.name
    file = DataFile(DataName(0, None, name.epoch), dict(checkpoints_of(log))[name])
    return _Source(work, log, end, file, earlier.records, name.end_offset)


def snapshot_rows(spark: SparkSession, uris: list[str], schema: StructType) -> DataFrame:
    """The records of snapshots: the columns of ``schema`` (see ``record_schema``), without control records."""
    with_control = StructType([*schema.fields, StructField("control", IntegerType())])
    return pinned_files(spark, with_control, uris).where(F.col("control").isNull()).drop("control")


def _keys(spark: SparkSession, source: _Source, *, by_tasks: bool) -> DataFrame:
    """The keys with their places, and whether each key is from the log (1) or the latest snapshot (0). Spark's
    reader or Python tasks read the keys.
    """
    work, log, leader = source.work, source.log, source.work.replicas.leader
    schema = record_schema(*(spark_type(type_to_json(work.schema.field(name).type)) for name in ("key", "value")))
    of_keys = StructType([schema["offset"], schema["key"]])
    pieces = list(_committed_pieces(source))
    for piece in {piece.file.name: piece for piece in pieces}.values():
        check_tail(piece.store, piece.file.object)
    if by_tasks:
        logged = slices_frame(spark, pieces, of_keys)
    else:
        readable = PartitionPieces(
            leader.topic, leader.partition, log.local_start, source.end, pieces, log.local_start
        )
        logged = scan(spark, leader.topic, file_ranges(readable, source.start, source.end), schema)
    keys = _placed(logged, F.col("offset"), touched=1)
    if source.earlier is not None:
        if by_tasks:
            whole = FileSlice(leader.store, source.earlier, 1, source.earlier_records + 1)
            earlier = slices_frame(spark, [whole], of_keys)
        else:
            earlier = snapshot_rows(spark, [leader.store.uri_of(source.earlier.object.name)], schema)
        place = F.col("offset") - F.lit(source.earlier_records + 1)  # a snapshot begins with a control record
        keys = _placed(earlier, place, touched=0).unionAll(keys)
    return keys.where(F.col("key").isNotNull())


def _committed_pieces(source: _Source) -> Iterator[FileSlice]:
    """The parts of the log's files with committed records only."""
    leader = source.work.replicas.leader
    for link, decided in committed_links(leader, source.log, source.start, source.end):
        first, end = max(link.start, source.start), min(link.end, source.end)
        if not decided:
            yield FileSlice(leader.store, link.file, first, end)
            continue
        for batch in read_batches(leader.store, link.file, first, end, ["control"]):
            for start, until in committed_runs(batch.column("control")):
                yield FileSlice(leader.store, link.file, first + start, first + until)
            first += batch.num_rows


def _placed(rows: DataFrame, place: Column, *, touched: int) -> DataFrame:
    return rows.select(place.cast("bigint").alias(_PLACE), F.lit(touched).alias(_TOUCHED), "key")


def _changed(keys: DataFrame) -> int:
    """The number of records that have changed since the latest snapshot
    (``stratalog.snapshots.policy.counts_as_changed``).
    """
    touched = keys.groupBy("key").agg(F.sum(_TOUCHED).alias("touched"), F.min(_TOUCHED).alias("new"))
    changed = (F.col("touched") > 1) | ((F.col("touched") > 0) & (F.col("new") == 0))
    return touched.where(changed).count()


def _places(keys: DataFrame) -> DataFrame:
    """The places of the latest record of each key, in order, as one partition."""
    places = keys.groupBy("key").agg(F.max(_PLACE).alias(_PLACE)).select(_PLACE)
    return places.repartition(1).sortWithinPartitions(_PLACE)


def _write(places: DataFrame, source: _Source, snapshot_id: SnapshotId, horizon_us: int) -> tuple[int, bool]:
    """Write the snapshot in one task; returns the number of records, and whether this call created the
    snapshot.
    """

    @in_worker
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            outcome: object = _write_by_task(_Places(batches), source, snapshot_id, horizon_us)
        except StratalogError as error:
            outcome = error
        yield result(outcome)

    given = results(places.mapInArrow(task, RESULT).toArrow())
    if not given:  # Spark runs no task without rows
        return _write_by_task(_Places(iter(())), source, snapshot_id, horizon_us)
    match given[0]:
        case StratalogError() as error:
            raise error
        case (int() as records, bool() as new):
            return records, new
    raise AssertionError("a task returned neither a result nor an error")


def _write_by_task(places: _Places, source: _Source, snapshot_id: SnapshotId, horizon_us: int) -> tuple[int, bool]:
    leader = source.work.replicas.leader
    with errors_of(leader), open_writer(source.work, leader, source.log, snapshot_id) as writer:
        return _write_all(places, source, writer, snapshot_id, horizon_us)


def _write_all(
    places: _Places, source: _Source, writer: SnapshotWriter, snapshot_id: SnapshotId, horizon_us: int
) -> tuple[int, bool]:
    work, records = source.work, 0
    schema = latest_by_key.record_schema(work.schema)
    for first, batch in source.batches():
        latest = batch.take(pa.array(places.below(first + batch.num_rows) - first))
        latest = fitted(latest, schema, str(work))
        kept = without_tombstones(pa.Table.from_batches([latest]), horizon_us)
        for rows in kept.to_batches():
            writer.write(rows)
        records += kept.num_rows
    earlier = None if source.earlier is None else source.earlier.object
    return records, freeze(work, writer, snapshot_id, earlier)


class _Places:
    """Ascending places, with one batch of them in memory."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def below(self, end: int) -> npt.NDArray[np.int64]:
        """The places below ``end`` that were not returned before."""
        found = []
        while True:
            cut = int(np.searchsorted(self._held, end))
            found.append(self._held[:cut])
            self._held = self._held[cut:]
            if len(self._held):
                return np.concatenate(found)
            batch = next(self._batches, None)
            if batch is None:
                return np.concatenate(found)
            self._held = batch.column(0).to_numpy(zero_copy_only=False)
