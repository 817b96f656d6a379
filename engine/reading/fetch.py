"""Fetch: records of partitions starting at an offset, in this process, from either tier (Kafka's Fetch request).

For consumers of small ranges, without Spark or a plan of files. A fetch reads from one source: the nearest replica
(KIP-392) if the leader's local log has the offset, otherwise the remote log. The next fetch continues at
``Fetched.next_offset``.

1. Read the metadata (once for all partitions of a call), and list the leader.
2. If the caller names the leader epoch of the last record that it read, check that this history is the leader's;
   otherwise the fetch ends with LOG_TRUNCATION (KIP-320).
3. If the offset is local, read files of the nearest replica, or of the leader if the nearest replica cannot serve
   the offset. If the offset is below the local logs, read the remote segment that contains it. Only the footer and
   the needed row groups are read; recent reads are cached.
3a. Read damaged records from another copy: a follower whose high watermark covers them, or the remote tier. The
    fetch fails only if no copy is good.
4. Retry transient errors from step 1 with exponential back-off until the timeout (KIP-405, "Remote Storage Fetcher
   Thread Pool", 2.3).

A segment that was deleted meanwhile is an immediate error: OFFSET_OUT_OF_RANGE if the log start has passed it,
otherwise REMOTE_OBJECT_MISSING (2.2). Two more cases are immediate errors, because retries do not help: a read
that the fetch quota delays beyond the timeout, and an offset that is not known to be committed on the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.driver.fetching import Remote
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.plain_values import cell_text
from stratalog.engine.driver.record_reader import READ_COLUMNS
from stratalog.engine.driver.remote_quota import fetch_throttle
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.look import remote_log_pieces
from stratalog.engine.replicas.foreign_files import note_foreign
from stratalog.engine.replicas.nearest import (
    Chosen,
    SeenLeader,
    crosses_racks,
    follower_log,
    leader_of,
    nearest,
    seen_leader,
)
from stratalog.engine.replicas.offsets_for_epoch import check_history
from stratalog.engine.replicas.out_of_range import Bounds, FetchAnswer, fetch_answer
from stratalog.engine.replication.replica_selector import NOWHERE, ClientMetadata
from stratalog.engine.replication.throttle import Throttle
from stratalog.engine.replication.unreadable import PassedOver
from stratalog.engine.state.group_commits import OffsetAndMetadata, check_offsets
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    RemoteNotReadyError,
    RemoteObjectMissingError,
    RetriableError,
    SourceChangedError,
    StaleMetadataError,
    StorageAuthorizationError,
    StratalogError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.growth import widest
from stratalog.partitions.html_table import MOST_ROWS, head_line, html_table, marked_line
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation, isolation_of
from stratalog.partitions.lookup import FileSlice, LogSlices
from stratalog.partitions.paths import DataName
from stratalog.partitions.printable import printable
from stratalog.partitions.records import schema_of
from stratalog.partitions.runner import Outcome, values
from stratalog.partitions.transactions import transactions_of, visible
from stratalog.tiering.remote_log import RemoteLog

T = TypeVar("T")

MAX_BYTES = 1024 * 1024
"""Kafka's max.partition.fetch.bytes."""
TIMEOUT_S = 30.0
"""Kafka's request.timeout.ms of consumers."""
_BACKOFF = Backoff(first_s=0.1, longest_s=2.0, least=0.5)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch from one partition."""

    topic: str
    partition: int
    records: pa.Table
    """Columns ``partition, offset, timestamp, key, value, headers``, in order of offsets, without gaps except
    transaction markers and records that the isolation level hides. Empty at the high watermark, or for committed
    reads at the last stable offset."""
    next_offset: int
    """The offset of the next fetch."""
    log_start: int
    high_watermark: int
    """The leader's high watermark, for records from any source."""
    end_known: bool
    """False while a recently elected leader may not know all committed records. In that case, ``high_watermark``
    is a lower bound, and later records can be fetched after an append or ``replicate`` (KIP-207).
    """
    leader_epoch: int | None
    """The leader epoch of the record before ``next_offset``, to pass to the next fetch."""
    remote: bool
    """Whether the records came from the remote tier."""
    broker: int | None
    """The broker that served the records; None for the remote tier, which has no rack."""
    crossed_racks: bool
    """Whether the broker is in a different rack than the reader; False if the broker or the reader has no rack."""
    read_bytes: int
    """Bytes of row groups read from storage; 0 if they were cached."""
    damage: tuple[str, ...] = ()
    """One line per damaged copy that was skipped, with the remedy."""

    @property
    def cross_rack_bytes(self) -> int:
        """The part of ``read_bytes`` that came from another rack."""
        return self.read_bytes if self.crossed_racks else 0

    def __repr__(self) -> str:
        return f"Fetched({printable(self._summary())})"

    def _repr_html_(self) -> str:
        first = range(min(MOST_ROWS, self.records.num_rows))
        return "".join(
            [
                head_line(self._summary()),
                *(marked_line("warn", "damage", line) for line in self.damage),
                html_table(
                    self.records.column_names,
                    [[cell_text(column[row]) for column in self.records.columns] for row in first],
                    numbers=("partition", "offset"),
                    total=self.records.num_rows,
                ),
            ]
        )

    def _summary(self) -> str:
        source = "the remote tier" if self.broker is None else f"broker {self.broker}"
        bound = "" if self.end_known else "at least "
        return (
            f"{self.topic}-{self.partition}: {self.records.num_rows:,} records from {source}, next offset "
            f"{self.next_offset:,}, high watermark {bound}{self.high_watermark:,}, log start {self.log_start:,}"
        )


