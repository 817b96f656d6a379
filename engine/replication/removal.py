"""Applies a removal rule to one partition: the leader applies it, and the members of the ISR copy the segments.

``stratalog.partitions.removal`` describes the protocol. The rule is already in the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.append import replicate
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.partitions.errors import RetriableError, StratalogError
from stratalog.partitions.removal import Rule, carried_out
from stratalog.partitions.replica import errors_of, writes_of
from stratalog.partitions.rewrites.removing import Removed, RemovingOptions, carry_out
from stratalog.partitions.runner import Runner
from stratalog.partitions.transactions import transactions_of


@dataclass(frozen=True, slots=True)
class RemovedFrom:
    """The result of a removal rule that was applied on the leader. Has the members of the ISR that were not
    reached, with their errors.
    """

    removed: Removed
    missed: dict[int, StratalogError]


def remove_records(
    replicas: PartitionReplicas, rule: Rule, options: RemovingOptions, copies: Runner
) -> RemovedFrom:
    """Apply ``rule``, the partition's latest removal rule, on the leader, then sync the ISR.

    Raises: see ``carry_out``; errors from listing the leader; CorruptionError kinds when the leader is damaged.
    """
    leader = replicas.leader
    log = with_known_watermark(replicas, leader_log(replicas))
    with errors_of(leader), writes_of(leader):
        transactions = transactions_of(log, leader.footer)
        removed = carry_out(leader, log, transactions, rule, options)
    return RemovedFrom(removed, replicate(replicas, copies))


def check_follows(replicas: PartitionReplicas, remote: int | None, needed: int) -> None:
    """Check that the remote log follows the generation that this view requires of the replicas. (The view may be
    later than the version of the remote log that the run has read.) ``remote`` is the generation that this version
    follows; None: the topic was not tiered.

    Raises: RetriableError.
    """
    if replicas.view.tiered if remote is None else remote < needed:
        raise RetriableError(
            f"{replicas}: during this run its topic was tiered, or got a newer removal rule; the records must be "
            "removed from its remote log first: run the command again"
        )


def members_behind(replicas: PartitionReplicas, rule: Rule) -> list[int]:
    """The members of the ISR, and the replicas being added, that have not applied ``rule`` yet. While there are
    any such replicas, no later rule may follow.

    Raises: errors from listing a member.
    """
    members = sorted({*replicas.view.isr, *replicas.view.adding})
    return [member for member in members if not carried_out(replicas.replica(member).log(), rule)]
