"""Keeps one of two histories if a partition's leader and its remote log have different records at the same
offsets. An operator chooses the history (``recover --keep``).

remote     the leader begins at the end of the remote log, as the only member of the ISR, and the other replicas
           copy from this leader. The brokers' records after the offset of divergence are discarded. Until these
           records are deleted, ``recover --to`` can export them
brokers    segments after the offset of divergence are removed from the remote table; earlier versions of the table
           still list them. If there is no remote log, and the brokers have lost all records, the log restarts
           (``begin_again``)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.look import chosen_views
from stratalog.engine.replicas.remote_records import RecordsWork, compare_records
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import DivergentRemoteError, LogBehindRemoteError, same_until
from stratalog.engine.upkeep.healing.begin_again import KeptRow, begin_again
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.partitions.errors import InvalidCallError, LogGapError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.tiering.bootstrap import auxiliary_state
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

Side = Literal["remote", "brokers"]
SIDES: tuple[Side, ...] = ("remote", "brokers")


@dataclass(frozen=True, slots=True)
class Parted:
    """A partition whose two histories diverge."""

    replicas: PartitionReplicas
    log: ReplicaLog
    wrote: Lineage
    """The leader epochs of the remote log."""
    segments: tuple[RemoteSegment, ...]
    same: int
    """The offset below which both histories have the same records."""

    def __str__(self) -> str:
        return str(self.replicas)

    @property
    def remote_end(self) -> int:
        """The end of the remote log."""
        return self.segments[-1].next_offset

    @property
    def leaving(self) -> tuple[RemoteSegment, ...]:
        """The segments that are removed from the table if the brokers' records are kept."""
        return tuple(segment for segment in self.segments if segment.next_offset > self.same)

    def row(self, keep: Side, outcome: str) -> KeptRow:
        """The row of the partition in the report."""
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
        if not dry_run and parted:
            done = (
                _keep_remote(metadata, storage, execution, memory, parted, run)
                if side == "remote"
                else _keep_brokers(metadata, storage, parted, run)
            )
        else:
            done = parted
        run.add(each.row(side, "planned" if dry_run else "kept") for each in done)
        if side == "brokers":
            begin_again(metadata, storage, execution, memory, topics, partitions, run)
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
    looks: list[tuple[PartitionReplicas, RemoteLog]] = []
    for topic, views in chosen_views(image, topics, partitions):
        if not topic_config_of(image, topic).remote_storage_enable:
            continue
        log = storage.remote_table(topic).load()
        for replicas in map(storage.replicas, views):
            if replicas.remote is not None:
                looks.append((replace(replicas, remote=replicas.remote.with_log(log)), log))
    outcomes = storage.threads.run(_look, looks)
    return [each for _, each in run.done(outcomes, lambda look: look[0]) if each is not None]


def _look(look: tuple[PartitionReplicas, RemoteLog]) -> Parted | None:
    """The two histories of a partition; None if the leader's log matches its remote log."""
    replicas, remote = look
    log = replicas.leader.log(fresh=True)
    try:
        replicas.check_remote_end(log)
    except (DivergentRemoteError, LogBehindRemoteError):
        tail = None if replicas.remote is None else replicas.remote.known
        assert tail is not None
        assert tail.last is not None
        wrote = auxiliary_state(tail.store, tail.folder, tail.last).lineage
        same = same_until(wrote, tail.last.next_offset, log, replicas.view.log_start_offset)
        segments = remote.of_partition(replicas.view.partition)
        first = compare_records(RecordsWork(replicas, tail.store, tail.folder, segments))
        return Parted(replicas, log, wrote, segments, same if first is None else min(same, first))
    return None


def _keep_remote(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    parted: Sequence[Parted],
    run: OperationRun,
) -> list[Parted]:
    elections: list[Election] = []
    electing: dict[TopicIdPartition, Parted] = {}
    for each in parted:
        view = each.replicas.view
        if each.log.local_start > each.remote_end:
            run.fail(each, _begins_behind(each))
            continue
        epochs = (view.partition_epoch, each.wrote.latest_epoch)
        elections.append(Election(*view.key, view.leader, partition_epoch=epochs[0], remote_epoch=epochs[1]))
        electing[view.key] = each
    done = run.commit(metadata, ElectLeaders(tuple(elections)), electing)
    if done:
        run.absorb(replicate(metadata, storage, execution, memory, only=done.keys()))
    return [*done.values()]


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
            run.fail(each, _lacks(each, end))
        else:
            by_topic.setdefault(each.replicas.view.topic_id, []).append(each)
    for topic_id, some in by_topic.items():
        topic: TopicImage = image.topics[topic_id]
        leaving = [segment for each in some for segment in each.leaving]
        storage.remote_table(topic).commit((), leaving)
        done += some
    return done


def _begins_behind(each: Parted) -> LogGapError:
    return LogGapError(
        f"{each}: the leader's log begins at {each.log.local_start}, after the end of the remote log at "
        f"{each.remote_end}, so the leader cannot continue from there; use --keep brokers"
    )


def _lacks(each: Parted, end: int) -> LogGapError:
    return LogGapError(
        f"{each}: without the segments after offset {each.same}, the remote log ends at {end}, "
        f"but the leader's log begins at {each.log.local_start}: the offsets in between would "
        "be lost; use --keep remote"
    )
