"""Keeps one of two histories if a partition's leader and its remote log have different records at the same
offsets. An operator chooses the history (``recover --keep``).

remote     the leader begins at the end of the remote log, as the only member of the ISR, and the other replicas
           copy from this leader. The brokers' records after the offset of divergence are discarded. Until these
           records are deleted, ``recover --to`` can export them
brokers    segments after the offset of divergence are removed from the remote table; earlier versions of the table
           still list them. A log that has no records, neither on replicas nor in the remote tier, restarts: the
           partition gets a new leader epoch and new folders, and its log begins at the last known offset of the
           lost log, so that no earlier offset is used twice
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.look import chosen_views
from stratalog.engine.replicas.remote_records import RecordsWork, compare_records
from stratalog.engine.replication.lost_log import (
    begins_again_at,
    has_remote_records,
    is_lost,
    unknown_behind,
    with_remote_asked,
)
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import DivergentRemoteError, LogBehindRemoteError, same_until
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.tiering.remote_logs import load_remotes
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
    RemoteNotReadyError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.tiering.bootstrap import auxiliary_state
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

Side = Literal["remote", "brokers"]
SIDES: tuple[Side, ...] = ("remote", "brokers")


class KeptRow(PartitionRow, frozen=True, kw_only=True):
    """A partition with one kept and one dropped history."""

    same_until: int
    """The offset below which both histories are the same."""
    brokers_end: int
    brokers_high_watermark: int
    remote_end: int | None
    keeps: str
    gives_up: int
    """The number of dropped offsets."""
    outcome: str


@dataclass(frozen=True, slots=True)
class Parted:
    """A partition whose two histories diverge."""

    replicas: PartitionReplicas
    log: ReplicaLog
    wrote: Lineage
    segments: tuple[RemoteSegment, ...]
    same: int
    """The offset below which both histories have the same records."""

    def __str__(self) -> str:
        return str(self.replicas)

    @property
    def remote_end(self) -> int:
        return self.segments[-1].next_offset

    @property
    def leaving(self) -> tuple[RemoteSegment, ...]:
        """The segments that are removed from the table if the brokers' records are kept."""
        return tuple(segment for segment in self.segments if segment.next_offset > self.same)

    def row(self, keep: Side, outcome: str) -> KeptRow:
        lost = (self.same, self.remote_end) if keep == "brokers" else (self.same, self.log.log_end)
        return KeptRow(
            topic=self.replicas.view.topic,
            partition=self.replicas.view.partition,
            same_until=self.same,
            brokers_end=self.log.log_end,
            brokers_high_watermark=self.log.high_watermark,
            remote_end=self.remote_end,
            keeps=keep,
            gives_up=max(0, lost[1] - lost[0]),
            outcome=outcome,
        )


@dataclass(frozen=True, slots=True)
class LostLog:
    replicas: PartitionReplicas
    unseen: tuple[int, ...]
    """The fenced brokers with a replica; they were not checked."""

    def __str__(self) -> str:
        return str(self.replicas)

    def row(self, outcome: str) -> KeptRow:
        view = self.replicas.view
        begin = begins_again_at(view)
        return KeptRow(
            topic=view.topic,
            partition=view.partition,
            same_until=begin,
            brokers_end=0,
            brokers_high_watermark=0,
            remote_end=None,
            keeps="brokers",
            gives_up=begin - view.log_start_offset,
            outcome=outcome,
        )

    def note(self) -> str:
        view = self.replicas.view
        unseen = "".join(f"; broker {broker} is fenced, and was not checked" for broker in self.unseen)
        return (
            f"{view}: no replica has any record of the partition, although its records reached at least offset "
            f"{view.written_to}. The log begins again at {begins_again_at(view)}: "
            f"{unknown_behind(view)}{unseen}"
        )


def keep_one(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None,
    keep: str,
    *,
    partitions: Sequence[int] | None = None,
    dry_run: bool = False,
) -> Report:
    """Keep one history of each of these partitions (None: all partitions of the topics) whose leader and remote
    log contradict each other. Each changed partition has a row with the offset of divergence, both ends, and the
    number of dropped offsets. Other partitions are not changed.

    Raises: InvalidCallError, UnknownTopicOrPartitionError; errors from reading the metadata. Any other error is a
    failure of its partition in the report.
    """
    side = next((one for one in SIDES if one == keep), None)
    if side is None:
        raise InvalidCallError(f"keep is {keep!r}: give {' or '.join(SIDES)}")
    with execution.run("recover", dry_run=dry_run) as run:
        parted = _find(metadata, storage, topics, partitions, run)
        done = parted
        led: list[Parted] = []
        if side == "remote" and not dry_run:
            done = led = _keep_remote(metadata, parted, run)
        elif not dry_run and parted:
            done = _keep_brokers(metadata, storage, parted, run)
        run.add(each.row(side, "planned" if dry_run else "kept") for each in done)
        keys = [each.replicas.view.key for each in led]
        if side == "brokers":
            keys += _begin_again(metadata, storage, topics, partitions, run)
        if keys and not dry_run:
            run.absorb(replicate(metadata, storage, execution, memory, only=keys))
    run.totals["partitions"] = len(run.rows)
    return run.report()


def _find(
    metadata: MetadataClient,
    storage: Storage,
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
    run: OperationRun,
) -> list[Parted]:
    image = metadata.image()
    chosen = chosen_views(image, topics, partitions)
    logs = load_remotes(storage, image, [topic for topic, _ in chosen], run)
    looks = [
        (storage.replicas(view).with_remote_log(logs[topic.topic_id]), logs[topic.topic_id])
        for topic, views in chosen
        if topic.topic_id in logs
        for view in views
    ]
    outcomes = storage.threads.run(_look, looks)
    return [each for _, each in run.done(outcomes, lambda look: look[0]) if each is not None]


