"""Replicate: copies leaders' logs to followers, advances the high watermark, maintains the ISR.

0. probe the roots: fence missing brokers, register new roots; elect missing leaders if this is allowed
1. tasks: sync every follower of a partition to its leader
2. leaders whose storage has lost or changed data resign in favor of an intact member of the ISR. The bad file is
   replaced, and another round runs under the new leader. If all members of the ISR are behind the remote log, the
   leader continues from the end of the remote log (``behind_remote``)
3. members that are damaged, or have been behind for ``replica.lag.time.max.ms``, leave the ISR: one commit for all
4. one linearizable read; for unchanged partitions, the high watermark advances to the offset up to which every
   member of the maximal ISR has the log. It does not advance while the ISR is below ``min.insync.replicas``
   (KIP-966)
5. for followers outside the ISR that caught up: commit *adding*, sync once more, commit *in the ISR* (the two
   commits of the protocol's Expand). Each commit covers all partitions. If the second commit removes other
   replicas, the files that replace their files are read first (``letting_go``)
6. partitions whose view has changed meanwhile, or whose ISR is now large enough, start again from step 1
7. record in one commit the partitions that now have records, or have at least twice as many offsets as recorded
8. finish abandoned transactions, with ``__transaction_state``
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.config.cluster_config import NO_LIMIT
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_partitions, chosen_topics, cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.metadata.reassignment_commands import THROTTLED_RATE, EndThrottle
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.transactions import finish_due
from stratalog.engine.replicas.behind_remote import continue_from_remote
from stratalog.engine.replicas.damaged import ahead_of_metadata, replace_leaders
from stratalog.engine.replicas.foreign_files import note_foreign
from stratalog.engine.replicas.in_sync import Progressed, adding, is_current, joined, propose, without
from stratalog.engine.replicas.taking_writes import FailedCreates, unwritable_leaders
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import LogBehindRemoteError, RemoteTail
from stratalog.engine.replication.sync import SyncOptions
from stratalog.engine.replication.throttle import SharedThrottle
from stratalog.engine.state.internal_topics import TRANSACTIONS_TOPIC
from stratalog.engine.upkeep.replication.elect import elect_uncleanly_where_allowed
from stratalog.engine.upkeep.replication.letting_go import check_joins
from stratalog.engine.upkeep.replication.planned import plan_copies
from stratalog.engine.upkeep.replication.syncing import SyncWork, mark_written, prove, sync_all
from stratalog.engine.upkeep.tiering.remote_logs import ask_for_logs
from stratalog.partitions.clock import FOREVER_MS, Clock
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    InvalidUpdateVersionError,
    RetriableError,
    StaleMetadataError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed
from stratalog.tiering.bootstrap import LastTiered
from stratalog.tiering.remote_log import RemoteLog

_ROUNDS = 6


class ReplicateRow(PartitionRow, frozen=True, kw_only=True):
    leader: int | None
    isr: str
    log_end: int
    high_watermark: int
    copied_files: int
    copied_bytes: int
    avoided_bytes: int
    """The bytes that were not copied because a follower did not start at the leader's first local offset."""
    joined_s: float | None
    """The time when followers joined the ISR, in seconds from the start of the run; None if no follower joined."""


