"""A driver's cache of the engine's own topics: the states that it has read, and the waiting appends."""

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
"""Partitions whose state is cached."""
_MOST_APPENDS = 1000
"""The maximum number of appends to combine into one."""


@dataclass(frozen=True, slots=True)
class ReadState(Generic[M]):
    """The state of a partition as it was read, and the epoch of the last record read. If the log has a different
    epoch at that offset, the log has a different history.
    """

    state: M
    epoch: int


class StateCache:
    """The latest read state of each partition, so that a read costs one listing and the new files. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[TopicIdPartition, ReadState[Any]] = OrderedDict()

    def get(self, topic_id: str, partition: int) -> ReadState[Any] | None:
        """The cached state."""
        with self._lock:
            return self._states.get(TopicIdPartition(topic_id, partition))

    def put(self, topic_id: str, partition: int, read: ReadState[Any]) -> None:
        """Cache a state, and evict the oldest entry if there are too many."""
        with self._lock:
            key = TopicIdPartition(topic_id, partition)
            self._states[key] = read
            self._states.move_to_end(key)
            while len(self._states) > _MOST_STATES:
                self._states.popitem(last=False)


@dataclass(slots=True, eq=False)
class OwnAppend:
    """A thread's records for a partition of one of the engine's own topics, and the outcome."""

    topic: str
    partition: int
    batch: pa.RecordBatch
    probed: ClusterImage | None = None
    """The metadata as just read, after a probe of the roots; None: read the metadata first."""
    base_offset: int | None = None
    """The offset of the first record, once acknowledged."""
    error: StratalogError | None = None

    @property
    def over(self) -> bool:
        """Whether the request has an outcome."""
        return self.base_offset is not None or self.error is not None

    @property
    def group(self) -> str:
        """The topic; only appends to one topic are combined."""
        return self.topic


MakeAppends = Callable[[Sequence[OwnAppend]], None]
"""Combines several requests, all to one topic, into one append, and gives each request its outcome."""


class OwnProducer:
    """The producer of the engine's own topics. It makes one append at a time, for all waiting requests."""

    def __init__(self) -> None:
        self._appends: GroupCommit[OwnAppend] = GroupCommit(_MOST_APPENDS)

    def append(self, wanted: OwnAppend, make: MakeAppends) -> int:
        """Append, alone or combined with others; returns the offset of the first record. Raises: the append's own
        error.
        """

        def append_all(taken: Sequence[OwnAppend]) -> None:
            try:
                make(taken)
                assert all(one.over for one in taken)
            except StratalogError as error:
                _end(taken, error)
            except BaseException:
                _end(taken, OutcomeUnknownError("the append was interrupted; read the log before you try again"))
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
