"""Checks the snapshots of a partition's replicas, which must replace the records that were deleted from the log.
With ``deep``, checks every byte.

A damaged snapshot is not damage of the log. Readers skip it; heal replaces it with an intact copy from another
replica, or ``stratalog snapshot`` makes a new one.
"""

from __future__ import annotations

from stratalog.engine.upkeep.verification.findings import Finding
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Listing
from stratalog.partitions.paths import CheckpointName, base_name, parse_name
from stratalog.partitions.replica import Replica
from stratalog.snapshots.reader import read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.start_offset import check_invariant

MENDED = (
    "; readers use the previous snapshot and the log, if these suffice. heal copies an "
    "intact snapshot from another replica, and stratalog snapshot takes a new snapshot"
)


def check_snapshots(
    replica: Replica, listing: Listing, lineage: Lineage, log_start: int, high_watermark: int, *, member: bool
) -> list[Finding]:
    """The findings about the snapshots of a replica whose log starts at ``log_start``, if snapshots replace the
    earlier records. A snapshot of the log's history must end between the log start and the ``high_watermark``
    (KIP-630, "Validation of Snapshot and Log"). ``member``: whether the replica is in the ISR.
    """
    found = [name for name, _ in listing.checkpoints]
    if not member:  # since an erasure that it has missed, it is stale, not damaged
        others = (parse_name(base_name(stored.name)) for stored in listing.other_snapshots)
        found += [name for name in others if isinstance(name, CheckpointName)]
    names = [name for name in found if lineage.epoch_at(name.end_offset - 1) == name.epoch]
    try:
        check_invariant(log_start, high_watermark, map(SnapshotId.of, names), str(replica))
    except StratalogError as error:
        return [Finding(str(replica), error, replica.broker_id, of_snapshot=True)]
    return []


def read_snapshots(replica: Replica, listing: Listing) -> list[Finding]:
    """Check every byte of a replica's snapshots, including snapshots of an abandoned history. Damage there loses
    no records, but is reported, too.
    """
    findings: list[Finding] = []
    for _, stored in listing.checkpoints:
        try:
            read_snapshot(
                replica.store, replica.folder, stored, owner=replica.topic_id, partition=replica.partition
            )
        except SourceChangedError:
            continue  # deleted, because the log start has passed the snapshot
        except CorruptSegmentError as error:
            damage = CorruptSegmentError(f"{error}{MENDED}")
            findings.append(Finding(str(replica), damage, replica.broker_id, log_is_whole=True, of_snapshot=True))
        except StratalogError as error:
            findings.append(Finding(str(replica), error, replica.broker_id, log_is_whole=True))
    return findings
