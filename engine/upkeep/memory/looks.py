"""Stores the results of checks of partitions. ``health`` reports stored damage until a check finds it repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.memory.kept_times import KeptTimes
from stratalog.engine.upkeep.memory.times import Looked
from stratalog.partitions.clock import Clock
from stratalog.partitions.identity import TopicIdPartition


def remember_look(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    found: Mapping[TopicIdPartition, Sequence[Failure]],
    *,
    deep: bool,
) -> list[str]:
    """Store the results for these partitions; with ``deep`` every byte was read. Writes nothing if nothing
    changed. Returns a note if the write failed.
    """
    looked = Looked(found, _sound(image, found), deep, clock.now_ms())
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
