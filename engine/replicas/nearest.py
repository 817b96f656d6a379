"""Lists the leader for a reader, and finds the replica to read from (KIP-392, "Finding the preferred follower").

1. List the leader, as for every read; its log shows which records are committed.
2. List the followers that the selector could select. Drop every follower that is fenced, unreachable or damaged,
   has another history, lacks the offset, or has been out of sync for longer than replica.lag.time.max.ms.
3. The selector selects one of the remaining followers, or the leader.

A follower may lag, and gets the high watermark only from syncs. It serves records up to its own high watermark;
later records are read from the leader. By default only the leader is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.replicas.in_sync import behind_since_ms, lags
from stratalog.engine.replicas.offsets_for_epoch import knows_high_watermark
from stratalog.engine.replicas.out_of_range import Bounds, FetchAnswer, fetch_answer
from stratalog.engine.replication.damage import check_whole
from stratalog.engine.replication.later_rule import check_rules_known
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.replica_selector import (
    NOWHERE,
    ClientMetadata,
    LeaderSelector,
    RackAwareReplicaSelector,
    Replicas,
    ReplicaSelector,
    ReplicaView,
    select_replica,
)
from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.partitions.clock import Clock
from stratalog.partitions.erasure import is_erased
from stratalog.partitions.errors import CorruptSegmentError, OffsetNotAvailableError, StratalogError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.listing import DataFile, ReplicaLog, check_same_ends, resolve
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.transactions import FooterOf, LogTransactions, transactions_of


@dataclass(frozen=True)
class SeenLeader:
    """A partition's leader, as one listing shows it, for a reader."""

    image: ClusterImage
    """The metadata at the time of the listing."""
    replicas: PartitionReplicas
    log: ReplicaLog
    footer_of: FooterOf
    """Reads the footers of the leader's files; see ``footers_nearby``."""
    tiered: bool

    def __str__(self) -> str:
        return str(self.replicas)

    @property
    def view(self) -> PartitionView:
        return self.replicas.view

    @property
    def topic(self) -> TopicImage:
        return self.image.topics[self.view.topic_id]

    @property
    def log_start(self) -> int:
        """The first offset that readers get, in either tier."""
        start = self.view.log_start_offset
        return start if self.tiered else max(start, self.log.local_start)

    @cached_property
    def transactions(self) -> LogTransactions:
        """The transactions of the leader's log, from footers. Raises: see ``transactions_of``."""
        with errors_of(self.replicas.leader):
            return transactions_of(self.log, self.footer_of)

    @cached_property
    def marked_below(self) -> int | None:
        """An offset at or after which no file has rows with a ``control``: it is after the base offset of the last
        transactional append, and after every file that a rule has rewritten. None if the local log is empty.
        """
        if not self.log.chain:
            return None
        with errors_of(self.replicas.leader):
            last = self.footer_of(self.log.chain[-1].file).last_transactional_offset
        return max(0 if last is None else last + 1, self.log.removed_to)

    def end(self, isolation: Isolation) -> int:
        """The end for a reader of this isolation level: the high watermark, or the last stable offset."""
        end = self.log.high_watermark
        if isolation is Isolation.READ_COMMITTED:
            end = self.transactions.last_stable_offset
        return max(end, self.log_start)

    @property
    def knows_end(self) -> bool:
        """Whether the leader's high watermark covers all committed records. Until then, it may be below records
        that were already acknowledged and read (KIP-207).
        """
        return knows_high_watermark(self.log, max(self.view.leader_epoch, self.log.joined_epoch))

    def latest(self, isolation: Isolation) -> int:
        """The end of the log for callers that request the end itself. Later calls never return a smaller offset
        (KIP-207).

        Raises: OffsetNotAvailableError until a recently elected leader has the actual high watermark.
        """
        if not self.knows_end:
            raise OffsetNotAvailableError(
                f"{self}: the recently elected leader has the high watermark {self.log.high_watermark}, but the "
                "committed log may end later; ask again after an append, or run replicate"
            )
        return self.end(isolation)


