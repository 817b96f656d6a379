"""Consumer groups: what they have committed, and how far behind they are (``__consumer_offsets``).

A commit is an append with acks=all to the group's partition; a read is the latest snapshot of that partition
and the log after it, below the high watermark. What a commit may be wrong in is found before anything is
written, but for one thing: whether a newer member of the group was faster. The log decides that, and the
committer looks afterwards (*write, then check*).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView
from engine.operations.state_log import append_state, ensure_topic, read_state
from engine.replication.damage import check_whole
from engine.report import Report, Value
from engine.settings import ClusterConfig
from engine.state.consumer_offsets import (
    MAX_GROUP_LENGTH,
    GroupState,
    OffsetCommit,
    OffsetsRecord,
    is_stale,
)
from engine.state.internal_topics import OFFSETS_TOPIC, offsets_topic, partition_for
from engine.state.keyed import OFFSETS
from partitions.errors import (
    InvalidCallError,
    InvalidGroupIdError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    UnknownTopicOrPartitionError,
)
from partitions.runner import values

TopicPartition = tuple[str, int]
"""A topic's name and a partition of it."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """What a group commits for a partition: everything below ``offset`` is processed."""

    offset: int
    leader_epoch: int | None = None
    """Of the last record that was processed, where it is known."""
    metadata: str = ""
    """Whatever the group wants to find again; at most ``offset.metadata.max.bytes``."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """A partition's leader, as it was listed."""

    view: PartitionView
    log_end: int
    high_watermark: int


def commit(
    context: Context,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    member_epoch: int | None = None,
) -> Report:
    """Commit offsets for a group, all of them or none. ``member_epoch`` grows with every new incarnation of
    the group's members (an attempt number, say): commits of older ones are refused. Without it the committer is
    no member, and never stale. The first commit of a cluster creates ``__consumer_offsets``.

    Raises: InvalidGroupIdError, InvalidCallError, UnknownTopicOrPartitionError, OffsetOutOfRangeError beyond the
        log end, OffsetMetadataTooLargeError, StaleMemberEpochError: nothing was changed then;
        InvalidReplicationFactorError when ``__consumer_offsets`` cannot be created on so few brokers;
        OperationFailedError when the append failed.
    """
    _check_group(group)
    with context.measured() as measure:
        image = context.metadata.image()
        config = context.cluster_config(image)
        wanted = {key: _offset_of(key, given, config) for key, given in offsets.items()}
        if member_epoch is not None and (isinstance(member_epoch, bool) or member_epoch < 0):
            raise InvalidCallError(f"group {group!r}: member epoch {member_epoch!r}: it is a number of 0 or more")
        views = {key: _view(image, key) for key in wanted}
        _check_ends(context, wanted, views)
        records = _records(context, group, wanted, views, config, member_epoch)
        if records:
            _append(context, image, config, group, records, member_epoch)
    rows: list[dict[str, Value]] = [
        {"topic": topic, "partition": partition, "offset": given.offset, "metadata": given.metadata}
        for (topic, partition), given in sorted(wanted.items())
    ]
    return Report("commit", rows, (), {"group": group}, False, measure.seconds, measure.counts)


