"""Replicate: bring followers to their leaders, prove the high watermark, let caught-up followers into the ISR.

1. tasks: sync every follower of a partition to its leader
2. one linearizable read; where the partition has not changed, the high watermark advances to what
   every member of the maximal ISR holds
3. followers outside the ISR that caught up: commit *adding*, sync once more, commit *in the ISR*
   (the two commits of the protocol's Expand), one commit for all partitions each
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.context import Context
from engine.metadata.image import ClusterImage
from engine.operations.in_sync import PartitionKey, Progressed, is_current, partition_key, propose
from engine.replication.leader import leader_log
from engine.replication.site import Site
from engine.replication.sync import RemoteTail, Synced, sync
from engine.replication.watermark import advance_high_watermark
from engine.report import Failure, Report, Value
from partitions.errors import StratalogError
from partitions.runner import Done, Failed, ThreadRunner, attempt
from partitions.store import Store

COPY_THREADS = 4


@dataclass(frozen=True, slots=True)
class SyncWork:
    """Sync some followers of one partition."""

    site: Site
    followers: tuple[int, ...]
    remote: RemoteTail | None
    from_last_tiered: bool

    def stores_used(self) -> Iterable[Store]:
        """See ``engine.context.Work``."""
        remote = [] if self.remote is None else [self.remote.store]
        return [*self.site.stores.values(), *remote]

    def __str__(self) -> str:
        return str(self.site)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What became of each follower; ``leader_end`` is a log end that the leader was seen to have reached."""

    synced: tuple[Synced, ...]
    failed: tuple[tuple[int, StratalogError], ...]
    leader_end: int
    high_watermark: int


def sync_followers(work: SyncWork) -> SyncResult:
    """The task: one follower after the other, their files in parallel. A follower that fails does not
    keep the others from being synced; the leader is looked at by itself only where no sync has seen it.
    """
    copies = ThreadRunner(COPY_THREADS)
    synced: list[Synced] = []
    failed: list[tuple[int, StratalogError]] = []
    for follower in work.followers:
        outcome = attempt(
            lambda broker_id: sync(
                work.site,
                broker_id,
                copies=copies,
                remote=work.remote,
                from_last_tiered=work.from_last_tiered,
            ),
            follower,
        )
        match outcome:
            case Done(_, value):
                synced.append(value)
            case Failed(_, error):
                failed.append((follower, error))
    if synced:
        log_end = min(done.log_end for done in synced)
        high_watermark = max(done.high_watermark for done in synced)
    else:
        log = leader_log(work.site)
        log_end, high_watermark = log.log_end, log.high_watermark
    return SyncResult(tuple(synced), tuple(failed), log_end, high_watermark)


def replicate(
    context: Context,
    topics: Sequence[str] | None = None,
    *,
    brokers: Sequence[int] | None = None,
    dry_run: bool = False,
) -> Report:
    """Replicate the topics (all when None), to the given followers only where ``brokers`` is not None.

    Raises: UnknownTopicOrPartitionError; everything else is a failure of its partition in the report.
    """
    with context.measured() as measure:
        image = context.metadata.image()
        failures: list[Failure] = []
        works = plan(context, image, topics, brokers, failures)
        if dry_run:
            rows = [_planned(work) for work in works]
        else:
            states = _run(context, works)
            rows = [_row(state) for state in states]
            failures += [failure for state in states for failure in state.failures]
    copied = sum(value for row in rows if isinstance(value := row.get("copied_bytes"), int))
    return Report(
        operation="replicate",
        rows=rows,
        failures=failures,
        totals={"partitions": len(rows), "copied_bytes": copied},
        dry_run=dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
    )


def plan(
    context: Context,
    image: ClusterImage,
    topics: Sequence[str] | None,
    brokers: Sequence[int] | None,
    failures: list[Failure],
) -> list[SyncWork]:
    """One piece of work a partition, with the followers that are not fenced. A topic whose remote log
    cannot be read is a failure.

    Raises: UnknownTopicOrPartitionError.
    """
    works = []
    for topic in context.topics(image, topics):
        tiered = context.topic_config(image, topic).remote_storage_enable
        try:
            remote_log = context.remote_table(topic).load() if tiered else None
        except StratalogError as error:
            failures.append(Failure.of(topic.name, error))
            continue
        for view in image.views(topic.name):
            site = context.site(view)
            tail = None
            if remote_log is not None:
                store = context.remote_store("the topic is tiered")
                segments = remote_log.of_partition(view.partition)
                tail = RemoteTail(store, context.remote_folder(topic), segments[-1] if segments else None)
            wanted = [b for b in site.followers if brokers is None or b in brokers]
            if brokers is not None and not wanted:
                continue
            works.append(
                SyncWork(
                    site,
                    tuple(wanted),
                    tail,
                    context.cluster_config(image).follower_fetch_last_tiered_offset_enable,
                )
            )
    return works