def fetch(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    partition: int,
    offset: int,
    *,
    leader_epoch: int | None = None,
    max_bytes: int = MAX_BYTES,
    timeout_s: float = TIMEOUT_S,
    client: ClientMetadata = NOWHERE,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
) -> Fetched:
    """Fetch the records of a partition starting at ``offset``. Raises: see ``Cluster.fetch``."""
    offsets = {(topic, partition): OffsetAndMetadata(offset, leader_epoch)}
    outcomes = fetch_many(
        metadata,
        storage,
        clock,
        memory,
        offsets,
        max_bytes=max_bytes,
        timeout_s=timeout_s,
        client=client,
        isolation=isolation,
    )
    return values(outcomes)[0]


def check_limits(max_bytes: int, timeout_s: float) -> None:
    """Check the limits of a fetch. Raises: InvalidCallError."""
    if max_bytes < 1 or not timeout_s > 0:
        raise InvalidCallError(f"max_bytes = {max_bytes}, timeout_s = {timeout_s}: both must be above 0")


def fetch_many(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    max_bytes: int = MAX_BYTES,
    timeout_s: float = TIMEOUT_S,
    client: ClientMetadata = NOWHERE,
    known: ClusterImage | None = None,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
) -> Iterator[Outcome[TopicPartition, Fetched]]:
    """Fetch from several partitions at the same time, ``max_bytes`` from each. Yields an outcome per partition in
    order of completion; local fetches do not wait for remote fetches. The fetches start with the call, and end
    ``timeout_s`` later. ``known`` is the metadata if the caller has just read it; the metadata is read again only
    after a failure.

    Raises: InvalidCallError, including for an empty request; UnknownTopicOrPartitionError for a key that is not a
    partition; errors from reading the metadata.
    """
    positions = check_offsets(offsets, least=None)
    if not positions:
        raise InvalidCallError("offsets is empty: name a partition to fetch from")
    check_limits(max_bytes, timeout_s)
    level = isolation_of(isolation)
    deadline_s = clock.monotonic_s() + timeout_s
    image = metadata.image() if known is None else known
    throttle = fetch_throttle(clock, memory, cluster_config_of(image))

    def begin(key: TopicPartition) -> Fetched | Remote[Fetched]:
        position = positions[key]
        one = _Fetch(
            metadata=metadata,
            storage=storage,
            clock=clock,
            memory=memory,
            key=key,
            offset=position.offset,
            leader_epoch=position.leader_epoch,
            max_bytes=max_bytes,
            deadline_s=deadline_s,
            throttle=throttle,
            client=client,
            isolation=level,
        )
        return one.until_it_passes(lambda fresh: one.begin(metadata.image() if fresh else image))

    def leader(key: TopicPartition) -> int | None:
        try:
            return image.partition(image.topic(key[0]).topic_id, key[1]).leader
        except UnknownTopicOrPartitionError:
            return None  # the partition's own fetch will report the error

    return memory.fetching.run(begin, list(positions), leader, clock, deadline_s, timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    """One fetch, with its retries."""

    metadata: MetadataClient
    storage: Storage
    clock: Clock
    memory: Memory
    key: TopicPartition
    offset: int
    leader_epoch: int | None
    max_bytes: int
    deadline_s: float
    throttle: Throttle | None
    client: ClientMetadata
    isolation: Isolation

    def until_it_passes(self, attempt: Callable[[bool], T]) -> T:
        """Retry transient errors. The argument of ``attempt`` says whether the call is a retry."""
        tries = 0
        while True:
            try:
                return attempt(tries > 0)
            except (ThrottlingQuotaExceededError, OffsetNotAvailableError, StorageAuthorizationError):
                raise  # the error will outlast the deadline
            except CorruptionError:
                with suppress(NoMajorityError):
                    self.metadata.image().topic(self.key[0])  # a deleted topic is not damaged
                raise
            except (RetriableError, StaleMetadataError) as error:
                note_foreign(self.metadata, self.storage, error)
                tries += 1
                pause = _BACKOFF.pause_s(tries, self.storage.rng.random())
                if self.clock.monotonic_s() + pause > self.deadline_s:
                    raise
                self.clock.sleep(pause)

    def begin(self, image: ClusterImage) -> Fetched | Remote[Fetched]:
        """Return the local records, or a function that fetches the remote records."""
        seen = self._look(image)
        if self.offset < seen.log.local_start:
            return Remote(lambda: self.until_it_passes(lambda fresh: self._remotely(seen, fresh)))
        chosen = nearest(self.clock, self.memory, seen, self.client, self.offset)
        damage = PassedOver()
        if not chosen.is_leader:
            # After any error of the selected replica, the leader can still serve the fetch.
            with suppress(StratalogError), damage.copy():
                return self._locally(seen, chosen, damage)
        leader = leader_of(seen)
        with damage.copy():
            return self._locally(seen, leader, damage)
        tried = {chosen.replica.broker_id, leader.replica.broker_id}
        found = self._of_a_follower(seen, damage, tried)
        if found is not None:
            return found
        if not seen.tiered:
            raise damage.error
        return Remote(lambda: self.until_it_passes(lambda _: self._remotely_instead(seen, damage)))

    def _of_a_follower(self, seen: SeenLeader, damage: PassedOver, tried: Collection[int] = ()) -> Fetched | None:
        """Read the records from a follower that has a good copy, whose high watermark covers the records, and that
        is not in ``tried``; None without such a follower.
        """
        for broker in seen.replicas.followers:
            if broker in tried:
                continue
            chosen = follower_log(seen.replicas, broker, seen.log)
            if chosen is not None and chosen.log.local_start <= self.offset < chosen.high_watermark:
                with suppress(StratalogError), damage.copy():
                    return self._locally(seen, chosen, damage)
        return None

    def _remotely_instead(self, seen: SeenLeader, damage: PassedOver) -> Fetched:
        """Read the remote records, because the brokers' copies are damaged."""
        with suppress(RemoteNotReadyError), damage.copy():  # the records may not be tiered yet
            pieces = self._remote_pieces(seen, self._load(seen), self.offset + 1)
            return self._fetched(seen, pieces, None, damage)
        raise damage.error

    def _look(self, image: ClusterImage) -> SeenLeader:
        name, partition = self.key
        view = image.view(image.topic(name).topic_id, partition)
        seen = seen_leader(self.storage, self.memory, image, view, self.client)
        if self.leader_epoch is not None:
            check_history(str(seen), seen.log, self.offset, self.leader_epoch)
        bounds = _bounds(seen)
        match fetch_answer(self.offset, bounds, bounds):
            case FetchAnswer.BELOW_LOG_START | FetchAnswer.BEYOND_LOG_END:
                raise OffsetOutOfRangeError(
                    f"{seen}: offset {self.offset} is not in [{bounds.log_start}, {bounds.high_watermark}], the "
                    "log start offset and the high watermark"
                )
            case FetchAnswer.OFFSET_NOT_AVAILABLE:
                raise OffsetNotAvailableError(
                    f"{seen}: offset {self.offset} is not known to be committed: the high watermark is "
                    f"{bounds.high_watermark}, the log ends at {bounds.log_end}; fetch it after the next append, "
                    "or run replicate"
                )
        return seen

    def _locally(self, seen: SeenLeader, chosen: Chosen, damage: PassedOver) -> Fetched:
        end, hidden = chosen.high_watermark, frozenset[DataName]()
        if self.isolation is Isolation.READ_COMMITTED:
            transactions = transactions_of(chosen.log, chosen.replica.footer, self.offset)
            end = min(end, transactions.last_stable_offset)
            hidden = transactions.hidden(self.isolation)
        end = max(end, self.offset)
        pieces = LogSlices(chosen.replica.store, chosen.log.chain, self.offset, end)
        left_out = [(piece.start, piece.end) for piece in pieces if piece.file.name in hidden] if hidden else []
        return self._fetched(seen, pieces, chosen, damage, left_out)

    def _remotely(self, seen: SeenLeader, fresh: bool) -> Fetched:
        """Read the remote records. Damaged records are read from a follower that still has them. ``fresh``: read
        the table again.
        """
        damage = PassedOver()
        with damage.copy():
            return self._from_remote(seen, fresh, damage)
        found = self._of_a_follower(seen, damage)
        if found is None:
            raise damage.error
        return found

    def _from_remote(self, seen: SeenLeader, fresh: bool, damage: PassedOver) -> Fetched:
        known = None if fresh else self.memory.fetching.remote_logs.get(seen.topic.topic_id)
        partition, rules = seen.view.partition, seen.view.rules
        if (
            known is None
            or known.lacks_erasure(partition, seen.view.last_erasure)
            or (rules and known.is_outdated(partition, rules[-1].rule.generation))
            or not known.covering(partition, self.offset, self.offset + 1)
        ):
            known = self._load(seen)
        try:
            return self._fetched(seen, self._remote_pieces(seen, known, seen.log.local_start), None, damage)
        except (SourceChangedError, RemoteObjectMissingError) as error:
            now = self._look(self.metadata.image())  # the log start may have passed the offset
            log = self._load(now)
            end = self.offset + 1
            if self._remote_pieces(now, log, end)[:1] == self._remote_pieces(seen, known, end)[:1]:
                raise RemoteObjectMissingError(
                    f"{seen}: the remote log lists a segment with offset {self.offset}, but its object does not "
                    f"exist: {error}"
                ) from error
            raise SourceChangedError(f"{seen}: offset {self.offset} has moved to another file: {error}") from error

    def _load(self, seen: SeenLeader) -> RemoteLog:
        log = self.storage.remote_table(seen.topic).load()
        kept = replace(log, rewrite=None)
        self.memory.fetching.remote_logs.put(seen.topic.topic_id, kept, kept.memory_bytes)
        return log

    def _remote_pieces(self, seen: SeenLeader, remote: RemoteLog, end: int) -> list[FileSlice]:
        """The remote pieces, from the piece with the offset up to ``end``."""
        covering = remote.covering(seen.view.partition, self.offset, end)
        pieces = remote_log_pieces(self.storage, seen, covering)
        if not pieces or not pieces[0].start <= self.offset < pieces[0].end:
            raise RemoteNotReadyError(
                f"{seen}: offset {self.offset} is neither on the leader nor in the remote log; verify the topic"
            )
        return pieces

    def _fetched(
        self,
        seen: SeenLeader,
        pieces: Iterable[FileSlice],
        chosen: Chosen | None,
        damage: PassedOver,
        left_out: Sequence[tuple[int, int]] = (),
    ) -> Fetched:
        """Read the records of pieces of the chosen replica, or of the remote tier (None), where every transaction
        is decided. ``left_out`` are the offsets that this reader does not see.
        """
        read_bytes = 0

        def pay(size_bytes: int) -> None:
            nonlocal read_bytes
            if chosen is None:
                self._pay(size_bytes)
            read_bytes += size_bytes

        physical = schema_of(seen.topic.key_schema, seen.topic.value_schema)
        schema = pa.schema([physical.field(name) for name in READ_COLUMNS])
        records, next_offset = schema.empty_table(), self.offset
        while not records.num_rows:
            found = self.memory.fetching.reader.read(str(seen), pieces, next_offset, self.max_bytes, pay)
            if found is None:
                break
            next_offset += found.num_rows
            records = _without(visible(found, self.isolation), left_out).drop_columns(["control"])
            # The schema may have grown since the records were written, or since the topic was read.
            records = records.cast(widest([schema, records.schema.remove_metadata()], str(seen)))
        bounds = _bounds(seen)
        return Fetched(
            topic=seen.topic.name,
            partition=seen.view.partition,
            records=records,
            next_offset=next_offset,
            log_start=bounds.log_start,
            high_watermark=bounds.high_watermark,
            end_known=seen.knows_end,
            leader_epoch=seen.log.lineage.epoch_at(next_offset - 1),
            remote=chosen is None,
            broker=None if chosen is None else chosen.replica.broker_id,
            crossed_racks=chosen is not None and crosses_racks(self.client, chosen),
            read_bytes=read_bytes,
            damage=damage.notes,
        )

    def _pay(self, size_bytes: int) -> None:
        left_s = self.deadline_s - self.clock.monotonic_s()
        if self.throttle is not None and not self.throttle.borrow(size_bytes, left_s):
            raise ThrottlingQuotaExceededError(
                f"{self.key[0]}-{self.key[1]}: offset {self.offset} is remote, and earlier "
                "fetches exhaust remote.log.manager.fetch.max.bytes.per.second until the timeout; fetch it later"
            )


def _bounds(seen: SeenLeader) -> Bounds:
    """The bounds that readers see."""
    first = seen.log_start
    return Bounds(first, seen.end(Isolation.READ_UNCOMMITTED), max(seen.log.log_end, first))


def _without(records: pa.Table, left_out: Sequence[tuple[int, int]]) -> pa.Table:
    """The records outside these ranges of offsets."""
    for start, end in left_out:
        offsets = records.column("offset")
        records = records.filter(pc.or_(pc.less(offsets, start), pc.greater_equal(offsets, end)))
    return records
