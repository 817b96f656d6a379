"""Voters with untrustworthy files, and the log that a majority shows without them.

The root of one voter may contain anything: names of epochs that no driver claimed, folders that are named like
files, snapshots of other histories. Such a voter is left out *as a whole*, as if it were unreachable. So safety
does not depend on which voters are found damaged. Only a majority of undamaged voters can show a log. Any two such
majorities share a voter, whose files were accepted in both. The repair needs an operator (``stratalog quorum``):
delete the files that the error names, or replace the voter.

Far ahead
    An honest claimant adds one to the greatest epoch that it sees. So the epochs of an honest voter exceed the
    epochs of the other voters only by the number of claims that were made while the other voters were unreachable.
    An attacker may control a minority, so the reference is the greatest epoch that at least (minority + 1)
    voters reach, and the epoch of the log that is known to be committed. A voter that is ``FAR_AHEAD`` of both is
    damaged, and no driver uses its epochs. So ten digits for an epoch in file names are enough. An honest voter is
    left out, too, if the other voters missed a million claims. In that case, there is no majority until another
    honest voter returns.

Another history
    A snapshot contains only committed records. So no driver has written a snapshot that ends inside the log with
    an epoch other than the log's, or beyond the log with an earlier epoch. Such a snapshot must be rejected: its
    name alone would make it replace files that the voter lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.state import LogState, minority_of
from stratalog.engine.quorum.voter import VoterLook
from stratalog.partitions.errors import CorruptionError, InconsistentClusterIdError, StratalogError

FAR_AHEAD = 1_000_000
"""A voter is damaged if its epoch exceeds the epochs of the other voters by this number."""

DAMAGED = (CorruptionError, InconsistentClusterIdError)
"""Errors that the bytes of one voter can cause."""


def believed_epoch(looks: Collection[VoterLook], electorate: Sequence[VoterId], known_epoch: int) -> int:
    """The greatest epoch that more than a minority confirms. Pure."""
    epochs = sorted((look.epoch for look in looks if look.voter.id in electorate), reverse=True)
    minority = minority_of(electorate)
    return max(known_epoch, *epochs[minority : minority + 1], 0)


def check_near(look: VoterLook, epoch: int) -> None:
    """Raises: CorruptionError when the voter is far ahead of ``epoch``."""
    if look.epoch > epoch + FAR_AHEAD:
        raise CorruptionError(
            f"{look.voter}: {_greatest(look)} has an epoch that no driver has claimed: the greatest epoch of the "
            f"other voters is {epoch}. The voter is ignored until that file is deleted, or the voter is replaced"
        )


def _greatest(look: VoterLook) -> str:
    return f"{look.epoch:010d}.claim" if look.claimed_epoch == look.epoch else str(look.last)


def check_voter(look: VoterLook, state: LogState) -> None:
    """Check that a voter, listed after ``state`` was found to be committed, has no file that excludes the voter.
    (Files beyond that log may be about to be committed.)

    Raises: CorruptionError.
    """
    check_near(look, state.epoch)
    _check_history(look, state)


def _check_history(look: VoterLook, state: LogState) -> None:
    """Raises: CorruptionError when the voter has a snapshot whose history differs from that of ``state``, the
    greatest log of a majority.
    """
    for name in look.checkpoints:
        if state.denies(name):
            raise CorruptionError(
                f"{look.voter}: {name} is not a snapshot of this log: no driver has written it. The voter is "
                "ignored until that file is deleted, or the voter is replaced"
            )


def far_ahead(
    looks: Mapping[VoterId, VoterLook], electorate: Sequence[VoterId], known_epoch: int
) -> dict[VoterId, StratalogError]:
    """The voters that are far ahead of the others, from listings of a majority or more. Pure."""
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
    """The fewest voters to leave out, and the greatest log of the others. Files that only the omitted voters have
    were never committed, so it does not matter whether these files are readable.

    Raises: ``error`` if the other voters are too few for such a log.
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