def _run(context: Context, works: Sequence[SyncWork]) -> list[Progressed]:
    states = {partition_key(work.site.view): Progressed(work.site) for work in works}
    _sync_all(context, works, states)
    _prove(context, list(states.values()))
    _expand(context, works, states)
    return list(states.values())


def _sync_all(context: Context, works: Sequence[SyncWork], states: dict[PartitionKey, Progressed]) -> None:
    context.progress.start("replicate", len(works), "partitions")
    for outcome in context.tasks.run(sync_followers, works):
        state = states[partition_key(outcome.item.site.view)]
        size_bytes = 0
        match outcome:
            case Done(_, result):
                state.log_end = result.leader_end
                state.high_watermark = max(state.high_watermark, result.high_watermark)
                for synced in result.synced:
                    state.caught_up[synced.broker_id] = synced
                    state.copied_files += synced.copied_files
                    state.copied_bytes += synced.copied_bytes
                    size_bytes += synced.copied_bytes
                for broker, error in result.failed:
                    state.failures.append(Failure.of(f"{state.site} on broker {broker}", error))
            case Failed(work, error):
                state.failures.append(Failure.of(work, error))
        context.progress.advance(size_bytes)
    context.progress.finish()


def _prove(context: Context, states: Sequence[Progressed]) -> None:
    """Advance the high watermark where every member of the maximal ISR was seen to hold more, and the
    partition is unchanged by a linearizable read made afterwards.
    """
    candidates = [state for state in states if _proven(state) > state.high_watermark]
    if not candidates:
        return
    image = context.metadata.image()
    unchanged = [state for state in candidates if is_current(image, state.site.view)]

    def write(state: Progressed) -> int:
        advance_high_watermark(state.site, _proven(state))
        return _proven(state)

    for outcome in context.threads.run(write, unchanged):
        match outcome:
            case Done(state, offset):
                state.high_watermark = offset
            case Failed(state, error):
                state.failures.append(Failure.of(state.site, error))


def _proven(state: Progressed) -> int:
    """Up to where every member of the maximal ISR was seen to hold the log; 0 when one was not seen."""
    if state.log_end == 0:
        return 0
    ends = [state.log_end]
    for broker in state.site.acknowledging:
        if broker not in state.caught_up:
            return 0
        ends.append(state.caught_up[broker].log_end)
    return min(ends)


def _expand(context: Context, works: Sequence[SyncWork], states: dict[PartitionKey, Progressed]) -> None:
    """Let the caught-up followers outside the ISR in, in two commits."""
    newcomers = {
        key: [broker for broker in state.caught_up if broker not in state.site.view.isr]
        for key, state in states.items()
    }
    # 1. *adding*: from here on an append needs them too.
    added = propose(context, states, newcomers, into_isr=False)
    if not added:
        return
    # 2. Whatever was appended before that.
    for key in added:
        states[key].caught_up.clear()
    again = [
        replace(work, site=states[key].site, followers=tuple(added[key]))
        for work in works
        if (key := partition_key(work.site.view)) in added
    ]
    _sync_all(context, again, states)
    # 3. In the ISR: those that were reached again.
    reached = {key: [b for b in brokers if b in states[key].caught_up] for key, brokers in added.items()}
    propose(context, states, reached, into_isr=True)


def _planned(work: SyncWork) -> dict[str, Value]:
    return {
        "topic": work.site.view.topic,
        "partition": work.site.view.partition,
        "leader": work.site.view.leader,
        "followers": " ".join(map(str, work.followers)),
    }


def _row(state: Progressed) -> dict[str, Value]:
    view = state.site.view
    return {
        "topic": view.topic,
        "partition": view.partition,
        "leader": view.leader,
        "isr": " ".join(map(str, view.isr)),
        "log_end": state.log_end,
        "high_watermark": state.high_watermark,
        "copied_files": state.copied_files,
        "copied_bytes": state.copied_bytes,
    }
