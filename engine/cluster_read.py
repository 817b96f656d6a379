"""The cluster as one object: batch reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

from stratalog.engine.cluster_spark import SparkOfCluster
from stratalog.engine.reading.bounds import Bound, ReadQuery
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.reading.positions import Spec
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import Answer
from stratalog.partitions.spelling import check_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ReadOptions(TypedDict, total=False):
    """What a read takes by name; see ``ReadOfCluster.read``."""

    pattern: str | None
    last: int | None
    client_rack: str | None
    fail_on_data_loss: bool
    isolation: Isolation | str


class RangeOptions(ReadOptions, total=False):
    """The same, with the range."""

    start: Bound
    end: Bound
    partitions: Sequence[int] | None


class ReadOfCluster(SparkOfCluster):
    """A part of ``stratalog.engine.cluster.Cluster``."""

    def read(
        self,
        topic: str | Sequence[str] | ReadPlan | None = None,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
        **options: Unpack[ReadOptions],
    ) -> DataFrame:
        """The records of ``[start, end)`` of each partition as a Spark DataFrame, hot and cold alike, up to
        the high watermark, pinned to the state now. Columns: ``topic, partition, offset, timestamp, key,
        value, headers``.

        One topic, several whose declared types are the same, those whose names match ``pattern``, or a plan of
        ``plan_read``. ``start`` and ``end`` are offsets, offsets by partition (``{0: 100}``, of several topics
        ``{("trips", 0): 100}``), an ``OffsetSpec`` or its name, such as ``"earliest-local"``, or
        ``Committed(group)``; ``last=n`` are the last n records of each partition. ``client_rack``: where this
        reader is (else as ``client.rack`` says). ``fail_on_data_loss=False``: what was asked for and is deleted
        is left out, and warned of.

        As times, ``start`` and ``end`` bound the records' timestamps, ``[start, end)``, whatever the order of the
        log: ``read("flights", "2013-01-10", "2013-01-11")`` are the flights of that day. Files without any are not
        planned; a record without a timestamp is of no time. Text is ISO 8601, UTC where it names no zone; a
        ``datetime`` has to have one. Kafka's look-up is ``FirstAt(time)``: all from the first record on that is so
        late, whatever their times.

        ``isolation="read_committed"``: only records of no transaction, or of a committed one, up to the last
        stable offset; the default is Kafka's, ``read_uncommitted``.

        Raises: UnknownTopicOrPartitionError, GroupIdNotFoundError, OffsetOutOfRangeError, InvalidCallError.
        """
        spark = self._session("reading")
        from stratalog.engine.spark.read_frame import read_frame

        return read_frame(
            self._context, spark, self._planned(topic, start=start, end=end, partitions=partitions, **options)
        )

    def plan_read(
        self,
        topic: str | Sequence[str] | None = None,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
        **options: Unpack[ReadOptions],
    ) -> ReadPlan:
        """What ``read`` would scan: the sequence of file ranges, in either tier; ``explain()`` is for people. A
        plan that is read twice gives the same rows, whatever was appended, merged or tiered meanwhile.
        """
        check_options(options, RangeOptions.__annotations__)
        topics = (topic,) if isinstance(topic, str) else tuple(topic or ())
        query = ReadQuery(topics=topics, start=start, end=end, partitions=partitions, **options)
        return plan_read(self._context, query, client_metadata(self._context.file, self._spark, query.client_rack))

    def _planned(
        self,
        topic: str | Sequence[str] | ReadPlan | None,
        **options: Unpack[RangeOptions],
    ) -> ReadPlan:
        if not isinstance(topic, ReadPlan):
            return self.plan_read(topic, **options)
        if any(given is not None for given in options.values()):
            raise InvalidCallError("a plan says all of a read: give nothing else with it")
        return topic

    def create_view(
        self, name: str, topic: str | Sequence[str] | ReadPlan | None = None, **options: Unpack[RangeOptions]
    ) -> None:
        """A temporary view of what ``read`` would give, for ``spark.sql``: pinned to the state now. One of that
        name is replaced.
        """
        from stratalog.engine.spark.views import check_name, create_view

        check_name(name)  # before anything is read
        create_view(name, self.read(topic, **options))

    def create_range_function(
        self, name: str, topic: str | Sequence[str] | ReadPlan | None = None, **options: Unpack[RangeOptions]
    ) -> None:
        """A temporary table function of ranges of what ``read`` would give, pinned to the state now: after
        ``cluster.create_range_function("stratalog_range", ["trips", "rides"])``,
        ``SELECT * FROM stratalog_range('trips', 0, 100, 200)`` are the offsets ``[100, 200)`` of partition 0. The
        range reaches the Parquet scan as a filter; the list of files is that of the whole read. A call that names
        what the read has not, or no range, fails.
        """
        from stratalog.engine.spark.views import check_name, create_range_function

        check_name(name)  # before anything is read
        spark = self._session("reading")
        plan = self._planned(topic, **options)
        partitions: dict[str, list[int]] = {}
        for one in plan.partitions:
            partitions.setdefault(one.topic, []).append(one.partition)
        create_range_function(spark, name, self.read(plan), partitions)

    def read_errors(self) -> AbstractContextManager[None]:
        """What Spark says of a file of the log that it cannot read, as an error of ours: ``with
        cluster.read_errors(): frame.count()``. A DataFrame is evaluated when its owner likes, and a bit that has
        flipped in a file by then ends the job with an error of the JVM, which names the file only.

        Raises: inside, CorruptSegmentError with topic, partition, offsets and what to do; SourceChangedError for a
            file that is gone; StorageError for one that is good.
        """
        from stratalog.engine.spark.read_errors import read_errors

        return read_errors(self._context.all_stores)

    def offsets(
        self,
        topic: str,
        spec: Spec | datetime | str,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    ) -> dict[int, Answer]:
        """ListOffsets: a named position (``OffsetSpec.LATEST``, ``"latest"``), or the first record at or after a
        time (a ``datetime`` with a zone, text, ``FirstAt``), of each partition. With
        ``isolation="read_committed"`` LATEST is the last stable offset, and no record from there on is found.
        """
        return list_offsets(self._context, topic, spec, isolation)
