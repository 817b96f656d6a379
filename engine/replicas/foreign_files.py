"""Files on leaders with the generation of a removal rule that the metadata does not have, for example because
the metadata was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.later_rule import LaterRuleError
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import NoMajorityError, StratalogError
from stratalog.partitions.identity import TopicIdPartition


def note_foreign(metadata: MetadataClient, storage: Storage, error: StratalogError) -> bool:
    """Whether the error is about files that no committed rule made. If so, this driver ignores these files from
    now on, in views of the same generation. A rule is committed before its files exist. So a linearizable read,
    made after the files were seen, must show that the view has the last rule.
    """
    if not isinstance(error, LaterRuleError) or error.view is None:
        return False
    view = error.view
    with suppress(NoMajorityError):
        image = metadata.image()
        if view.topic_id in image.topics and image.view(*view.key).generation == view.generation:
            known = view.key, view.generation
            storage.foreign[known] = storage.foreign.get(known, frozenset()) | error.names
            return True
    return False


def under_present_rules(
    metadata: MetadataClient, storage: Storage, failed: Iterable[tuple[PartitionView, StratalogError]]
) -> dict[TopicIdPartition, PartitionReplicas]:
    """The partitions that failed because their view lacks the rules of their files. They can be tried again, under
    the current view and without the files that no committed rule made.
    """
    later = [(view, error) for view, error in failed if isinstance(error, LaterRuleError)]
    for _, error in later:
        note_foreign(metadata, storage, error)
    image = metadata.image() if later else None
    return {
        view.key: storage.replicas(image.view(*view.key))
        for view, _ in later
        if image is not None and view.topic_id in image.topics
    }
