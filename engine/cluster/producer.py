"""The methods for producers: append, produce, stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratalog.engine.cluster.arguments import names, topic_first
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.records.append import append_batches, who_appends
from stratalog.engine.records.bad_record_lane import OnBadRecord, bad_record_policy
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.producers import Acks, OnChangedReplay
from stratalog.partitions.unknown_fields import OnUnknownField, unknown_field_policy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from stratalog.engine.records.produce import Rows
    from stratalog.engine.spark.stream_writer import StreamWriter


class Producer:
    """An open cluster, for producers."""

    def __init__(self, ports: Ports, spark: SparkSession | None) -> None:
        self._ports = ports
        self._spark = spark

    @operation("append", leaves_event=False, redacted=("frame",))
    def append(
        self,
        topic: str,
        frame: DataFrame,
        *,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
        acks: Acks = "all",
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int | None = None,
        on_changed_replay: OnChangedReplay = "refuse",
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
        order_by: Sequence[str] | str = (),
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Append all rows of a DataFrame; see ``stratalog.engine.spark.append_frame.append_frame``. For rows of
        this process, and frames of pandas, polars and Arrow, use ``produce``.

        With ``producer`` and ``sequence``, a repeated append is stored once. The append is refused if rows are
        already stored for this producer and sequence, and differ from the new rows. ``on_changed_replay="accept"``
        treats the append as done instead, for rows that cannot be recomputed exactly (``rand()``); exactly-once
        then no longer holds.

        The report counts bad records by partition and reason (``stratalog.engine.records.bad_records``). It counts
        unknown fields, at any depth, by name. If ``value`` names a column, other columns are not fields.

        Args:
            key: the column of the keys, or an expression
            value: the column of the values (default: the declared value columns of a typed topic, by their names)
            partition: the partition of each row (default: a hash of the key)
            headers: a column or expression of type array<struct<key: string, value: binary>>
            timestamp: a column or expression of a timestamp type, such as timestamp_millis(at) (default: now)
            acks: the replicas that must have the records: the whole ISR, or the leader alone (default: all)
            producer: the name of the producer; a stream keeps the same name across restarts
            sequence: the sequence number of this append for the producer, starting at 0
            producer_epoch: a higher epoch fences the lower ones (default: 0)
            on_changed_replay: if this sequence or batch was already appended with different rows: refuse it, or
                accept it without storing it (default: refuse)
            on_bad_record: if a record does not fit the topic: refuse the append, skip the record, or append it
                once to the bad-record topic (default: fail). With skip and topic, columns are cast row by row
            bad_record_topic: the untyped topic for bad records
            on_unknown_field: if a field is not in the topic's type: refuse the append, add the field to the type
                as ``topics.alter`` does, or drop and count the field (default: fail)
            order_by: sort the records of each partition by these columns: timestamp, key, value.x ...
            dry_run: check all records, and count them by partition; append nothing
        """
        topic_first("append", topic, frame)
        try:
            from stratalog.engine.spark.append_frame import append_frame
        except ModuleNotFoundError as error:
            raise InvalidCallError(
                f"append to {topic}: {error.name} is not installed: install stratalog[spark], or use produce"
            ) from error
        from stratalog.engine.spark.appending import RecordColumns

        return append_frame(
            *self._ports.all,
            topic,
            frame,
            RecordColumns(key, value, partition, headers, timestamp),
            who_appends(producer, sequence, producer_epoch, on_changed_replay=on_changed_replay),
            acks=acks,
            order_by=names(order_by) or (),
            bad_records=bad_record_policy(on_bad_record, bad_record_topic, topic),
            on_unknown_field=unknown_field_policy(on_unknown_field),
            dry_run=dry_run,
        )

    @operation("produce", leaves_event=False, redacted=("rows",))
    def produce(
        self,
        topic: str,
        rows: Rows,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: str | int | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        acks: Acks = "all",
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int | None = None,
        on_changed_replay: OnChangedReplay = "refuse",
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
        check: bool = True,
    ) -> Report:
        """Append rows from this process, without Spark. ``rows`` is a list or iterator of mappings by column or of
        values, or a frame of pandas, polars or Arrow; all rows must fit in memory. The other arguments are those
        of ``append``, but columns are given by name, not as expressions. A key goes to the same partition as with
        ``append``; all rows without a key go to one partition. Times without a zone are UTC. A value of another
        type is cast to the declared type if the cast is lossless; otherwise the rows are refused.

            cluster.produce("readings", [{"sensor": "s1", "value": "20.5"}], key="sensor")

        Args:
            partition: the partition of all rows, or the column with each row's partition (default: a hash of the
                key)
            acks: the replicas that must have the records: the whole ISR, or the leader alone (default: all)
            producer: the name of the producer
            sequence: the sequence number of this append for the producer, starting at 0
            on_unknown_field: if a field is not in the topic's type: refuse the rows, add the field to the type, or
                drop and count the field (default: fail)

        Raises: UnknownTopicOrPartitionError; InvalidRecordError naming the row and the column that does not fit;
            InvalidCallError. If it raises any of these, nothing was appended.
        """
        topic_first("produce", topic, rows)
        from stratalog.engine.records.produce import RowColumns, produce

        who = who_appends(producer, sequence, producer_epoch, on_changed_replay=on_changed_replay)
        bad = bad_record_policy(on_bad_record, bad_record_topic, topic)
        columns = RowColumns(key, value, partition, headers, timestamp)
        return produce(
            *self._ports.for_records,
            topic,
            rows,
            columns,
            who,
            acks=acks,
            bad_records=bad,
            on_unknown_field=unknown_field_policy(on_unknown_field),
        )

    @operation("append", leaves_event=False, redacted=("batches",))
    def append_batches(
        self,
        topic: str,
        batches: Mapping[int, Sequence[pa.RecordBatch]],
        *,
        acks: Acks = "all",
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int | None = None,
        on_changed_replay: OnChangedReplay = "refuse",
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
        check: bool = True,
    ) -> Report:
        """Append Arrow batches of this process, given by partition. Batches have the columns ``timestamp, key,
        value, headers``. The method works like ``append``, but it does not cast: it refuses a batch with a column
        of a different type."""
        topic_first("append_batches", topic, batches)
        who = who_appends(producer, sequence, producer_epoch, on_changed_replay=on_changed_replay)
        bad = bad_record_policy(on_bad_record, bad_record_topic, topic)
        return append_batches(
            *self._ports.for_records,
            topic,
            batches,
            who,
            acks=acks,
            bad_records=bad,
            on_unknown_field=unknown_field_policy(on_unknown_field),
        )

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
        acks: Acks = "all",
        on_changed_replay: OnChangedReplay = "refuse",
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
        order_by: Sequence[str] | str = (),
        checkpoint: str | None = None,
    ) -> StreamWriter:
        """Return a sink for ``df.writeStream.foreachBatch``. It appends every batch to ``topic`` exactly once,
        across restarts and replays. ``producer`` names the stream in the log. The query's id, which is in its
        checkpoint, and the batch id identify a batch. The other arguments are those of ``append``. If a Spark
        Connect session has several queries, pass the query's ``checkpointLocation`` as ``checkpoint``, so that the
        writer can read the query's id there.

        A batch that is repeated with different rows ends the query (OUT_OF_ORDER_SEQUENCE_NUMBER), and its rows
        are not stored. The cause is a checkpoint that is older than the log, or a copy of another query's
        checkpoint. Restore the newer checkpoint, or start from a new checkpoint that begins after the records
        already in the topic. You can also give this query another producer name, but repeated records are then
        stored twice.

        Raises: UnknownTopicOrPartitionError; InvalidCallError for an empty name.
        """
        from stratalog.engine.spark.appending import RecordColumns
        from stratalog.engine.spark.stream_writer import StreamWriter

        self._ports.metadata.image().topic(topic)
        return StreamWriter(
            self._ports,
            topic,
            RecordColumns(key, value, partition, headers, timestamp),
            producer=producer,
            producer_epoch=producer_epoch,
            acks=acks,
            on_changed_replay=on_changed_replay,
            bad_records=bad_record_policy(on_bad_record, bad_record_topic, topic),
            on_unknown_field=unknown_field_policy(on_unknown_field),
            order_by=names(order_by) or (),
            checkpoint=checkpoint,
        )

    def records(
        self,
        topic: str,
        frame: DataFrame,
        *,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
        on_bad_record: OnBadRecord = "fail",
        bad_record_topic: str | None = None,
        on_unknown_field: OnUnknownField = "fail",
    ) -> DataFrame:
        """Convert ``frame`` to the topic's records, as ``append`` does, and partition them for
        ``writeStream.format("stratalog")``. The columns are ``partition, timestamp, key, value``, and ``headers``
        if given. A null timestamp becomes the time of the append. Before you add partitions to the topic, stop the
        queries that write this frame; ``stream_writer`` does not need that. ``on_bad_record`` and
        ``on_unknown_field`` are as in ``append``; the writer applies them without further options. Dropped fields
        are logged.

        Raises: UnknownTopicOrPartitionError, InvalidRecordError.
        """
        topic_first("records", topic, frame)
        from stratalog.engine.spark.append_frame import records_of_frame
        from stratalog.engine.spark.appending import RecordColumns
        from stratalog.engine.spark.sink_tasks import deal_out

        bad = bad_record_policy(on_bad_record, bad_record_topic, topic)
        made = records_of_frame(
            self._ports.metadata,
            topic,
            frame,
            RecordColumns(key, value, partition, headers, timestamp),
            bad_records=bad,
            on_unknown_field=unknown_field_policy(on_unknown_field),
        )
        return deal_out(made.records, made.partitions, bad)
