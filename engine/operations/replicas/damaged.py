"""Leaders whose storage has lost data: another member of the ISR takes their place (protocol section 1)."""

from __future__ import annotations

from collections.abc import Mapping

from engine.context import Context
from engine.metadata.election_commands import Election, ElectLeaders
from engine.metadata.image import PartitionView
from engine.metadata.partition_commands import Altered
from engine.operations.replicas.in_sync import PartitionKey
from engine.replication.damage import check_whole
from partitions.errors import StratalogError
from partitions.runner import Done

Damaged = Mapping[PartitionKey, tuple[PartitionView, StratalogError]]
"""Partitions whose leader's storage was found damaged, under which view, and how."""


def replace_leaders(context: Context, damaged: Damaged) -> dict[PartitionKey, str]:
    """Elect a whole member of the ISR wherever there is one; the old leader leaves the ISR in the same commit.
    One commit for all. Returns a note for each partition that has a new leader.

    A member holds everything that was acknowledged; so the election is clean. Where no other member is whole
    the leader stays as it is: nobody can say what it has lost.
    """
    chosen: dict[PartitionKey, int] = {}
    for outcome in context.threads.run(lambda key: _whole_member(context, damaged[key][0]), list(damaged)):
        if isinstance(outcome, Done) and outcome.value is not None:
            chosen[outcome.item] = outcome.value
    if not chosen:
        return {}
    elections = tuple(
        Election(*key, leader=broker, resign=True, partition_epoch=damaged[key][0].partition_epoch)
        for key, broker in chosen.items()
    )
    notes: dict[PartitionKey, str] = {}
    for answer in context.metadata.submit(ElectLeaders(elections)):
        key = answer.topic_id, answer.partition
        view, error = damaged[key]
        if isinstance(answer, Altered):
            notes[key] = (
                f"{view.topic}-{view.partition}: broker {view.leader} leaves the ISR, broker {chosen[key]} leads: "
                f"{error}"
            )
    return notes


def _whole_member(context: Context, view: PartitionView) -> int | None:
    """The member of the ISR, other than the leader, that is whole and holds most."""
    site = context.site(view)
    best: tuple[int, int] | None = None
    for broker in view.replicas:
        if broker == view.leader or broker not in view.isr or view.brokers[broker].fenced:
            continue
        try:
            replica = site.replica(broker)
            log = replica.log()
            check_whole(replica, log)
        except StratalogError:
            continue
        if best is None or log.log_end > best[0]:
            best = log.log_end, broker
    return None if best is None else best[1]
