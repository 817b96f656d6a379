"""The producers of appends that name none: this driver, under few ids that are used again and again.

Step 2 of an append needs a producer, whose state stays in the footer of every later file until it expires. A fresh
one for each append would make every append dearer than the one before; so an id goes from append to append, with
the next sequence, and a log knows as many of them as its drivers ever appended at once. An id whose append has an
unknown outcome belongs to the caller that was told of it.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from msgspec.structs import replace

from stratalog.partitions.identity import NewId
from stratalog.partitions.producers import ProducerAppend, unnamed


class UnnamedProducers:
    """The ids of one driver that no append has in use. Thread-safe: a deque is."""

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
