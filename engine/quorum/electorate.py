"""The voters of a metadata log: who they are, and looks at a majority of them.

Who the voters are
    The log says it: the latest ``VotersRecord`` of a log, committed or not, names the electorate of that log.
    It changes by one voter at a time, so majorities of the electorates before and after a change have a voter
    in common, and everything that rests on two majorities meeting holds across a change, as in Raft's
    single-server change:

    * *A driver that slept through changes* lists a majority of the electorate that it knows, C. The change to
      C' is committed, so a majority of C' has its record; one of these was listed. So the greatest log has the
      record, and the driver lists a majority of C' before it believes anything; and so on, to the present.
    * *Two drivers of one epoch*: each has claimed it on a majority of the electorate that is in force in the log
      that it goes on from (else it starts again). Of one electorate, or of two neighbours: the majorities meet,
      and exclusive create decides. Of C and one further on: a change of C was committed, in an epoch below; a
      voter counted for it without a claim above it, which was listed by the one who claimed under C: before the
      record came there, then its claim was there first and the voter did not count; or after, then the record
      was seen.
    * *A commit of a change* counts when a majority of each of the two electorates shows it.
    * *A change on top of one that is not committed* would make them differ by two. ``commit`` refuses a batch
      that changes the voters unless everything before it is committed by this driver in this epoch: the flaw
      of Raft's single-server change as it was first published.
    * *A new voter* has promised nothing, and need not have: it counts only in majorities that another voter of
      the electorate before is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.metadata.records import VoterId
from engine.quorum.contents import Contents, Note
from engine.quorum.finding import Search
from engine.quorum.state import LogState, is_majority
from engine.quorum.voter import Voter, VoterLook
from partitions.errors import (
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from partitions.store.protocol import Store

UNREACHABLE = (RetriableError, StaleMetadataError, CorruptionError, OutcomeUnknownError)
"""What keeps one voter from counting; the others may go on without it."""

_CHANGES = 100
"""So many changes of voters are followed in one go."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The greatest log of a majority of the voters that are in force in it."""

    state: LogState
    looks: tuple[VoterLook, ...]
    voters: tuple[Voter, ...]
    """Those in force."""
    away: frozenset[VoterId]
    """Voters that could not be looked at."""


class Electorate:
    """The voters as one driver knows them."""

    def __init__(self, cluster_id: str, voters: Sequence[Voter], stores: Mapping[int, Store], note: Note) -> None:
        """``stores``: where voters that the log names are found, by broker."""
        self.voters = tuple(voters)
        self._cluster_id = cluster_id
        self._stores = stores
        self._note = note

    def __str__(self) -> str:
        return ", ".join(map(str, self.voters))

    def root(self, voter_id: VoterId) -> Voter:
        """The root of a broker as a voter. Raises: InvalidCallError when its storage is not known."""
        if voter_id.broker_id not in self._stores:
            raise InvalidCallError(
                f"broker {voter_id.broker_id} is a metadata voter of cluster {self._cluster_id!r}, or to become "
                "one, and the cluster file does not name it: add it there"
            )
        return Voter(voter_id.broker_id, self._stores[voter_id.broker_id], voter_id.directory_id)

    def of(self, state: LogState) -> tuple[Voter, ...]:
        """Whose majority decides on a log; an empty one has the voters that it is to be begun on.

        Raises: InvalidCallError when the storage of one is not known.
        """
        known = {voter.id: voter for voter in self.voters}
        return tuple(known.get(one) or self.root(one) for one in state.image.voters or known)

    def survey(self, contents: Contents, known: LogState, hint: LogState, *, everybody: bool = False) -> Survey:
        """The greatest log, by looks at a majority of the voters that this driver knows (for ``everybody`` at all
        that can be reached), and of those that are in force in that log.

        Raises: NoMajorityError; SourceChangedError.
        """
        looks: dict[VoterId, VoterLook] = {}
        failures: dict[VoterId, StratalogError] = {}
        voters, searched, looked_again = self.voters, False, False
        for _ in range(_CHANGES):
            ids, before = ids_of(voters), set(voters)
            for voter in voters:
                if voter.id not in looks and (everybody or not is_majority(looks, ids)):
                    try:
                        looks[voter.id] = voter.look()
                    except UNREACHABLE as error:
                        failures[voter.id] = error
            if is_majority(looks, ids):
                try:
                    state = contents.greatest(tuple(looks.values()), known, hint)
                except CorruptionError as error:
                    if not looked_again:
                        # What is damaged on one of these voters another one may have whole, or have by now.
                        everybody = looked_again = True
                        looks.clear()
                        continue
                    damaged, state = _without_one(contents, known, hint, looks, ids, error)
                    self._note(f"{looks.pop(damaged).voter} is left out: {error}")
                    failures[damaged] = error
                voters = self.of(state)
                if set(voters) == before:
                    return Survey(state, tuple(looks.values()), voters, frozenset(failures))
                continue
            if not searched:
                voters = self._searched(known)
            if searched or set(voters) == before:
                there, count = len(set(looks) & set(ids)), len(ids)
                raise NoMajorityError(
                    f"{there} of {count} metadata voters can be reached, {count // 2 + 1} are needed: "
                    f"{'; '.join(dict.fromkeys(map(str, failures.values())))}; what was known last is in "
                    "Cluster.last_known_image"
                )
            searched = True
        raise NoMajorityError(f"the metadata's voters change faster than they can be listed: {self}")

    def _searched(self, known: LogState) -> tuple[Voter, ...]:
        """This driver may have slept while a majority of the voters was replaced: the voters of the greatest log
        on any root, where that goes on from what is known to be committed; else those that are known."""
        with suppress(StratalogError):
            state = Search(self._cluster_id, known, self._note).at(self._stores)
            goes_on = state.lineage.epoch_at(known.end - 1) in (None, known.epoch)
            if goes_on and state.position > known.position:
                return self.of(state)
        return self.voters


def _without_one(
    contents: Contents,
    known: LogState,
    hint: LogState,
    looks: Mapping[VoterId, VoterLook],
    ids: Sequence[VoterId],
    error: CorruptionError,
) -> tuple[VoterId, LogState]:
    """The voter that a majority can do without, and the greatest log of the others. What only that voter has was
    never committed; that it cannot be read need stop nobody.

    Raises: ``error`` when there is none.
    """
    for damaged in looks:
        others = {voter: look for voter, look in looks.items() if voter != damaged}
        if is_majority(others, ids):
            with suppress(CorruptionError):
                return damaged, contents.greatest(tuple(others.values()), known, hint)
    raise error


def looks_at(voters: Iterable[Voter]) -> list[VoterLook]:
    """Looks at those that can be reached."""
    looks = []
    for voter in voters:
        with suppress(*UNREACHABLE):
            looks.append(voter.look())
    return looks


def ids_of(voters: Iterable[Voter]) -> list[VoterId]:
    """As the metadata names them."""
    return [voter.id for voter in voters]
