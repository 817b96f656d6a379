"""Earlier tries of an append of a named producer, as its partitions know them.

An append is tried again as a whole, and each partition knows its own part alone. So the driver asks them all
first, where it has not just appended the sequence before: a footer of each tells. It answers two questions.

Among how many partitions are the rows dealt out? As many as the topic has; but a retry keeps the number of the
first try, however many there are now. (Kafka's producer fixes a record's partition before it sends it for the
first time.) The first try has left the number with the producer's entry, wherever any of it was appended.

Do the records have to be those of an earlier try? Where some partitions have it, these come first, and say whether
it is the same append; only then do the others get what they lack. And where later sequences are in the log this
one is over: nobody gets any of it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.replication.leader import look_at_leader
from stratalog.partitions.producers import ProducerAppend, ProducerEntry
from stratalog.partitions.runner import Done, values


@dataclass(frozen=True, slots=True)
class EarlierTries:
    """The results of earlier tries."""

    partitions: frozenset[int] = frozenset()
    """The partitions that have the sequence."""
    late: bool = False
    """Whether any has later sequences of the producer."""
    partition_count: int | None = None
    """Among how many partitions it was dealt out."""


def earlier_tries(
    context: Context, image: ClusterImage, topic: TopicImage, who: ProducerAppend | None
) -> EarlierTries:
    """Earlier tries of an append of ``who``; empty for one that names no producer, or is in a transaction.
    Partitions that cannot be asked are left out, but where the topic has grown.

    Raises: errors of looking at a leader's log, of a topic that has grown: it may be the one that knows
        how the rows were dealt out.
    """
    if who is None or who.on_changed_replay is None:
        return EarlierTries()
    if not topic.grown and context.begun_sequences.is_next(topic.topic_id, who):
        return EarlierTries()
    probed = probe_brokers(context, image).image if topic.grown else image

    def look(view: PartitionView) -> ProducerEntry | None:
        return while_it_changes(lambda: _entry(context, view, who))

    outcomes = list(context.threads.run(look, probed.views(topic.name)))
    if topic.grown:
        values(outcomes)
    found = [
        (outcome.item.partition, outcome.value)
        for outcome in outcomes
        if isinstance(outcome, Done) and outcome.value is not None and outcome.value.epoch == who.epoch
    ]
    pasts = [past for _, entry in found for past in entry.lately if past.sequence == who.sequence]
    dealt = [past.partition_count for past in pasts if past.partition_count is not None]
    return EarlierTries(
        frozenset(partition for partition, entry in found if entry.has_appended(who.sequence)),
        any(entry.sequence > who.sequence for _, entry in found),
        min(dealt, default=None),
    )


def _entry(context: Context, view: PartitionView, who: ProducerAppend) -> ProducerEntry | None:
    replicas = context.replicas(view)
    return replicas.leader.producers(look_at_leader(replicas)).get(who.producer_id)
