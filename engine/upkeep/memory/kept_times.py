"""The times of the maintenance, loaded when a run begins and kept while it goes on."""

from __future__ import annotations

from functools import cached_property

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.stored_schedule import StoredSchedule, load_stored, save_stored
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.memory.times import Times, decode, encode
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import MAINTENANCE, METADATA_TOPIC

METADATA_LOG = TopicIdPartition(METADATA_TOPIC, 0)
"""Its key beside those of partitions."""


class KeptTimes:
    """Times of earlier runs, and of this one."""

    def __init__(self, context: Context, image: ClusterImage) -> None:
        """Load them. Raises: errors of the stores."""
        self._context = context
        self._image = image
        self._stored: StoredSchedule | None = load_stored(context, image, MAINTENANCE)
        self.present = decode(self._stored.line)
        """With all that was remembered in this run."""
        self._later = Times()
        """The part that is not kept yet."""
        self._kept_once = False
        """Whether the newest version has one copy alone."""

    def remember(self, later: Times) -> None:
        """For the rest of this run; ``keep`` keeps it."""
        self.present = self.present.updated(later, self._keys)
        self._later = self._later.updated(later, self._keys)

    def keep(self, *, once: bool = False) -> str | None:
        """Keep for the next run what this one has learned; ``once``: one copy is enough for now. Returns: why that
        could not be done, if so.
        """
        if self._later == Times() and (once or not self._kept_once):
            return None
        stored = self._stored or load_stored(self._context, self._image, MAINTENANCE)
        later, present = self._later, self._keys
        self._stored, self._later, self._kept_once = None, Times(), once
        return save_stored(
            self._context,
            self._image,
            MAINTENANCE,
            stored,
            lambda line: encode(decode(line).updated(later, present)),
            once=once,
        )

    @cached_property
    def _keys(self) -> list[TopicIdPartition]:
        return partitions_of(self._image)


def partitions_of(image: ClusterImage) -> list[TopicIdPartition]:
    """All of which anything may be remembered; the metadata log last."""
    keys = [
        TopicIdPartition(topic_id, one.partition)
        for topic_id, topic in image.topics.items()
        for one in topic.partitions
    ]
    return [*keys, METADATA_LOG]