def _look(look: tuple[PartitionReplicas, RemoteLog]) -> Parted | None:
    """The two histories of a partition; None if the leader's log matches its remote log."""
    replicas, remote = look
    log = replicas.leader.log(fresh=True)
    try:
        replicas.check_remote_end(log)
    except (DivergentRemoteError, LogBehindRemoteError):
        tail = replicas.remote_tail
        assert tail is not None
        assert tail.last is not None
        wrote = auxiliary_state(tail.store, tail.folder, tail.last).lineage
        same = same_until(wrote, tail.last.next_offset, log, replicas.view.log_start_offset)
        segments = remote.of_partition(replicas.view.partition)
        first = compare_records(RecordsWork(replicas, tail.store, tail.folder, segments))
        return Parted(replicas, log, wrote, segments, same if first is None else min(same, first))
    return None


def _keep_remote(metadata: MetadataClient, parted: Sequence[Parted], run: OperationRun) -> list[Parted]:
    elections: list[Election] = []
    electing: dict[TopicIdPartition, Parted] = {}
    for each in parted:
        view = each.replicas.view
        if each.log.local_start > each.remote_end:
            why = (
                f"{each}: the leader's log begins at {each.log.local_start}, after the end of the remote log at "
                f"{each.remote_end}, so the leader cannot continue from there; use --keep brokers"
            )
            run.fail(each, LogGapError(why))
            continue
        epochs = (view.partition_epoch, each.wrote.latest_epoch)
        elections.append(Election(*view.key, view.leader, partition_epoch=epochs[0], remote_epoch=epochs[1]))
        electing[view.key] = each
    return [*run.commit(metadata, ElectLeaders(tuple(elections)), electing).values()]


def _keep_brokers(
    metadata: MetadataClient, storage: Storage, parted: Sequence[Parted], run: OperationRun
) -> list[Parted]:
    image = metadata.image()
    done: list[Parted] = []
    by_topic: dict[str, list[Parted]] = {}
    for each in parted:
        kept = [segment for segment in each.segments if segment not in each.leaving]
        end = kept[-1].next_offset if kept else each.replicas.view.log_start_offset
        if end < each.log.local_start:
            why = (
                f"{each}: without the segments after offset {each.same}, the remote log ends at {end}, but the "
                f"leader's log begins at {each.log.local_start}: the offsets in between would be lost; use --keep "
                "remote"
            )
            run.fail(each, LogGapError(why))
        else:
            by_topic.setdefault(each.replicas.view.topic_id, []).append(each)
    for topic_id, some in by_topic.items():
        leaving = [segment for each in some for segment in each.leaving]
        try:
            storage.remote_table(image.topics[topic_id]).commit((), leaving)
        except StratalogError as error:
            for each in some:
                run.fail(each, error)
        else:
            done += some
    return done


def _begin_again(
    metadata: MetadataClient,
    storage: Storage,
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
    run: OperationRun,
) -> list[TopicIdPartition]:
    """Restart the lost logs among these partitions, and return their keys; each gets a row and a note in the
    report. A dry run only shows which logs would be restarted, and which must not be.
    """
    image = metadata.image()
    views = [view for _, some in chosen_views(image, topics, partitions) for view in some]
    suspicious = [storage.replicas(view) for view in views if view.written_to and view.leader is not None]
    lost = {
        each.replicas.view.key: each
        for _, each in run.done(storage.threads.run(_look_for_loss, suspicious))
        if each
    }
    if lost:
        elections = tuple(
            Election(*key, lost=True, partition_epoch=each.replicas.view.partition_epoch)
            for key, each in lost.items()
        )
        lost = run.commit(metadata, ElectLeaders(elections), lost)
    run.add(each.row("planned" if run.dry_run else "kept") for each in lost.values())
    run.notes += [each.note() for each in lost.values()]
    return [*lost]


def _look_for_loss(replicas: PartitionReplicas) -> LostLog | None:
    """The lost log of a partition; None if the log exists. Also None if the remote log has records, because
    ``replicate`` then continues from the end of the remote log. Raises: CorruptionError if another replica has the
    log; RemoteNotReadyError; errors from listing a replica in service.
    """
    view = replicas.view
    if not is_lost(view, replicas.leader.log(fresh=True)):
        return None
    replicas = with_remote_asked(replicas)
    if replicas.remote is not None and replicas.remote.unknown:
        raise RemoteNotReadyError(
            f"{view}: the remote tier does not answer, so it is unknown whether the remote tier "
            "has the records that the replicas lack; try again when it answers"
        )
    if has_remote_records(replicas):
        return None
    unseen: list[int] = []
    for broker in view.replicas:
        if broker == view.leader:
            continue
        if view.brokers[broker].fenced:
            unseen.append(broker)
            continue
        log = replicas.replica(broker).log(fresh=True)
        if broker in view.isr and log.log_end >= view.written_to:
            raise CorruptionError(
                f"{view}: broker {broker}, a member of the ISR, has the log; run replicate to make "
                "this broker the leader"
            )
        if log.chain:
            raise CorruptionError(
                f"{view}: broker {broker} has records up to offset {log.log_end}; to continue from that offset, "
                "fence all other replicas and elect --unclean; otherwise remove that replica, and run recover "
                "again"
            )
    return LostLog(replicas, tuple(unseen))
