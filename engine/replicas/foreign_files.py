"""Files on leaders with the generation of a removal that the metadata do not have, for example because metadata
were lost.
"""

from __future__ import annotations

from contextlib import suppress

from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.later_rule import LaterRuleError
from stratalog.partitions.errors import NoMajorityError, StratalogError


def note_foreign(metadata: MetadataClient, storage: Storage, error: StratalogError) -> bool:
    """Whether the error is about files that no rule made. From then on this driver ignores them in views of the
    same generation. A rule is committed before its files exist. So the files were seen first, and then a
    linearizable read must show that the view knows the last rule.
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
