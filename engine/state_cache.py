"""What one driver keeps of the engine's own topics, so that a read costs a listing and the files that are new."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from partitions.identity import NewId

_MOST_STATES = 256
"""Partitions whose state is kept."""


class StateCache:
    """States of partitions as of an offset, and the epoch of the record before that: whoever has another epoch
    there has another history. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()

    def get(self, topic_id: str, partition: int, fits: Callable[[Any, int], bool]) -> Any:
        """The state that was kept, with which and whose epoch ``fits`` agrees; else None."""
        with self._lock:
            found = self._states.get((topic_id, partition))
        return found[0] if found is not None and fits(*found) else None

    def put(self, topic_id: str, partition: int, state: Any, epoch: int) -> None:
        """Keep a state; the one that was put longest ago is forgotten for it."""
        with self._lock:
            self._states[topic_id, partition] = state, epoch
            self._states.move_to_end((topic_id, partition))
            while len(self._states) > _MOST_STATES:
                self._states.popitem(last=False)


class OwnProducer:
    """This driver as the producer of the engine's own topics. One append at a time: a sequence is tried only
    after the one before it has come to its end.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._id: str | None = None
        self._sequence = 0

    @contextmanager
    def turn(self, new_id: NewId) -> Iterator[tuple[str, int]]:
        """The producer's id and the next sequence, for the one append that is made inside."""
        with self._turn:
            if self._id is None:
                self._id = f"driver-{new_id()}"
            self._sequence += 1
            yield self._id, self._sequence
