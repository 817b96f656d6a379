"""Changes of the ISR as a driver proposes them: one commit for all partitions (protocol section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView
from engine.metadata.partition_commands import Altered, AlterPartition, IsrProposal, Member, Refused
from engine.replication.site import Site
from engine.replication.sync import Synced
from engine.report import Failure

PartitionKey = tuple[str, int]
"""Topic id and partition."""


@dataclass(slots=True)
class Progressed:
    """One partition in the course of a run: what was seen of it, and what went wrong."""

    site: Site
    copied_files: int = 0
    copied_bytes: int = 0
    log_end: int = 0
    high_watermark: int = 0
    caught_up: dict[int, Synced] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def partition_key(view: PartitionView) -> PartitionKey:
    """What the view is of."""
    return view.topic_id, view.partition


def is_current(image: ClusterImage, view: PartitionView) -> bool:
    """Whether the partition is as the view says it is."""
    topic = image.topics.get(view.topic_id)
    return topic is not None and topic.partitions[view.partition].partition_epoch == view.partition_epoch


def propose(
    context: Context,
    states: dict[PartitionKey, Progressed],
    brokers: dict[PartitionKey, list[int]],
    *,
    into_isr: bool,
) -> dict[PartitionKey, list[int]]:
    """Commit one change for all partitions, and take the views that follow from it. What is refused goes
    back to the committed state; the rest is returned.
    """
    wanted = {key: found for key, found in brokers.items() if found}
    if not wanted:
        return {}
    proposals = tuple(isr_proposal(states[key].site.view, found, into_isr) for key, found in wanted.items())
    answers = context.metadata.submit(AlterPartition(proposals))
    image = context.metadata.image()
    done: dict[PartitionKey, list[int]] = {}
    for (key, found), answer in zip(wanted.items(), answers, strict=True):
        state = states[key]
        match answer:
            case Altered(_, _, partition_epoch):
                state.site = context.site(image.view(*key))
                # Somebody else may have changed it since: what we did next would rest on that.
                if state.site.view.partition_epoch == partition_epoch:
                    done[key] = found
            case Refused(_, _, error):
                state.failures.append(Failure.of(state.site, error))
    return done


def isr_proposal(view: PartitionView, brokers: Sequence[int], into_isr: bool) -> IsrProposal:
    """The next commit of an expansion by ``brokers``, with the broker epochs under which the view's
    storage was seen (KIP-903).
    """
    isr = (*view.isr, *brokers) if into_isr else view.isr
    adding = {*view.adding} - {*brokers} if into_isr else {*view.adding} | {*brokers}

    def seen(members: Iterable[int]) -> tuple[Member, ...]:
        return tuple(Member(broker, view.brokers[broker].broker_epoch) for broker in members)

    return IsrProposal(
        topic_id=view.topic_id,
        partition=view.partition,
        leader_epoch=view.leader_epoch,
        partition_epoch=view.partition_epoch,
        isr=seen(isr),
        adding=seen(sorted(adding)),
    )
