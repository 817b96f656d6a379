"""The voters of a metadata log, and listings of a majority of them.

The electorate
    The latest ``VotersRecord`` of a log, committed or not, names the electorate of that log. The electorate
    changes by one voter at a time, so a majority of the electorate before a change and a majority of the
    electorate after it have a voter in common. Every argument from two intersecting majorities therefore holds
    across a change, as in Raft's single-server change:

    * *A driver that missed changes* lists a majority of C, the electorate that it knows. The change from C to C'
      is committed, so a majority of C' has the record of the change. The listed majority of C includes one of
      these voters. So the greatest listed log has the record, and the driver lists a majority of C' before it
      trusts any log. The driver repeats this step up to the current electorate.
    * *Two drivers of one epoch* have each claimed the epoch on a majority of the electorate that is in force in
      the log that this driver continues. (Without such a majority, a driver starts again.) If the electorates are
      equal or adjacent, the majorities intersect, and exclusive create decides. If the electorates are further
      apart, a change from C (the electorate that one driver still knows) was committed in an earlier epoch. Some
      voter had no claim above that epoch when it was counted for the change, and the driver that still knows C
      listed that voter. If the driver listed the voter before the record arrived, the driver's claim was there
      first, and the voter was not counted; if the driver listed the voter later, the driver saw the record.
    * *A commit of a change* is in effect when a majority of each of the two electorates shows it.
    * *A change on top of an uncommitted change* would make the electorates differ by two voters. ``commit``
      refuses a batch that changes the voters unless this driver has committed everything before that batch in this
      epoch. (Raft's single-server change, as first published, lacked this condition.)
    * *A new voter* has made no promise, and needs none: every majority that counts the new voter includes another
      voter of the previous electorate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.contents import Contents, Note
from stratalog.engine.quorum.damage import DAMAGED, check_near, far_ahead, without_damaged
from stratalog.engine.quorum.finding import Search
from stratalog.engine.quorum.proof import UnprovenError, committed_of
from stratalog.engine.quorum.state import LogState, is_majority
from stratalog.engine.quorum.voter import Voter, VoterLook
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StorageAuthorizationError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.store.protocol import Store

UNREACHABLE = (RetriableError, StaleMetadataError, CorruptionError, OutcomeUnknownError)
"""Errors that exclude one voter; the others may continue without it."""

_CHANGES = 100
"""The maximum number of changes of voters to follow in one survey."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The greatest log of a majority of the voters in force in that log."""

    state: LogState
    looks: tuple[VoterLook, ...]
    voters: tuple[Voter, ...]
    """The voters in force."""
    away: frozenset[VoterId]
    """Voters that are unreachable or damaged."""
    damaged: frozenset[VoterId] = frozenset()
    """The damaged voters in ``away``. Their files above the log are ignored."""

    @property
    def epoch(self) -> int:
        """The greatest believed epoch."""
        return max((look.epoch for look in self.looks), default=0)

    def shows(self, voter: Voter) -> bool:
        """Whether the survey listed a voter."""
        return any(look.voter.id == voter.id for look in self.looks)


