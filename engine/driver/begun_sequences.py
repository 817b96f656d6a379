"""The sequences that this driver has begun to append for named producers: a greater one is no retry, and needs no
look for earlier attempts."""

from __future__ import annotations

from stratalog.partitions.producers import ProducerAppend

_MOST = 10_000
"""Producers. To ask again costs two requests a partition."""


class BegunSequences:
    """The greatest sequence of each producer, by topic. Thread-safe: a producer is one thread's at a time."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str], tuple[int, int]] = {}

    def begin(self, topic_id: str, who: ProducerAppend) -> None:
        """It is tried now."""
        if len(self._begun) >= _MOST:
            self._begun.clear()
        self._begun[topic_id, who.producer_id] = who.epoch, who.sequence

    def is_next(self, topic_id: str, who: ProducerAppend) -> bool:
        """Whether this driver has begun the one before it, and not this one."""
        epoch, sequence = self._begun.get((topic_id, who.producer_id), (-1, 0))
        return epoch == who.epoch and who.sequence > sequence
