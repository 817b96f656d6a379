"""Checks that keys of a mirrored topic are in the partitions of its partitioner; the source's producers may use
another partitioner. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.config.topic_config import PARTITIONER, PARTITIONERS
from stratalog.engine.records.partitioner import partitions_of

_OF_A_PIECE = 1_000
"""The number of keys to sample from a piece of records."""


@dataclass(slots=True)
class KeyPlaces:
    """Sampled keys of a topic with ``partitions``."""

    partition: int
    partitions: int
    keys: int = 0
    """The number of sampled keys."""
    fitting: Counter[str] = field(default_factory=Counter)
    """The number of keys in the right partition, by partitioner."""

    def add(self, keys: pa.Array) -> None:
        """Sample some of the keys, which are BINARY. Empty keys are skipped, because a producer may spread them
        like nulls.
        """
        some = keys.filter(pc.greater(pc.binary_length(keys), 0)).slice(0, _OF_A_PIECE)
        self.keys += len(some)
        if len(some):
            for name in PARTITIONERS:
                found = partitions_of(some, self.partitions, name)
                self.fitting[name] += int((found == self.partition).sum())


def note_of_keys(topic: str, partitioner: str, places: Iterable[KeyPlaces]) -> str | None:
    """A note for the report, if not all keys are in the partition of the topic's partitioner."""
    keys, fitting = 0, Counter[str]()
    for one in places:
        keys += one.keys
        fitting += one.fitting
    if fitting[partitioner] == keys:
        return None
    found = (
        f"{topic}: {keys - fitting[partitioner]:,} of {keys:,} sampled keys are not in the partitions that "
        f"{PARTITIONER} = {partitioner} chooses"
    )
    best = max(PARTITIONERS, key=lambda name: fitting[name])
    if fitting[best] > fitting[partitioner]:
        command = f"stratalog topics alter-configs {topic} --set {PARTITIONER}={best}"
        return (
            f"{found}; {fitting[best]:,} are in the partitions that {best} chooses: before mirror --end, run "
            f"{command}"
        )
    return (
        f"{found}: after mirror --end new records of these keys go to other partitions, unless producers set the "
        "partition"
    )
