"""One driver's cache of the engine's own topics: states that it read, and appends that wait for their turn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from stratalog.partitions.errors import OutcomeUnknownError, StratalogError
from stratalog.partitions.identity import TopicIdPartition

M = TypeVar("M")

_MOST_STATES = 256
"""Partitions whose state is kept."""
_MOST_APPENDS = 1000
"""Appends that are made as one."""


@dataclass(frozen=True, slots=True)
class ReadState(Generic[M]):
    """A state of a partition as it was read, and the epoch of the last record in it: a log with another epoch
    there has another history.
    """

    state: M
    epoch: int


class StateCache:
    """The latest state that was read of each partition, so that a read costs a listing and the files that are
    new. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[TopicIdPartition, ReadState[Any]] = OrderedDict()

    def get(self, topic_id: str, partition: int) -> ReadState[Any] | None:
        """The state that was kept."""
        with self._lock:
            return self._states.get(TopicIdPartition(topic_id, partition))

    def put(self, topic_id: str, partition: int, read: ReadState[Any]) -> None:
        """Keep a state; the one that was put longest ago is forgotten for it."""
        with self._lock:
            key = TopicIdPartition(topic_id, partition)
            self._states[key] = read
            self._states.move_to_end(key)
            while len(self._states) > _MOST_STATES:
                self._states.popitem(last=False)


@dataclass(slots=True, eq=False)
class OwnAppend:
    """Records that a thread wants in a partition of one of the engine's own topics, and what came of it."""

    topic: str
    partition: int
    batch: pa.RecordBatch
    base_offset: int | None = None
    """Of the first of them, once they are acknowledged."""
    error: StratalogError | None = None

    @property
    def over(self) -> bool:
        """Whether anything came of it."""
        return self.base_offset is not None or self.error is not None


MakeAppends = Callable[[Sequence[OwnAppend]], None]
"""Makes one append of several, all to one topic; brings each to its end."""


class OwnProducer:
    """This driver as the producer of the engine's own topics: one append at a time. Records of its threads that
    come while an append is under way go together with the next one, so under load appends grow instead of
    queueing. Nothing waits for company.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._waiting: list[OwnAppend] = []
        self._door = threading.Lock()

    def append(self, wanted: OwnAppend, make: MakeAppends) -> int:
        """Append, alone or with others; the offset of the first record. Raises: the append's own error."""
        with self._door:
            self._waiting.append(wanted)
        try:
            with self._turn:
                # The thread that had the turn before may have appended this one with its own.
                while not wanted.over:
                    self._append_waiting(make)
        finally:
            with self._door:  # interrupted: nobody waits for it any more
                self._waiting = [one for one in self._waiting if one is not wanted]
        if wanted.base_offset is None:
            assert wanted.error is not None
            raise wanted.error
        return wanted.base_offset

    def _append_waiting(self, make: MakeAppends) -> None:
        with self._door:
            taken = [one for one in self._waiting if one.topic == self._waiting[0].topic][:_MOST_APPENDS]
            self._waiting = [one for one in self._waiting if one not in taken]
        try:
            make(taken)
            assert all(one.over for one in taken)
        except StratalogError as error:
            _end(taken, error)
        except BaseException:
            _end(taken, OutcomeUnknownError("the append was interrupted; read before you try again"))
            raise


def _end(taken: Sequence[OwnAppend], error: StratalogError) -> None:
    for one in taken:
        if not one.over:
            one.error = error
