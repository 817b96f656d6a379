"""An epoch of the metadata log that a driver has claimed, and what it goes on from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import VoterLook
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName


@dataclass(frozen=True, slots=True)
class Claim:
    """An epoch that this driver is the only one to write in."""

    epoch: int
    state: LogState
    """The log that the epoch goes on from: adopted with the claim, and everything committed since."""
    lineage: Lineage
    """Of the epoch's files."""
    looks: Mapping[VoterId, VoterLook]
    """The latest look at each voter."""
    adopted_end: int
    """Where the epoch began: what ends there is not known to be committed before something follows it."""
    damaged: frozenset[VoterId]
    """Voters that were found damaged when it was made: an epoch that only they show fences nobody."""

    @classmethod
    def of(cls, epoch: int, state: LogState, looks: Sequence[VoterLook], damaged: frozenset[VoterId]) -> Claim:
        """An epoch that goes on from a log, by looks at the majority that it was claimed on.

        Its lineage tells of what is below the log start of all of these no more than the epoch of the last record
        there, the snapshot's: it would grow with every claim there ever was. Every majority has a voter that
        starts that late, and a reader from further back finds a snapshot there.
        """
        start = min(look.log_start for look in looks)
        lineage = state.lineage.continued_by(epoch, state.end).truncated_from_start(max(start - 1, 0))
        by_voter = {look.voter.id: look for look in looks}
        return cls(epoch, state, lineage, by_voter, adopted_end=state.end, damaged=damaged)

    @property
    def next_name(self) -> DataName:
        """The name of the next batch."""
        return DataName(self.state.end, None, self.epoch)

    def check_change(self, after: LogState) -> None:
        """Raises: InvalidCallError for a change of voters that is not safe; nothing was written."""
        changed = set(self.state.image.voters) ^ set(after.image.voters)
        if len(changed) > 1 or not after.image.voters:
            raise InvalidCallError(
                f"the metadata voters cannot become {after.image.voters}: they change one at a time"
            )
        if changed and self.state.end == self.adopted_end:
            raise InvalidCallError("the metadata voters change only after something else was committed")
