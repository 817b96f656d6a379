"""The remote ends of logs, as a driver knows them: asked before its first append to a partition under a leader
epoch.

One read of a topic's table answers for all of its partitions. An answer holds while that epoch does:
meanwhile only what the leader holds is tiered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stratalog.engine.metadata.image import PartitionView
from stratalog.partitions.identity import TopicIdPartition

ASK_AGAIN_MS = 60_000
"""A remote tier that has not answered is left alone for so long."""


@dataclass(slots=True)
class RemoteEnds:
    """Partitions of which the leader was found to hold what the remote log holds. Not pickled: each driver
    asks."""

    _found: dict[TopicIdPartition, int] = field(default_factory=dict)
    """The leader epoch under which that was."""
    _silent_until_ms: dict[str, int] = field(default_factory=dict)
    """By topic id."""

    def unknown(self, views: Iterable[PartitionView]) -> list[PartitionView]:
        """Those of tiered partitions that were not found so under their present epoch."""
        return [view for view in views if view.tiered and self._found.get(view.key) != view.leader_epoch]

    def remember(self, view: PartitionView) -> None:
        """An append under the view has looked."""
        self._found[view.key] = view.leader_epoch

    def is_silent(self, topic_id: str, now_ms: int) -> bool:
        """Whether the remote tier has not answered for this topic a short while ago."""
        return now_ms < self._silent_until_ms.get(topic_id, 0)

    def was_silent(self, topic_id: str, now_ms: int) -> None:
        """The remote tier did not answer just now."""
        self._silent_until_ms[topic_id] = now_ms + ASK_AGAIN_MS
