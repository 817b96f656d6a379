"""The metadata log over its voters: claim, commit, linearizable read (protocol section 5).

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

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from engine.metadata.fold import apply
from engine.metadata.image import ClusterImage
from engine.metadata.records import MetadataRecord, NoOpRecord, VoterId, VotersRecord
from engine.quorum.batch import encode_batch
from engine.quorum.contents import Contents, Note
from engine.quorum.state import LogState, is_majority
from engine.quorum.voter import Voter, VoterListing
from partitions.clock import Clock
from partitions.errors import (
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    RetriableError,
    SourceChangedError,
    StaleMetadataError,
    StratalogError,
)
from partitions.identity import NewId
from partitions.lineage import Lineage
from partitions.paths import DataName
from partitions.store.protocol import Store

_UNREACHABLE = (RetriableError, StaleMetadataError, CorruptionError, OutcomeUnknownError)
"""What keeps one voter from counting; the others may go on without it."""

_CHANGES = 100
"""So many changes of voters are followed in one go."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try. Waits are random, up to a limit that doubles with every attempt.

    Nothing but time depends on it.
    """

    attempts: int = 40
    first_wait_s: float = 0.04
    longest_wait_s: float = 0.3
    courtesy: int = 6
    """How many attempts to leave to a claimant that has not committed yet before claiming above it."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A log that is known to be committed, and what the voters showed then."""

    state: LogState
    listings: tuple[VoterListing, ...]


@dataclass(frozen=True, slots=True)
class _Claim:
    """An epoch that this driver is the only one to write in."""

    epoch: int
    state: LogState
    """What the epoch goes on from: adopted with the claim, and everything committed since."""
    lineage: Lineage
    """Of the epoch's files."""
    listings: Mapping[VoterId, VoterListing]
    """The latest listing of each voter."""
    adopted_end: int
    """Where the epoch began: what ends there is not known to be committed before something follows it."""

    @property
    def next_name(self) -> DataName:
        """The name of the next batch."""
        return DataName(self.state.end, None, self.epoch)


