"""A stream over a mirrored topic and Kafka, which begins in the history and continues with Kafka's records.

The stream contains ranges of offsets, and each batch is a live read of exactly these ranges: from the mirrored log
up to its current end, and from Kafka after it. The checkpoint is one set of offsets for both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.live.boundary import look_live
from stratalog.bridges.live.frame import live_frame
from stratalog.bridges.live.plan import plan_live
from stratalog.bridges.live.source import LiveSource
from stratalog.bridges.mirror.source import MirrorSource
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.range_plan import StreamRange
from stratalog.engine.reading.stream_options import SourceOptions
from stratalog.engine.reading.stream_source import StreamProgress
from stratalog.engine.spark.range_stream import (
    FORMAT,
    BatchFunction,
    BatchScan,
    RangeDataSource,
    RangeStream,
    range_options,
)
from stratalog.engine.spark.stream_source import check_limits, open_named
from stratalog.engine.spark.time_zone import zoned_options
from stratalog.engine.spark.versions import LIMITS, spark_version
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, UnknownTopicOrPartitionError

if TYPE_CHECKING or spark_version() < LIMITS:
    _Base = RangeStream
else:
    from stratalog.engine.spark.stream_limits import LimitedRangeStream as _Base


class LiveRangeStream(_Base):
    """A query's source of ranges. Spark pickles the source to separate processes, so it contains Kafka's
    configs.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        source: MirrorSource,
        topic: str,
        values: TypedValues | None,
    ) -> None:
        super().__init__(options, schema)
        self._of_kafka = source, topic, values

    def _open(self) -> tuple[LiveSource, StreamProgress | None]:
        if self._opened is None:
            ports = open_named(self._options)
            self._opened = LiveSource(*ports.for_records, self._options, *self._of_kafka), None
        found, progress = self._opened
        assert isinstance(found, LiveSource)
        return found, progress


def _format(name: str, source: MirrorSource, topic: str, values: TypedValues | None) -> type[RangeDataSource]:
    """The format of one query, under that name. Spark pickles the class. So Kafka's configs, which may be secret,
    need not be options: Spark would show those.
    """
    given = name

    class LiveDataSource(RangeDataSource):
        @classmethod
        def name(cls) -> str:
            return given

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return LiveRangeStream(range_options(self.options), schema, source, topic, values)

    return LiveDataSource


class LiveScan(BatchScan):
    """Calls a function with each batch as a live read."""

    def __init__(
        self,
        ports: Ports,
        options: SourceOptions,
        source: MirrorSource,
        topic: str,
        values: TypedValues | None,
        function: BatchFunction,
    ) -> None:
        super().__init__(ports, options, function)
        self._source, self._topic, self._values = source, topic, values

    def frame_of(
        self,
        metadata: MetadataClient,
        storage: Storage,
        clock: Clock,
        memory: Memory,
        spark: SparkSession,
        ranges: Sequence[StreamRange],
    ) -> DataFrame:
        """The records of the ranges, from the side that now has them.

        Raises: UnknownTopicOrPartitionError for ranges of another topic; see ``look_live``, ``plan_live`` and
        ``live_frame``.
        """
        live = look_live(metadata, storage, clock, memory, self._source, self._topic, self._values)
        for one in ranges:
            if (one.topic, one.topic_id) != (self._topic, live.topic.topic_id):
                raise UnknownTopicOrPartitionError(
                    f"the batch belongs to topic {one.topic!r}, id {one.topic_id}, but {self._topic!r} now has "
                    f"the id {live.topic.topic_id}: the topic was deleted and mirrored again; give the query a "
                    "new checkpointLocation"
                )
        plan = plan_live(
            metadata,
            storage,
            clock,
            memory,
            live,
            {one.partition: one.start for one in ranges},
            {one.partition: one.end for one in ranges},
            partitions=[one.partition for one in ranges],
            epochs={one.partition: epoch for one in ranges for epoch, _ in one.epochs},
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return live_frame(metadata, storage, clock, memory, spark, plan, self._values)


def for_each_live_batch(
    ports: Ports,
    spark: SparkSession,
    topic: str,
    source: MirrorSource,
    values: TypedValues | None,
    function: BatchFunction,
    options: Mapping[str, str],
) -> DataStreamWriter:
    """See ``Cluster.for_each_live_batch``. Raises: InvalidCallError naming the option; see ``look_live``."""
    given = {"cluster": str(ports.storage.file.path), "topic": topic, **zoned_options(options, spark)}
    known = range_options(given)
    if known.group is not None:
        raise InvalidCallError(
            "group is not supported: the stream's offsets may be beyond the end of the mirrored log, and a group "
            "cannot commit such offsets; the stream's checkpoint stores them"
        )
    check_limits(known)
    look_live(*ports.for_records, source, topic, values)
    # a unique name, because the session may have queries of other topics
    name = f"{FORMAT}-{ports.storage.new_id()}"
    spark.dataSource.register(_format(name, source, topic, values))
    frame = spark.readStream.format(name).options(**given).load()
    return frame.writeStream.foreachBatch(LiveScan(ports, known, source, topic, values, function))
