"""The identities under which this driver appends: unnamed producers, named ones, and transactional ids.

Every append needs a producer, whose state stays in the footer of later files until it expires. A new producer for
each append would make every footer larger, so ``UnnamedProducers`` reuses a few ids, each with its next sequence.
An id whose append has an unknown outcome belongs to the caller that received that error.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from msgspec.structs import replace

from stratalog.engine.state.transaction_state import Transaction
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.identity import NewId
from stratalog.partitions.producers import ProducerAppend, unnamed

_MOST = 10_000
"""Producers to remember. Forgetting one costs two requests per partition at its next append."""


class BegunSequences:
    """The greatest sequence that this driver has begun for each named producer, by topic.

    A greater sequence is not a retry, so its append skips the look for earlier attempts. Thread-safe, as one
    thread at a time uses a producer.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str], tuple[int, int]] = {}

    def begin(self, topic_id: str, who: ProducerAppend) -> None:
        """Record that the append of ``who`` begins."""
        if len(self._begun) >= _MOST:
            self._begun.clear()
        self._begun[topic_id, who.producer_id] = who.epoch, who.sequence

    def is_next(self, topic_id: str, who: ProducerAppend) -> bool:
        """Whether this driver has begun an earlier sequence of the producer in this epoch, but not this one."""
        epoch, sequence = self._begun.get((topic_id, who.producer_id), (-1, 0))
        return epoch == who.epoch and who.sequence > sequence


class UnnamedProducers:
    """The ids of this driver that no append is using. Thread-safe, because a deque is."""

    def __init__(self) -> None:
        self._free: deque[tuple[int, ProducerAppend]] = deque()

    def take(self, new_id: NewId) -> ProducerAppend:
        """A producer and its next sequence, for one append at a time. The one that came back last: the others may
        expire."""
        with suppress(IndexError):
            while True:
                process, last = self._free.pop()
                if process == os.getpid():  # after a fork both processes would have it, with the same sequences
                    return replace(last, sequence=last.sequence + 1)
        return ProducerAppend(unnamed(new_id), 0, 0)

    def give_back(self, used: ProducerAppend) -> None:
        """It is known of every partition what came of the append, and nobody will try it again."""
        self._free.append((os.getpid(), used))


_MOST_IDS = 1000


class TransactionalProducers:
    """The producers of transactional ids whose last transaction ended in this driver.

    The next transaction of an id continues with its producer, whose epoch the end has raised. Each is given out
    once, so two open transactions never share one. Thread-safe.
    """

    def __init__(self) -> None:
        self._left: BoundedCache[str, tuple[int, Transaction]] = BoundedCache(_MOST_IDS)

    def take(self, transactional_id: str) -> Transaction | None:
        """The state in which this driver left the id; None if it has none, or another transaction here uses it."""
        process, left = self._left.take(transactional_id) or (None, None)
        return left if process == os.getpid() else None  # after a fork both processes would have it

    def give_back(self, transactional_id: str, left: Transaction) -> None:
        """Remember the state of an id whose transaction has ended."""
        self._left.put(transactional_id, (os.getpid(), left))