def committed(
    context: Context, group: str, topics: Collection[str] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the group has committed, of these topics (all when None), by topic and partition; without what was
    committed for topics that are deleted, also where a topic of that name is there again.

    Raises: InvalidGroupIdError; UnknownTopicOrPartitionError for ``topics``; what keeps the group's partition
        from being read.
    """
    _check_group(group)
    image = context.metadata.image()
    for name in topics or ():
        image.topic(name)
    return {
        (topic, partition): OffsetAndMetadata(record.offset, record.leader_epoch, record.metadata)
        for (topic, partition), record in _named(image, _group(context, image, group))
        if topics is None or topic in topics
    }


def lag(context: Context, group: str) -> Report:
    """One row per partition of the topics that the group has committed offsets of: how many records below the
    high watermark it has not processed. A partition without a commit lags by all that is in it.

    Raises: as ``committed``; LeaderNotAvailableError and its like when a partition cannot be looked at.
    """
    _check_group(group)
    with context.measured() as measure:
        image = context.metadata.image()
        found = dict(_named(image, _group(context, image, group)))
        topics = sorted({topic for topic, _ in found})
        ends = _ends(context, [view for topic in topics for view in image.views(topic)])
        rows = [_lag_row(found.get((seen.view.topic, seen.view.partition)), seen) for seen in ends]
    total = sum(int(row["lag"] or 0) for row in rows)
    return Report("lag", rows, (), {"group": group, "lag": total}, False, measure.seconds, measure.counts)


LAG_SCHEMA = (
    "topic STRING, partition INT, committed BIGINT, log_end BIGINT, high_watermark BIGINT, lag BIGINT, "
    "metadata STRING"
)
"""The columns of ``lag``, for Spark."""


def _lag_row(record: OffsetCommit | None, seen: _Ends) -> dict[str, Value]:
    processed = seen.view.log_start_offset if record is None else record.offset
    return {
        "topic": seen.view.topic,
        "partition": seen.view.partition,
        "committed": None if record is None else record.offset,
        "log_end": seen.log_end,
        "high_watermark": seen.high_watermark,
        "lag": max(0, seen.high_watermark - processed),
        "metadata": None if record is None else record.metadata,
    }


# ---------------------------------------------------------------------------------- the checks


def _check_group(group: str) -> None:
    if not isinstance(group, str) or not 0 < len(group) <= MAX_GROUP_LENGTH:
        said = (
            f"{group[:20]!r}... has {len(group)} characters" if isinstance(group, str) and group else repr(group)
        )
        raise InvalidGroupIdError(
            f"group {said}: the name of a group is a text of 1 to {MAX_GROUP_LENGTH} characters"
        )
    try:
        group.encode()
    except UnicodeEncodeError as error:
        raise InvalidGroupIdError(f"group {group!r}: its name is no valid Unicode text") from error


def _offset_of(key: TopicPartition, given: OffsetAndMetadata | int, config: ClusterConfig) -> OffsetAndMetadata:
    wanted = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
    if isinstance(wanted.offset, bool) or not isinstance(wanted.offset, int) or wanted.offset < 0:
        raise InvalidCallError(
            f"{_name(key)}: offset {wanted.offset!r} cannot be committed: it is a number of 0 or more"
        )
    limit = config.offset_metadata_max_bytes
    if len(wanted.metadata.encode("utf-8", "surrogatepass")) > limit:
        raise OffsetMetadataTooLargeError(
            f"{_name(key)}: the metadata of its offset has more than {limit} bytes (offset.metadata.max.bytes)"
        )
    return wanted


def _view(image: ClusterImage, key: TopicPartition) -> PartitionView:
    match key:
        case (str() as topic, int() as partition):
            return image.view(image.topic(topic).topic_id, partition)
    raise UnknownTopicOrPartitionError(f"{key!r} is no partition: write it as (topic, number)")


def _check_ends(
    context: Context,
    wanted: Mapping[TopicPartition, OffsetAndMetadata],
    views: Mapping[TopicPartition, PartitionView],
) -> None:
    for seen in _ends(context, views.values()):
        key = seen.view.topic, seen.view.partition
        if wanted[key].offset > seen.log_end:
            raise OffsetOutOfRangeError(
                f"{_name(key)}: offset {wanted[key].offset} cannot be committed: the log ends at {seen.log_end}"
            )


def _name(key: TopicPartition) -> str:
    return f"{key[0]}-{key[1]}" if isinstance(key, tuple) and len(key) == 2 else repr(key)


def _ends(context: Context, views: Iterable[PartitionView]) -> list[_Ends]:
    def look(view: PartitionView) -> _Ends:
        replica = context.site(view).leader
        log = replica.log()
        check_whole(replica, log)
        return _Ends(view, log.log_end, log.high_watermark)

    looked = values(context.threads.run(look, list(views)))
    return sorted(looked, key=lambda seen: (seen.view.topic, seen.view.partition))


# --------------------------------------------------------------------------- the group's partition


def _records(
    context: Context,
    group: str,
    wanted: Mapping[TopicPartition, OffsetAndMetadata],
    views: Mapping[TopicPartition, PartitionView],
    config: ClusterConfig,
    member_epoch: int | None,
) -> list[OffsetsRecord]:
    now_ms = context.clock.now_ms()
    return [
        OffsetCommit(
            group=group,
            topic_id=views[key].topic_id,
            partition=key[1],
            offset=given.offset,
            leader_epoch=given.leader_epoch,
            metadata=given.metadata,
            commit_ms=now_ms,
            expires_ms=now_ms + config.offsets_retention_minutes * 60_000,
            member_epoch=member_epoch,
        )
        for key, given in sorted(wanted.items())
    ]


def _append(
    context: Context,
    image: ClusterImage,
    config: ClusterConfig,
    group: str,
    records: list[OffsetsRecord],
    member_epoch: int | None,
) -> None:
    if member_epoch is not None:
        _check_member(group, _group(context, image, group), member_epoch)
    topic = ensure_topic(context, image, offsets_topic(config))
    partition = partition_for(group, len(topic.partitions))
    base_offset = append_state(context, topic, partition, OFFSETS, records)
    if member_epoch is not None:
        # A newer member's commit may have come between the look and the append: then ours counts for nothing.
        _check_member(group, _group(context, context.metadata.image(), group, base_offset), member_epoch)


def _check_member(group: str, state: GroupState, member_epoch: int) -> None:
    if is_stale(member_epoch, state.member_epoch):
        raise StaleMemberEpochError(
            f"group {group!r}: a member with epoch {state.member_epoch} has committed already, this one has "
            f"{member_epoch}: a newer one has taken over, stop this one"
        )


def _group(context: Context, image: ClusterImage, group: str, until: int | None = None) -> GroupState:
    """The group now, or as of an offset of its partition."""
    if OFFSETS_TOPIC not in image.topic_ids:
        return GroupState()
    topic = image.topic(OFFSETS_TOPIC)
    view = image.view(topic.topic_id, partition_for(group, len(topic.partitions)))
    return read_state(context, view, OFFSETS, until).groups.get(group, GroupState())


def _named(image: ClusterImage, group: GroupState) -> list[tuple[TopicPartition, OffsetCommit]]:
    """What was committed for topics that are there, in the order of their names."""
    return sorted(
        ((image.topics[topic_id].name, partition), record)
        for (topic_id, partition), record in group.offsets.items()
        if topic_id in image.topics
    )
