"""Loads the stored state of upkeep at the start of a run, and stores changes. All writes of this state go through
this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import StoredSchedule, load_stored, save_stored
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.memory.times import Looked, Times, decode, encode
from stratalog.partitions.clock import Clock
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import MAINTENANCE, METADATA_TOPIC

METADATA_LOG = TopicIdPartition(METADATA_TOPIC, 0)
"""The key of the metadata log among the keys of partitions."""


class KeptTimes:
    def __init__(self, storage: Storage, image: ClusterImage) -> None:
        """Load the times of earlier runs. Raises: errors of the stores."""
        self._storage = storage
        self._image = image
        self._stored: StoredSchedule | None = load_stored(storage, image, MAINTENANCE)
        self.present = decode(self._stored.line)
        """The times, including the changes of this run."""
        self._changes: list[Callable[[Times], Times]] = []
        """Changes that are not stored yet. If another driver has written a newer version, they are applied to that
        version.
        """
        self._kept_once = False
        """Whether the newest version has only one copy."""

    def remember(self, later: Times) -> None:
        keys = self.keys
        self.change(lambda times: times.updated(later, keys))

    def change(self, how: Callable[[Times], Times]) -> None:
        """Record a change for the rest of this run; ``keep`` stores it."""
        self.present = how(self.present)
        self._changes.append(how)

    def keep(self, *, once: bool = False) -> str | None:
        """Store the changes of this run for the next run, if there are any; ``once``: one copy is enough for now.
        Returns the reason if the write fails, otherwise None.
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
        why = save_stored(
            self._storage,
            self._image,
            MAINTENANCE,
            stored,
            lambda line: encode(after if line is stored.line else changed(decode(line))),
            once=once,
        )
        if why is not None:
            self._changes = changes  # the next call tries again
        return why

    @cached_property
    def keys(self) -> list[TopicIdPartition]:
        """The partitions that may have stored state; the metadata log last."""
        topics = self._image.topics.items()
        keys = [
            TopicIdPartition(topic_id, one.partition) for topic_id, topic in topics for one in topic.partitions
        ]
        return [*keys, METADATA_LOG]


def remember_look(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    found: Mapping[TopicIdPartition, Sequence[Failure]],
    *,
    deep: bool,
    unseen: Mapping[TopicIdPartition, Collection[str]],
) -> list[str]:
    """Store the results for these partitions; with ``deep`` every byte was read, except of the ``unseen`` replicas
    and remote logs. Writes nothing if nothing changed. Returns a note if the write failed.
    """
    whole = {key: failures for key, failures in found.items() if not unseen.get(key)}
    looked = Looked(found, _sound(image, whole), deep, clock.now_ms(), unseen)
    kept = KeptTimes(storage, image)
    kept.change(lambda times: times.after(looked, kept.keys))
    why = kept.keep()
    return [] if why is None else [f"the result could not be stored for health: {why}"]


def _sound(image: ClusterImage, found: Mapping[TopicIdPartition, Sequence[Failure]]) -> frozenset[str]:
    """The names of intact partitions, and of topics whose partitions are all intact."""
    sound = {key for key, failures in found.items() if not failures}
    names = set()
    for topic in image.topics.values():
        here = [one.partition for one in topic.partitions if (topic.topic_id, one.partition) in sound]
        names |= {f"{topic.name}-{partition}" for partition in here}
        names |= {topic.name} if here and len(here) == len(topic.partitions) else set()
    return frozenset(names)