class Electorate:
    """The voters as one driver knows them."""

    def __init__(
        self,
        cluster_id: str,
        voters: Sequence[Voter],
        stores: Mapping[int, Store],
        note: Note,
        key: ClusterKey | None = None,
    ) -> None:
        """``stores``: the storage of voters that the log names, by broker; ``key`` verifies the voters' files."""
        self.voters = tuple(voters)
        self._cluster_id = cluster_id
        self._stores = stores
        self._note = note
        self._key = key

    def __str__(self) -> str:
        return ", ".join(map(str, self.voters))

    def root(self, voter_id: VoterId) -> Voter:
        """The root of a broker as a voter. Raises: InvalidCallError when its storage is unknown."""
        if voter_id.broker_id not in self._stores:
            raise InvalidCallError(
                f"broker {voter_id.broker_id} is a metadata voter of cluster {self._cluster_id!r}, "
                "or is about to become one, but the cluster file does not name it: add it there"
            )
        return Voter(voter_id.broker_id, self._stores[voter_id.broker_id], voter_id.directory_id, self._key)

    def of(self, state: LogState) -> tuple[Voter, ...]:
        """The voters whose majority decides on a log; for an empty log the voters on which it begins.

        Raises: InvalidCallError when the storage of a voter is unknown.
        """
        known = {voter.id: voter for voter in self.voters}
        return tuple(known.get(one) or self.root(one) for one in state.image.voters or known)

    def survey(self, contents: Contents, known: LogState, hint: LogState, *, everybody: bool = False) -> Survey:
        """The greatest log, from listings of a majority of the voters that this driver knows (``everybody``: of
        all reachable voters), and of a majority of the voters in force in that log.

        Raises: NoMajorityError, StorageAuthorizationError when all missing voters refuse; SourceChangedError.
        """
        looks: dict[VoterId, VoterLook] = {}
        failures: dict[VoterId, StratalogError] = {}
        damaged: set[VoterId] = set()
        voters, searched, looked_again = self.voters, False, False
        for _ in range(_CHANGES):
            ids, before = ids_of(voters), set(voters)
            for voter in voters:
                if voter.id not in looks and (everybody or not is_majority(looks, ids)):
                    try:
                        looks[voter.id] = voter.look()
                    except UNREACHABLE as error:
                        failures[voter.id] = error
            strays = far_ahead(looks, ids, known.epoch)
            if strays and not everybody:
                everybody = True  # more listings show with more certainty which voters are far ahead
                continue
            for voter_id, stray in strays.items():
                self._leave_out(looks.pop(voter_id), stray)
                failures[voter_id] = stray
                damaged.add(voter_id)
            if is_majority(looks, ids):
                try:
                    state = contents.greatest(tuple(looks.values()), known, hint)
                except DAMAGED as error:
                    if not looked_again:
                        # Another voter may have an intact copy of the damaged file, or have received one
                        # meanwhile.
                        everybody = looked_again = True
                        looks.clear()
                        continue
                    try:
                        without, state = without_damaged(
                            looks,
                            lambda others: contents.greatest(others, known, hint),
                            lambda others, _, ids=ids: is_majority(others, ids),  # type: ignore[misc]
                            error,
                        )
                    except DAMAGED:
                        # The known voters may no longer be voters. If so, their files are ignored.
                        voters = self.voters if searched else self._searched(known)
                        if searched or set(voters) == before:
                            raise
                        searched = True
                        continue
                    for voter_id in without:
                        self._leave_out(looks.pop(voter_id), error)
                        failures[voter_id] = error
                        damaged.add(voter_id)
                voters = self.of(state)
                if set(voters) == before:
                    away = frozenset(failures) - looks.keys()
                    return Survey(state, tuple(looks.values()), voters, away, frozenset(damaged) & away)
                continue
            if not searched:
                voters = self._searched(known)
            if searched or set(voters) == before:
                there, count = len(set(looks) & set(ids)), len(ids)
                message = "; ".join(dict.fromkeys(_named(one, why) for one, why in failures.items()))
                refused = [error for error in failures.values() if isinstance(error, StorageAuthorizationError)]
                if refused and len(refused) == len(failures):
                    raise StorageAuthorizationError(
                        f"{there} of {count} metadata voters allow this driver to read; {count // 2 + 1} "
                        "are needed: "
                        f"{message}",
                        refused[0].right or "read",
                        refused[0].path or "",
                    )
                raise NoMajorityError(
                    f"{there} of {count} metadata voters can be reached; {count // 2 + 1} are needed: {message}"
                )
            searched = True
        raise NoMajorityError(f"the metadata's voters change faster than they can be listed: {self}")

    def _leave_out(self, look: VoterLook, error: StratalogError) -> None:
        self._note(f"{look.voter} is left out: {error}")

    def _searched(self, known: LogState) -> tuple[Voter, ...]:
        """The voters of the greatest log on any root, if that log continues the committed log; otherwise the known
        voters. (A majority may have been replaced while this driver was idle.)
        """
        with suppress(StratalogError):
            state = Search(self._cluster_id, known, self._note, key=self._key).at(self._stores)
            continues = state.lineage.epoch_at(known.end - 1) in (None, known.epoch)
            if continues and state.position > known.position:
                return self.of(state)
        return self.voters


def proven_by(survey: Survey, contents: Contents, known: LogState, hint: LogState) -> LogState:
    """The log that a survey proves to be committed, for a driver without write access. If the log without its last
    batches ends with an unreadable file, the voter of that file is left out, as if it were unreachable.

    Raises: UnprovenError; RetriableError kinds.
    """

    def greatest(looks: Sequence[VoterLook]) -> LogState:
        return contents.greatest(looks, known, hint)

    def lineage_of(epoch: int) -> Lineage | None:
        name = next((name for look in survey.looks for name in look.files if name.epoch == epoch), None)
        return None if name is None else contents.batch(name, survey.looks).lineage

    position = known.position if known.end > 0 else None
    ids, why = ids_of(survey.voters), ""
    without_one = (tuple(look for look in survey.looks if look is not left_out) for left_out in survey.looks)
    for looks in (survey.looks, *without_one):
        if is_majority((look.voter.id for look in looks), ids):
            try:
                return committed_of(looks, ids, greatest, lambda state: state.position == position, lineage_of)
            except UnprovenError:
                if looks is survey.looks:
                    raise
            except DAMAGED as error:
                why = why or str(error)
    raise UnprovenError(why)


def read_names_near(voter: Voter, epoch: int) -> VoterLook:
    """List a voter, and check that it is not far ahead of the believed epoch ``epoch``. Raises: see
    ``Voter.look``, and CorruptionError.
    """
    look = voter.look()
    check_near(look, epoch)
    return look


def read_names_of(voters: Iterable[Voter], epoch: int) -> list[VoterLook]:
    """Listings of the reachable voters that are not far ahead of ``epoch``."""
    looks = []
    for voter in voters:
        with suppress(*UNREACHABLE):
            looks.append(read_names_near(voter, epoch))
    return looks


def _named(voter_id: VoterId, error: StratalogError) -> str:
    """The error of a voter; errors of its storage do not name the voter."""
    named = f"voter {voter_id.broker_id}"
    return str(error) if f"{named} " in str(error) else f"{named}: {error}"


def ids_of(voters: Iterable[Voter]) -> list[VoterId]:
    """The voters' ids, as the metadata has them."""
    return [voter.id for voter in voters]
