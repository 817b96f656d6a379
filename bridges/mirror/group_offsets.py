"""Copies the committed offsets of the source's consumer groups, so that the groups continue here where they
stopped in the source. Offsets are the same on both sides. An offset only moves forward. If readers here have moved
an offset ahead of the source's offset, the mirror keeps it. If an offset is beyond the mirrored records, a later
run commits it.
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
"""Offsets by group, topic and partition."""


def commit_here(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    run: OperationRun,
    there: GroupOffsets,
    log_ends: Mapping[TopicPartition, int],
) -> int:
    """Commit the groups' offsets ``there`` for partitions that end here at these offsets. Returns the number of
    offsets that moved. A group that cannot be committed is a failure with its name.
    """
    if not log_ends:  # a dry run has none, and must not read: that may fence brokers
        return 0
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
