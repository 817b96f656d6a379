"""The cluster as one object: small reads, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.context import Context
from engine.operations import fetch
from engine.operations.fetch import MAX_BYTES, TIMEOUT_S, Fetched, TopicPartition
from partitions.runner import Outcome


class FetchOfCluster:
    """A part of ``engine.cluster.Cluster``."""

    _context: Context

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> Fetched:
        """Some records of a partition from ``offset`` on, as an Arrow table in ``records``, from whichever tier
        has them: at least one if there is one, and as many more as take at most ``max_bytes`` in memory. Go on at
        ``next_offset``. Faults that may pass are tried again until ``timeout_s`` are over.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, InvalidCallError;
            ThrottlingQuotaExceededError; StorageError and other errors that may pass, and have not;
            RemoteObjectMissingError and other CorruptionError kinds.
        """
        return fetch.fetch(self._context, topic, partition, offset, max_bytes=max_bytes, timeout_s=timeout_s)

    def fetch_many(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[Outcome[TopicPartition, Fetched]]:
        """Fetch from several partitions at once: ``Done`` or ``Failed`` for each, as they come. What the leaders
        hold comes without waiting for the remote tier.
        """
        return fetch.fetch_many(self._context, offsets, max_bytes=max_bytes, timeout_s=timeout_s)
