"""Appends of a producer that are older than the last five, as the log itself still remembers them.

Each data file has the producer state at its end, with the last five appends of each producer. So the file that an
append was written to, and the next ones, tell its offsets and its digest, as long as they are there: until a merge
over more than five appends, retention, or the copy of a replica from the remote log. A binary search finds them,
for the sequences of a producer grow with the offsets: one listing, and a few footers for each halving.
"""

from __future__ import annotations

from bisect import bisect_left

from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.producers import EarlierAttempt, ProducerAppend, ProducerEntry


def old_append(replicas: PartitionReplicas, producer: ProducerAppend) -> EarlierAttempt | None:
    """The append that had this epoch and sequence before; None where no file of the log tells its offsets.

    Raises: as ``Replica.log`` and ``Replica.producers_at``.
    """
    leader = replicas.leader
    log = leader.log()

    def entry(index: int) -> ProducerEntry | None:
        return leader.producers_at(log, log.chain[index].end).get(producer.producer_id)

    def place(index: int) -> tuple[int, int]:
        found = entry(index)
        return (-1, -1) if found is None else (found.epoch, found.sequence)

    index = bisect_left(range(len(log.chain)), (producer.epoch, producer.sequence), key=place)
    found = entry(index) if index < len(log.chain) else None
    if found is not None and found.epoch == producer.epoch:
        for past in found.lately:
            if past.sequence == producer.sequence:
                return EarlierAttempt(past.next_offset, past.base_offset, past.digest)
    return None
