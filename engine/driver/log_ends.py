"""Ends of logs that this driver knows: local ends after its own appends, and remote ends that it has compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.log_end import LogEnd
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.identity import TopicIdPartition

_BYTES = 64 * 1024 * 1024
_END_BYTES = 4096
_PRODUCER_BYTES = 512


class LogEnds:
    """The end of each log after this driver's last append, and the view under which the whole maximal ISR held the
    log up to that end. Thread-safe.
    """

    def __init__(self) -> None:
        self._ends: BoundedCache[TopicIdPartition, tuple[PartitionView, LogEnd]] = BoundedCache(_BYTES)

    def of(self, views: Iterable[PartitionView]) -> dict[int, LogEnd]:
        """The known ends by partition, for views that have not changed since. Each end is given out once, so after
        a failed append none is known.
        """
        found: dict[int, LogEnd] = {}
        for view in views:
            kept = self._ends.take(view.key)
            if kept is not None and kept[0] == view:
                found[view.partition] = kept[1]
        return found

    def remember(self, view: PartitionView, end: LogEnd) -> None:
        """Record the end after an append that was acknowledged under ``view``: the whole maximal ISR holds the log
        up to it.
        """
        weight = _END_BYTES + _PRODUCER_BYTES * len(end.state.producers)
        self._ends.put(view.key, (view, replace(end, acknowledged_to=end.log_end)), weight)


ASK_AGAIN_MS = 60_000
"""How long a driver waits before it asks again a remote tier that did not answer."""


@dataclass(slots=True)
class RemoteEnds:
    """Partitions whose leader holds all records of their remote log, by the leader epoch in which this driver
    checked.

    A driver checks before its first append under a leader epoch: one read of a topic's table answers for all its
    partitions. The answer stays valid for that epoch, because only records that the leader holds are tiered. Not
    pickled.
    """

    _found: dict[TopicIdPartition, int] = field(default_factory=dict)
    """The leader epoch of the check."""
    _silent_until_ms: dict[str, int] = field(default_factory=dict)
    """By topic id."""

    def unknown(self, views: Iterable[PartitionView]) -> list[PartitionView]:
        """The views of tiered partitions that were not checked under their present leader epoch."""
        return [view for view in views if view.tiered and self._found.get(view.key) != view.leader_epoch]

    def remember(self, view: PartitionView) -> None:
        """Record that an append under the view has checked the remote end."""
        self._found[view.key] = view.leader_epoch

    def is_silent(self, topic_id: str, now_ms: int) -> bool:
        """Whether the remote tier failed to answer for this topic less than ``ASK_AGAIN_MS`` ago."""
        return now_ms < self._silent_until_ms.get(topic_id, 0)

    def was_silent(self, topic_id: str, now_ms: int) -> None:
        """Record that the remote tier did not answer at ``now_ms``."""
        self._silent_until_ms[topic_id] = now_ms + ASK_AGAIN_MS
