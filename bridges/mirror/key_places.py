"""Whether keys of a mirrored topic are where its partitioner sends them; its producers may have another. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.config.topic_config import PARTITIONER, PARTITIONERS
from stratalog.engine.records.partitioner import partitions_of

_OF_A_PIECE = 1_000
"""Keys of a piece of records that are looked at."""


@dataclass(slots=True)
class KeyPlaces:
    """Some keys of a partition, of a topic that has ``partitions``."""

    partition: int
    partitions: int
    keys: int = 0
    """Keys that were looked at."""
    fitting: Counter[str] = field(default_factory=Counter)
    """By partitioner, how many of them are where it sends them."""

    def add(self, keys: pa.Array) -> None:
        """Look at some of the keys, which are BINARY; one that is empty may be spread as a null is."""
        some = keys.filter(pc.greater(pc.binary_length(keys), 0)).slice(0, _OF_A_PIECE)
        self.keys += len(some)
        if len(some):
            for name in PARTITIONERS:
                found = partitions_of(some, self.partitions, name)
                self.fitting[name] += int((found == self.partition).sum())


def note_of_keys(topic: str, partitioner: str, places: Iterable[KeyPlaces]) -> str | None:
    """For a report, where not all keys of the topic are where its partitioner sends them."""
    keys, fitting = 0, Counter[str]()
    for one in places:
        keys += one.keys
        fitting += one.fitting
    if fitting[partitioner] == keys:
        return None
    said = (
        f"{topic}: {keys - fitting[partitioner]:,} of {keys:,} keys that were looked at are in other partitions "
        f"than {PARTITIONER} = {partitioner} sends them to"
    )
    best = max(PARTITIONERS, key=lambda name: fitting[name])
    if fitting[best] > fitting[partitioner]:
        command = f"stratalog topics alter-configs {topic} --set {PARTITIONER}={best}"
        return f"{said}; {fitting[best]:,} are where {best} sends them: before mirror --end, {command}"
    return f"{said}: after mirror --end their records go to others, unless each one names its partition"
