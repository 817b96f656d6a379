"""Lists consumer groups, resets their offsets, deletes them, and reports their lag, like
``kafka-consumer-groups.sh``.

A reset of offsets is an ordinary commit by a non-member. Stop the consumers of the group first. If they keep
running, their next commit replaces the reset offsets. A deletion only takes effect if the group does not change
meanwhile: a group that commits during the deletion keeps all its offsets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex

from stratalog.engine.brokers.probe import with_leaders
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report, utc_text
from stratalog.engine.driver.run import PartitionRow, Row
from stratalog.engine.driver.state_cache import ReadState
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.list_offsets import offset_at
from stratalog.engine.reading.look import PartitionState, look
from stratalog.engine.reading.positions import FirstAt, Place, spec_of
from stratalog.engine.records.groups import (
    all_groups,
    append_to_group,
    commit_records,
    existing_group,
    lag_rows,
    list_leaders,
    named,
    read_groups,
)
from stratalog.engine.state.consumer_offsets import (
    ConsumerOffsets,
    ForgetOffset,
    GroupState,
    OffsetCommit,
    OffsetsRecord,
    forget_group,
    forget_offsets,
)
from stratalog.engine.state.group_commits import OffsetAndMetadata, check_group
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import OffsetSpec, UnknownOffset

ResetTo = Place | datetime | str
"""The target of a reset: a named position, an offset, or the first record at or after a time."""

_Target = Callable[[PartitionState, OffsetCommit | None], int]
"""A function that returns the target offset of a partition, given the partition's commit, if any. The target may
be out of range."""


class GroupRow(Row, frozen=True, kw_only=True):
    """The row of a group; times are text."""

    group: str
    topics: str
    """Comma-separated."""
    partitions: int
    member_epoch: int | None
    latest_commit: str | None
    expires: str


class ResetRow(PartitionRow, frozen=True, kw_only=True):
    old_offset: int | None
    new_offset: int


class ForgottenRow(PartitionRow, frozen=True, kw_only=True):
    committed: int


class LagMetricRow(Row, frozen=True, kw_only=True):
    """The lag of a group in a partition, as a metric."""

    metric: str
    group: str
    topic: str
    partition: int
    value: int


def groups(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> Report:
    """List all groups. A partition of ``__consumer_offsets`` that cannot be read is a failure in the report."""
    with execution.run("groups list") as run:
        image = metadata.image()
        found, run.failures = all_groups(storage, execution.clock, memory, image)
        run.add(_group_row(image, name, group) for name, group in sorted(found.items()))
    run.totals["groups"] = len(run.rows)
    return run.report()


def _group_row(image: ClusterImage, name: str, group: GroupState) -> GroupRow:
    found = named(image, group)
    return GroupRow(
        group=name,
        topics=", ".join(sorted({topic for (topic, _), _ in found})),
        partitions=len(found),
        member_epoch=group.member_epoch,
        latest_commit=utc_text(max((record.commit_ms for _, record in found), default=0)) if found else None,
        expires=utc_text(group.expires_ms),
    )


# ------------------------------------------------------------------------------------- reset


def reset_offsets(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    group: str,
    topics: Sequence[str] | None = None,
    *,
    to: ResetTo | None = None,
    shift_by: int | None = None,
    by_duration: timedelta | None = None,
    partitions: Sequence[int] | None = None,
    dry_run: bool = False,
) -> Report:
    """Reset a group's commits for the topics (None: the topics that it has committed for), in all their
    partitions, or only in the given partitions. The target is a place (``to``), an offset ``shift_by`` records
    away (back if negative), or the position of the log ``by_duration`` ago. An offset out of range is replaced
    with the nearest end of the log, and a note says so. The report has one row per partition, with the old and the
    new offset. ``dry_run`` changes nothing.

    Raises: InvalidGroupIdError, GroupIdNotFoundError, UnknownTopicOrPartitionError, InvalidCallError (also for a
        shift without a commit); see ``groups.commit``. If it raises any of the named errors, nothing was changed.
    """
    check_group(group)
    target = _target(execution.clock, to, shift_by, by_duration)

    def plan(image: ClusterImage) -> tuple[ClusterImage, dict[TopicPartition, tuple[int | None, int]]]:
        run.notes.clear()
        found = dict(named(image, existing_group(storage, execution.clock, memory, image, group)[1]))
        moved: dict[TopicPartition, tuple[int | None, int]] = {}
        for topic in sorted({topic for topic, _ in found}) if topics is None else dict.fromkeys(topics):
            for state in look(metadata, storage, memory, topic, partitions)[1]:
                key = topic, state.leader.view.partition
                record = found.get(key)
                moved[key] = (
                    None if record is None else record.offset,
                    _within(state, target(state, record), run.notes),
                )
        return image, moved

    with execution.run("groups reset_offsets", dry_run=dry_run) as run:
        image, moved = with_leaders(metadata, storage, plan, dry_run=dry_run)
        if moved and not dry_run:
            wanted = {key: OffsetAndMetadata(new) for key, (_, new) in moved.items()}
            append_to_group(
                metadata,
                storage,
                execution.clock,
                memory,
                image,
                group,
                commit_records(storage, execution.clock, image, group, wanted),
            )
    run.add(
        ResetRow(topic=topic, partition=partition, old_offset=old, new_offset=new)
        for (topic, partition), (old, new) in moved.items()
    )
    run.totals["group"] = group
    return run.report()


def _target(clock: Clock, to: ResetTo | None, shift_by: int | None, by_duration: timedelta | None) -> _Target:
    """Return the target of the reset. Raises: InvalidCallError."""
    if sum(given is not None for given in (to, shift_by, by_duration)) != 1:
        raise InvalidCallError("give exactly one target for the offsets: to, shift_by, or by_duration")
    match to, shift_by, by_duration:
        case (OffsetSpec() | FirstAt()) as place, _, _ if place is not OffsetSpec.MAX_TIMESTAMP:
            return lambda state, _: _at(state, place)
        case datetime() | str(), _, _:
            return _target(clock, spec_of(to, "to ="), None, None)
        case SupportsIndex(), _, _ if not isinstance(to, OffsetSpec | bool):
            offset = whole(to, "to")  # an offset out of range is moved to the nearest end of the log
            return lambda *_: offset
        case _, SupportsIndex(), _ if not isinstance(shift_by, bool):
            records = operator.index(shift_by)  # ``shift_by`` may have any size: the result is clamped to the log
            return lambda state, record: _shifted(state, record, records)
        case _, _, timedelta() as ago if ago >= timedelta(0):
            now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
            since = FirstAt(now - min(ago, now - datetime.min.replace(tzinfo=UTC)))
            return lambda state, _: _at(state, since)
    raise InvalidCallError(
        f"to={to!r}, shift_by={shift_by!r}, by_duration={by_duration!r}: to takes an offset, an OffsetSpec such "
        "as EARLIEST, a time with a zone, or either of these as a string; shift_by takes a number of records; "
        "by_duration takes a timedelta of 0 or more"
    )


def _at(state: PartitionState, place: Place) -> int:
    found = offset_at(state, place, Isolation.READ_UNCOMMITTED)
    if isinstance(found, UnknownOffset):
        raise InvalidCallError(found.reason)
    return found


def _shifted(state: PartitionState, record: OffsetCommit | None, records: int) -> int:
    if record is None:
        raise InvalidCallError(
            f"{state.leader}: the group has no committed offset in this partition, so shift_by cannot be used"
        )
    return record.offset + records


def _within(state: PartitionState, offset: int, notes: list[str]) -> int:
    """Return the offset, or the nearest end of the log."""
    start, end = state.positions.log_start, state.positions.high_watermark
    if offset > end:
        end = state.leader.latest(Isolation.READ_UNCOMMITTED)
    nearest = min(max(offset, start), end)
    if nearest != offset:
        notes.append(f"{state.leader}: offset {offset} is not within {start} and {end}: {nearest} is used instead")
    return nearest


# ------------------------------------------------------------------------------------ delete


def delete_group(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    group: str,
    *,
    if_exists: bool = False,
    dry_run: bool = False,
) -> Report:
    """Delete a group: its commits, including those in open transactions, and its member epoch. The report has one
    row per partition. With ``if_exists`` a missing group is only a note.

    Raises: InvalidGroupIdError, GroupIdNotFoundError; NonEmptyGroupError if the group commits during the deletion;
        see ``groups.commit``.
    """

    def wanted(image: ClusterImage, offsets: ConsumerOffsets, state: GroupState) -> list[OffsetsRecord]:
        return forget_group(group, state, pending=True)

    try:
        return _forget(metadata, storage, execution, memory, "groups delete", group, wanted, dry_run)
    except GroupIdNotFoundError:
        if not if_exists:
            raise
        return Report("groups delete", (), dry_run=dry_run, notes=[f"there is no group {group!r}"])


def delete_offsets(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    group: str,
    topics: Sequence[str],
    *,
    dry_run: bool = False,
) -> Report:
    """Delete a group's commits for these topics, including those in open transactions. The report has one row per
    partition.

    Raises: UnknownTopicOrPartitionError, also if a topic has no commit; see ``delete_group``.
    """

    def wanted(image: ClusterImage, offsets: ConsumerOffsets, state: GroupState) -> list[OffsetsRecord]:
        chosen = {image.topic(name).topic_id: name for name in topics}
        for topic_id, name in chosen.items():
            if all(topic_id != committed for committed, _ in state.offsets):
                raise UnknownTopicOrPartitionError(f"group {group!r} has no committed offsets for topic {name!r}")
        keys = {key for key in (*state.offsets, *offsets.unstable(group)) if key[0] in chosen}
        return forget_offsets(group, state, keys, pending=True)

    return _forget(metadata, storage, execution, memory, "groups delete_offsets", group, wanted, dry_run)


def _forget(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    operation: str,
    group: str,
    wanted: Callable[[ClusterImage, ConsumerOffsets, GroupState], list[OffsetsRecord]],
    dry_run: bool,
) -> Report:
    check_group(group)

    def plan(image: ClusterImage) -> tuple[ClusterImage, ReadState[ConsumerOffsets], list[OffsetsRecord]]:
        read, state = existing_group(storage, execution.clock, memory, image, group)
        return image, read, wanted(image, read.state, state)

    with execution.run(operation, dry_run=dry_run) as run:
        image, before, records = with_leaders(metadata, storage, plan, dry_run=dry_run)
        state = before.state.groups[group]
        if records and not dry_run:
            base = append_to_group(metadata, storage, execution.clock, memory, image, group, records)
            after = with_leaders(
                metadata,
                storage,
                lambda now: read_groups(storage, execution.clock, memory, now, group, until=base, since=before),
            )
            now = after.state.groups.get(group)
            if now is not None and now.latest_commit != state.latest_commit:
                raise NonEmptyGroupError(
                    f"group {group!r} has committed during the deletion: nothing was deleted; stop its "
                    "consumers, and try again"
                )
    forgotten = {(record.topic_id, record.partition) for record in records if isinstance(record, ForgetOffset)}
    run.add(
        ForgottenRow(topic=topic, partition=partition, committed=record.offset)
        for (topic, partition), record in named(image, state)
        if (record.topic_id, partition) in forgotten
    )
    run.totals["group"] = group
    return run.report()


RECORDS_LAG = "records-lag"


def lag_metrics(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> Report:
    """Report the lag of each group (Kafka's ``records-lag``), by partition of the topics that the group has
    committed for; see ``lag``. A partition that cannot be read is one failure in the report. Each partition is
    read once, for any number of groups.

    Raises: errors from reading the metadata.
    """
    with execution.run("metrics") as run:
        image = metadata.image()
        found, unread = all_groups(storage, execution.clock, memory, image)
        leaders, unlisted = list_leaders(storage, memory, image, found.values())
        run.add(
            LagMetricRow(metric=RECORDS_LAG, group=name, topic=row.topic, partition=row.partition, value=row.lag)
            for name, group in sorted(found.items())
            for row in lag_rows(image, group, leaders)
            if row.lag is not None
        )
        run.failures += [*unread, *unlisted]
    return run.report()
