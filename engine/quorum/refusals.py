"""Voters that let a driver read, and not write."""

from __future__ import annotations

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.contents import Note
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.errors import StorageAuthorizationError


class Refusals:
    """The voters that refused the last attempt of one driver. A majority may do without them; each is noted
    once."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._errors: dict[VoterId, StorageAuthorizationError] = {}
        self._told: set[VoterId] = set()

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, voter: Voter, error: StorageAuthorizationError) -> None:
        """The voter has refused."""
        self._errors[voter.id] = error
        if voter.id not in self._told:
            self._told.add(voter.id)
            self._note(f"{voter} does not let this driver write: {error}")

    def remove(self, voter: Voter) -> None:
        """It has let the driver write."""
        self._errors.pop(voter.id, None)

    def as_error(self, what: str) -> StorageAuthorizationError:
        """The error of ``what``, which takes more voters than those that do not refuse; there is one that does."""
        errors = list(self._errors.values())
        said = "; ".join(dict.fromkeys(map(str, errors)))
        return StorageAuthorizationError(f"{what}: {said}", errors[0].right or "create", errors[0].path or "")