def seen_leader(
    storage: Storage, memory: Memory, image: ClusterImage, view: PartitionView, client: ClientMetadata = NOWHERE
) -> SeenLeader:
    """The leader of a partition of ``image``, listed now. A file that a follower in the client's rack also has is
    read from that follower.

    Raises: see ``look_at_leader``; LaterRuleError when a removal rule that ``image`` lacks has replaced some of
    the leader's files; InvalidConfigError for a selector that cannot be loaded.
    """
    replicas = storage.replicas(view)
    near: list[int] = []
    if client.rack:
        able = _selectable(memory.selector.of(image.configs), view, replicas.followers, client)
        near = [broker for broker in able if _rack(view, broker) == client.rack]
    footer_of = footers_nearby(replicas, near)
    log = look_at_leader(replicas, footer_of)
    check_rules_known(replicas, log.listing, log.local_start)
    tiered = topic_config_of(image, image.topics[view.topic_id]).remote_storage_enable
    return SeenLeader(image, replicas, log, footer_of, tiered)


@dataclass(frozen=True, slots=True)
class Chosen:
    replica: Replica
    log: ReplicaLog
    """The replica's log, in the leader's history. If the leader has meanwhile merged an append, the append's end
    is inferred from the next file, and the append's footer must agree.
    """
    high_watermark: int
    """The replica serves records below this offset, which is at most the leader's high watermark."""
    rack: str | None
    is_leader: bool


def nearest(clock: Clock, memory: Memory, seen: SeenLeader, client: ClientMetadata, offset: int) -> Chosen:
    """Choose the replica from which this client reads the partition from ``offset`` up to
    ``Chosen.high_watermark``; later records must be read from the leader. A chosen follower has the record at the
    offset, and its high watermark shows that the record is committed.

    Raises: LeaderNotAvailableError; InvalidConfigError for a selector that cannot be loaded or raises.
    """
    replicas, view, leader = seen.replicas, seen.view, seen.log
    selector = memory.selector.of(seen.image.configs)
    by_leader = leader_of(seen)
    followers = _selectable(selector, view, replicas.followers, client)
    if offset >= leader.high_watermark or not followers:
        return by_leader
    able = {
        chosen.replica.broker_id: chosen
        for chosen in (follower_log(replicas, broker, leader) for broker in followers)
        if chosen is not None
    }
    leaders = _replica_view(by_leader, view, 0)
    lag_ms = cluster_config_of(seen.image).replica_lag_time_max_ms
    views = [leaders, *_eligible(view, leader, able.values(), offset, clock.now_ms(), lag_ms)]
    if len(views) == 1:
        return by_leader
    selected = select_replica(selector, (view.topic, view.partition), client, Replicas(leaders, tuple(views)))
    return able.get(selected.broker, by_leader)


def leader_of(seen: SeenLeader) -> Chosen:
    rack = _rack(seen.view, seen.view.leader)
    return Chosen(seen.replicas.leader, seen.log, seen.log.high_watermark, rack, True)


def crosses_racks(client: ClientMetadata, chosen: Chosen) -> bool:
    """Whether reads from the broker cross racks; False if client or broker has no rack."""
    return bool(client.rack) and chosen.rack is not None and chosen.rack != client.rack


