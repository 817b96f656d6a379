"""A live plan as a DataFrame: Spark's own scan of the mirrored log, and tasks that read the rest from the
source.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.live.plan import LivePlan, SourcePiece
from stratalog.bridges.mirror.rows import offsets_of
from stratalog.bridges.mirror.source import MirrorSource, SourceRange
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.spark.read_frame import read_frame
from stratalog.engine.spark.scanning import of_times
from stratalog.engine.spark.stream_columns import conformed, stream_schema
from stratalog.engine.spark.task_frame import frame_by_tasks
from stratalog.engine.spark.types import record_schema, spark_type
from stratalog.engine.spark.versions import arrow_schema
from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import constant
from stratalog.partitions.errors import OffsetOutOfRangeError, RetriableError
from stratalog.partitions.printable import printable


@dataclass(frozen=True, slots=True)
class LiveWork:
    """The work of one task, which opens a separate connection."""

    source: MirrorSource
    topic: str
    piece: SourcePiece
    values: TypedValues | None

    def __str__(self) -> str:
        return f"{self.topic}-{self.piece.partition}: offsets [{self.piece.start}, {self.piece.end}) of Kafka"


def live_frame(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    spark: SparkSession,
    plan: LivePlan,
    values: TypedValues | None,
) -> DataFrame:
    """The records of the plan, with the columns of ``Cluster.read``. Warns about lost records.

    Raises: see ``read_frame``. A task raises OffsetOutOfRangeError if the source has deleted its offsets since the
    plan was made: a new plan finds them here if they have been mirrored.
    """
    for note in plan.notes:
        warnings.warn(printable(note), stacklevel=3)
    frame = read_frame(metadata, storage, clock, memory, spark, plan.log)
    if not plan.pieces:
        return frame
    schema = stream_schema(record_schema(spark_type(plan.log.key_schema), spark_type(plan.log.value_schema)), None)
    arrow, name = arrow_schema(schema), plan.live.topic.name
    works = [LiveWork(plan.live.source, name, piece, values) for piece in plan.pieces]

    def read(work: LiveWork) -> Iterator[pa.RecordBatch]:
        for records in read_piece(work):
            yield from conformed(records, arrow, work.topic)

    return frame.unionByName(of_times(frame_by_tasks(spark, works, read, schema), plan.times))


def read_piece(work: LiveWork) -> Iterator[pa.Table]:
    """The committed records of a piece, with the columns of a segment. Runs in a task.

    Raises: OffsetOutOfRangeError; RetriableError if the source stops answering; other errors from the source.
    """
    piece = work.piece
    key = work.topic, piece.partition
    position = piece.start
    with closing(work.source.read({key: SourceRange(piece.start, piece.end, piece.leader_epoch)})) as reads:
        for read in reads:
            if isinstance(read.error, OffsetOutOfRangeError):
                raise OffsetOutOfRangeError(
                    f"{work} were deleted in the source, or an unclean election has replaced earlier records: "
                    "mirror "
                    f"the topic and make the DataFrame again ({read.error})"
                ) from read.error
            if read.error is not None:
                raise read.error
            records = read.records.slice(0, int(np.searchsorted(offsets_of(read.records), piece.end)))
            if records.num_rows:
                yield _rows(records, piece.partition, work.values)
            position = read.position
            if position >= piece.end:
                return
    if position < piece.end:
        raise RetriableError(f"{work}: the source stopped at offset {position}; try again")


def _rows(records: pa.RecordBatch, partition: int, values: TypedValues | None) -> pa.Table:
    columns = {name: records.column(name) for name in ("offset", "timestamp", "key", "value", "headers")}
    if values is not None:
        columns["value"] = values.column(columns["value"].to_pylist())
    return pa.table({"partition": constant(partition, pa.int32(), records.num_rows), **columns})
