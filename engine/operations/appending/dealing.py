"""Among how many partitions an append deals out its records.

As many as the topic has; but an append that is tried again deals as at its first try, however many there are by
now: each partition knows its own part of it by producer and sequence, and no other one does. (Kafka's producer
fixes a record's partition before it sends it for the first time.) The first try has left the number with the
producer's entry, wherever any of it was appended.
"""

from __future__ import annotations

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView, TopicImage
from engine.operations.brokers.brokers import settle_brokers
from engine.operations.while_it_changes import while_it_changes
from engine.replication.damage import blaming, check_whole
from partitions.producers import ProducerAppend
from partitions.runner import values


def among_how_many(context: Context, image: ClusterImage, topic: TopicImage, who: ProducerAppend | None) -> int:
    """The number for an append of ``who``, None of one that was never tried. Asks storage only where the topic has
    grown.

    Raises: what keeps a leader's log from being looked at: it may be the one that knows.
    """
    present = len(topic.partitions)
    if who is None or not topic.grown:
        return present
    views = settle_brokers(context, image).image.views(topic.name)

    def look(view: PartitionView) -> int | None:
        return while_it_changes(lambda: _first_dealt(context, view, who))

    found = [dealt for dealt in values(context.threads.run(look, views)) if dealt is not None]
    return min(found, default=present)


def _first_dealt(context: Context, view: PartitionView, who: ProducerAppend) -> int | None:
    leader = context.site(view).leader
    with blaming(leader):
        log = leader.log()
        check_whole(leader, log)
        entry = leader.end_state(log).producers.get(who.producer_id)
    if entry is None or (entry.epoch, entry.sequence) != (who.epoch, who.sequence):
        return None
    return entry.dealt_among
