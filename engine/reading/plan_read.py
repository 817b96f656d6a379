"""Plans a batch read: the offsets of each partition, and the files of the nearest replicas that hold them.

1. Read the metadata once, for all topics, and the commits of groups.
2. List the leaders; load the remote tables, unless the leaders have everything (``look``).
3. Resolve the bounds of each range; a lookup by time reads files.
4. Select a replica per partition (``nearest``), list the files, and read the footers of appends with an unknown
   end. For a range of times, keep only files that may have such records, by the statistics of the remote table
   and the footers of local files; the scan filters the rest.

If there seems to be a gap, or a file vanishes during the planning, everything is read again before an error is
raised.

Readers see records below the high watermark; readers of committed records stop at the last stable offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import ALL_BOUNDS, Committed, OffsetBound, ReadQuery
from stratalog.engine.reading.last import leader_has_last, start_of_last
from stratalog.engine.reading.list_offsets import offset_at, takes_remote
from stratalog.engine.reading.look import (
    PartitionState,
    check_partitions,
    local_pieces,
    look_again,
    partition_states,
)
from stratalog.engine.reading.plan import NearPieces, PartitionPieces, check_range, file_ranges, readable_pieces
from stratalog.engine.reading.positions import FirstAt, Place
from stratalog.engine.reading.read_plan import PartitionPlan, ReadPlan
from stratalog.engine.records.groups import existing_group, named
from stratalog.engine.replicas.nearest import Chosen, SeenLeader, nearest
from stratalog.engine.replicas.offsets_for_epoch import check_history
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.engine.state.consumer_offsets import OffsetCommit
from stratalog.engine.state.group_commits import check_group
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    InvalidCallError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.lookup import TimeRange
from stratalog.partitions.offsets import OffsetSpec, UnknownOffset
from stratalog.partitions.runner import values
from stratalog.partitions.transactions import transactions_of


def plan_read(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    query: ReadQuery,
    client: ClientMetadata,
) -> ReadPlan:
    """Plan the query against the current state of the cluster, for this client.

    Raises: UnknownTopicOrPartitionError, GroupIdNotFoundError, OffsetOutOfRangeError, InvalidCallError;
        LogTruncationError when an unclean election has replaced records that the group of a bound has read;
        LeaderNotAvailableError, UnknownLeaderEpochError; CorruptionError kinds.
    """
    query.check_times(clock.now_ms())
    return look_again(metadata, storage, lambda: _plan_once(metadata, storage, clock, memory, query, client))


def plan_again(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    plan: ReadPlan,
    client: ClientMetadata,
) -> ReadPlan:
    """Plan the same offsets again, with their current files, after merges, tiering or moves.

    Raises: OffsetOutOfRangeError when retention has deleted some of the offsets and the read must not skip them,
        or when an unclean election has replaced records; UnknownTopicOrPartitionError when the topic was created
        again; see ``plan_read``.
    """
    return look_again(metadata, storage, lambda: _plan_again_once(metadata, storage, clock, memory, plan, client))


def _plan_once(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    query: ReadQuery,
    client: ClientMetadata,
) -> ReadPlan:
    image = metadata.image()
    topics = [image.topic(name) for name in query.chosen(image.topic_ids, INTERNAL_TOPICS)]
    check_same_types(topics)
    asked = _Query(
        query,
        query.named([topic.name for topic in topics]),
        _committed(storage, clock, memory, image, query.groups),
    )
    for topic in topics:
        check_partitions(topic, query.partitions or ())
        for by_topic in asked.by_partition.values():
            check_partitions(topic, by_topic[topic.name])
    states = partition_states(storage, memory, image, topics, query.partitions, asked.takes_remote, client)
    reader = _PlanReader(client, Isolation(query.isolation), query.fail_on_data_loss, query.times)

    def plan(state: PartitionState) -> PartitionPlan:
        start, end = asked.range_of(state)
        return _plan_partition(clock, memory, state, start, end, reader)

    return ReadPlan(
        partitions=_in_order(values(storage.threads.run(plan, states)), states),
        key_schema=topics[0].key_schema,
        value_schema=topics[0].value_schema,
        times=query.times,
        client_rack=client.rack,
        fail_on_data_loss=query.fail_on_data_loss,
        isolation=reader.isolation,
    )


def _plan_again_once(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    plan: ReadPlan,
    client: ClientMetadata,
) -> ReadPlan:
    image = metadata.image()
    wanted: dict[str, dict[int, PartitionPlan]] = {}
    for one in plan.partitions:
        if image.topic(one.topic).topic_id != one.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {one.topic!r} was deleted and created again since this read was planned: plan it again"
            )
        wanted.setdefault(one.topic_id, {})[one.partition] = one

    def from_remote(seen: SeenLeader) -> bool:
        one = wanted[seen.view.topic_id][seen.view.partition]
        return one.start < min(one.end, seen.log.local_start)

    states = [
        state
        for topic_id, partitions in wanted.items()
        for state in partition_states(
            storage, memory, image, [image.topics[topic_id]], list(partitions), from_remote, client
        )
    ]

    reader = _PlanReader(client, plan.isolation, plan.fail_on_data_loss, plan.times)

    def again(state: PartitionState) -> PartitionPlan:
        before = wanted[state.leader.view.topic_id][state.leader.view.partition]
        if before.start == before.end:  # an empty range stays empty, even if the log start has moved
            return before
        now = _plan_partition(clock, memory, state, before.start, before.end, reader)
        _check_history(before, now)
        return now if before.lost is None else replace(now, lost=(before.lost[0], now.start))

    plans = _in_order(values(storage.threads.run(again, states)), states)
    return replace(plan, partitions=plans, client_rack=client.rack)


def _check_history(before: PartitionPlan, now: PartitionPlan) -> None:
    """Raises: LogTruncationError when the offsets now have different leader epochs."""
    epochs = epochs_between(Lineage(before.epochs), now.start, now.end)
    if now.epochs != epochs:
        agreed = min(start for _, start in {*now.epochs} ^ {*epochs})
        raise LogTruncationError(
            f"{before.topic}-{before.partition}: an unclean election has replaced the "
            f"records at offsets [{agreed}, {before.end}) since this read was planned: plan it again",
            agreed,
        )


def _in_order(plans: Sequence[PartitionPlan], states: Sequence[PartitionState]) -> tuple[PartitionPlan, ...]:
    found = {(plan.topic_id, plan.partition): plan for plan in plans}
    return tuple(found[state.leader.view.topic_id, state.leader.view.partition] for state in states)


def check_same_types(topics: Sequence[TopicImage]) -> None:
    """Raises: InvalidCallError unless the records of all topics fit in one frame."""
    first = topics[0]
    for other in topics[1:]:
        for what, one, two in (
            ("keys", first.key_schema, other.key_schema),
            ("values", first.value_schema, other.value_schema),
        ):
            if one != two:
                raise InvalidCallError(
                    f"topics {first.name!r} and {other.name!r} cannot be read in one frame: their {what} are "
                    f"{one or 'binary'} and {two or 'binary'}; read them separately"
                )


def _committed(
    storage: Storage, clock: Clock, memory: Memory, image: ClusterImage, groups: set[str]
) -> dict[str, dict[TopicPartition, OffsetCommit]]:
    for group in groups:
        check_group(group)
    return {
        group: dict(named(image, existing_group(storage, clock, memory, image, group)[1]))
        for group in sorted(groups)
    }


# ------------------------------------------------------------------------------- one partition


@dataclass(frozen=True, slots=True)
class _Query:
    """A query, and the data that resolves its bounds."""

    query: ReadQuery
    by_partition: Mapping[str, Mapping[str, Mapping[int, Place]]]
    """The bounds ``start`` and ``end`` by topic and partition, if the caller has given them that way."""
    committed: Mapping[str, Mapping[TopicPartition, OffsetCommit]]
    """Keyed by group."""

    @property
    def isolation(self) -> Isolation:
        """The isolation level of the reader."""
        return Isolation(self.query.isolation)

    def range_of(self, state: PartitionState) -> tuple[int, int]:
        """The range ``[start, end)`` of a partition, unchecked."""
        log_start = state.positions.log_start
        if self._of_no_time:
            return log_start, log_start
        end = self._resolved(state, "end", self.query.until)
        if end is None:
            end = state.leader.latest(self.isolation)
        if self.query.last is not None:
            return start_of_last(state, self.query.last, end, self.isolation), end
        start = self._resolved(state, "start", self.query.first)
        return log_start if start is None else start, end

    @property
    def _of_no_time(self) -> bool:
        return self.query.times is not None and self.query.times.is_empty

    def takes_remote(self, seen: SeenLeader) -> bool:
        """Whether the leader lacks some of the partition's requested records, or its log does not show where they
        are."""
        if self._of_no_time:
            return False
        end = self._least(seen, "end", self.query.until, seen.log.high_watermark)
        if end is not None and self.query.last is not None:
            return not leader_has_last(seen, self.query.last, end, self.isolation)
        start = self._least(seen, "start", self.query.first, seen.view.log_start_offset)
        return start is None or end is None or start < seen.log.local_start

    def _least(self, seen: SeenLeader, name: str, bound: OffsetBound, otherwise: int) -> int | None:
        """A lower limit for the offset of a bound; None if only the remote log shows the offset."""
        view = seen.view
        if isinstance(bound, Mapping):
            bound = self.by_partition[name][view.topic].get(view.partition)
        match bound:
            case None:
                return min(otherwise, seen.end(self.isolation))
            case Committed(group):
                commit = self.committed[group].get((view.topic, view.partition))
                return view.log_start_offset if commit is None else commit.offset
            case OffsetSpec() | FirstAt() if takes_remote(seen, bound):
                return None
            case OffsetSpec.LATEST | OffsetSpec.EARLIEST_LOCAL:
                return max(view.log_start_offset, seen.log.local_start)
            case OffsetSpec() | FirstAt():
                return view.log_start_offset
            case int():
                return bound
        raise InvalidCallError(f"{name} = {bound!r} is not a valid read bound: give {ALL_BOUNDS}")

    def _resolved(self, state: PartitionState, name: str, bound: OffsetBound) -> int | None:
        """The offset of a bound; None without a bound. Raises: OffsetNotAvailableError, see ``latest``."""
        if isinstance(bound, Mapping):
            bound = self.by_partition[name][state.leader.view.topic].get(state.leader.view.partition)
        match bound:
            case None:
                return None
            case Committed(group):
                commit = self.committed[group].get((state.leader.view.topic, state.leader.view.partition))
                return state.positions.log_start if commit is None else self._of_commit(state, commit)
            case int() | FirstAt():
                found = offset_at(state, bound, self.isolation)
                if isinstance(found, UnknownOffset):
                    raise OffsetOutOfRangeError(found.reason)
                return found
        raise InvalidCallError(f"{name} = {bound!r} is not a valid read bound: give {ALL_BOUNDS}")

    def _of_commit(self, state: PartitionState, commit: OffsetCommit) -> int:
        """Raises: LogTruncationError when the log differs from the records that the group has read (KIP-320)."""
        if commit.leader_epoch is not None:
            check_history(str(state.leader), state.leader.log, commit.offset, commit.leader_epoch)
        # The group may have processed records that are not known to be committed yet. If so, the range is empty.
        if commit.offset > state.positions.log_end or commit.offset <= state.leader.end(self.isolation):
            return commit.offset
        return state.leader.latest(self.isolation)


@dataclass(frozen=True, slots=True)
class _PlanReader:
    """A reader, and the records that it sees."""

    client: ClientMetadata
    isolation: Isolation
    fail_on_data_loss: bool
    times: TimeRange | None


def _plan_partition(
    clock: Clock, memory: Memory, state: PartitionState, start: int, end: int, reader: _PlanReader
) -> PartitionPlan:
    seen, view, log_start = state.leader, state.leader.view, state.positions.log_start
    lost = None
    if start < log_start and start <= end and not reader.fail_on_data_loss:
        lost = start, min(end, log_start)
        start, end = log_start, max(end, log_start)
    if end > seen.end(reader.isolation):
        seen.latest(reader.isolation)  # an unknown end is a different error than an offset out of range
    check_range(str(seen), start, end, log_start, seen.end(reader.isolation))
    leader = seen.replicas.leader
    served_by = [leader]
    readable = state.readable_by(reader.isolation)
    if start < end:
        chosen = nearest(clock, memory, seen, reader.client, max(start, state.positions.local_start))
        if not chosen.is_leader:
            served_by.append(chosen.replica)
            readable = _near(state, chosen, reader.isolation)
    brokers = {replica.store.uri: replica.broker_id for replica in served_by}
    files = file_ranges(readable, start, end, brokers, reader.times)
    # the rest is not read, and retention may delete it before this plan is made again
    if reader.times is not None:
        start, end = (files[0].start, files[-1].end) if files else (end, end)
    return PartitionPlan(
        topic=view.topic,
        topic_id=view.topic_id,
        partition=view.partition,
        start=start,
        end=end,
        files=tuple(files),
        epochs=epochs_between(seen.log.lineage, start, end),
        racks=tuple((replica.broker_id, view.brokers[replica.broker_id].rack) for replica in served_by),
        pruned_files=len(readable.pieces) - len(files),
        pruned_bytes=sum(piece.file.object.size_bytes for piece in readable.pieces)
        - sum(part.size_bytes for part in files),
        lost=lost,
    )


def _near(state: PartitionState, chosen: Chosen, isolation: Isolation) -> PartitionPieces:
    """The pieces of a partition. Local pieces come from the chosen follower, as far as it serves them. The
    follower's own markers show whether its transactional appends were committed.
    """
    seen, readable = state.leader, state.readable
    transactions = transactions_of(chosen.log, chosen.replica.footer)
    until = min(chosen.high_watermark, transactions.end(isolation, chosen.log))
    near = NearPieces(local_pieces(chosen.replica, chosen.log), until)
    local = local_pieces(seen.replicas.leader, seen.log)
    pieces = readable_pieces(str(seen), state.cold, local, readable.log_start, readable.high_watermark, near)
    return replace(
        readable,
        pieces=pieces,
        remote_until=min(readable.remote_until, chosen.log.local_start),
        hidden=seen.transactions.hidden(isolation) | transactions.hidden(isolation),
        gaps=seen.transactions.gaps | transactions.gaps,
    )


def epochs_between(lineage: Lineage, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The leader epochs of ``[start, end)``, each with its first offset in this range."""
    first = lineage.epoch_at(start)
    later = [(entry.epoch, entry.start_offset) for entry in lineage if start < entry.start_offset < end]
    return (*(() if first is None or start >= end else ((first, start),)), *later)