class MetadataLog:
    """One driver's hold on the metadata log. Not thread-safe.

    Keeps the folded image of what it knows to be committed, so that a read costs a listing per voter and
    the files that are new.
    """

    def __init__(
        self,
        cluster_id: str,
        voters: Sequence[Voter],
        *,
        clock: Clock,
        rng: random.Random,
        new_id: NewId,
        patience: Patience = Patience(),
        stores: Mapping[int, Store] | None = None,
        hint: LogState = LogState(),  # noqa: B008 - immutable
        note: Note = lambda text: None,
    ) -> None:
        """``voters`` are those of any time; the log tells the present ones, found by broker in ``stores`` (by
        default those of ``voters``). ``hint``: a log that was read before, believed where the log goes on from
        it. ``note`` is told of damage that could be done without.
        """
        self._cluster_id = cluster_id
        self._voters = tuple(voters)
        self._stores = stores if stores is not None else {voter.broker_id: voter.store for voter in voters}
        self._clock = clock
        self._rng = rng
        self._claimant = new_id()
        self._patience = patience
        self._contents = Contents(cluster_id, note)
        self._hint = hint
        self._committed = LogState()
        self._claim: _Claim | None = None

    @property
    def cluster_id(self) -> str:
        """Whose metadata this is."""
        return self._cluster_id

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters as this driver knows them."""
        return self._voters

    @property
    def last_known(self) -> LogState:
        """What this driver knows to have been committed once; the latest is what ``read`` returns."""
        return self._committed if self._committed.end > 0 else self._hint

    # ------------------------------------------------------------------------------------ read

    def read(self) -> ClusterImage:
        """The image of ``settle``."""
        return self.settle().state.image

    def glance(self) -> ClusterImage | None:
        """As ``read``, where one look shows it; None when others are at work, or left something undone.

        Raises: as ``settle``.
        """
        try:
            listings, state = self._survey()
        except SourceChangedError:
            return None
        self._yield_to_others(listings)
        if state.end == 0 or not self._is_settled(state, listings):
            return None
        return self._settle(state, listings).image

    def settle(self) -> Settled:
        """Everything that was committed before this call. A reader may have to finish what others left
        undone: copy their last batch on, at last claim an epoch and commit an empty batch.

        Raises: InvalidCallError when the cluster was never formatted; NoMajorityError; StorageError;
            CorruptionError kinds.
        """
        for attempt in self._attempts(self._patience.attempts):
            try:
                listings, state = self._survey()
                if state.end == 0:
                    raise InvalidCallError(f"cluster {self._cluster_id!r} has no metadata: format it first")
                self._yield_to_others(listings)
                if attempt > 0 and not self._is_settled(state, listings):
                    listings = self._copy_on(state, listings)
                if self._is_settled(state, listings):
                    return Settled(self._settle(state, listings), tuple(listings))
                if attempt >= self._patience.courtesy:
                    # Claims are in the way, and whoever made them does not go on.
                    self._claim = None
                    self.claim()
                    self.commit((NoOpRecord(),))
                    claim = self._claim
                    assert claim is not None
                    return Settled(self._committed, tuple(claim.listings.values()))
            except (SourceChangedError, NotControllerError, OutcomeUnknownError):
                continue  # somebody else has moved the log on
        raise NoMajorityError(f"the metadata log's end could not be settled on {self._named()}: try again")

    def _survey(self) -> tuple[list[VoterListing], LogState]:
        """The greatest log, of listings of a majority of the voters that this driver knows, and of a majority of
        those that are in force in that log. Raises: NoMajorityError.
        """
        listings: dict[VoterId, VoterListing] = {}
        failures: list[StratalogError] = []
        voters = self._voters
        for _ in range(_CHANGES):
            for voter in voters:
                if voter.id not in listings:
                    try:
                        listings[voter.id] = voter.list()
                    except _UNREACHABLE as error:
                        failures.append(error)
            seen = list(listings.values())
            self._check_majority(seen, voters, failures)
            state = self._contents.greatest(seen, self._committed, self._hint)
            before, voters = voters, self._voters_of(state)
            if set(voters) == set(before):
                return seen, state
        raise NoMajorityError(f"the metadata's voters change faster than they can be listed: {self._named()}")

    def _voters_of(self, state: LogState) -> tuple[Voter, ...]:
        """Whose majority decides on a log; an empty one has the voters that it is to be begun on.

        Raises: InvalidCallError when the storage of one is not known.
        """
        known = {voter.id: voter for voter in self._voters}
        voters = []
        for voter_id in state.image.voters or known:
            if voter_id not in known:
                if voter_id.broker_id not in self._stores:
                    raise InvalidCallError(
                        f"broker {voter_id.broker_id} is a metadata voter of cluster {self._cluster_id!r}, and "
                        "the cluster file does not name it: add it there"
                    )
                store = self._stores[voter_id.broker_id]
                known[voter_id] = Voter(voter_id.broker_id, store, voter_id.directory_id)
            voters.append(known[voter_id])
        return tuple(voters)

    def _copy_on(self, state: LogState, listings: Sequence[VoterListing]) -> list[VoterListing]:
        """Give its voters what they lack of ``state``; list them again."""
        after = []
        voters = self._voters_of(state)
        for listing in listings:
            try:
                lacks = listing.voter in voters and not state.shown_by(listing)
                if lacks and listing.epoch <= state.epoch:
                    self._contents.bring_up(state, listing, listings)
                    after.append(listing.voter.list())
                else:
                    after.append(listing)
            except _UNREACHABLE:
                continue  # it does not count in this attempt
        return after

    def _yield_to_others(self, listings: Sequence[VoterListing]) -> None:
        """A claim that a majority has a greater one of is worth nothing: what is written for it is in vain."""
        if self._claim is not None:
            above = [listing.voter.id for listing in listings if listing.epoch > self._claim.epoch]
            if is_majority(above, [voter.id for voter in self._voters]):
                self._claim = None

    def contains(self, name: DataName) -> bool:
        """Whether the batch that this driver tried to commit under ``name`` is in the log, as claimed last
        or else as read last. The lineage tells: nobody else writes in that epoch.
        """
        state = self._committed if self._claim is None else self._claim.state
        return name.base_offset < state.end and state.lineage.epoch_at(name.base_offset) == name.epoch

    # ----------------------------------------------------------------------------------- claim

    def claim(self) -> ClusterImage:
        """Become the active controller, unless this driver is it already. What the image shows is not
        known to be committed before this driver's next commit is.

        Raises: NoMajorityError; NotControllerError when others kept claiming; CorruptionError kinds.
        """
        if self._claim is not None:
            return self._claim.state.image
        for attempt in self._attempts(self._patience.attempts):
            with suppress(SourceChangedError):
                # 1. A majority, and the greatest claim seen + 1.
                seen, state = self._survey()
                voters = self._voters_of(state)
                epoch = max(listing.epoch for listing in seen) + 1
                written = max(listing.last_epoch for listing in seen)
                if epoch > written + 1 and attempt < self._patience.courtesy:
                    continue  # somebody has claimed and is about to commit; let them
                # 2. Claim it on the voters that could be listed: of others it is not known what is claimed there.
                there = {listing.voter.id for listing in seen}
                mine = self._claimed([voter for voter in voters if voter.id in there], epoch)
                # 3. Only then list the claimed majority.
                listings = self._listed(mine)
                if any(listing.epoch > epoch for listing in listings):
                    continue
                # 4. The greatest log there is is what the epoch goes on from, if these are its voters.
                latest = {listing.voter.id: listing for listing in (*seen, *listings)}
                state = self._contents.greatest(list(latest.values()), self._committed, self._hint)
                if not is_majority(
                    (listing.voter.id for listing in listings), [voter.id for voter in self._voters_of(state)]
                ):
                    continue
                self._claim = _Claim(
                    epoch=epoch,
                    state=state,
                    lineage=state.lineage.continued_by(epoch, state.end),
                    listings=latest,
                    adopted_end=state.end,
                )
                return state.image
        raise NotControllerError(
            f"no metadata epoch could be claimed in {self._patience.attempts} attempts: others are faster; "
            "try again"
        )

    def _claimed(self, voters: Sequence[Voter], epoch: int) -> list[Voter]:
        """The voters on which this driver has the epoch. All drivers go by the same order, and stop where another
        was first: of two that claim at once one gets all, instead of each some.
        """
        mine = []
        for voter in voters:
            with suppress(*_UNREACHABLE):
                if not voter.claim(epoch, self._claimant):
                    break
                mine.append(voter)
        return mine

    @property
    def next_name(self) -> DataName:
        """The name under which ``commit`` will write, by which ``contains`` finds it again.

        Raises: NotControllerError without a claim.
        """
        if self._claim is None:
            raise NotControllerError("no metadata epoch is claimed")
        return self._claim.next_name

    # ---------------------------------------------------------------------------------- commit

    def commit(self, records: Sequence[MetadataRecord]) -> ClusterImage:
        """Commit ``records`` (at least one) at the end of the claimed log; the image with them. Any error
        ends the claim.

        Raises: NotControllerError when another driver has claimed: unless there was no claim to begin with,
            the outcome is unknown (see ``contains``). OutcomeUnknownError; NoMajorityError when nothing was
            written; CorruptionError when the records do not fit the image, and nothing was written.
        """
        name = self.next_name
        claim, self._claim = self._claim, None
        assert claim is not None
        image = apply(claim.state.image, name.base_offset, records)
        now_ms = self._clock.now_ms()
        files = claim.state.files | {name}
        after = replace(
            claim.state, image=image, lineage=claim.lineage, epoch=claim.epoch, files=files, appended_ms=now_ms
        )
        if any(isinstance(record, VotersRecord) for record in records) and claim.state.end > 0:
            self._check_change(claim, after)
        electorates = [self._voters_of(claim.state), self._voters_of(after)]
        everybody = list(dict.fromkeys(voter for voters in electorates for voter in voters))
        data = encode_batch(self._cluster_id, name, claim.lineage, records, now_ms)
        listings = dict(claim.listings)
        written = False
        failure: StratalogError | None = None
        for _ in self._attempts(self._patience.attempts):
            for voter in everybody:
                try:
                    listing = listings.get(voter.id) or voter.list()
                    if listing.epoch <= name.epoch:
                        # 1. Copy what the voter lacks, oldest first.
                        self._contents.bring_up(claim.state, listing, listings.values())
                        # 2. Create the batch. A create without an answer may come true at any time.
                        with suppress(OutcomeUnknownError):
                            voter.create(name, data)
                        written = True
                        # 3. List the voter again; only what this listing shows counts.
                        listing = voter.list()
                    listings[voter.id] = listing
                except _UNREACHABLE as error:
                    failure = error
                    listings.pop(voter.id, None)
            # 4. A majority: committed. A later epoch: fenced. Else go on with the same batch.
            showing = [listing.voter.id for listing in listings.values() if after.shown_by(listing)]
            if all(is_majority(showing, [voter.id for voter in voters]) for voters in electorates):
                self._settle(after, list(listings.values()))
                self._claim = replace(claim, state=self._committed, listings=listings)
                return image
            if any(listing.epoch > name.epoch for listing in listings.values()):
                raise NotControllerError(
                    f"another driver has claimed an epoch above {name.epoch}; whether metadata offset "
                    f"{name.base_offset} was committed is not known"
                )
        what = f"metadata offset {name.base_offset} could not be written on a majority of {self._named()}"
        if written:
            raise OutcomeUnknownError(f"{what}; read before you retry ({failure})") from failure
        raise NoMajorityError(f"{what} ({failure})") from failure

    def _check_change(self, claim: _Claim, after: LogState) -> None:
        """Raises: InvalidCallError for a change of voters that is not safe; nothing was written."""
        changed = set(claim.state.image.voters) ^ set(after.image.voters)
        if len(changed) > 1 or not after.image.voters:
            raise InvalidCallError(
                f"the metadata voters cannot become {after.image.voters}: they change one at a time"
            )
        if changed and claim.state.end == claim.adopted_end:
            raise InvalidCallError("the metadata voters change only after something else was committed")

    # ---------------------------------------------------------------------------------- voters

    def admit(self, voter_id: VoterId) -> None:
        """Give a root that is to become a voter all that is committed, so that its vote holds nothing up.

        Raises: InvalidCallError when its storage is not known; RetriableError, StaleMetadataError, CorruptionError
            kinds when it cannot be read or written; OutcomeUnknownError.
        """
        settled = self.settle()
        if voter_id.broker_id not in self._stores:
            raise InvalidCallError(f"the cluster file does not name broker {voter_id.broker_id}: add it there")
        voter = Voter(voter_id.broker_id, self._stores[voter_id.broker_id], voter_id.directory_id)
        self._contents.bring_up(settled.state, voter.list(), settled.listings)
        if not settled.state.held_by(voter.list()):
            raise SourceChangedError(f"{voter} lost files as soon as it had them; try again")

    def end_of(self, name: DataName, listing: VoterListing) -> int | None:
        """The next offset of a batch on a voter; None when it cannot be read."""
        with suppress(StratalogError):
            return self._contents.batch(name, [listing]).next_offset
        return None

    def _attempts(self, most: int) -> Iterator[int]:
        """0, 1, ..., with a random wait between them."""
        limit = self._patience.first_wait_s
        for attempt in range(most):
            if attempt > 0:
                self._clock.sleep(self._rng.uniform(0, limit))
                limit = min(2 * limit, self._patience.longest_wait_s)
            yield attempt

    def _listed(self, voters: Sequence[Voter]) -> list[VoterListing]:
        """Listings of those that can be reached."""
        listings = []
        for voter in voters:
            with suppress(*_UNREACHABLE):
                listings.append(voter.list())
        return listings

    def _check_majority(
        self,
        listings: Sequence[VoterListing],
        electorate: Sequence[Voter],
        failures: Sequence[StratalogError],
    ) -> None:
        """Raises: NoMajorityError."""
        there = {listing.voter.id for listing in listings} & {voter.id for voter in electorate}
        if not is_majority(there, [voter.id for voter in electorate]):
            count = len(electorate)
            raise NoMajorityError(
                f"{len(there)} of {count} metadata voters can be reached, {count // 2 + 1} are "
                f"needed: {'; '.join(map(str, failures))}; what was known last is in Cluster.last_known_image"
            ) from (failures[0] if failures else None)

    def _is_settled(self, state: LogState, listings: Iterable[VoterListing]) -> bool:
        """Whether a majority of the voters that are in force in ``state`` shows it."""
        return state.is_settled([voter.id for voter in self._voters_of(state)], listings)

    def _named(self) -> str:
        return ", ".join(map(str, self._voters))

    def _settle(self, state: LogState, listings: Sequence[VoterListing]) -> LogState:
        """``state`` is committed."""
        self._committed = state.trimmed(listings)
        self._voters = self._voters_of(state)
        self._hint = LogState()
        self._contents.forget()
        if self._claim is not None and state.epoch > self._claim.epoch:
            self._claim = None
        return self._committed
