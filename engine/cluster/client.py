"""The methods for consumers: read, fetch, tail."""

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
from stratalog.engine.reading.tail import Tail
from stratalog.engine.reading.tail_start import FETCH_MAX_BYTES, Start, TailOptions
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
    """An open cluster, for producers and consumers."""

    def client(self, client_rack: str | None = None) -> ClientMetadata:
        """The description of this driver that a replica selector gets. The rack is ``client_rack`` if given.
        If it is None, the rack comes from the first of these settings that has a value: Spark's conf
        (``spark.stratalog.client.rack``), ``$STRATALOG_CLIENT_RACK``, the cluster file.
        """
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
        """Read the records ``[start, end)`` of each partition from both tiers into a Spark DataFrame. The call
        fixes the offsets. They end at the high watermark. The columns are ``topic, partition, offset, timestamp,
        key, value, headers``.

        Give one topic, several topics with the same declared types, a ``pattern`` of names, or a plan of
        ``plan_read``. ``start`` and ``end`` are offsets, offsets by partition (``{0: 100}``, for several topics
        ``{("trips", 0): 100}``), an ``OffsetSpec`` or its name, such as ``"earliest-local"``, or
        ``Committed(group)``. ``last=n`` reads the last n records of each partition. ``client_rack`` is the rack of
        this reader (default: see ``client``). With ``fail_on_data_loss=False`` a read skips deleted records with a
        warning instead of failing.

        If ``start`` and ``end`` are times, they select records by timestamp in ``[start, end)``, regardless of log
        order: ``read("flights", "2013-01-10", "2013-01-11")`` returns that day's flights. The read skips files
        without such records, and never selects a record without a timestamp. A time given as text is ISO 8601, in
        the session's time zone unless the text names a zone; a ``datetime`` must have a time zone.
        ``FirstAt(time)`` is Kafka's lookup: it reads everything from the first record at or after ``time``,
        including later records with earlier timestamps.

        With ``isolation="read_committed"`` the read ends at the last stable offset, and leaves out records of
        aborted transactions; the default is Kafka's, ``read_uncommitted``. With a credential provider, Python
        tasks read the files instead of Spark's own reader. This is slower; a warning says so.

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
            raise InvalidCallError("a plan determines the whole read: give no other arguments")
        return read_frame(*self._ports.for_records, spark, topic)

    def for_each_batch(
        self, topic: TopicNames, function: Callable[[DataFrame, int], None], **options: object
    ) -> DataStreamWriter:
        """Prepare a stream that calls ``function(frame, batch_id)`` with each batch as a native Spark scan. The
        frame has the columns of ``read``, and exactly the batch's offsets. A batch that runs again has the same
        offsets. Use it for large batches: rows of ``readStream.format("stratalog")`` pass through Python workers,
        at about half the speed.

        ``topic`` is one topic, several topics of the same types, or None if an option names the topics.
        ``options`` are the options of the format, such as ``startingOffsets="earliest"``, except the options about
        rows (``columns``, ``includeHeaders``, ``minPartitions``, ``failOnNewFields``). The method returns Spark's
        writer; give it a ``checkpointLocation``, and start it::

            writer = cluster.for_each_batch("trips", upsert, startingOffsets="earliest", group="etl")
            writer.option("checkpointLocation", path).trigger(availableNow=True).start()

        If ``function`` writes to Delta with ``txnAppId`` and ``txnVersion=batch_id``, each record is written
        exactly once. A field added to the topic's type appears in the frame with the next batch. The function
        is not called for a batch without records. Spark's ``numInputRows`` counts the partitions of a batch, not
        its records.

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
        """Plan a read: list the file ranges that ``read`` would scan, in both tiers, in order. ``explain()`` gives
        a readable summary. Every read with this plan returns the same rows, even after later appends, merges and
        tiering. A time without a zone is in the session's time zone, or in UTC without a session.

        Args:
            topic: one topic, or several topics with the same declared types: a,b
            start: an offset, offsets by partition (0:1000,3:20), a position (earliest-local ...), first-at:TIME
                (the first record at or after TIME, and all later offsets), or a time (the earliest timestamp);
                default: the log start
            end: where to stop, exclusive, in the same forms as start (default: the high watermark)
            partitions: only these partitions (default: all)
            pattern: topics whose whole name matches REGEX
            last: read the last N records of each partition
            fail_on_data_loss: False: skip deleted records, with a note, instead of failing
        """
        topics = (topic,) if isinstance(topic, str) else tuple(topic or ())
        if self._spark is not None:
            from stratalog.engine.spark.time_zone import session_zone

            zone = partial(session_zone, self._spark)
            start, end = in_zone(start, zone), in_zone(end, zone)
        query = ReadQuery(topics, pattern, start, end, partitions, last, client_rack, fail_on_data_loss, isolation)
        return plan_read(*self._ports.for_records, query, self.client(client_rack))

    def create_view(self, name: str, topic: TopicOrPlan) -> None:
        """Create or replace a temporary view for ``spark.sql``. It has the records that ``read`` returns now, for
        one topic, several topics, or a plan of ``plan_read``.

            cluster.create_view("last_trips", cluster.plan_read("trips", last=100))
        """
        from stratalog.engine.spark.views import check_name, create_view

        check_name(name)  # before anything is read
        create_view(name, self.read(topic))

    def create_views(
        self, topics: TopicNames = None, *, isolation: Isolation | str = Isolation.READ_UNCOMMITTED
    ) -> tuple[str, ...]:
        """Create a view of each topic for ``spark.sql`` (``SELECT * FROM stratalog.trips``), and return the names
        of the views. A view has the records that ``read`` returns now; call this method again for newer records.
        Default: all topics except internal topics.

        The views are global temporary views: every session of the application has these views. Their schema is
        ``stratalog`` if the session has the settings of ``spark_session``, otherwise Spark's ``global_temp``.

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
        """Create a temporary table function that returns ranges of the records that ``read`` returns now, for one
        topic, several topics, or a plan of ``plan_read``. After ``cluster.create_range_function("stratalog_range",
        ["trips", "rides"])``, ``SELECT * FROM stratalog_range('trips', 0, 100, 200)`` returns the offsets ``[100,
        200)`` of partition 0. Spark applies the range as a filter of the Parquet scan, but still plans the files
        of the whole read. A call without a range, or for a partition that is not in the read, fails.
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
        """Translate Spark's error about an unreadable file of the log into a stratalog error, in the block of a
        ``with`` statement: ``with cluster.read_errors(): frame.count()``. Spark may evaluate a DataFrame long
        after the read. If a file was damaged in the meantime, the job fails with a JVM error that names only the
        file.

        Raises, from the block: CorruptSegmentError with topic, partition, offsets and remedy; SourceChangedError
            for a deleted file; StorageError if the file is intact.
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
        (ListOffsets). With ``isolation="read_committed"`` the latest offset is the last stable offset, and lookups
        find only records before that offset.

        Args:
            spec: a position, such as earliest, latest, max-timestamp or earliest-local, or an ISO 8601 time, in
                UTC unless it names a zone (default: latest)
        """
        return list_offsets(self._ports.metadata, self._ports.storage, self._ports.memory, topic, spec, isolation)

    def read_snapshot(self, topic: str, partitions: Sequence[int] | None = None) -> DataFrame:
        """Read the latest snapshot of each partition of a topic with ``cleanup.policy=snapshot`` into a Spark
        DataFrame, and verify it. Each row is the latest record of a key below ``end_offset``. The columns are
        ``topic, partition, end_offset, timestamp, key, value, headers``. The snapshot, together with the log from
        ``end_offset`` on (``read(topic, start={partition: end_offset})``), has the latest record of every key.
        ``snapshots`` lists the end offsets, including those of empty snapshots.
        """
        spark = session(self._spark, "reading")
        from stratalog.engine.spark.read_frame import read_snapshot_frame

        return read_snapshot_frame(*self._ports.all, spark, topic, partitions)

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
        """Fetch records of a partition starting at ``offset``, from the nearest replica or the remote tier.
        ``records`` is an Arrow table. It has as many records as fit in ``max_bytes`` of memory, but at least one
        if any is available. Continue at ``next_offset``. Pass the ``leader_epoch`` of the previous fetch to get an
        error if an unclean election has replaced records since. Transient errors are retried for ``timeout_s``
        seconds. With ``isolation="read_committed"`` the fetch ends at the last stable offset, and leaves out
        records of aborted transactions.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, LogTruncationError, OffsetNotAvailableError,
            InvalidCallError; ThrottlingQuotaExceededError; StorageError and other transient errors that lasted
            until the timeout; RemoteObjectMissingError and other CorruptionError kinds.
        """
        return fetch.fetch(
            *self._ports.for_records,
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
        """Fetch from several partitions in parallel, and yield ``Done`` or ``Failed`` for each partition when its
        fetch completes. Fetches from brokers do not wait for the remote tier. The timeout ``timeout_s`` begins
        with the call, not with the first iteration. ``cluster.fetch_many(cluster.groups.committed("loader"))``
        continues at the offsets of a group, and detects replaced records."""
        return fetch.fetch_many(
            *self._ports.for_records,
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
        """Follow a topic: yield its records as Arrow tables when they are appended (``for table in
        cluster.tail("trips"): ...``). ``start`` may also be the ``positions`` of an earlier tail. To continue with
        a group, commit ``tail.positions``, and begin the next tail at ``Committed(group)``.
        ``stratalog.engine.reading.tail.TailOptions`` explains the limits.

        Args:
            partitions: only these partitions (default: all)
            start: where to begin: an offset, offsets by partition (0:1000,3:20), a time, or a position
                (earliest-local ...)
            last: begin N records before the end of each partition
            follow: wait for new records until interrupted; otherwise stop at the current end of the log
            auto_offset_reset: where to continue if retention has deleted the next record, and where to begin for a
                group without a commit: earliest, latest, or none to fail (default: none)
            idle_timeout_s: stop if no new record arrives for TIME, such as 30s

        Raises: UnknownTopicOrPartitionError, InvalidCallError, OffsetOutOfRangeError, GroupIdNotFoundError; the
            errors from ``fetch`` during the iteration.
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
            *self._ports.for_records,
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
        """Return the end of a leader epoch, at most the high watermark (Kafka's OffsetsForLeaderEpoch). The leader
        must be available.

        Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError; OffsetNotAvailableError while a new leader
            does not know the high watermark; FencedLeaderEpochError, UnknownLeaderEpochError if
            ``current_leader_epoch`` is given and differs; InvalidCallError.
        """
        return offset_for_leader_epoch(
            *(self._ports.metadata, self._ports.storage),
            topic,
            partition,
            leader_epoch,
            current_leader_epoch=current_leader_epoch,
        )


def register_format(spark: SparkSession) -> None:
    """Register the format ``stratalog`` in a session. Jobs already do this in their own session. Spark's workers
    need this package."""
    from stratalog.engine.spark.format import register

    register(spark)
