"""The cluster as one object: small reads, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from stratalog.engine.driver.context import Context
from stratalog.engine.reading import fetch, offsets_for_epoch
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.fetch import MAX_BYTES, TIMEOUT_S, Fetched
from stratalog.engine.reading.tail import Start, Tail, TailOptions
from stratalog.engine.replicas.offsets_for_epoch import EpochEndOffset
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import OffsetSpec, UnknownOffset
from stratalog.partitions.runner import Outcome
from stratalog.partitions.spelling import check_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TailSettings(TypedDict, total=False):
    """The fields of ``TailOptions``, as keywords."""

    follow: bool
    isolation: Isolation | str
    auto_offset_reset: str
    max_bytes: int
    fetch_max_bytes: int
    timeout_s: float
    idle_timeout_s: float | None
    first_poll_s: float
    longest_poll_s: float
    metadata_max_age_s: float


class FetchOfCluster:
    """A part of ``stratalog.engine.cluster.Cluster``."""

    _context: Context
    _spark: SparkSession | None

    def client(self, client_rack: str | None = None) -> ClientMetadata:
        """This driver as a replica selector sees it; ``client_rack`` counts before Spark's conf
        (``spark.stratalog.client.rack``), that before ``$STRATALOG_CLIENT_RACK``, and that before the cluster
        file.
        """
        return client_metadata(self._context.file, self._spark, client_rack)

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
        unclean election has replaced are an error. Faults that may pass are tried again until ``timeout_s`` are
        over. ``isolation="read_committed"``: up to the last stable offset, without aborted transactions.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, LogTruncationError, OffsetNotAvailableError,
            InvalidCallError; ThrottlingQuotaExceededError; StorageError and other errors that may pass, and have
            not; RemoteObjectMissingError and other CorruptionError kinds.
        """
        return fetch.fetch(
            self._context,
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
        """Fetch from several partitions at once: ``Done`` or ``Failed`` for each, as they come. What brokers hold
        comes without waiting for the remote tier. The fetches begin with the call, and end ``timeout_s`` after it,
        whenever the outcomes are looked at. ``cluster.fetch_many(cluster.committed("loader"))`` goes on
        where a group has come to, and finds out whether the log still is what it has read.
        """
        return fetch.fetch_many(
            self._context,
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
        **options: Unpack[TailSettings],
    ) -> Tail:
        """The records of a topic as they are appended, as Arrow tables: ``for table in cluster.tail("trips"):
        ...``. ``start`` is where a read may start, from now on when it is left out, for a time the first record at
        or after it; or the ``positions`` of an earlier tail. ``last``: so many records before the end of each
        partition. ``options`` are those of ``stratalog.engine.reading.tail.TailOptions``: ``follow=False`` to end
        where the log ends now, ``isolation="read_committed"`` for committed records only,
        ``auto_offset_reset="earliest"`` to go on where retention was faster, ``idle_timeout_s``, ...

        Commit ``tail.positions`` for a group, and begin the next one at ``Committed(group)``.

        Raises: UnknownTopicOrPartitionError, InvalidCallError, OffsetOutOfRangeError, GroupIdNotFoundError; while
            it is iterated, what ``fetch`` raises.
        """
        check_options(options, TailSettings.__annotations__)
        return Tail(
            self._context,
            topic,
            partitions,
            start=start,
            last=last,
            options=TailOptions(**options),
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
        return offsets_for_epoch.offset_for_leader_epoch(
            self._context, topic, partition, leader_epoch, current_leader_epoch=current_leader_epoch
        )
