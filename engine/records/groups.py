"""Consumer groups: their committed offsets and their lag (``__consumer_offsets``).

A commit is an append with acks=all to the group's partition; a read is the latest snapshot of that partition and
the log after it, below the high watermark. A commit fails before anything is written, with one exception: only the
log decides whether a newer member of the group committed first. So the committer checks this afterwards (*write,
then check*).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from stratalog.engine.brokers.probe import with_leaders
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, Report, utc_text
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.state_cache import ReadState
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.state_log import append_state, ensure_topic, look_at_state, read_state, stamp_of
from stratalog.engine.replicas.nearest import SeenLeader, seen_leader
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.state.consumer_offsets import (
    ConsumerOffsets,
    GroupState,
    OffsetCommit,
    OffsetsRecord,
    OffsetTombstone,
    PendingOffset,
    is_stale,
)
from stratalog.engine.state.group_commits import (
    OffsetAndMetadata,
    check_group,
    check_member_epoch,
    check_metadata_size,
    check_offsets,
)
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, offsets_topic, partition_for
from stratalog.engine.state.keyed import OFFSETS
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    UnstableOffsetCommitError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.runner import Done, Failed, Outcome, values
from stratalog.partitions.spelling import did_you_mean

LeadersOf = Mapping[TopicPartition, Outcome[PartitionView, SeenLeader]]
"""The leader of each partition, or the error from listing it."""


def commit(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    member_epoch: int | None = None,
    forget: Collection[TopicPartition] = (),
    beyond_end: bool = False,
) -> Report:
    """Commit offsets for a group, all of them or none; see ``cluster.groups.commit``. ``member_epoch`` grows with
    every new incarnation of the group's members; it may be an attempt number. Without it the committer is not a
    member, and is never stale. The same append deletes the commits for the partitions ``forget``. ``beyond_end``:
    accept offsets beyond the log end, as Kafka does; ``lag`` reports them. The first commit in a cluster creates
    ``__consumer_offsets``. An unreachable leader is fenced if it has been away long enough, and the next leader is
    used.

    Raises: see ``cluster.groups.commit``; InvalidReplicationFactorError when there are too few brokers for
        ``__consumer_offsets``. After OutcomeUnknownError, committing again is safe.
    """
    check_group(group)
    epoch = None if member_epoch is None else check_member_epoch(group, member_epoch)
    given = check_offsets(offsets)

    def look(image: ClusterImage) -> tuple[ClusterImage, list[OffsetsRecord], ReadState[ConsumerOffsets] | None]:
        gone = [(image.topic(topic).topic_id, partition) for topic, partition in forget]
        records: list[OffsetsRecord] = [
            *_records(storage, execution.clock, image, group, given, epoch, beyond_end=beyond_end),
            *(
                OffsetTombstone(group=group, topic_id=topic_id, partition=partition)
                for topic_id, partition in gone
            ),
        ]
        if epoch is None or not records:
            return image, records, None
        before = read_groups(storage, execution.clock, memory, image, group)
        _check_member(group, before.state.groups.get(group), epoch)
        return image, records, before

    with execution.run("groups commit") as run:
        image, records, before = with_leaders(metadata, storage, look)
        if records:
            base = append_to_group(metadata, storage, execution.clock, memory, image, group, records)
        if before is not None and epoch is not None:
            # If a newer member committed between the read and the append, this commit has no effect.
            after = with_leaders(
                metadata,
                storage,
                lambda now: read_groups(storage, execution.clock, memory, now, group, until=base, since=before),
            )
            _check_member(group, after.state.groups.get(group), epoch)
    return _committed(run, group, given)


def commit_pending(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    producer_id: str,
    producer_epoch: int,
) -> Report:
    """Commit offsets in a producer's transaction. The offsets take effect when the transaction is committed. The
    transaction must include the group's partition of ``__consumer_offsets``. The report is that of ``commit``.

    Raises: see ``commit``.
    """
    check_group(group)
    given = check_offsets(offsets)

    def look(image: ClusterImage) -> tuple[ClusterImage, list[OffsetCommit]]:
        return image, _records(storage, execution.clock, image, group, given, None)

    with execution.run("groups commit") as run:
        image, records = with_leaders(metadata, storage, look)
        pending = [
            PendingOffset(group=group, producer_id=producer_id, producer_epoch=producer_epoch, commit=record)
            for record in records
        ]
        if pending:
            append_to_group(metadata, storage, execution.clock, memory, image, group, pending)
    return _committed(run, group, given)


def _committed(run: OperationRun, group: str, given: Mapping[TopicPartition, OffsetAndMetadata]) -> Report:
    """The report of a commit of these offsets."""
    run.add(
        CommittedRow(topic=topic, partition=partition, offset=wanted.offset, metadata=wanted.metadata)
        for (topic, partition), wanted in given.items()
    )
    run.totals["group"] = group
    return run.report()


def committed(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    group: str,
    topics: Collection[str] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Read the committed offsets of the group, by topic and partition, for these topics (None: all). Offsets of
    deleted topics are not included, even if a topic of that name exists again. Empty for a group that does not
    exist. ``require_stable``: raise while an unfinished transaction has offsets of these partitions (KIP-447);
    otherwise pending offsets are ignored.

    Raises: InvalidGroupIdError; UnknownTopicOrPartitionError for ``topics``; UnstableOffsetCommitError; errors
        from reading the group's partition.
    """
    check_group(group)
    image = metadata.image()
    for name in topics or ():
        image.topic(name)
    state = read_groups(storage, clock, memory, image, group).state
    if require_stable:
        _check_stable(image, group, state, topics)
    return {
        (topic, partition): OffsetAndMetadata(record.offset, record.leader_epoch, record.metadata)
        for (topic, partition), record in named(image, state.groups.get(group))
        if topics is None or topic in topics
    }


