"""Consumer groups go on here where they stopped there: what they have committed in the source is committed here.

Offsets are the same on both sides, so nothing is translated. An offset only moves on: one that is further here, by
readers that have come over, stays. One that lies beyond what is mirrored waits for the run that brings it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.groups import commit, committed
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition

GroupOffsets = Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]
"""By group, topic and partition."""


def commit_here(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    run: OperationRun,
    there: GroupOffsets,
    log_ends: Mapping[TopicPartition, int],
) -> int:
    """Commit what the groups have committed ``there``, of partitions that end here at these offsets; how many
    offsets moved. A group that cannot be committed is a failure of its name.
    """
    moved = 0
    for group, offsets in sorted(there.items()):
        try:
            here = committed(metadata, storage, execution.clock, memory, group)
            wanted = {
                key: OffsetAndMetadata(given.offset, None, given.metadata)
                for key, given in offsets.items()
                if given.offset <= log_ends.get(key, -1) and (key not in here or here[key].offset < given.offset)
            }
            if wanted:
                commit(metadata, storage, execution, memory, group, wanted)
            moved += len(wanted)
        except StratalogError as error:
            run.fail(f"group {group!r}", error)
    return moved
