"""The cluster as one object: streams into topics, and how far streams and other consumers are behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.engine.admin.lag_metrics import lag_metrics
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report
from stratalog.partitions.producers import OnChangedReplay

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from stratalog.engine.spark.stream_sink import StreamWriter


class StreamOfCluster:
    """A part of ``stratalog.engine.cluster.Cluster``."""

    _context: Context

    def stream_writer(
        self,
        topic: str,
        *,
        producer: str,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
        producer_epoch: int | None = None,
        acks: str = "all",
        on_changed_replay: OnChangedReplay = "refuse",
        order_by: Sequence[str] = (),
    ) -> StreamWriter:
        """A sink for ``df.writeStream.foreachBatch``: every batch into ``topic`` exactly once, across restarts and
        replays. ``producer`` names the stream in the log; what tells its batches apart is the query's id, in the
        checkpoint, and the batch's. The other arguments are those of ``append``.

        A batch that comes again with other rows ends the query (OUT_OF_ORDER_SEQUENCE_NUMBER), and none of them is
        stored: the checkpoint is older than what it has led to, or a copy of another query's. Either the later
        checkpoint is put back; or a query with a new checkpoint starts behind what the topic has; or this one gets
        another producer name, and what it appends again is in the topic twice.

        Raises: UnknownTopicOrPartitionError; InvalidCallError for an empty name.
        """
        from stratalog.engine.spark.appending import RecordColumns
        from stratalog.engine.spark.stream_sink import StreamWriter

        self._context.metadata.image().topic(topic)
        return StreamWriter(
            self._context,
            topic,
            RecordColumns(key, value, partition, headers, timestamp),
            producer=producer,
            producer_epoch=producer_epoch,
            acks=acks,
            on_changed_replay=on_changed_replay,
            order_by=order_by,
        )

    def records(
        self,
        frame: DataFrame,
        topic: str,
        *,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
    ) -> DataFrame:
        """``frame`` with the columns of the topic's records, ``partition, timestamp, key, value`` and ``headers``
        where they are given, as ``append`` would make them: what ``writeStream.format("stratalog")`` takes. A
        timestamp that is null is the time of the append. The
        partitions are those of now: before the topic gets more of them, let a query that writes so end its last
        batch, else it is dealt out otherwise when it is run again. (``stream_writer`` knows how it was.)

        Raises: UnknownTopicOrPartitionError, InvalidRecordError.
        """
        from stratalog.engine.spark.appending import PARTITION, RecordColumns, to_records
        from stratalog.engine.spark.types import spark_type

        of_topic = self._context.metadata.image().topic(topic)
        return to_records(
            frame,
            RecordColumns(key, value, partition, headers, timestamp),
            what=f"records of {topic}",
            partitions=len(of_topic.partitions),
            key_type=spark_type(of_topic.key_schema),
            value_type=spark_type(of_topic.value_schema),
        ).withColumnRenamed(PARTITION, "partition")

    def lag_metrics(self) -> Report:
        """Kafka's ``records-lag`` of every consumer group, streams with the option ``group`` among them: a row per
        group and partition, columns ``metric, group, topic, partition, value``.
        """
        return lag_metrics(self._context)


def register_format(spark: SparkSession) -> None:
    """Let a session know the format ``stratalog`` of streams; sessions of the jobs do. The Python of its driver
    and of its workers must have this package.
    """
    from stratalog.engine.spark.stream_format import register

    register(spark)
