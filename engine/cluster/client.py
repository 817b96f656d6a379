"""The methods of consumers, beside those of producers: read, fetch, tail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from stratalog.engine.cluster.arguments import TopicNames, names, option_text, session
from stratalog.engine.cluster.producer import Producer
from stratalog.engine.reading import fetch
from stratalog.engine.reading.bounds import Bound, ReadQuery, in_zone
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.fetch import MAX_BYTES, TIMEOUT_S, Fetched
from stratalog.engine.reading.list_offsets import list_offsets, offset_for_leader_epoch
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.reading.positions import Reset, Spec
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.reading.tail import FETCH_MAX_BYTES, Start, Tail, TailOptions
from stratalog.engine.replicas.offsets_for_epoch import EpochEndOffset
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import Answer, OffsetSpec, UnknownOffset
from stratalog.partitions.runner import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TopicOrPlan = str | Sequence[str] | ReadPlan | None  # None: with a pattern of names


class Client(Producer):
    """An open cluster, as producers and consumers use it."""

    def client(self, client_rack: str | None = None) -> ClientMetadata:
        """This driver as a replica selector sees it. Its rack is ``client_rack``, else that of Spark's conf
        (``spark.stratalog.client.rack``), else ``$STRATALOG_CLIENT_RACK``, else that of the cluster file."""
        return client_metadata(self._ports.storage.file, self._spark, client_rack)

    def read(
        self,
        topic: TopicOrPlan = None,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
        *,
        pattern: str | None = None,
        last: int | None = None,
        client_rack: str | None = None,
        fail_on_data_loss: bool = True,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    ) -> DataFrame:
        """The records of ``[start, end)`` of each partition as a Spark DataFrame, hot and cold alike, up to
        the high watermark, pinned to the state now. Columns: ``topic, partition, offset, timestamp, key,
        value, headers``.

        One topic, several whose declared types are the same, those whose names match ``pattern``, or a plan of
        ``plan_read``. ``start`` and ``end`` are offsets, offsets by partition (``{0: 100}``, of several topics
        ``{("trips", 0): 100}``), an ``OffsetSpec`` or its name, such as ``"earliest-local"``, or
        ``Committed(group)``; ``last=n`` are the last n records of each partition. ``client_rack``: where this
        reader is (else as ``client.rack`` says). ``fail_on_data_loss=False``: deleted records that were asked
        for are left out, with a warning.

        If ``start`` and ``end`` are times, they select records by timestamp in ``[start, end)``, regardless of log
        order: ``read("flights", "2013-01-10", "2013-01-11")`` returns that day's flights. Files without such
        records are not planned; a record without a timestamp is never selected. Text is ISO 8601, in the session's
        time zone if it names none; a ``datetime`` must have one. ``FirstAt(time)`` is Kafka's lookup: it reads
        from the first record at or after ``time``, whatever the timestamps that follow.

        ``isolation="read_committed"``: only records of no transaction, or of a committed one, up to the last
        stable offset; the default is Kafka's, ``read_uncommitted``.
        Under a provider of credentials Python tasks read, slower than Spark's own reader, with a warning.

        Raises: UnknownTopicOrPartitionError, GroupIdNotFoundError, OffsetOutOfRangeError, InvalidCallError.
        """
        spark = session(self._spark, "reading")
        from stratalog.engine.spark.read_frame import read_frame

        if not isinstance(topic, ReadPlan):
            topic = self.plan_read(
                *(topic, start, end, partitions),
                pattern=pattern,
                last=last,
                client_rack=client_rack,
                fail_on_data_loss=fail_on_data_loss,
                isolation=isolation,
            )
        elif (
            any(one is not None for one in (start, end, partitions, pattern, last, client_rack))
            or not fail_on_data_loss
            or isolation != Isolation.READ_UNCOMMITTED
        ):
            raise InvalidCallError("a plan says all of a read: give nothing else with it")
        return read_frame(
            self._ports.metadata, self._ports.storage, self._ports.clock, self._ports.memory, spark, topic
        )

    def for_each_batch(
        self, topic: TopicNames, function: Callable[[DataFrame, int], None], **options: object
    ) -> DataStreamWriter:
        """A stream that calls ``function(frame, batch_id)`` with each batch as a scan of Spark's own. The frame
        has the columns of ``read`` and exactly the batch's offsets; a batch that runs again has the same offsets.
        It is the way for large batches: rows of ``readStream.format("stratalog")`` come from Python workers, at
        about half the speed.

        ``topic`` is one topic, several whose types are the same, or None where an option names them. ``options``
        are those of the format, such as ``startingOffsets="earliest"``, except those about its rows (``columns``,
        ``includeHeaders``, ``minPartitions``, ``failOnNewFields``). Give Spark's writer, which this returns, a
        ``checkpointLocation``, and start it::

            writer = cluster.for_each_batch("trips", upsert, startingOffsets="earliest", group="etl")
            writer.option("checkpointLocation", path).trigger(availableNow=True).start()

        If ``function`` writes to Delta with ``txnAppId`` and ``txnVersion=batch_id``, each record is written
        exactly once. A field that the topic's type gets later is in the frame from the next batch on. The
        function is not called for a batch without records. Spark counts one row for each partition of a batch
        (``numInputRows``).

        Raises: InvalidCallError naming the option, or without a Spark session; UnknownTopicOrPartitionError.
        """
        spark = session(self._spark, "a stream's batch")
        from stratalog.engine.spark.range_stream import for_each_batch

        given = {name: option_text(value) for name, value in options.items()}
        return for_each_batch(self._ports, spark, names(topic) or (), function, given)

    def plan_read(
        self,
        topic: str | Sequence[str] | None = None,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
        *,
        pattern: str | None = None,
        last: int | None = None,
        client_rack: str | None = None,
        fail_on_data_loss: bool = True,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    ) -> ReadPlan:
        """The file ranges that ``read`` would scan, in either tier, in order; ``explain()`` is a readable summary.
        Each read of the plan gives the same rows, whatever was appended, merged or tiered since. A time without a
        zone is in the session's time zone, in UTC without a session.

        Args:
            topic: a topic, or several (a,b) of the same declared types
            start: an offset, offsets by partition (0:1000,3:20), a position (earliest-local ...),
                first-at:TIME (``FirstAt``), or a time (bounds timestamps); default: the log start
            end: as for start; default: the high watermark
            partitions: only these (default: all)
            pattern: the topics whose whole name matches
            last: read the last N records of each partition
            fail_on_data_loss: False: skip deleted records of the range, with a note
        """
        topics = (topic,) if isinstance(topic, str) else tuple(topic or ())
        if self._spark is not None:
            from stratalog.engine.spark.time_zone import session_zone

            zone = partial(session_zone, self._spark)
            start, end = in_zone(start, zone), in_zone(end, zone)
        query = ReadQuery(topics, pattern, start, end, partitions, last, client_rack, fail_on_data_loss, isolation)
        return plan_read(
            *(self._ports.metadata, self._ports.storage, self._ports.clock, self._ports.memory),
            query,
            self.client(client_rack),
        )

    def create_view(self, name: str, topic: TopicOrPlan) -> None:
        """A temporary view for ``spark.sql`` of what ``read`` gives now: of a topic, several, or a plan of
        ``plan_read``. A view of that name is replaced.

            cluster.create_view("last_trips", cluster.plan_read("trips", last=100))
        """
        from stratalog.engine.spark.views import check_name, create_view

        check_name(name)  # before anything is read
        create_view(name, self.read(topic))

    def create_views(
        self, topics: TopicNames = None, *, isolation: Isolation | str = Isolation.READ_UNCOMMITTED
    ) -> tuple[str, ...]:
        """A view of each topic for ``spark.sql``, and their names: ``SELECT * FROM stratalog.trips``. A view is
        what ``read`` gives now; call this again for newer records. Without ``topics``: all except internal ones.

        The views are global temporary ones: every session of the application has them. Their schema is
        ``stratalog`` where the session has the settings of ``spark_session``, otherwise Spark's ``global_temp``.

        Raises: InvalidCallError for topics whose names differ only in case, before any view is made; see ``read``.
        """
        spark = session(self._spark, "views")
        from stratalog.engine.spark.views import check_cases, create_global_view

        image = self._ports.metadata.image()
        given = names(topics)
        chosen = sorted(image.topic_ids.keys() - INTERNAL_TOPICS) if given is None else list(given)
        check_cases(chosen)
        plans = {topic: self.plan_read(topic, isolation=isolation) for topic in chosen}
        return tuple(create_global_view(spark, topic, self.read(plan)) for topic, plan in plans.items())

    def create_range_function(self, name: str, topic: TopicOrPlan) -> None:
        """A temporary table function of ranges of what ``read`` gives now: of a topic, several, or a plan of
        ``plan_read``. After ``cluster.create_range_function("stratalog_range", ["trips", "rides"])``,
        ``SELECT * FROM stratalog_range('trips', 0, 100, 200)`` are the offsets ``[100, 200)`` of partition 0. The
        range reaches the Parquet scan as a filter; the list of files is that of the whole read. A call for a
        partition that the read does not have, or without a range, fails.
        """
        from stratalog.engine.spark.views import check_name, create_range_function

        check_name(name)  # before anything is read
        spark = session(self._spark, "reading")
        plan = topic if isinstance(topic, ReadPlan) else self.plan_read(topic)
        planned: dict[str, list[int]] = {}
        for one in plan.partitions:
            planned.setdefault(one.topic, []).append(one.partition)
        create_range_function(spark, name, self.read(plan), planned)

    def read_errors(self) -> AbstractContextManager[None]:
        """Turn Spark's error about a file of the log that it cannot read into ours: ``with cluster.read_errors():
        frame.count()``. A DataFrame is evaluated when its owner likes, and a bit that has flipped in a file
        meanwhile ends the job with an error of the JVM, which names the file only.

        Raises: inside, CorruptSegmentError with topic, partition, offsets and what to do; SourceChangedError for a
            file that is gone; StorageError for one that is good.
        """
        from stratalog.engine.spark.read_errors import read_errors

        return read_errors(self._ports.storage.all_stores)

    def offsets(
        self,
        topic: str,
        spec: Spec | datetime | str = OffsetSpec.LATEST,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    ) -> dict[int, Answer]:
        """Find, in every partition, the offset of a named position, or of the first record at or after a time
        (ListOffsets). With ``isolation="read_committed"`` the latest offset is the last stable one, and no record
        from there on is found.

        Args:
            spec: a position, such as earliest, latest, max-timestamp or earliest-local, or an ISO time, UTC unless
                it names a zone (default: latest)
        """
        return list_offsets(self._ports.metadata, self._ports.storage, self._ports.memory, topic, spec, isolation)

    def read_snapshot(self, topic: str, partitions: Sequence[int] | None = None) -> DataFrame:
        """The latest snapshot of each partition of a topic with ``cleanup.policy=snapshot``, verified, as a Spark
        DataFrame: ``topic, partition, end_offset, timestamp, key, value, headers``, the latest record of each key
        below ``end_offset``. With the log from there on (``read(topic, start={partition: end_offset})``) it is
        the whole log, reduced by key; ``snapshots`` lists the end offsets also of those that hold nothing.
        """
        spark = session(self._spark, "reading")
        from stratalog.engine.spark.read_frame import read_snapshot_frame

        return read_snapshot_frame(
            *(self._ports.metadata, self._ports.storage, self._ports.execution, self._ports.memory),
            spark,
            topic,
            partitions,
        )

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        leader_epoch: int | None = None,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
        client_rack: str | None = None,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    ) -> Fetched:
        """Some records of a partition from ``offset`` on, as an Arrow table in ``records``, from the nearest
        replica or the remote tier: at least one if there is one, and as many more as take at most ``max_bytes``
        in memory. Go on at ``next_offset``; with the ``leader_epoch`` of the fetch before, records that an
        unclean election has replaced are an error. Transient errors are retried until ``timeout_s`` has
        elapsed. ``isolation="read_committed"``: up to the last stable offset, without aborted transactions.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, LogTruncationError, OffsetNotAvailableError,
            InvalidCallError; ThrottlingQuotaExceededError; StorageError and other errors that may pass, and have
            not; RemoteObjectMissingError and other CorruptionError kinds.
        """
        return fetch.fetch(
            *(self._ports.metadata, self._ports.storage, self._ports.clock, self._ports.memory),
            topic,
            partition,
            offset,
            leader_epoch=leader_epoch,
            max_bytes=max_bytes,
            timeout_s=timeout_s,
            client=self.client(client_rack),
            isolation=isolation,
        )

    def fetch_many(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
        client_rack: str | None = None,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Outcome[TopicPartition, Fetched]]:
        """Fetch from several partitions at once: ``Done`` or ``Failed`` for each, as they come. Records on brokers
        come without waiting for the remote tier. The fetches begin with the call, and end ``timeout_s`` after it,
        whenever the outcomes are looked at. ``cluster.fetch_many(cluster.groups.committed("loader"))`` goes on at
        the offsets of a group, and finds out whether the log still has the records that it has read.
        """
        return fetch.fetch_many(
            *(self._ports.metadata, self._ports.storage, self._ports.clock, self._ports.memory),
            offsets,
            max_bytes=max_bytes,
            timeout_s=timeout_s,
            client=self.client(client_rack),
            isolation=isolation,
        )

    def tail(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        *,
        start: Start = OffsetSpec.LATEST,
        last: int | None = None,
        client_rack: str | None = None,
        follow: bool = True,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
        auto_offset_reset: Reset = "none",
        max_bytes: int = MAX_BYTES,
        fetch_max_bytes: int = FETCH_MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
        idle_timeout_s: float | None = None,
        first_poll_s: float = 0.1,
        longest_poll_s: float = 5.0,
        metadata_max_age_s: float = 10.0,
    ) -> Tail:
        """The records of a topic as they are appended, as Arrow tables: ``for table in cluster.tail("trips"):
        ...``. ``start`` may also be the ``positions`` of an earlier tail. Commit ``tail.positions`` for a group,
        and begin the next tail at ``Committed(group)``. ``stratalog.engine.reading.tail.TailOptions`` explains the
        limits.

        Args:
            partitions: only these (default: all)
            start: begin at an offset, offsets by partition (0:1000,3:20), a time, or a position (earliest-local
                ...)
            last: begin N records before the end of each partition
            follow: continue with new records, until interrupted; otherwise end where the log ends now
            auto_offset_reset: where to continue if retention has deleted the next record, and where a group begins
                that has committed nothing: at the earliest or latest record, or none for an error (default)
            idle_timeout_s: stop after TIME without a new record, such as 30s

        Raises: UnknownTopicOrPartitionError, InvalidCallError, OffsetOutOfRangeError, GroupIdNotFoundError; while
            it is iterated, what ``fetch`` raises.
        """
        options = TailOptions(
            follow=follow,
            isolation=isolation,
            auto_offset_reset=auto_offset_reset,
            max_bytes=max_bytes,
            fetch_max_bytes=fetch_max_bytes,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            first_poll_s=first_poll_s,
            longest_poll_s=longest_poll_s,
            metadata_max_age_s=metadata_max_age_s,
        )
        return Tail(
            *(self._ports.metadata, self._ports.storage, self._ports.clock, self._ports.memory),
            topic,
            partitions,
            start=start,
            last=last,
            options=options,
            client=self.client(client_rack),
        )

    def offset_for_leader_epoch(
        self, topic: str, partition: int, leader_epoch: int, *, current_leader_epoch: int | None = None
    ) -> EpochEndOffset | UnknownOffset:
        """OffsetsForLeaderEpoch, as consumers ask it: where a leader epoch ends, at most at the high watermark.
        Only the leader answers.

        Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError; OffsetNotAvailableError while a new leader
            does not know the high watermark; FencedLeaderEpochError, UnknownLeaderEpochError when
            ``current_leader_epoch`` is given and another one; InvalidCallError.
        """
        return offset_for_leader_epoch(
            *(self._ports.metadata, self._ports.storage),
            topic,
            partition,
            leader_epoch,
            current_leader_epoch=current_leader_epoch,
        )


def register_format(spark: SparkSession) -> None:
    """Let a session know the format ``stratalog``, as those of jobs do. Workers need this package."""
    from stratalog.engine.spark.format import register

    register(spark)
