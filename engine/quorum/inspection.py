"""Describes the metadata log on each voter, for operators."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from stratalog.engine.quorum.checkpoints import verify_checkpoint
from stratalog.engine.quorum.damage import DAMAGED, check_voter
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter, VoterListing, position_of
from stratalog.partitions.errors import LogGapError, NoMajorityError, StorageRefusedError, StratalogError
from stratalog.partitions.paths import CheckpointName, DataName


@dataclass(frozen=True, slots=True)
class VoterFound:
    """One voter as found, or the error from listing it. If the voter cannot be listed, its numbers are unknown
    (None).
    """

    voter: Voter
    claimed_epoch: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    """Also None if the voter's last batch cannot be read."""
    files: int | None = None
    snapshots: tuple[str, ...] = ()
    snapshot_end: int | None = None
    size_bytes: int | None = None
    error: StratalogError | None = None
    """The error from listing the voter, or a description of unexpected files."""


@dataclass(frozen=True, slots=True)
class QuorumFound:
    """The quorum as found."""

    leader: str
    """The claimant of the greatest epoch: the active controller. Empty if its claim cannot be read."""
    epoch: int
    end: int
    """Everything below this offset is committed."""
    voters: tuple[VoterFound, ...]
    replaced: tuple[int, ...]
    incomplete: StratalogError | None
    """The reason why more may be committed: too few voters are reachable."""


def inspect(log: MetadataLog) -> QuorumFound:
    """List every voter, and describe it. Without a majority, list the reachable voters, and report the last known
    log.

    Raises: see ``MetadataLog.committed_log``, except NoMajorityError.
    """
    incomplete = None
    try:
        state = log.committed_log().state
    except (NoMajorityError, StorageRefusedError) as error:
        incomplete, state = error, log.last_known
    listings: list[VoterListing] = []
    found: list[VoterFound] = []
    for voter in log.voters:
        try:
            listing = voter.list()
        except StratalogError as error:
            found.append(VoterFound(voter, error=error))
            continue
        wrong = _wrong(log, listing, state)
        found.append(_found(log, listing, state, wrong))
        if wrong is None:
            listings.append(listing)
    newest = max(listings, key=lambda listing: listing.claimed_epoch, default=None)
    leader = "" if newest is None else newest.voter.claimant_of(newest.claimed_epoch)
    epoch = max((listing.epoch for listing in listings), default=state.epoch)
    return QuorumFound(leader, epoch, state.end, tuple(found), state.image.replaced, incomplete)


def _wrong(log: MetadataLog, listing: VoterListing, state: LogState) -> StratalogError | None:
    """The reason why a voter that can be listed is left out; None if no reason is known."""
    try:
        check_voter(listing, state)
        if listing.last is not None and position_of(listing.last) > state.position:
            _read_last(log, listing, state)
    except DAMAGED as error:
        return error
    except StratalogError:
        return None
    return None


def _read_last(log: MetadataLog, listing: VoterListing, state: LogState) -> None:
    """Check that a voter's files beyond the log continue the log and are readable. (These files may be committed
    later, or never.)

    Raises: CorruptionError kinds, InconsistentClusterIdError; SourceChangedError, StorageError.
    """
    match listing.last:
        case DataName() as name:
            log.end_of(name, listing)
            continues = any(one.base_offset == state.end for one in listing.files)
            if not continues and listing.snapshot_end <= state.end < name.base_offset:
                raise LogGapError(f"{listing.voter}: {name} does not continue the log, which ends at {state.end}")
        case CheckpointName() as name:
            verify_checkpoint(log.cluster_id, listing.voter, listing.checkpoints[name])


def _found(log: MetadataLog, listing: VoterListing, state: LogState, error: StratalogError | None) -> VoterFound:
    ends = [name.end_offset for name in sorted(listing.checkpoints)]
    stored = [*listing.files.values(), *listing.checkpoints.values()]
    return VoterFound(
        voter=listing.voter,
        claimed_epoch=listing.claimed_epoch,
        log_start=listing.log_start,
        log_end=_end(log, listing, state),
        files=len(listing.files),
        snapshots=tuple(str(name) for name in sorted(listing.checkpoints)),
        snapshot_end=max(ends, default=0),
        size_bytes=sum(one.size_bytes for one in stored),
        error=error or listing.unsigned,
    )


def _end(log: MetadataLog, listing: VoterListing, state: LogState) -> int | None:
    if state.held_by(listing):
        return state.end
    if isinstance(listing.last, DataName):
        with suppress(StratalogError):
            return log.end_of(listing.last, listing)
        return None
    return 0 if listing.last is None else listing.last.end_offset
