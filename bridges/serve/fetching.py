"""Fetch: records of both tiers by ``engine.reading.fetch``, and the wait for more (max_wait, min_bytes).

If clients have reached the end of a partition, this end is checked again after ``poll_s``, once for all clients
and requests. A check is a listing, which costs money in a bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from stratalog.bridges.serve.batches import record_batches
from stratalog.bridges.serve.codes import ErrorCode, error_code
from stratalog.bridges.serve.metadata import ServedMetadata, has_partition, isolation_level
from stratalog.bridges.serve.protocol import Fields, partitions_of, topics_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.reading.fetch import Fetched, fetch_many
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.runner import Done

MOST_BYTES = 4 * 1024 * 1024
"""The limit of an answer's records in memory; each partition may have at least one record."""
_LONGEST_WAIT_S = 30.0
_TIMEOUT_S = 20.0
"""The timeout of a fetch, below the timeouts of clients (Kafka's request.timeout.ms is 30 s)."""
_MOST_QUIET = 10_000


@dataclass(frozen=True, slots=True)
class ServedPartition:
    """The answer for one partition."""

    records: bytes = b""
    error: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    count: int = 0
    more: bool = False
    """Whether the log continues after these records. If it does, the response does not wait for more bytes."""

    @property
    def may_be_gone(self) -> bool:
        """Whether the log looks like the log of a deleted topic."""
        if self.error == ErrorCode.NONE:
            return self.high_watermark <= self.log_start
        return self.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(frozen=True, slots=True)
class _Quiet:
    """The end of a partition without new records."""

    offset: int
    until_s: float
    found: ServedPartition


class ServedFetches:
    """The fetches of all clients; ``served`` is called with the number of records and bytes of each answer."""

    def __init__(
        self,
        metadata: ServedMetadata,
        threads: Executor,
        client: ClientMetadata,
        poll_s: float,
        served: Callable[[int, int], None],
    ) -> None:
        self._metadata = metadata
        self._threads = threads
        self._client = client
        self._poll_s = poll_s
        self._served = served
        self._quiet: dict[tuple[TopicPartition, Isolation], _Quiet] = {}
        """Used only by the event loop."""

    async def answer(self, body: Fields) -> Fields:
        """Fetch: the available records, or those that arrive until the client's wait is over. There are no fetch
        sessions: every request names all its partitions.
        """
        if body.get("session_id"):
            return _answer({}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(max(body["max_wait_time"], 0) / 1000, _LONGEST_WAIT_S)
        level = isolation_level(body)
        asked = partitions_of(body)
        wanted = {
            key: one["offset" if "offset" in one else "fetch_offset"] for key, one in asked.items()
        }  # version 4: offset
        limits = [one["max_bytes"] for one in asked.values()]
        most = min(MOST_BYTES, body["max_bytes"])
        each = max(1, min([most // max(1, len(wanted)), *limits]))
        while True:
            now_s = loop.time()
            found = self._known_ends(wanted, level, now_s)
            due = {key: offset for key, offset in wanted.items() if key not in found}
            if due:
                fresh = await loop.run_in_executor(self._threads, self._fetch, due, level, each)
                self._remember(fresh, due, level, loop.time())
                found |= fresh
            size = sum(len(one.records) for one in found.values())
            at_once = any(one.error or one.more for one in found.values())
            if at_once or size >= body["min_bytes"] or now_s >= deadline_s:
                break
            await asyncio.sleep(max(0.0, min(deadline_s, loop.time() + self._poll_s) - loop.time()))
        self._served(sum(one.count for one in found.values()), size)
        return _answer({key: found[key] for key in wanted})

    def _known_ends(
        self, wanted: Mapping[TopicPartition, int], level: Isolation, now_s: float
    ) -> dict[TopicPartition, ServedPartition]:
        known = {}
        for key, offset in wanted.items():
            quiet = self._quiet.get((key, level))
            if quiet is not None and quiet.offset == offset and now_s < quiet.until_s:
                known[key] = quiet.found
        return known

    def _remember(
        self,
        fresh: Mapping[TopicPartition, ServedPartition],
        asked: Mapping[TopicPartition, int],
        level: Isolation,
        now_s: float,
    ) -> None:
        if len(self._quiet) > _MOST_QUIET:  # topics may come and go
            self._quiet = {key: one for key, one in self._quiet.items() if now_s < one.until_s}
        for key, one in fresh.items():
            if one.error == ErrorCode.NONE and not one.records:
                self._quiet[key, level] = _Quiet(asked[key], now_s + self._poll_s, one)

    def _fetch(
        self, wanted: Mapping[TopicPartition, int], level: Isolation, max_bytes: int
    ) -> dict[TopicPartition, ServedPartition]:
        """Fetch in a thread. A log without records may belong to a topic that was just deleted, so for such a log
        the metadata is read again, as often as the end of a partition is checked.
        """
        try:
            image = self._metadata.image_with(wanted)
            found = self._of(image, wanted, level, max_bytes)
            doubtful = {key: wanted[key] for key, one in found.items() if one.may_be_gone}
            if not doubtful:
                return found
            now = self._metadata.image(max_age_s=self._poll_s)
        except StratalogError as error:
            return dict.fromkeys(wanted, ServedPartition(error=error_code(error)))
        moved = {key: at for key, at in doubtful.items() if now.topic_ids.get(key[0]) != image.topic_ids[key[0]]}
        return {**found, **self._of(now, moved, level, max_bytes)} if moved else found

    def _of(
        self, image: ClusterImage, wanted: Mapping[TopicPartition, int], level: Isolation, max_bytes: int
    ) -> dict[TopicPartition, ServedPartition]:
        there = {key: OffsetAndMetadata(at) for key, at in wanted.items() if has_partition(image, *key)}
        found = dict.fromkeys(wanted, ServedPartition(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if not there:
            return found
        outcomes = fetch_many(
            *self._metadata.for_records,
            there,
            max_bytes=max_bytes,
            timeout_s=_TIMEOUT_S,
            client=self._client,
            known=image,
            isolation=level,
        )
        for outcome in outcomes:
            if isinstance(outcome, Done):
                found[outcome.item] = _served(outcome.value, there[outcome.item].offset, level)
            else:
                found[outcome.item] = ServedPartition(error=error_code(outcome.error))
        return found


def _served(fetched: Fetched, offset: int, level: Isolation) -> ServedPartition:
    records = b""
    if fetched.next_offset > offset:
        records = record_batches(fetched.records, fetched.next_offset, fetched.leader_epoch)
    at_end = level is Isolation.READ_COMMITTED and fetched.next_offset == offset
    return ServedPartition(
        records=records,
        high_watermark=fetched.high_watermark,
        # Before the end, the response to a reader of committed records says only that there may be more.
        last_stable_offset=offset if at_end else fetched.high_watermark,
        log_start=fetched.log_start,
        count=fetched.records.num_rows,
        more=offset < fetched.next_offset < fetched.high_watermark,
    )


def _answer(found: Mapping[TopicPartition, ServedPartition], error: int = ErrorCode.NONE) -> Fields:
    partitions = {
        key: {
            "error_code": one.error,
            "highwater_offset": one.high_watermark,
            "last_stable_offset": one.last_stable_offset,
            "log_start_offset": one.log_start,
            "aborted_transactions": [],  # the fetch has already left out the records of aborted transactions
            "preferred_read_replica": -1,
            "message_set": one.records,
        }
        for key, one in found.items()
    }
    topics = topics_of(partitions, "topics")
    return {"throttle_time_ms": 0, "error_code": error, "session_id": 0, "topics": topics}
