"""One driver's cache of the engine's own topics: states that it read, and appends that wait for their turn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.errors import OutcomeUnknownError, StratalogError
from stratalog.partitions.group_commit import GroupCommit
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
    probed: ClusterImage | None = None
    """The metadata as it was just read, with a look at the roots; None: it is to be read."""
    base_offset: int | None = None
    """Of the first of them, once they are acknowledged."""
    error: StratalogError | None = None

    @property
    def over(self) -> bool:
        """Whether anything came of it."""
        return self.base_offset is not None or self.error is not None

    @property
    def group(self) -> str:
        """An append is of one topic."""
        return self.topic


MakeAppends = Callable[[Sequence[OwnAppend]], None]
"""Makes one append of several, all to one topic; brings each to its end."""


class OwnProducer:
    """This driver as the producer of the engine's own topics: one append at a time, of all that wait for it."""

    def __init__(self) -> None:
        self._appends: GroupCommit[OwnAppend] = GroupCommit(_MOST_APPENDS)

    def append(self, wanted: OwnAppend, make: MakeAppends) -> int:
        """Append, alone or with others; the offset of the first record. Raises: the append's own error."""

        def append_all(taken: Sequence[OwnAppend]) -> None:
            try:
                make(taken)
                assert all(one.over for one in taken)
            except StratalogError as error:
                _end(taken, error)
            except BaseException:
                _end(taken, OutcomeUnknownError("the append was interrupted; read before you try again"))
                raise

        self._appends.commit(wanted, append_all)
        if wanted.base_offset is None:
            assert wanted.error is not None
            raise wanted.error
        return wanted.base_offset


def _end(taken: Sequence[OwnAppend], error: StratalogError) -> None:
    for one in taken:
        if not one.over:
            one.error = error