def _check_stable(image: ClusterImage, group: str, state: ConsumerOffsets, topics: Collection[str] | None) -> None:
    for (topic_id, partition), producer_id in sorted(state.unstable(group).items()):
        topic = image.topics.get(topic_id)
        if topic is not None and (topics is None or topic.name in topics):
            raise UnstableOffsetCommitError(
                f"group {group!r}: the transaction of producer id {producer_id}, which is still "
                f"open, has an offset for {topic.name}-{partition}; try again, or find it with "
                "stratalog transactions list"
            )


class CommittedRow(PartitionRow, frozen=True, kw_only=True):
    """An offset that was committed."""

    offset: int
    metadata: str


class LagRow(PartitionRow, frozen=True, kw_only=True):
    """The lag of a group in a partition; None for unknown values."""

    committed: int | None
    log_end: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    beyond_end: int | None = None
    """For a commit beyond the log end, the number of offsets between the log end and the commit. Such a commit has
    no lag."""
    leader_epoch: int | None
    metadata: str | None
    expires: str | msgspec.UnsetType = msgspec.UNSET
    """The time when the group is deleted."""


LAG_SCHEMA = (
    "topic STRING, partition INT, committed BIGINT, log_end BIGINT, high_watermark BIGINT, lag BIGINT, "
    "beyond_end BIGINT, leader_epoch INT, metadata STRING, expires TIMESTAMP"
)
"""The columns of ``lag``, for Spark."""


def lag(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, group: str) -> Report:
    """Measure the lag of a group: one row per partition of the topics for which the group has committed offsets.
    The lag is the number of records below the high watermark that the group has not processed. In a partition
    without a commit, all records are unprocessed. A commit beyond the log end has ``beyond_end`` instead of a lag,
    and a note. ``expires`` is the time at which the group is deleted unless it commits again. A partition that
    cannot be listed is a failure in the report, and its row has the committed offset.

    Raises: InvalidGroupIdError, GroupIdNotFoundError; errors from reading the group's partition.
    """
    check_group(group)
    with execution.run("groups lag") as run:
        image = metadata.image()
        state = existing_group(storage, execution.clock, memory, image, group, only_looks=True)[1]
        leaders, run.failures = list_leaders(storage, memory, image, [state])
        expires = utc_text(state.expires_ms)
        rows = lag_rows(image, state, leaders)
        run.add(msgspec.structs.replace(row, expires=expires) for row in rows)
        run.notes += [
            f"{row.topic}-{row.partition}: the committed offset {row.committed} is beyond the log end "
            f"{row.log_end}. A consumer that continues there gets OFFSET_OUT_OF_RANGE, or misses the records "
            "below that offset. Move the group's offset with groups reset-offsets"
            for row in rows
            if row.beyond_end is not None
        ]
    run.totals |= {"group": group, "lag": run.sum("lag")}
    return run.report()


