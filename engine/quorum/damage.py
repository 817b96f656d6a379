"""Voters whose files cannot be believed, and what a majority shows without them.

One voter's root may hold anything: names of epochs that nobody claimed, folders under names of files, snapshots of
other histories. Such a voter is left out *as a whole*, as if it could not be reached. So safety does not depend on
which voters are found damaged: only a majority of undamaged voters counts, and any two such majorities share a
voter of which both have believed all they saw. The mend needs an operator (``stratalog quorum``): delete the files
that the error names, or replace the voter.

Far ahead
    An honest epoch is one above what its claimant saw, so those of a voter are as far above the others' as there
    were claims while these were away. A minority alone, which is what may be in the hands of a stranger, does not
    show how far that is; the greatest epoch that one voter more than a minority reaches does, and the one of the
    log that is known to be committed. A voter that is ``FAR_AHEAD`` of both is damaged: nobody follows its epochs,
    and the ten digits of names last. If this leaves out an honest voter, since the others were away for a million
    claims, no majority is found until another honest voter comes back.

Another history
    A snapshot is of what is committed. One that ends inside the log with another epoch than the log's, or beyond
    it with an earlier one, was frozen by nobody; and its name would stand for files that the voter lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.state import LogState, minority_of
from stratalog.engine.quorum.voter import VoterLook
from stratalog.partitions.errors import CorruptionError, InconsistentClusterIdError, StratalogError

FAR_AHEAD = 1_000_000
"""Epochs."""

DAMAGED = (CorruptionError, InconsistentClusterIdError)
"""Errors that the bytes of one voter may cause."""


def believed_epoch(looks: Collection[VoterLook], electorate: Sequence[VoterId], known_epoch: int) -> int:
    """The greatest epoch that is not the word of a minority alone. Pure."""
    epochs = sorted((look.epoch for look in looks if look.voter.id in electorate), reverse=True)
    minority = minority_of(electorate)
    return max(known_epoch, *epochs[minority : minority + 1], 0)


def check_near(look: VoterLook, epoch: int) -> None:
    """Raises: CorruptionError when the voter is far ahead of ``epoch``."""
    if look.epoch > epoch + FAR_AHEAD:
        raise CorruptionError(
            f"{look.voter}: {_greatest(look)} has an epoch that no driver has claimed: the "
            "greatest epoch of the others "
            f"is {epoch}. The voter does not count until that file is deleted, or the voter is replaced"
        )


def _greatest(look: VoterLook) -> str:
    return f"{look.epoch:010d}.claim" if look.claimed_epoch == look.epoch else str(look.last)


def check_voter(look: VoterLook, state: LogState) -> None:
    """A voter that was looked at after ``state`` was found to be committed has nothing that keeps it from
    counting. (What it has beyond that log may be about to be committed.)

    Raises: CorruptionError.
    """
    check_near(look, state.epoch)
    _check_history(look, state)


def _check_history(look: VoterLook, state: LogState) -> None:
    """Raises: CorruptionError when the voter has a snapshot of another history than ``state``, which is the
    greatest log of a majority.
    """
    for name in look.checkpoints:
        if state.denies(name):
            raise CorruptionError(
                f"{look.voter}: {name} is not a snapshot of this log: no driver has written "
                "it. The voter does not "
                "count until that file is deleted, or the voter is replaced"
            )


def far_ahead(
    looks: Mapping[VoterId, VoterLook], electorate: Sequence[VoterId], known_epoch: int
) -> dict[VoterId, StratalogError]:
    """The voters that are far ahead of the others, by looks at a majority or more. Pure."""
    epoch = believed_epoch(looks.values(), electorate, known_epoch)
    found: dict[VoterId, StratalogError] = {}
    for voter, look in looks.items():
        try:
            check_near(look, epoch)
        except CorruptionError as error:
            found[voter] = error
    return found


def without_damaged(
    looks: Mapping[VoterId, VoterLook],
    greatest: Callable[[Sequence[VoterLook]], LogState],
    is_enough: Callable[[Iterable[VoterId], LogState], bool],
    error: StratalogError,
) -> tuple[tuple[VoterId, ...], LogState]:
    """The fewest voters that can be done without, and the greatest log of the others. Files that only these have
    were never committed; unreadable ones among them need stop nobody.

    Raises: ``error`` when there is no such log that the others are enough for.
    """
    for count in range(1, len(looks)):
        for damaged in combinations(looks, count):
            others = {voter: look for voter, look in looks.items() if voter not in damaged}
            try:
                state = greatest(tuple(others.values()))
            except DAMAGED:
                continue
            if is_enough(others, state):
                return damaged, state
    raise error
