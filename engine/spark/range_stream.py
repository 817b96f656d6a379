"""Runs the batches of a stream as Spark's own scans: the rows of the stream are ranges of offsets, and each batch
reads the records in its ranges.

Spark takes the rows of a Python source from Python workers, at about half the speed of a scan. So this source has
only one row for each partition of a batch, and ``foreachBatch`` turns these rows into a read of the files that
hold the ranges. A batch that runs again has the same ranges, even if the files have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.range_plan import StreamRange, plan_of_ranges
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.reading.stream_options import SourceOptions, stream_options
from stratalog.engine.reading.stream_source import topics_of
from stratalog.engine.spark.read_frame import read_frame
from stratalog.engine.spark.stream_source import StreamReader, check_limits, open_named
from stratalog.engine.spark.time_zone import zoned_options
from stratalog.engine.spark.versions import LIMITS, spark_version
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError

FORMAT = "stratalog-ranges"
BatchFunction = Callable[[DataFrame, int], None]

_SCHEMA = (
    "topic STRING, topic_id STRING, partition INT, start BIGINT, end BIGINT, "
    "epochs ARRAY<STRUCT<epoch: INT, start: BIGINT>>"
)
_OF_ROWS = ("columns", "includeHeaders", "minPartitions", "failOnNewFields")
"""Options for rows from Python workers, which these streams do not have."""


class RangeDataSource(DataSource):
    """The format of the ranges. ``Cluster.for_each_batch`` uses it; its rows are not for other users."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """One row is one range."""
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The source. Raises: InvalidCallError naming the option."""
        options = range_options(self.options)
        if spark_version() >= LIMITS:
            from stratalog.engine.spark.stream_limits import LimitedRangeStream

            return LimitedRangeStream(options, schema)
        check_limits(options)
        return RangeStream(options, schema)


def range_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a stream of ranges. Raises: InvalidCallError for options of a stream of rows; see
    ``stream_options``."""
    names = {name.lower(): name for name in _OF_ROWS}
    for name in given:
        if name.lower() in names:
            raise InvalidCallError(
                f"the option {names[name.lower()]} does not apply: each batch of for_each_batch is a scan of all "
                "columns; select what you need in your function"
            )
    return replace(stream_options(given), fail_on_new_fields=False)


class Ranges(InputPartition):
    """All ranges of a batch: the work of its one task."""

    def __init__(self, ranges: Sequence[StreamRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class RangeStream(StreamReader):
    """A query's source of ranges, with the same offsets as ``StreamReader``."""

    def _slices(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        source, _ = self._open()
        ranges = source.ranges(StreamOffsets.from_json(start), StreamOffsets.from_json(end))
        return [Ranges(ranges)] if ranges else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a batch."""
        assert isinstance(partition, Ranges)
        rows = [
            {
                "topic": one.topic,
                "topic_id": one.topic_id,
                "partition": one.partition,
                "start": one.start,
                "end": one.end,
                "epochs": [{"epoch": epoch, "start": first} for epoch, first in one.epochs],
            }
            for one in partition.ranges
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=self._arrow)


def ranges_of(batch: DataFrame) -> list[StreamRange]:
    """The rows of a batch as ranges."""
    return [
        StreamRange(
            row["topic"],
            row["topic_id"],
            row["partition"],
            row["start"],
            row["end"],
            tuple((epoch, first) for epoch, first in row["epochs"]),
        )
        for row in batch.collect()
    ]


@contextmanager
def kept_active_session() -> Iterator[None]:
    """A context that restores the active session at its end. For the entire process, PySpark keeps the session
    that last made a DataFrame of rows as the active session. A batch has its own session, in which nothing is
    registered, and which must not stay active after the batch.
    """
    before = SparkSession._activeSession
    try:
        yield
    finally:
        SparkSession._activeSession = before


class BatchScan:
    """Calls a function with each batch as a scan. Spark Connect runs the function in a separate process on the
    server's machine. That process opens the cluster again, with the key from its own environment.
    """

    def __init__(self, ports: Ports, options: SourceOptions, function: BatchFunction) -> None:
        self._opened: Ports | None = ports
        self._options = options
        self._function = function

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Read the ranges of ``batch`` and call the function, unless the batch has no records.

        Raises: see ``frame_of``; errors of the function. An error ends the query, and the query's next run repeats
            the batch.
        """
        ranges = ranges_of(batch)
        if not ranges:
            return
        if self._opened is None:
            self._opened = open_named(self._options)
        with kept_active_session():
            self._function(self.frame_of(*self._opened.for_records, batch.sparkSession, ranges), batch_id)

    def frame_of(
        self,
        metadata: MetadataClient,
        storage: Storage,
        clock: Clock,
        memory: Memory,
        spark: SparkSession,
        ranges: Sequence[StreamRange],
    ) -> DataFrame:
        """The records of the ranges; there is at least one range. Raises: see ``plan_of_ranges`` and
        ``read_frame``."""
        return read_frame(
            metadata,
            storage,
            clock,
            memory,
            spark,
            plan_of_ranges(metadata, storage, clock, memory, ranges, self._options),
        )


def for_each_batch(
    ports: Ports,
    spark: SparkSession,
    topics: Sequence[str],
    function: BatchFunction,
    options: Mapping[str, str],
) -> DataStreamWriter:
    """See ``Cluster.for_each_batch``. Raises: InvalidCallError naming the option; UnknownTopicOrPartitionError."""
    given = {
        "cluster": str(ports.storage.file.path),
        **({"subscribe": ",".join(topics)} if topics else {}),
        **zoned_options(options, spark),
    }
    known = range_options(given)
    topics_of(ports.metadata.image(), known.topics)
    spark.dataSource.register(RangeDataSource)
    frame = spark.readStream.format(FORMAT).options(**given).load()
    return frame.writeStream.foreachBatch(BatchScan(ports, known, function))