def list_leaders(
    storage: Storage, memory: Memory, image: ClusterImage, groups: Iterable[GroupState]
) -> tuple[LeadersOf, list[Failure]]:
    """List the leaders of all partitions of the topics that these groups have committed for, each once. Also
    returns the failures of leaders that cannot be listed, or do not know the high watermark yet.
    """

    def look(view: PartitionView) -> SeenLeader:
        seen = seen_leader(storage, memory, image, view)
        seen.latest(Isolation.READ_UNCOMMITTED)
        return seen

    topics = sorted({topic for group in groups for (topic, _), _ in named(image, group)})
    views = [view for topic in topics for view in image.views(topic)]
    outcomes = list(storage.threads.run(look, views))
    failures = [Failure.of(storage.replicas(one.item), one.error) for one in outcomes if isinstance(one, Failed)]
    return {(one.item.topic, one.item.partition): one for one in outcomes}, failures


def lag_rows(image: ClusterImage, group: GroupState, leaders: LeadersOf) -> list[LagRow]:
    """The lag of a group behind ``leaders``, which must have all partitions of its topics. One row per partition,
    in order of topic and partition.
    """
    found = dict(named(image, group))
    rows: list[LagRow] = []
    for topic in sorted({topic for topic, _ in found}):
        for view in image.views(topic):
            key = topic, view.partition
            listed = leaders[key]
            rows.append(_lag_row(view, found.get(key), listed.value if isinstance(listed, Done) else None))
    return rows


def _lag_row(view: PartitionView, record: OffsetCommit | None, leader: SeenLeader | None) -> LagRow:
    row = LagRow(
        topic=view.topic,
        partition=view.partition,
        committed=None if record is None else record.offset,
        leader_epoch=None if record is None else record.leader_epoch,
        metadata=None if record is None else record.metadata,
    )
    if leader is None:
        return row
    processed = leader.log_start if record is None else record.offset
    end, high_watermark = leader.log.log_end, leader.log.high_watermark
    if processed > end:
        return msgspec.structs.replace(row, log_end=end, high_watermark=high_watermark, beyond_end=processed - end)
    lag = max(0, high_watermark - processed)
    return msgspec.structs.replace(row, log_end=end, high_watermark=high_watermark, lag=lag)


# ---------------------------------------------------------------------------------- the checks


def _check_member(group: str, state: GroupState | None, member_epoch: int) -> None:
    if state is not None and is_stale(member_epoch, state.member_epoch):
        raise StaleMemberEpochError(
            f"group {group!r}: a member with epoch {state.member_epoch} has already committed, "
            f"but this member has {member_epoch}: a newer member has taken over; stop this member"
        )


def _records(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    group: str,
    wanted: Mapping[TopicPartition, OffsetAndMetadata],
    member_epoch: int | None,
    *,
    beyond_end: bool = False,
) -> list[OffsetCommit]:
    """The commits as records, checked against the current partitions."""
    check_metadata_size(wanted, cluster_config_of(image).offset_metadata_max_bytes)
    views = [image.view(image.topic(topic).topic_id, partition) for topic, partition in wanted]

    def check(view: PartitionView) -> None:
        offset, end = wanted[view.topic, view.partition].offset, look_at_leader(storage.replicas(view)).log_end
        if offset > end:
            raise OffsetOutOfRangeError(f"{view}: offset {offset} cannot be committed: the log ends at {end}")

    if not beyond_end:
        values(storage.threads.run(check, views))
    return commit_records(storage, clock, image, group, wanted, member_epoch)


# --------------------------------------------------------------------------- the group's partition


def commit_records(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    group: str,
    wanted: Mapping[TopicPartition, OffsetAndMetadata],
    member_epoch: int | None = None,
) -> list[OffsetCommit]:
    """Commits of a group as records, by topic and partition. Raises: UnknownTopicOrPartitionError."""
    now_ms = _stamp_ms(storage, clock, image, group)
    expires_ms = now_ms + cluster_config_of(image).offsets_retention_minutes * 60_000
    return [
        OffsetCommit(
            group=group,
            topic_id=image.topic(topic).topic_id,
            partition=partition,
            offset=given.offset,
            leader_epoch=given.leader_epoch,
            metadata=given.metadata,
            commit_ms=now_ms,
            expires_ms=expires_ms,
            member_epoch=member_epoch,
        )
        for (topic, partition), given in wanted.items()
    ]


