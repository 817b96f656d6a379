"""A log up to its end, and the voters that show it. Pure.

A snapshot replaces the log up to the snapshot's end (protocol section 5; KIP-630, "Changes to Leader Election"). A
snapshot is only made of committed records, so unlike a data file it never belongs to an abandoned history, and it
has the same content on every voter.

To show a log, a voter needs the files from the end of its latest snapshot on. Older files may have been deleted
there. If such files appear later, because a zombie creates a deleted name again, the snapshot covers them, and
they are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.repeated import BatchRecords, latest_of
from stratalog.engine.quorum.voter import Position, VoterListing, VoterLook, position_of
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import CheckpointName, DataName


@dataclass(frozen=True, slots=True)
class LogState:
    """A log up to its end, which is ``image.next_offset``: a batch boundary."""

    image: ClusterImage = ClusterImage()  # noqa: RUF009 - immutable
    lineage: Lineage = Lineage()  # noqa: RUF009 - immutable
    epoch: int = 0
    """The epoch of the last batch; 0 for an empty log."""
    start: int = 0
    """``files`` is complete starting at this offset; 0, or the end of a snapshot."""
    files: frozenset[DataName] = frozenset()
    appended_ms: int = 0
    """The time at which the last batch was appended, by the clock of its claimant."""
    signed: bool = False
    """Whether any file that was read has a tag, which shows that the cluster has a key."""
    latest: tuple[BatchRecords, ...] = field(default=(), compare=False)
    """The last batches up to the log end, for the next batch to repeat; empty if unknown."""

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.image.next_offset

    @property
    def snapshot(self) -> CheckpointName:
        """The name of a snapshot of the complete log."""
        return CheckpointName(self.end, self.epoch)

    @property
    def position(self) -> Position:
        """Files up to this position belong to this log or to earlier logs; files above it belong to later logs."""
        return position_of(self.snapshot)

    def lacked_by(self, look: VoterLook) -> frozenset[DataName]:
        """The batches of this log that the voter has neither as a file nor in a snapshot. The voter lacks more
        batches if its snapshot ends before ``start``.
        """
        start = look.snapshot_end
        return frozenset(name for name in self.files.difference(look.files) if name.base_offset >= start)

    def denies(self, name: CheckpointName) -> bool:
        """Whether a snapshot belongs neither to this log nor to a log that continues it, so that no driver can
        have frozen it.
        """
        if name.end_offset > self.end:
            return name.epoch < self.epoch
        epoch = self.lineage.epoch_at(name.end_offset - 1)
        return epoch is not None and epoch != name.epoch

    def held_by(self, look: VoterLook) -> bool:
        """Whether the voter has every batch of this log, as a file or in a snapshot. False if the voter has a
        snapshot that this log denies, because the name of such a snapshot would hide missing files.
        """
        return (
            look.snapshot_end >= self.start
            and not self.lacked_by(look)
            and not any(self.denies(name) for name in look.checkpoints)
        )

    def shown_by(self, look: VoterLook) -> bool:
        """Whether the voter has exactly this log, and no epoch above it is claimed there."""
        later = look.last is not None and position_of(look.last) > self.position
        return not later and look.claimed_epoch <= self.epoch and self.held_by(look)

    def is_committed(self, electorate: Sequence[VoterId], looks: Iterable[VoterLook]) -> bool:
        """Whether a majority of ``electorate`` shows this log, according to one listing of each voter."""
        showing = {look.voter.id for look in looks if self.shown_by(look)}
        return is_majority(showing, electorate)

    def trimmed(self, looks: Iterable[VoterLook]) -> LogState:
        """The same log without the names of files that the voters with this log no longer need. Without this step,
        a long-lived driver would accumulate all names.
        """
        start = min((look.snapshot_end for look in looks if self.shown_by(look)), default=0)
        if start <= self.start:
            return self
        kept = frozenset(name for name in self.files if name.base_offset >= start)
        return replace(self, start=start, files=kept, latest=latest_of(self.latest, start))


@dataclass(frozen=True, slots=True)
class CommittedLog:
    """A log that is known to be committed, and the files on the voters that could be listed."""

    state: LogState
    listings: tuple[VoterListing, ...]


def is_majority(some: Iterable[VoterId], electorate: Sequence[VoterId]) -> bool:
    """Whether these are more than half of the voters."""
    return 2 * len(set(some) & set(electorate)) > len(electorate)


def minority_of(electorate: Sequence[VoterId]) -> int:
    """The maximum number of voters that an attacker may control; one voter more includes a sound voter."""
    return (len(electorate) - 1) // 2


def greatest_of(looks: Iterable[VoterLook]) -> DataName | CheckpointName | None:
    """The file with the greatest position; None without files."""
    last = (look.last for look in looks if look.last is not None)
    return max(last, key=position_of, default=None)
