"""An epoch of the metadata log that a driver has claimed, and the voters that refuse its writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.contents import Note
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter, VoterLook
from stratalog.partitions.errors import (
    InvalidCallError,
    NoMajorityError,
    NotControllerError,
    StorageAuthorizationError,
    StorageRefusedError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.unwritable import UnwritableStorageError


@dataclass(frozen=True, slots=True)
class Claim:
    """An epoch in which only this driver writes."""

    epoch: int
    state: LogState
    """The log that the epoch continues: the log adopted with the claim, plus everything committed since."""
    lineage: Lineage
    """The lineage of the epoch's files."""
    looks: Mapping[VoterId, VoterLook]
    """The latest listing of each voter."""
    adopted_end: int
    """The start of the epoch. Records below it are known to be committed only once the epoch has committed a
    record.
    """
    damaged: frozenset[VoterId]
    """Voters that were damaged when the claim was made. An epoch that only these voters show fences no driver."""

    @classmethod
    def of(cls, epoch: int, state: LogState, looks: Sequence[VoterLook], damaged: frozenset[VoterId]) -> Claim:
        """Make the claim of an epoch that continues a log, from listings of the majority on which it was claimed.

        Below the log start of all of these voters, the lineage keeps only the epoch of the last record, which is
        the snapshot's epoch. If the lineage kept all epochs, it would grow with every claim. Every majority
        includes one of these voters, and a reader that needs earlier records finds a snapshot there.
        """
        start = min(look.log_start for look in looks)
        lineage = state.lineage.continued_by(epoch, state.end).truncated_from_start(max(start - 1, 0))
        by_voter = {look.voter.id: look for look in looks}
        return cls(epoch, state, lineage, by_voter, adopted_end=state.end, damaged=damaged)

    @property
    def next_name(self) -> DataName:
        return DataName(self.state.end, None, self.epoch)

    def check_change(self, after: LogState) -> None:
        """Check that a change of voters is safe, before anything is written. Raises: InvalidCallError."""
        changed = set(self.state.image.voters) ^ set(after.image.voters)
        if len(changed) > 1 or not after.image.voters:
            raise InvalidCallError(
                f"the metadata voters cannot become {after.image.voters}: change one voter at a time"
            )
        if changed and self.state.end == self.adopted_end:
            raise InvalidCallError("the metadata voters can change only after another record has been committed")


class Refusals:
    """The voters that refused this driver's last attempt. If a majority of voters accepts writes, the driver
    continues; each refusal is noted once.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._errors: dict[VoterId, StorageRefusedError] = {}
        self._noted: set[VoterId] = set()

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, voter: Voter, error: StorageRefusedError) -> None:
        """Record that the voter has refused."""
        self._errors[voter.id] = error
        if voter.id not in self._noted:
            self._noted.add(voter.id)
            self._note(f"{voter} denies this driver write access: {error}")

    def remove(self, voter: Voter) -> None:
        """Record that the voter has accepted a write."""
        self._errors.pop(voter.id, None)

    def as_failed_claim(self, electorate: object, attempts: int, *, too_few: bool) -> StratalogError:
        """The error of a claim that failed after these attempts. ``too_few``: too few voters of the electorate
        took it, although no other driver was faster.
        """
        if not too_few:
            return NotControllerError(
                f"no metadata epoch could be claimed in {attempts} attempts: other drivers were faster; try again"
            )
        what = f"no metadata epoch could be claimed on a majority of {electorate}"
        return self.as_error(what) if self else NoMajorityError(f"{what}: try again")

    def as_error(self, what: str) -> StorageRefusedError:
        """The error for ``what``, which needs more voters than those that accept writes. Call this only if at
        least one voter has refused.
        """
        errors = list(self._errors.values())
        message = "; ".join(dict.fromkeys(map(str, errors)))
        first = errors[0]
        if isinstance(first, UnwritableStorageError):
            return UnwritableStorageError(f"{what}: {message}", first.path, full=first.full)
        assert isinstance(first, StorageAuthorizationError)
        return StorageAuthorizationError(f"{what}: {message}", first.right or "create", first.path or "")
