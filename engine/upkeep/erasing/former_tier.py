"""The remote tier of topics that are no longer tiered: what an erasure can clean there, and what it cannot."""

from __future__ import annotations

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.partitions.store import Store


def left_of_tiering(storage: Storage, remote: Store, topic: TopicImage) -> str | None:
    """The reason why no record can be erased from a topic that is not tiered. None if the remote tier has no
    object of the topic, or if the topic's table has no segments but identifies the objects; these are then cleaned
    like those of a tiered topic.

    Raises: errors of the store and of the table.
    """
    if not remote.walk(topic.folder):
        return None
    log = storage.remote_table(topic).load()
    if log.version < 0:
        return (
            f"the remote tier has objects of it in {topic.folder}, and no table that says what they are: delete "
            "them first"
        )
    if log.all_segments():
        return (
            "it is no longer tiered (remote.log.delete.on.disable), and its remote table still lists segments: "
            "run `stratalog retain`, which removes them, then erase again"
        )
    return None
