"""Reads the snapshots of a topic again, and the files of the table that publishes them, for verify: searches them
for the keys of a certificate.
"""

from __future__ import annotations

from stratalog.engine.upkeep.erasing.certificate import ErasedPartition, ErasedTopic
from stratalog.engine.upkeep.erasing.copies import FileCopy
from stratalog.engine.upkeep.erasing.snapshot_tasks import may_be_later, snapshot_file
from stratalog.engine.upkeep.erasing.verify_iceberg import ERASED, NOT_ERASED, UNKNOWN
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.paths import CheckpointName, base_name, parse_name
from stratalog.partitions.segment import read_batches, read_segment
from stratalog.partitions.segment_check import verify_bytes
from stratalog.partitions.wanted_keys import key_digests
from stratalog.tiering.published import published_batches


def state_of_snapshot(
    copy: FileCopy, topic: ErasedTopic, expected: ErasedPartition, salt: bytes
) -> tuple[str, str | None]:
    """The state of a snapshot, with the reason. A snapshot that follows the erasure, and ends after the offsets
    that were searched, may have records of the keys that were appended later.
    """
    name = parse_name(base_name(copy.object.name))
    if not isinstance(name, CheckpointName):
        return UNKNOWN, "it is a piece of a snapshot, whose content is unknown"
    if topic.where is not None:
        return UNKNOWN, "it is a snapshot, which the erasure of a condition does not search"
    follows = name.generation >= expected.generation
    if not topic.key_digests:
        return (ERASED, None) if follows else (NOT_ERASED, "it does not follow the erasure")
    try:
        file = snapshot_file(name, copy.object)
        verify_bytes(copy.store, file)
        if follows and may_be_later(name, expected.looked_to, expected.leader_epoch):
            return ERASED, None
        footer, digests = read_segment(copy.store, file).footer, frozenset(topic.key_digests)
        for batch in read_batches(copy.store, file, footer.base_offset, footer.next_offset, ["key"]):
            if not digests.isdisjoint(key_digests(batch.column("key"), salt)):
                return NOT_ERASED, "it has a record of an erased key"
    except StratalogError as error:
        return UNKNOWN, f"{error}"
    return ERASED, None


def state_of_published(
    copy: FileCopy, topic: ErasedTopic, expected: ErasedPartition, salt: bytes
) -> tuple[str, str | None]:
    """The state of a file of the table, by the rule of ``state_of_snapshot``; every row is read."""
    assert copy.published is not None
    if topic.where is not None:
        return UNKNOWN, "it has a snapshot, which the erasure of a condition does not search"
    follows = copy.published.generation >= expected.generation
    if not topic.key_digests and not follows:
        return NOT_ERASED, "it does not follow the erasure"
    later = follows and copy.published.end_offset > expected.looked_to
    digests = frozenset(topic.key_digests)
    try:
        for batch in published_batches(copy.store, copy.object):
            if not later and not digests.isdisjoint(key_digests(batch.column("key"), salt)):
                return NOT_ERASED, "it has a record of an erased key"
    except StratalogError as error:
        return UNKNOWN, f"{error}"
    return ERASED, None
