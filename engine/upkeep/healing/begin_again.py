"""Restarts logs that have no records, neither on replicas nor in the remote tier (``recover --keep brokers``). The
partition gets a new leader epoch and new folders. Its log begins at the last known offset of the lost log, so that
no earlier offset is used twice.

A log is restarted only if no listed replica has records. If a member of the ISR has records, it becomes the leader
in the next ``replicate``. If a replica outside the ISR has records, an operator must decide about an unclean
election.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.look import chosen_views
from stratalog.engine.replication.lost_log import (
    begins_again_at,
    has_remote_records,
    is_lost,
    unknown_behind,
    with_remote_asked,
)
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.partitions.errors import CorruptionError, RemoteNotReadyError


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
class LostLog:
    """A partition that has lost all its records."""

    replicas: PartitionReplicas
    unseen: tuple[int, ...]
    """The fenced brokers with a replica; they were not checked."""

    def __str__(self) -> str:
        return str(self.replicas)

    def row(self, outcome: str) -> KeptRow:
        """The row of the partition in the report."""
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
        """A note for the report."""
        view = self.replicas.view
        unseen = "".join(f"; broker {broker} is fenced, and was not checked" for broker in self.unseen)
        return (
            f"{view}: no replica has any record of the partition, although its records reached at least offset "
            f"{view.written_to}. The log begins again at {begins_again_at(view)}: "
            f"{unknown_behind(view)}{unseen}"
        )


def begin_again(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
    run: OperationRun,
) -> None:
    """Restart the lost logs among these partitions; each gets a row and a note in the report. A dry run only shows
    which logs would be restarted, and which may not be.
    """
    image = metadata.image()
    views = [view for _, some in chosen_views(image, topics, partitions) for view in some]
    suspicious = [storage.replicas(view) for view in views if view.written_to and view.leader is not None]
    lost = {each.replicas.view.key: each for _, each in run.done(storage.threads.run(_look, suspicious)) if each}
    if lost:
        elections = tuple(
            Election(*key, lost=True, partition_epoch=each.replicas.view.partition_epoch)
            for key, each in lost.items()
        )
        lost = run.commit(metadata, ElectLeaders(elections), lost)
    run.add(each.row("planned" if run.dry_run else "kept") for each in lost.values())
    run.notes += [each.note() for each in lost.values()]
    if lost and not run.dry_run:
        run.absorb(replicate(metadata, storage, execution, memory, only=lost.keys()))


def _look(replicas: PartitionReplicas) -> LostLog | None:
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