def _stamp_ms(storage: Storage, clock: Clock, image: ClusterImage, group: str) -> int:
    """The timestamp of a commit; the time until the group expires starts here."""
    if OFFSETS_TOPIC not in image.topic_ids:
        return clock.now_ms()
    topic = image.topic(OFFSETS_TOPIC)
    return stamp_of(storage, clock, image, topic.topic_id, partition_for(group, len(topic.partitions)))


def append_to_group(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    group: str,
    records: Iterable[OffsetsRecord],
) -> int:
    """Append to the group's partition of ``__consumer_offsets``. The topic is created if it is missing. Returns
    the offset of the first record. Raises: see ``append_state`` and ``ensure_topic``.
    """
    image = ensure_topic(metadata, storage, image, offsets_topic(cluster_config_of(image)))
    topic = image.topic(OFFSETS_TOPIC)
    return append_state(
        metadata, storage, clock, memory, topic, partition_for(group, len(topic.partitions)), OFFSETS, records
    )


def read_groups(
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    group: str,
    *,
    until: int | None = None,
    since: ReadState[ConsumerOffsets] | None = None,
    only_looks: bool = False,
) -> ReadState[ConsumerOffsets]:
    """Read the groups in the partition of ``group``. Raises: see ``read_state``, or ``look_at_state``."""
    if OFFSETS_TOPIC not in image.topic_ids:
        return ReadState(OFFSETS.empty, 0)
    topic = image.topic(OFFSETS_TOPIC)
    view = image.view(topic.topic_id, partition_for(group, len(topic.partitions)))
    if only_looks:
        return look_at_state(storage, clock, memory, view, OFFSETS)
    return read_state(storage, clock, memory, view, OFFSETS, until=until, since=since)


def existing_group(
    storage: Storage, clock: Clock, memory: Memory, image: ClusterImage, group: str, *, only_looks: bool = False
) -> tuple[ReadState[ConsumerOffsets], GroupState]:
    """The group, and the state that contains it; ``only_looks``: see ``look_at_state``.

    Raises: GroupIdNotFoundError naming the group with the most similar name; see ``read_state``.
    """
    read = read_groups(storage, clock, memory, image, group, only_looks=only_looks)
    state = read.state.groups.get(group)
    if state is None:
        raise GroupIdNotFoundError(
            f"group {group!r} does not exist: it has not committed within "
            f"offsets.retention.minutes{did_you_mean(group, all_groups(storage, clock, memory, image)[0])}"
        )
    return read, state


def all_groups(
    storage: Storage, clock: Clock, memory: Memory, image: ClusterImage
) -> tuple[dict[str, GroupState], list[Failure]]:
    """Every group by name, and the failures of unreadable partitions of ``__consumer_offsets``."""
    found: dict[str, GroupState] = {}
    failures: list[Failure] = []
    views = image.views(OFFSETS_TOPIC) if OFFSETS_TOPIC in image.topic_ids else []
    for outcome in storage.threads.run(lambda view: look_at_state(storage, clock, memory, view, OFFSETS), views):
        match outcome:
            case Done(_, read):
                found |= read.state.groups
            case Failed(view, error):
                failures.append(Failure.of(storage.replicas(view), error))
    return found, failures


def named(image: ClusterImage, group: GroupState | None) -> list[tuple[TopicPartition, OffsetCommit]]:
    """The committed offsets of existing topics, ordered by name."""
    return sorted(
        ((image.topics[topic_id].name, partition), record)
        for (topic_id, partition), record in ({} if group is None else group.offsets).items()
        if topic_id in image.topics
    )


def forget_expired(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    view: PartitionView,
    now_ms: int | None,
) -> int:
    """Delete the groups of one partition of ``__consumer_offsets`` that have not committed for
    ``offsets.retention.minutes``, and commits for deleted topics; returns the number of records written. A group
    that commits concurrently keeps all of its offsets. ``now_ms`` comes from ``removal_time``.

    Raises: see ``read_state`` and ``append_state``.
    """
    state = read_state(storage, clock, memory, view, OFFSETS).state
    # Read the topics after the groups: a topic that has commits and no longer exists was deleted.
    image = metadata.image()
    gone = state.expired(now_ms, image.topics.keys())
    if gone:
        append_state(metadata, storage, clock, memory, image.topic(OFFSETS_TOPIC), view.partition, OFFSETS, gone)
    return len(gone)