def footers_nearby(replicas: PartitionReplicas, near: Sequence[int] = ()) -> FooterOf:
    """Return a function that reads a footer of the leader's files, from one of the followers ``near`` if it has
    the same file, otherwise from the leader. This saves traffic between racks, because reading a small append's
    footer reads the complete file. If a footer is damaged on the leader, it is read from any follower with the
    same file.
    """
    leader = replicas.leader
    nearer = [replicas.replica(broker) for broker in near if broker in replicas.stores]
    others = [replicas.replica(broker) for broker in replicas.followers if broker in replicas.stores]

    @cache
    def held(replica: Replica) -> dict[tuple[DataName, int], DataFile]:
        try:
            return {(file.name, file.object.size_bytes): file for file in replica.list().data}
        except StratalogError:
            return {}  # other code reports the errors

    def of_one(replicas: Sequence[Replica], file: DataFile) -> SegmentFooter | None:
        for replica in replicas:
            same = held(replica).get((file.name, file.object.size_bytes))
            with suppress(StratalogError):
                if same is not None:
                    return replica.footer(same)
        return None

    def footer(file: DataFile) -> SegmentFooter:
        found = of_one(nearer, file)
        if found is not None:
            return found
        try:
            return leader.footer(file)
        except CorruptSegmentError as error:
            found = of_one(others, file)
            if found is None:
                name = file.name
                raise with_remedy(unreadable(str(replicas), name.base_offset, name.next_offset, error)) from error
            return found

    return footer


def _selectable(
    selector: ReplicaSelector, view: PartitionView, followers: Sequence[int], client: ClientMetadata
) -> Sequence[int]:
    """The followers that the selector could select. The two built-in selectors never select followers in other
    racks, so such followers are not listed. For any other selector, all followers are listed.
    """
    if isinstance(selector, LeaderSelector):
        return ()
    if isinstance(selector, RackAwareReplicaSelector):
        if not client.rack or _rack(view, view.leader) == client.rack:
            return ()
        return [broker for broker in followers if _rack(view, broker) == client.rack]
    return followers


def follower_log(replicas: PartitionReplicas, broker: int, leader: ReplicaLog) -> Chosen | None:
    """The current log of a follower; None if readers cannot use it. A follower serves ``[log.local_start,
    high_watermark)``: these records are committed in the history of ``leader``, the leader's log.
    """
    try:
        replica = replicas.replica(broker)
        log = replica.log()
        if log.joined_epoch > leader.joined_epoch:
            return None  # the listed leader no longer leads
        if log.lineage != leader.lineage:  # ignore the follower's records beyond the common history
            log = resolve(log.listing, leader.lineage, replica.end_of_append)
        if not is_erased(log, replicas.view.erasures):
            return None  # the follower was unreachable when records were erased, and still has the erased records
        check_whole(replica, log)
        check_same_ends(str(replica), log, leader)
    except StratalogError:
        return None  # other code reports the error; this read can use another replica
    high_watermark = min(log.high_watermark, leader.high_watermark)
    return Chosen(replica, log, high_watermark, _rack(replicas.view, broker), False)


def _eligible(
    view: PartitionView, leader: ReplicaLog, able: Iterable[Chosen], offset: int, now_ms: int, lag_ms: int
) -> list[ReplicaView]:
    """The followers that can serve the committed record at the offset, and are in sync or have not been behind for
    long.
    """
    whole = Bounds(min(offset, leader.local_start), leader.high_watermark, leader.log_end)
    found: list[ReplicaView] = []
    for chosen in able:
        behind_since = behind_since_ms(leader, chosen.log.log_end)
        behind_ms = 0 if behind_since is None else max(0, now_ms - behind_since)
        seen = _replica_view(chosen, view, behind_ms)
        in_sync = seen.broker in view.isr or not lags(behind_ms, lag_ms)
        bounds = Bounds(seen.log_start_offset, chosen.high_watermark, seen.log_end_offset)
        if in_sync and fetch_answer(offset, bounds, whole) is FetchAnswer.FROM_REPLICA:
            found.append(seen)
    return found


def _replica_view(chosen: Chosen, view: PartitionView, behind_ms: int) -> ReplicaView:
    return ReplicaView(
        broker=chosen.replica.broker_id,
        rack=chosen.rack,
        endpoint=chosen.replica.store.uri,
        log_end_offset=chosen.log.log_end,
        log_start_offset=max(view.log_start_offset, chosen.log.local_start),
        time_since_last_caught_up_ms=behind_ms,
    )


def _rack(view: PartitionView, broker: int | None) -> str | None:
    return None if broker is None else view.brokers[broker].rack
