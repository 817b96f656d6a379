"""What there is of the metadata log on each voter, for people."""

from __future__ import annotations

from dataclasses import dataclass

from engine.quorum.log import MetadataLog
from engine.quorum.state import LogState
from engine.quorum.voter import Voter, VoterListing
from partitions.errors import NoMajorityError, StratalogError
from partitions.paths import DataName


@dataclass(frozen=True, slots=True)
class VoterFound:
    """One voter as it was found, or why it was not."""

    voter: Voter
    claimed_epoch: int = 0
    log_start: int = 0
    log_end: int | None = None
    """None: not known, for it cannot be listed, or its last batch not be read."""
    files: int = 0
    snapshots: tuple[str, ...] = ()
    snapshot_end: int = 0
    size_bytes: int = 0
    error: StratalogError | None = None


@dataclass(frozen=True, slots=True)
class QuorumFound:
    """The quorum as it was found."""

    leader: str
    """The claimant of the greatest epoch: the active controller. Empty where its claim cannot be read."""
    epoch: int
    end: int
    """Everything below is committed."""
    voters: tuple[VoterFound, ...]
    awaited: tuple[int, ...]
    unsettled: NoMajorityError | None
    """Why more than that may be committed: too few voters can be reached to tell."""


def inspect(log: MetadataLog) -> QuorumFound:
    """Look at every voter; without a majority at those that are there, beside what was known last.

    Raises: as ``MetadataLog.settle``, but for NoMajorityError.
    """
    unsettled = None
    try:
        state = log.settle().state
    except NoMajorityError as error:
        unsettled, state = error, log.last_known
    listings: list[VoterListing] = []
    found: list[VoterFound] = []
    for voter in log.voters:
        try:
            listing = voter.list()
            listings.append(listing)
            found.append(_found(log, listing, state))
        except StratalogError as error:
            found.append(VoterFound(voter, error=error))
    newest = max(listings, key=lambda listing: listing.claimed_epoch, default=None)
    leader = "" if newest is None else newest.voter.claimant_of(newest.claimed_epoch)
    epoch = max((listing.epoch for listing in listings), default=state.epoch)
    return QuorumFound(leader, epoch, state.end, tuple(found), state.image.awaited, unsettled)


def _found(log: MetadataLog, listing: VoterListing, state: LogState) -> VoterFound:
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
    )


def _end(log: MetadataLog, listing: VoterListing, state: LogState) -> int | None:
    if state.held_by(listing):
        return state.end
    if isinstance(listing.last, DataName):
        return log.end_of(listing.last, listing)
    return 0 if listing.last is None else listing.last.end_offset
