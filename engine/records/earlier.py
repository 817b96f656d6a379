"""Finds earlier tries of a named producer's append, as recorded in the partitions.

A caller retries a complete append, but each partition records only its own part. So the driver first reads one
footer of each partition, unless it has just appended the previous sequence. The footers answer two questions.

The partition count: rows are partitioned by the topic's current count, but a retry keeps the count of the first
try. (Kafka's producer fixes a record's partition before it first sends it.) The first try has stored this count in
the producer's entry of each partition that it reached.

The records: partitions that have the sequence come first, and show whether this is the same append. Only then do
the other partitions get the missing records. If later sequences are in the log, no partition gets more records of
this sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.leader import look_at_leader
from stratalog.partitions.producers import ProducerAppend, ProducerEntry
from stratalog.partitions.runner import Done, values


@dataclass(frozen=True, slots=True)
class EarlierTries:
    """Results of earlier tries."""

    partitions: frozenset[int] = frozenset()
    """The partitions that have the sequence."""
    late: bool = False
    """Whether any partition has a later sequence of the producer."""
    partition_count: int | None = None
    """The partition count with which the rows were partitioned."""


def earlier_tries(
    metadata: MetadataClient,
    storage: Storage,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    who: ProducerAppend | None,
) -> EarlierTries:
    """Find the earlier tries of an append by ``who``. The result is empty if the append names no producer, or is
    in a transaction. Unreachable partitions are skipped, unless the topic has grown.

    Raises: errors from listing a leader if the topic has grown, because the leader's partition may hold the only
    record of the earlier partition count.
    """
    if who is None or who.on_changed_replay is None:
        return EarlierTries()
    if not topic.grown and memory.begun_sequences.is_next(topic.topic_id, who):
        return EarlierTries()
    probed = probe_brokers(metadata, storage, image).image if topic.grown else image

    def look(view: PartitionView) -> ProducerEntry | None:
        return while_it_changes(lambda: _entry(storage, view, who))

    outcomes = list(storage.threads.run(look, probed.views(topic.name)))
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


def _entry(storage: Storage, view: PartitionView, who: ProducerAppend) -> ProducerEntry | None:
    replicas = storage.replicas(view)
    return replicas.leader.producers(look_at_leader(replicas)).get(who.producer_id)
