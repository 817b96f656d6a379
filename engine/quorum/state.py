"""A log up to its end, and who shows it. Pure.

Snapshots count as log up to their end (protocol section 5; KIP-630, "Changes to Leader Election"). A snapshot is
only ever made of what is committed, so unlike a data file it is never of a history that was given up; and it has
one content on every voter.

Which files a voter needs to show a log: those from the end of its latest snapshot on. What lies below may have
been deleted there, and whatever comes to lie there later is covered and counts for nothing: a name that a
deletion has freed, and a zombie creates again, is litter from its first moment on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.metadata.image import ClusterImage
from engine.metadata.records import VoterId
from engine.quorum.voter import Position, VoterListing, position_of
from partitions.lineage import Lineage
from partitions.paths import CheckpointName, DataName


@dataclass(frozen=True, slots=True)
class LogState:
    """A log up to its end, which is ``image.next_offset``: a batch boundary."""

    image: ClusterImage = ClusterImage()  # noqa: RUF009 - immutable
    lineage: Lineage = Lineage()  # noqa: RUF009 - immutable
    epoch: int = 0
    """Of the last batch, 0 for an empty log."""
    start: int = 0
    """``files`` is complete from this offset on; it is 0, or the end of a snapshot."""
    files: frozenset[DataName] = frozenset()
    appended_ms: int = 0
    """When the last batch was appended, by the clock of its claimant."""

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.image.next_offset

    @property
    def snapshot(self) -> CheckpointName:
        """The name of a snapshot of all of it."""
        return CheckpointName(self.end, self.epoch)

    @property
    def position(self) -> Position:
        """Files up to it belong to this log or to earlier ones, files above it to later ones."""
        return position_of(self.snapshot)

    def held_by(self, listing: VoterListing) -> bool:
        """Whether the voter has every batch of this log, as a file or in a snapshot."""
        start = listing.snapshot_end
        return start >= self.start and all(
            name in listing.files for name in self.files if name.base_offset >= start
        )

    def shown_by(self, listing: VoterListing) -> bool:
        """Whether the voter has this log, to the end and no other, and nobody has claimed an epoch above it
        there."""
        later = listing.last is not None and position_of(listing.last) > self.position
        return not later and listing.claimed_epoch <= self.epoch and self.held_by(listing)

    def is_settled(self, electorate: Sequence[VoterId], listings: Iterable[VoterListing]) -> bool:
        """Whether a majority of ``electorate`` shows this log in its listing, one for each voter."""
        showing = {listing.voter.id for listing in listings if self.shown_by(listing)}
        return is_majority(showing, electorate)

    def trimmed(self, listings: Sequence[VoterListing]) -> LogState:
        """The same log without the names that none of the voters that show it needs: a driver that lives long
        would remember every file that ever was."""
        start = min((listing.snapshot_end for listing in listings if self.shown_by(listing)), default=0)
        if start <= self.start:
            return self
        kept = frozenset(name for name in self.files if name.base_offset >= start)
        return replace(self, start=start, files=kept)


def is_majority(some: Iterable[VoterId], electorate: Sequence[VoterId]) -> bool:
    """Whether these are more than half of the voters."""
    return 2 * len(set(some) & set(electorate)) > len(electorate)


def greatest_of(listings: Iterable[VoterListing]) -> DataName | CheckpointName | None:
    """The file that takes a log furthest; None when there is no file at all."""
    last = (listing.last for listing in listings if listing.last is not None)
    return max(last, key=position_of, default=None)