def replicate(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None = None,
    *,
    only: Collection[TopicIdPartition] | None = None,
    brokers: Sequence[int] | None = None,
    over: Callable[[], bool] | None = None,
    throttled_s: float | None = None,
    dry_run: bool = False,
) -> Report:
    """Replicate the topics (None: all; only the partitions in ``only``, if given), to all followers, or only to
    followers on ``brokers``. Each task waits at most ``throttled_s`` seconds (None: as long as necessary) for
    copies that a reassignment's throttle delays; the rest is left to the next run. ``totals["cut_off"]`` is the
    number of partitions that did not catch up because of the throttle or of ``over`` (``sync_all``).

    Raises: UnknownTopicOrPartitionError, UnknownBrokerError; errors of the metadata before the first copy. Any
    other error is a failure of its partition, or of the metadata, in the report.
    """
    cut_off = 0
    with execution.run("replicate", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        chosen_topics(image, topics)
        for broker in brokers or ():
            image.broker(broker)
        image = probe_first(metadata, storage, run, image)
        if not dry_run:
            image, elected = elect_uncleanly_where_allowed(metadata, storage, execution, image)
            run.notes += elected
        works = plan(storage, execution, image, topics, only, brokers, run, throttled_s)
        if dry_run:
            run.add(plan_copies(sends, image, works, run))
            run.estimate = sends.estimate()
        else:
            by_key = {w.replicas.view.key: Progressed(w.replicas, w.min_insync_replicas) for w in works}
            states = list(by_key.values())
            with run.still_reporting():
                try:
                    _run(metadata, storage, execution, works, by_key, brokers, over, run)
                finally:
                    run.add(map(_row, states))
                    run.failures += [failure for state in states for failure in state.failures]
                    run.notes += [note for state in states for note in state.notes]
                mark_written(metadata, states)
                run.settled |= {state.replicas.view.key: FOREVER_MS for state in states if _is_settled(state)}
                _finish_transactions(metadata, storage, execution.clock, memory, states, run)
                if any(work.replicas.view.target for work in works):
                    end_throttle(metadata, image)
            cut_off = sum(bool(state.cut_off) for state in states)
    run.totals["partitions"] = len(run.rows)
    run.total(*(("files", "bytes") if dry_run else ("copied_bytes", "avoided_bytes")))
    if cut_off:
        run.totals["cut_off"] = cut_off
    return run.report()


def _finish_transactions(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    states: Sequence[Progressed],
    run: OperationRun,
) -> None:
    """Step 8, for partitions that have records. Adds a note for each changed transaction."""
    views = [
        state.replicas.view
        for state in states
        if state.replicas.view.topic == TRANSACTIONS_TOPIC and state.high_watermark > 0
    ]
    for view in views:
        run.settled.pop(view.key, None)
    rows, next_ms = finish_due(metadata, storage, clock, memory, views, run)
    run.settled |= {
        state.replicas.view.key: next_ms[state.replicas.view.key]
        for state in states
        if state.replicas.view.key in next_ms and _is_settled(state)
    }
    run.notes += [f"transactional id {row.transactional_id!r} was {row.was}, is {row.state}" for row in rows]


def _is_settled(state: Progressed) -> bool:
    """Whether no work remains: all replicas are in the ISR, and all records are committed. (A fenced replica may
    return before any run notices its absence.)
    """
    view = state.replicas.view
    committed = state.high_watermark == state.log_end or not state.has_min_isr
    unfinished = view.adding or state.failures or state.cut_off or state.again
    return committed and {*view.replicas} <= {*view.isr} and not unfinished


def plan(
    storage: Storage,
    execution: Execution,
    image: ClusterImage,
    topics: Sequence[str] | None,
    only: Collection[TopicIdPartition] | None,
    brokers: Sequence[int] | None,
    run: OperationRun,
    throttled_s: float | None = None,
) -> list[SyncWork]:
    """One piece of work per partition, with the unfenced followers. A topic whose remote log cannot be read is a
    failure, but its other work continues; only followers that must start in the remote log have to wait. A topic
    with a damaged remote log is skipped.

    Raises: UnknownTopicOrPartitionError.
    """
    works = []
    cluster = cluster_config_of(image)
    last_tiered = LastTiered.of(
        cluster.follower_fetch_last_tiered_offset_enable, cluster.follower_fetch_last_tiered_offset_always_enable
    )
    rate, throttle = cluster.follower_replication_throttled_rate, None
    if rate != NO_LIMIT:
        throttle = SharedThrottle(rate, execution.clock, execution.tasks.processes, throttled_s)
    chosen = chosen_partitions(image, topics, only)
    remote_logs = _remote_logs(storage, image, [topic for topic, _ in chosen], run)
    for topic, views in chosen:
        config = topic_config_of(image, topic)
        if config.remote_storage_enable and topic.topic_id not in remote_logs:
            continue
        remote_log = remote_logs.get(topic.topic_id)
        for view in views:
            replicas = storage.replicas(view)
            tail = None
            if config.remote_storage_enable and (remote := replicas.remote) is not None:
                asked = replace(remote, unknown=True) if remote_log is None else remote.with_log(remote_log)
                tail = asked.known or RemoteTail(remote.store, remote.folder, None)
                replicas = replace(replicas, remote=asked)
            followers = _wanted(replicas, brokers)
            if brokers is not None and not followers:
                continue
            options = SyncOptions(
                copies=storage.copies,
                remote=tail,
                last_tiered=last_tiered,
                throttle=throttle,
                snapshots=config.snapshots,
            )
            works.append(SyncWork(replicas, followers, options, config.min_insync_replicas))
    return works


def end_throttle(metadata: MetadataClient, image: ClusterImage) -> None:
    """Remove the throttle, if ``image`` has one and no partition is being reassigned."""
    if THROTTLED_RATE in image.configs:
        metadata.submit(EndThrottle())


def _remote_logs(
    storage: Storage, image: ClusterImage, topics: Sequence[TopicImage], run: OperationRun
) -> dict[str, RemoteLog | None]:
    """The remote logs of the tiered topics, by topic id; None while the remote tier is down."""
    found: dict[str, RemoteLog | None] = {}
    for outcome in ask_for_logs(storage, image, topics):
        match outcome:
            case Done(topic, remote_log):
                found[topic.topic_id] = remote_log
            case Failed(topic, error):
                run.fail(topic.name, error)
                if isinstance(error, RetriableError):
                    found[topic.topic_id] = None
    return found


def _wanted(replicas: PartitionReplicas, brokers: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(broker for broker in replicas.followers if brokers is None or broker in brokers)


def _run(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    works: Sequence[SyncWork],
    states: Mapping[TopicIdPartition, Progressed],
    brokers: Sequence[int] | None,
    over: Callable[[], bool] | None,
    run: OperationRun,
) -> None:
    """Steps 1 to 6; records the results in ``states``. Raises: errors from reading or changing the metadata."""
    began_s = execution.clock.monotonic_s()
    for number in range(1, _ROUNDS + 1):
        present = {key: states[key] for key in (work.replicas.view.key for work in works)}
        sync_all(execution, works, present, over)
        _blame_registers(metadata, storage, present.values())
        _replace_leaders(metadata, storage, execution, present)
        _shrink(metadata, storage, execution.clock, present)
        prove(metadata, storage, list(present.values()))
        _expand(metadata, storage, execution, works, present, began_s, run)
        if number == _ROUNDS or not any(state.again for state in present.values()):
            break
        works = _again(metadata, storage, works, present, brokers, run)
    for state in states.values():
        if state.again and not state.failures:
            changing = f"{state.replicas}: the partition has changed {_ROUNDS} times during this run; run it again"
            state.fail(state.replicas, InvalidUpdateVersionError(changing))


def _again(
    metadata: MetadataClient,
    storage: Storage,
    works: Sequence[SyncWork],
    states: Mapping[TopicIdPartition, Progressed],
    brokers: Sequence[int] | None,
    run: OperationRun,
) -> list[SyncWork]:
    """The remaining work, under the new views. (If a view seemed stale but is unchanged, there is nothing to
    repeat.)
    """
    image = probe_first(metadata, storage, run)
    remaining: list[SyncWork] = []
    for work in works:
        key = work.replicas.view.key
        state = states[key]
        if not state.again:
            continue
        if key[0] not in image.topics:
            state.begin(state.replicas)
            state.notes.append(f"{state.replicas}: the topic was deleted during the operation")
            continue
        replicas = storage.replicas(image.view(*key))
        if (replicas.view, replicas.foreign) != (work.replicas.view, work.replicas.foreign):
            state.begin(replicas)
            remaining.append(replace(work, replicas=replicas, followers=_wanted(replicas, brokers)))
    return remaining


def _blame_registers(metadata: MetadataClient, storage: Storage, states: Iterable[Progressed]) -> None:
    """If a view only seems stale, find the cause. A replica with a register of an epoch that was never committed
    is reported. Files of an unknown rule are stored as foreign files (``note_foreign``).
    """
    for state in states:
        errors = [state.leader_error, *(missed.error for missed in state.missed.values())]
        if any(error and note_foreign(metadata, storage, error) for error in errors):
            continue
        if not any(isinstance(error, FencedLeaderEpochError) for error in errors):
            continue
        view = state.replicas.view
        for broker, error in ahead_of_metadata(metadata, storage, view).items():
            if broker == view.leader:
                state.leader_error = error
            elif broker in state.missed:
                state.missed[broker] = replace(state.missed[broker], error=error)
            state.failures.append(Failure.of(f"{state.replicas} on broker {broker}", error))


def _replace_leaders(
    metadata: MetadataClient, storage: Storage, execution: Execution, states: Mapping[TopicIdPartition, Progressed]
) -> None:
    """Let a leader resign if it has lost data, or if its root refuses writes. Lost files are copied to the
    leader's broker in the next round.
    """
    damaged = {
        key: (state.replicas.view, state.leader_error)
        for key, state in states.items()
        if isinstance(state.leader_error, CorruptionError)
    }
    unwritable = unwritable_leaders((state.replicas.view, state.leader_error) for state in states.values())
    resigned = FailedCreates(metadata, storage).resign(unwritable)[0] if unwritable else {}
    replaced = replace_leaders(metadata, storage, damaged) if damaged else {}
    behind = {
        key: (view, error)
        for key, (view, error) in damaged.items()
        if key not in replaced and isinstance(error, LogBehindRemoteError)
    }
    gone_on, refused = continue_from_remote(metadata, storage, execution.tasks, behind) if behind else ({}, {})
    for key, note in {**resigned, **replaced, **gone_on}.items():
        states[key].notes.append(note)
        states[key].again = True
    for key, error in refused.items():
        states[key].fail(states[key].replicas, error)
    if left := [states[key] for key in damaged.keys() - {*resigned, *replaced, *gone_on}]:
        _forget_stale(metadata, left)


def _forget_stale(metadata: MetadataClient, states: Iterable[Progressed]) -> None:
    """Discard damage that was found under a stale view, because another broker may be the leader now and have more
    records. Partitions with a stale view are processed again.
    """
    image = metadata.image()
    for state in states:
        if not is_current(image, state.replicas.view):
            state.failures.clear()
            stale = (
                f"{state.replicas}: another driver changed the partition in the meantime; run the command again"
            )
            state.fail(state.replicas, InvalidUpdateVersionError(stale))


def _shrink(
    metadata: MetadataClient, storage: Storage, clock: Clock, states: Mapping[TopicIdPartition, Progressed]
) -> None:
    """Remove members that are out of sync from the ISR, and drop replicas being added that cannot be reached."""
    if not any(state.missed for state in states.values()):
        return
    lag_ms = cluster_config_of(metadata.image()).replica_lag_time_max_ms
    leaving: dict[TopicIdPartition, list[int]] = {}
    for key, state in states.items():
        view = state.replicas.view
        now_ms = _now_at_leader(storage, clock, view)
        out = [
            broker
            for broker, missed in state.missed.items()
            if not isinstance(missed.error, StaleMetadataError)
            and (broker in view.adding or (broker in view.isr and missed.is_out(now_ms, lag_ms)))
        ]
        if out:
            leaving[key] = out
    for key in propose(
        metadata, storage, states, [without(states[key].replicas.view, out) for key, out in leaving.items()]
    ):
        state = states[key]
        for broker in leaving[key]:
            error = state.missed[broker].error
            state.notes.append(f"{state.replicas}: broker {broker} left the ISR: {error}")
            # The broker's lost files can be copied now, because its replica is outside the ISR.
            state.again = state.again or isinstance(error, CorruptionError)


def _now_at_leader(storage: Storage, clock: Clock, view: PartitionView) -> int:
    """The current time for measuring lag, from the clock of the leader's storage, because this clock also dates
    the leader's files.
    """
    store = None if view.leader is None else storage.stores.get(view.leader)
    now_ms = None if store is None else store.now_ms()
    return clock.now_ms() if now_ms is None else now_ms


def _expand(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    works: Sequence[SyncWork],
    states: Mapping[TopicIdPartition, Progressed],
    began_s: float,
    run: OperationRun,
) -> None:
    """Add the caught-up followers to the ISR, in two commits."""
    newcomers = {
        key: [broker for broker in state.caught_up if broker not in state.replicas.view.isr]
        for key, state in states.items()
        if not state.again
    }
    # 1. *adding*: from now on an append also needs these followers.
    wanted = [adding(states[key].replicas.view, brokers) for key, brokers in newcomers.items() if brokers]
    added = propose(metadata, storage, states, wanted)
    # 2. Copy everything that was appended before this commit.
    again: list[SyncWork] = []
    for work in works:
        key = work.replicas.view.key
        if key in added:
            states[key].caught_up.clear()
            again.append(replace(work, replicas=states[key].replicas, followers=tuple(newcomers[key])))
    if again:
        sync_all(execution, again, states)
    # 3. Add the followers that were reached again to the ISR, after the files that replace removed replicas have
    #    been read.
    reached = {key: [b for b in newcomers[key] if b in states[key].caught_up] for key in added}
    joins = {key: (states[key].replicas, brokers) for key, brokers in reached.items()}
    for key, error in check_joins(metadata, storage, joins, run):
        states[key].fail(states[key].replicas, error)
        to_blame = error.broker_id if isinstance(error, CorruptionError) else None
        reached[key] = [broker for broker in reached[key] if to_blame not in (None, broker)]
    wanted = [joined(states[key].replicas.view, brokers) for key, brokers in reached.items() if brokers]
    too_few = {key for key, state in states.items() if not state.has_min_isr}
    for key in propose(metadata, storage, states, wanted):
        state = states[key]
        state.joined_s = execution.clock.monotonic_s() - began_s
        # If the high watermark could not advance because there were too few members, the next round advances it.
        held_back = key in too_few and state.log_end > state.high_watermark
        state.again = state.again or (held_back and state.has_min_isr)


def _row(state: Progressed) -> ReplicateRow:
    view = state.replicas.view
    return ReplicateRow(
        topic=view.topic,
        partition=view.partition,
        leader=view.leader,
        isr=" ".join(map(str, view.isr)),
        log_end=state.log_end,
        high_watermark=state.high_watermark,
        copied_files=state.copied_files,
        copied_bytes=state.copied_bytes,
        avoided_bytes=state.avoided_bytes,
        joined_s=None if state.joined_s is None else round(state.joined_s, 3),
    )
