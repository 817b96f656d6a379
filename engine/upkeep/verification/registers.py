"""Checks the registers of a replica (its joined epochs, high watermarks and local start) and its snapshots, which
must replace the records that were deleted from the log.

Most of a register's data is in its name; this module checks its content. A damaged register is not reconstructed.
A damaged snapshot is not damage of the log. Readers skip it; heal replaces it with an intact copy from another
replica, or ``stratalog snapshot`` makes a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.engine.replicas.registers import local_start_state, parsed_epoch, read_register
from stratalog.engine.replicas.repair import BadEpoch, BadLocalStart
from stratalog.engine.upkeep.verification.findings import Finding
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError, CorruptSegmentError, SourceChangedError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Listing
from stratalog.partitions.paths import (
    CheckpointName,
    EpochName,
    LocalStartName,
    WatermarkName,
    base_name,
    name_in,
    parse_name,
)
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import StoredObject
from stratalog.snapshots.reader import read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.start_offset import check_invariant

MENDED = (
    "; readers use the previous snapshot and the log, if these suffice. heal copies an "
    "intact snapshot from another replica, and stratalog snapshot takes a new snapshot"
)
_HUMAN = "; the right content is unknown: restore the register from a backup"


def check_registers(
    replica: Replica, objects: Sequence[StoredObject], leader: Replica | None, committed: int
) -> list[Finding]:
    """Read every register of a replica, whose folder was listed as ``objects``. Epochs are compared with the
    leader's registers of the same name. Registers above the ``committed`` epoch are foreign. An unreadable
    register does not affect any log if a later register replaces it.
    """
    found: list[Finding] = []
    folder = replica.folder

    def note(
        error: StratalogError, damage: BadEpoch | BadLocalStart | None = None, *, unused: bool = False
    ) -> None:
        found.append(Finding(str(replica), error, replica.broker_id, damage, log_is_whole=unused, unused=unused))

    names = [(parse_name(name_in(folder, stored.name)), stored) for stored in objects]
    epochs = [name.epoch for name, _ in names if isinstance(name, EpochName)]
    joined = max((epoch for epoch in epochs if epoch <= committed), default=0)
    start = max((name.offset for name, _ in names if isinstance(name, LocalStartName)), default=0)
    for name, stored in names:
        what = replica.store.uri_of(stored.name)
        try:
            match name:
                case WatermarkName() if stored.size_bytes:
                    note(CorruptionError(f"{what} has {stored.size_bytes} bytes, but must be empty{_HUMAN}"))
                case LocalStartName(offset) if offset == start:
                    local_start_state(replica, name)
                case EpochName(epoch) if epoch < joined:  # the greatest epoch was read with the lineage
                    _check_epoch(replica, name, leader)
        except SourceChangedError:
            continue  # retention has deleted the register
        except CorruptionError as error:
            match name:
                case EpochName(epoch) if not _is_whole(replica, name) and _is_whole(replica, EpochName(joined)):
                    note(error, BadEpoch(epoch, needed=False), unused=True)
                case EpochName(epoch):
                    note(error, BadEpoch(epoch))
                case LocalStartName(offset):
                    note(error, BadLocalStart(offset))
                case _:
                    note(error)
        except StratalogError as error:
            note(error)
    return found


def _is_whole(replica: Replica, name: EpochName) -> bool:
    try:
        parsed_epoch(replica, name, read_register(replica, name))
    except StratalogError:
        return False
    return True


def _check_epoch(replica: Replica, name: EpochName, leader: Replica | None) -> None:
    """Check the register of an epoch before the last joined epoch. The register no longer decides anything, but
    must be intact.
    """
    data = read_register(replica, name)
    parsed_epoch(replica, name, data)
    if leader is None or leader.broker_id == replica.broker_id:
        return
    try:
        expected = read_bounded(leader.store, leader.path(name), REGISTER_BYTES)
        parsed_epoch(leader, name, expected)
    except (FileNotFoundError, CorruptionError):
        return  # the leader has not joined that epoch, or has a damaged register
    if data != expected:
        raise CorruptionError(
            f"{replica.store.uri_of(replica.path(name))} has a different lineage than the leader, broker "
            f"{leader.broker_id}: {data[:80]!r}"
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
