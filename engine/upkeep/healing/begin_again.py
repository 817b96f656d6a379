"""Let logs begin again of which no replica and no remote log has a record (``recover --keep brokers``, where the
brokers have nothing). The partition gets a new leader epoch and new folders. Its log begins at the last offset
that is known, so that none up to there is given a second time.

That no replica has the records has to be seen. A member of the ISR that has them leads after the next
``replicate``; for one outside the ISR a person elects uncleanly.
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
    """A partition of which one history is kept, and the other given up."""

    same_until: int
    """Offset below which both are the same."""
    brokers_end: int
    brokers_high_watermark: int
    remote_end: int | None
    keeps: str
    gives_up: int
    """Offsets."""
    outcome: str


@dataclass(frozen=True, slots=True)
class LostLog:
    """A partition without any record that had some."""

    replicas: PartitionReplicas
    unseen: tuple[int, ...]
    """Brokers with a replica that are fenced."""

    def __str__(self) -> str:
        return str(self.replicas)

    def row(self, outcome: str) -> KeptRow:
        """Its row in the report."""
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
        """For the report: what is not in the row."""
        view = self.replicas.view
        unseen = "".join(f"; broker {broker} is fenced, and was not looked at" for broker in self.unseen)
        return (
            f"{view}: no replica has a record of it, and it had some: at least up to offset {view.written_to}. "
            f"Its log begins again at {begins_again_at(view)}: {unknown_behind(view)}{unseen}"
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
    """Do so with the lost ones of these partitions; a row and a note for each. A dry run only shows them."""
    image = metadata.image()
    views = [view for _, some in chosen_views(image, topics, partitions) for view in some]
    suspicious = [storage.replicas(view) for view in views if view.written_to and view.leader is not None]
    lost = {each.replicas.view.key: each for _, each in run.done(storage.threads.run(_look, suspicious)) if each}
    if lost and not run.dry_run:
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
    """None where the log is there, or the remote log has records, from the end of which ``replicate`` goes on.

    Raises: CorruptionError where another replica has the log; RemoteNotReadyError; errors of looking at a replica
        that is in service.
    """
    view = replicas.view
    if not is_lost(view, replicas.leader.log(anew=True)):
        return None
    replicas = with_remote_asked(replicas)
    if replicas.remote is not None and replicas.remote.unknown:
        raise RemoteNotReadyError(
            f"{view}: whether its remote log has the records that its replicas lack is not known, for it does not "
            "answer; try again when it does"
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
        log = replicas.replica(broker).log(anew=True)
        if broker in view.isr and log.log_end >= view.written_to:
            raise CorruptionError(
                f"{view}: broker {broker}, of the ISR, has the log; run replicate: then it leads"
            )
        if log.chain:
            raise CorruptionError(
                f"{view}: broker {broker} has records up to offset {log.log_end}; to go on from there, fence the "
                f"other replicas and elect --unclean; else remove that replica, and run it again"
            )
    return LostLog(replicas, tuple(unseen))
