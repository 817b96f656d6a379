"""Variants of steps of compaction and erasure (``variants``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.snapshot_erasure_commands import SnapshotErasure
from stratalog.engine.upkeep.erasing.remote import RemoteErasing
from stratalog.engine.upkeep.replication.compact_remote import RemoteRemovalWork, RemoteTables
from stratalog.partitions.erasure import Erasure, within
from stratalog.partitions.errors import (
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import Rule
from stratalog.partitions.store import StoredObject
from stratalog.tiering.remote_change import CommittedBatch, TableChange, committed
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles, TopicLitter, find_litter
from stratalog.tiering.removal import Replaced


def merged_over_any_generation(mine: ReplicaLog, link: Link) -> bool:
    """A merged segment of the follower replaces the leader's file, whatever rule it follows."""
    return any(own.name.merged and own.start <= link.start and link.end <= own.end for own in mine.chain)


def nothing_remote(
    tables: RemoteTables, works: Sequence[RemoteRemovalWork], over: object
) -> set[TopicIdPartition]:
    """The leaders follow a rule, the remote log does not."""
    return {work.replicas.view.key for work in works}


def removed_whatever_is_listed(
    log: RemoteLog, replaced: Sequence[Replaced], _operation: str = "compact"
) -> TableChange | CommittedBatch:
    """Adds rewritten segments once, whether or not those that they replace are listed."""
    listed = {segment.path for segment in log.all_segments()}
    new = [each for each in replaced if each.upload.segment.path not in listed]
    if not new:
        return committed(log, [each.upload for each in replaced], ())
    gone = [former for each in new for former in each.former if former.path in listed]
    log.after([each.upload.segment for each in new], gone, log.version + 1)
    return TableChange(tuple(each.upload for each in new), tuple(gone))


def nothing_refused(*_: object) -> dict[TopicIdPartition, StratalogError]:
    """The remote logs do not follow an erasure, and the leaders do."""
    return {}


def erased_whatever_is_listed(
    log: RemoteLog, erasures: Mapping[int, Sequence[Erasure]], _compacted: object
) -> TableChange | RemoteLog:
    """Records erasures, whether or not the listed segments follow them."""
    new = {p: each[-1].generation for p, each in erasures.items() if each[-1].generation > log.erased_to(p)}
    return TableChange((), (), erased={**log.erased, **new}, operation="erase") if new else log


def recorded_where_rewritten(erasing: RemoteErasing, topic_id: str, made: Sequence[Any], views: Any) -> None:
    """The table records an erasure only if a segment was rewritten."""
    if made:
        _commit_erased(erasing, topic_id, made, views)
    else:
        log = erasing.logs[topic_id]
        new = {view.partition: view.last_erasure for view in views}
        erasing.logs[topic_id] = replace(log, erased={**log.erased, **new})


_commit_erased = RemoteErasing._commit


def no_file_waits(*_: object) -> frozenset[DataName]:
    """Files with records that an erasure names are uploaded."""
    return frozenset()


def nothing_unfinished(*_: object) -> list[Any]:
    """No upload without a name is waited for."""
    return []


def litter_of_any_rule(
    objects: RemoteObjects, log: RemoteLog, removed: RemovedFiles, **others: Any
) -> TopicLitter:
    """Litter of a rule that is not carried out, too."""
    rules = {partition: Rule(1_000_000, 0) for partition in range(100)}
    return find_litter(objects, replace(log, rules=rules), removed, **others)


def to_erase_in_the_log(log: ReplicaLog, erasures: Sequence[Erasure]) -> list[tuple[Link, int]]:
    """Only the part of a file that is in the log counts."""
    found = ((link, _named_in_the_log(link, erasures)) for link in log.chain)
    return [(link, generation) for link, generation in found if generation]


def is_erased_in_the_log(log: ReplicaLog, erasures: Sequence[Erasure]) -> bool:
    """Only the part of a file that is in the log counts."""
    return not to_erase_in_the_log(log, [one for one in erasures if one.offsets])


def _named_in_the_log(link: Link, erasures: Sequence[Erasure]) -> int:
    later = (one for one in reversed(erasures) if one.generation > link.name.generation)
    return next((one.generation for one in later if within(one.offsets, link.start, link.end)), 0)


def nothing_copied(*_: object) -> dict[int, StratalogError]:
    """Members of the ISR get no snapshot."""
    return {}


def whatever_has_changed(image: ClusterImage, wanted: SnapshotErasure) -> PartitionImage:
    """The erasure of a partition that has changed since it was planned."""
    return image.partition(wanted.topic_id, wanted.partition)


def nothing_outdated(*_: object) -> list[StoredObject]:
    """Outdated snapshots stay."""
    return []
