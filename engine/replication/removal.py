"""A rule of removal on one partition: the leader carries it out, and the members of the ISR copy the segments.

``stratalog.partitions.removal`` has the protocol. The rule is in the metadata already.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.append import replicate
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.removal import Rule, carried_out
from stratalog.partitions.removing import Removed, RemovingOptions, carry_out
from stratalog.partitions.replica import errors_of, writes_of
from stratalog.partitions.runner import Runner
from stratalog.partitions.transactions import transactions_of


@dataclass(frozen=True, slots=True)
class RemovedFrom:
    """A rule was carried out on the leader; the members of the ISR that were not reached, with their errors."""

    removed: Removed
    missed: dict[int, StratalogError]


def remove_records(
    replicas: PartitionReplicas, rule: Rule, options: RemovingOptions, copies: Runner
) -> RemovedFrom:
    """Carry out ``rule``, the partition's last one, on the leader, then sync the ISR.

    Raises: see ``carry_out``; errors of listing the leader; CorruptionError kinds when the leader is damaged.
    """
    leader = replicas.leader
    log = with_known_watermark(replicas, leader_log(replicas))
    with errors_of(leader), writes_of(leader):
        transactions = transactions_of(log, leader.footer)
        removed = carry_out(leader, log, transactions, rule, options)
    return RemovedFrom(removed, replicate(replicas, copies))


def members_behind(replicas: PartitionReplicas, rule: Rule) -> list[int]:
    """The members of the ISR, and those being added, that have not carried out ``rule``: until then no rule may
    follow it.

    Raises: errors of listing a member.
    """
    members = sorted({*replicas.view.isr, *replicas.view.adding})
    return [member for member in members if not carried_out(replicas.replica(member).log(), rule)]
