"""Applies erasures to one partition: the leader rewrites its files, and the members of the ISR copy them.

``stratalog.partitions.erasure`` describes the protocol. The erasures are already in the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.append import replicate
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.partitions.erasure import is_compacted, is_erased
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.replica import errors_of, writes_of
from stratalog.partitions.rewrites.erasing import ErasedFrom, ErasingOptions, erase_from
from stratalog.partitions.runner import Runner
from stratalog.partitions.transactions import transactions_of


@dataclass(frozen=True, slots=True)
class ErasedOn:
    """The result of erasures that were carried out on the leader. Has the members of the ISR that were not
    reached, with their errors.
    """

    erased: ErasedFrom
    missed: dict[int, StratalogError]


def erase_records(replicas: PartitionReplicas, options: ErasingOptions, copies: Runner) -> ErasedOn:
    """Carry out the erasures of the view on the leader, then sync the ISR. After a late merge, a member may have a
    file with erased records that the leader does not have. The member rewrites this file itself: the result
    depends only on the erasures and the log.

    Raises: see ``erase_from``; errors from listing the leader; CorruptionError kinds when the leader is damaged.
    """
    leader, erasures = replicas.leader, replicas.view.erasures
    log = with_known_watermark(replicas, leader_log(replicas))
    with errors_of(leader), writes_of(leader):
        erased = erase_from(leader, log, transactions_of(log, leader.footer), erasures, options)
    missed = replicate(replicas, copies)
    for member in replicas.acknowledging:
        if member not in missed:
            try:
                erase_rest(replicas, member, options)
            except StratalogError as error:
                missed[member] = error
    return ErasedOn(erased, missed)


def erase_rest(replicas: PartitionReplicas, member: int, options: ErasingOptions) -> None:
    """Carry out the erasures of the view in the files of a member that the leader does not have.

    Raises: see ``erase_from``; errors from listing the member.
    """
    replica, erasures = replicas.replica(member), replicas.view.erasures
    log = replica.log()
    if not is_erased(log, erasures):
        with errors_of(replica), writes_of(replica):
            erase_from(replica, log, transactions_of(log, replica.footer), erasures, options)


def not_erased(replicas: PartitionReplicas) -> list[int]:
    """The members of the ISR, and the replicas being added, whose log still has erased records. While there are
    any such replicas, no removal rule may follow.

    Raises: errors from listing a member.
    """
    erasures = replicas.view.erasures
    if not any(one.offsets for one in erasures):
        return []
    members = sorted({*replicas.view.isr, *replicas.view.adding})
    return [member for member in members if not is_erased(replicas.replica(member).log(), erasures)]


def not_compacted(replicas: PartitionReplicas) -> list[int]:
    """The members of the ISR, and the replicas being added, that do not follow the last compaction at each offset
    below its bound. While there are any such replicas, no erasure may follow.

    Raises: errors from listing a member.
    """
    if not replicas.view.rules:
        return []
    rule = replicas.view.rules[-1].rule
    members = sorted({*replicas.view.isr, *replicas.view.adding})
    return [member for member in members if not is_compacted(replicas.replica(member).log(), rule)]
