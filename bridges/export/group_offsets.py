"""Commits the offsets of consumer groups in the target, so that the groups continue where they stopped here. An
offset only moves forward, as with a mirror. If an offset is beyond the exported records, a later run commits it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.bridges.export.journal import Journal
from stratalog.bridges.export.offset_map import translated
from stratalog.bridges.export.target import ExportTarget
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.groups import all_groups, named
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError


def commit_there(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    run: OperationRun,
    target: ExportTarget,
    topic: str,
    target_topic: str,
    journal: Journal,
    places: Mapping[int, int],
) -> int:
    """Commit the groups' offsets for the topic, whose records below ``places`` are in the target. Returns the
    number of offsets that moved. A group that cannot be committed is a failure with its name.
    """
    image = metadata.image()
    found, failures = all_groups(storage, clock, memory, image)
    run.failures += failures
    moved = 0
    for group, state in sorted(found.items()):
        here = {key[1]: record for key, record in named(image, state) if key[0] == topic}
        offsets = {p: _there(journal, p, places.get(p, 0), record.offset) for p, record in here.items()}
        if not offsets:
            continue
        try:
            there = target.committed(group, target_topic)
            wanted = {
                (target_topic, partition): OffsetAndMetadata(offset, None, here[partition].metadata)
                for partition, offset in offsets.items()
                if offset is not None and offset > there.get(partition, -1)
            }
            if wanted:
                target.commit(group, wanted)
            moved += len(wanted)
        except StratalogError as error:
            run.fail(f"group {group}", error)
    return moved


def _there(journal: Journal, partition: int, place: int, offset: int) -> int | None:
    assert journal.begun is not None
    if not journal.begun.kept:
        return translated(journal.runs.get(partition, []), place, offset)
    return offset if offset <= place else None
