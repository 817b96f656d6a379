"""The memory of upkeep, loaded when a run begins and kept while it goes on: the one way to write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import StoredSchedule, load_stored, save_stored
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.memory.times import Times, decode, encode
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import MAINTENANCE, METADATA_TOPIC

METADATA_LOG = TopicIdPartition(METADATA_TOPIC, 0)
"""Its key beside those of partitions."""


class KeptTimes:
    """Times of earlier runs, and of this one."""

    def __init__(self, storage: Storage, image: ClusterImage) -> None:
        """Load them. Raises: errors of the stores."""
        self._storage = storage
        self._image = image
        self._stored: StoredSchedule | None = load_stored(storage, image, MAINTENANCE)
        self.present = decode(self._stored.line)
        """With all that was remembered in this run."""
        self._changes: list[Callable[[Times], Times]] = []
        """Those that are not kept yet: what another driver has written since is changed likewise."""
        self._kept_once = False
        """Whether the newest version has one copy alone."""

    def remember(self, later: Times) -> None:
        """``change`` by the ``later`` times."""
        keys = self.keys
        self.change(lambda times: times.updated(later, keys))

    def change(self, how: Callable[[Times], Times]) -> None:
        """For the rest of this run; ``keep`` keeps it."""
        self.present = how(self.present)
        self._changes.append(how)

    def keep(self, *, once: bool = False) -> str | None:
        """Keep for the next run what this one has learned, where it is anything new; ``once``: one copy is enough
        for now. Returns: why it could not be kept, if so.
        """
        enough = once or not self._kept_once
        if not self._changes and enough:
            return None
        stored = self._stored or load_stored(self._storage, self._image, MAINTENANCE)
        changes, self._stored, self._changes, self._kept_once = self._changes, None, [], once

        def changed(times: Times) -> Times:
            for change in changes:
                times = change(times)
            return times

        before = decode(stored.line)
        after = changed(before)
        if after == before and enough:
            return None
        return save_stored(
            self._storage,
            self._image,
            MAINTENANCE,
            stored,
            lambda line: encode(after if line is stored.line else changed(decode(line))),
            once=once,
        )

    @cached_property
    def keys(self) -> list[TopicIdPartition]:
        """The partitions of which anything may be remembered; the metadata log last."""
        topics = self._image.topics.items()
        keys = [
            TopicIdPartition(topic_id, one.partition) for topic_id, topic in topics for one in topic.partitions
        ]
        return [*keys, METADATA_LOG]
