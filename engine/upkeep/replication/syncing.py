"""The work of ``replicate``, on one partition and on all: syncs followers to their leaders, then proves how far
each log is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.turns import Over, in_turns
from stratalog.engine.metadata.partition_commands import MarkWritten, WrittenUpTo
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.in_sync import Missed, Progressed, behind_since_ms, is_current
from stratalog.engine.replication.damage import is_damage_of
from stratalog.engine.replication.partition import PartitionWork
from stratalog.engine.replication.sync import Synced, SyncOptions, sync_followers
from stratalog.engine.replication.watermark import advance_high_watermark
from stratalog.partitions.errors import StratalogError, ThrottlingQuotaExceededError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed


@dataclass(frozen=True, slots=True)
class SyncWork(PartitionWork):
    followers: tuple[int, ...]
    options: SyncOptions
    min_insync_replicas: int


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The results and errors by follower. A follower that still lacks files has both a result and an error.
    ``leader_end`` is the leader's log end as listed.
    """

    synced: tuple[Synced, ...]
    missed: tuple[tuple[int, Missed], ...]
    leader_end: int
    high_watermark: int


def sync_partition(work: SyncWork) -> SyncResult:
    """The task. After a follower has failed, the other followers are still synced.

    Raises: errors from listing the leader; CorruptionError kinds when the leader is damaged.
    """
    log, outcomes = sync_followers(work.replicas, work.followers, work.options)

    def missing(error: StratalogError) -> Missed:
        # A follower in the ISR has all records below the high watermark.
        return Missed(error, behind_since_ms(log, log.high_watermark))

    synced: list[Synced] = []
    missed: list[tuple[int, Missed]] = []
    for outcome in outcomes:
        match outcome:
            case Done(follower, value):
                synced.append(value)
                if value.left:
                    left = ThrottlingQuotaExceededError(f"{value.left:,} files are left for the next run")
                    missed.append((follower, missing(left)))
            case Failed(_, error) if is_damage_of(work.replicas.view.leader, error):
                raise error
            case Failed(follower, error):
                missed.append((follower, missing(error)))
    return SyncResult(tuple(synced), tuple(missed), log.log_end, log.high_watermark)


def sync_all(
    execution: Execution,
    works: Sequence[SyncWork],
    states: Mapping[TopicIdPartition, Progressed],
    over: Over | None = None,
) -> None:
    """Sync the followers of all partitions, and record the results in ``states``. ``over`` is checked after a
    group of files has been copied to each follower, and then after growing numbers of groups. When ``over``
    returns True, followers that still lack files are ``cut_off``.
    """

    def turn(waiting: Sequence[SyncWork], groups: int | None) -> list[SyncWork]:
        left: list[SyncWork] = []
        bounded = [replace(one, options=replace(one.options, most_groups=groups)) for one in waiting]
        for outcome in execution.tasks.run(sync_partition, bounded):
            state = states[outcome.item.replicas.view.key]
            size_bytes = 0
            match outcome:
                case Done(work, result):
                    size_bytes = _note(state, result)
                    if behind := [one.broker_id for one in result.synced if one.left and not one.throttled]:
                        left.append(replace(work, followers=tuple(behind)))
                case Failed(work, error):
                    state.leader_error = error
                    state.fail(work, error)
            execution.progress.advance(size_bytes)
        return left

    execution.progress.start("replicate", len(works), "partitions")
    in_turns(works, over, turn)
    execution.progress.finish()


def _note(state: Progressed, result: SyncResult) -> int:
    """Record the result of a task; returns the number of copied bytes."""
    state.log_end = result.leader_end
    state.high_watermark = max(state.high_watermark, result.high_watermark)
    cut_off = set()
    for synced in result.synced:
        state.copied_files += synced.copied_files
        state.copied_bytes += synced.copied_bytes
        state.avoided_bytes += synced.avoided_bytes
        state.missed.pop(synced.broker_id, None)
        state.cut_off.discard(synced.broker_id)
        if synced.left:
            cut_off.add(synced.broker_id)
        else:
            state.caught_up[synced.broker_id] = synced
    for broker, missed in result.missed:
        state.missed[broker] = missed
        if broker in cut_off:
            state.cut_off.add(broker)
        else:
            state.cut_off.discard(broker)
            state.fail(f"{state.replicas} on broker {broker}", missed.error)
    return sum(synced.copied_bytes for synced in result.synced)


def prove(metadata: MetadataClient, storage: Storage, states: Sequence[Progressed]) -> None:
    """Advance the high watermark to the offset up to which every member of the maximal ISR was seen to have the
    log. Before that, a linearizable read must show that the partition is unchanged.
    """
    candidates = [state for state in states if proven(state) > state.high_watermark]
    if not candidates:
        return
    image = metadata.image()
    unchanged = [state for state in candidates if is_current(image, state.replicas.view)]

    def write(state: Progressed) -> int:
        advance_high_watermark(state.replicas, proven(state), storage.copies)
        return proven(state)

    for outcome in storage.threads.run(write, unchanged):
        match outcome:
            case Done(state, offset):
                state.high_watermark = offset
            case Failed(state, error):
                state.fail(state.replicas, error)


def proven(state: Progressed) -> int:
    """The offset up to which every member of the maximal ISR was seen to have the log. 0 if a member was not
    listed, or if the ISR has too few members to commit records.
    """
    if state.log_end == 0 or not state.has_min_isr:
        return 0
    ends = [state.log_end]
    for broker in state.replicas.acknowledging:
        if broker not in state.caught_up:
            return 0
        ends.append(state.caught_up[broker].log_end)
    return min(ends)


def mark_written(metadata: MetadataClient, states: Iterable[Progressed]) -> None:
    """Record in the metadata the offsets up to which partitions have committed records. One commit covers all
    partitions that have at least twice as many offsets as recorded.
    """
    written = tuple(
        WrittenUpTo(*view.key, state.high_watermark, view.leader_epoch)
        for state in states
        for view in [state.replicas.view]
        if state.high_watermark > view.log_start_offset and state.high_watermark >= 2 * view.written_to
    )
    if written:
        metadata.submit(MarkWritten(written))
