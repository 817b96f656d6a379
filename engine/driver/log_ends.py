"""The ends of logs that this driver has appended to, from which its next appends go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.log_end import LogEnd
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.identity import TopicIdPartition

_BYTES = 64 * 1024 * 1024
_END_BYTES = 4096
_PRODUCER_BYTES = 512


class LogEnds:
    """By partition, each with the view under which the maximal ISR was found to hold the log up to there.
    Thread-safe."""

    def __init__(self) -> None:
        self._ends: BoundedCache[TopicIdPartition, tuple[PartitionView, LogEnd]] = BoundedCache(_BYTES)

    def of(self, views: Iterable[PartitionView]) -> dict[int, LogEnd]:
        """The ends that are known under these very views, by partition. Each is given out once: an append that
        fails leaves nothing known."""
        found: dict[int, LogEnd] = {}
        for view in views:
            kept = self._ends.take(view.key)
            if kept is not None and kept[0] == view:
                found[view.partition] = kept[1]
        return found

    def remember(self, view: PartitionView, end: LogEnd) -> None:
        """An append under the view was acknowledged: all of the maximal ISR holds the log up to its end."""
        weight = _END_BYTES + _PRODUCER_BYTES * len(end.state.producers)
        self._ends.put(view.key, (view, replace(end, acknowledged_to=end.log_end)), weight)
