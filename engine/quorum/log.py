"""The metadata log over its voters: claim, commit, linearizable read (protocol section 5)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from engine.metadata.fold import apply
from engine.metadata.image import ClusterImage
from engine.metadata.records import MetadataRecord, NoOpRecord
from engine.quorum.batch import Batch, decode_batch, encode_batch
from engine.quorum.voter import Voter, VoterListing
from partitions.clock import Clock
from partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
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

_UNREACHABLE = (RetriableError, StaleMetadataError, CorruptionError, OutcomeUnknownError)
"""What keeps one voter from counting; the others may go on without it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try. Waits are random, up to a limit that doubles with every attempt.

    Nothing but time depends on it.
    """

    attempts: int = 20
    first_wait_s: float = 0.02
    longest_wait_s: float = 1.0
    courtesy: int = 4
    """How many attempts to leave to a claimant that has not committed yet before claiming above it."""


@dataclass(frozen=True, slots=True)
class LogState:
    """A log up to its end, which is ``image.next_offset``."""

    files: frozenset[DataName] = frozenset()
    last: DataName | None = None
    lineage: Lineage = Lineage()  # noqa: RUF009 - immutable
    image: ClusterImage = ClusterImage()  # noqa: RUF009 - immutable

    @property
    def epoch(self) -> int:
        """The epoch of the last file, 0 for an empty log."""
        return 0 if self.last is None else self.last.epoch

    def shown_by(self, listing: VoterListing) -> bool:
        """Whether the voter has this log, to the end, and nobody has claimed an epoch above it there."""
        return (
            listing.claimed_epoch <= self.epoch
            and listing.last == self.last
            and self.files <= listing.files.keys()
        )


@dataclass(frozen=True, slots=True)
class _Claim:
    """An epoch that this driver is the only one to write in."""

    epoch: int
    state: LogState
    """What the epoch goes on from: adopted with the claim, and everything committed since."""
    lineage: Lineage
    """Of the epoch's files."""
    listings: Mapping[int, VoterListing]
    """The latest listing of each voter, by broker id."""

    @property
    def next_name(self) -> DataName:
        """The name of the next batch."""
        return DataName(self.state.image.next_offset, None, self.epoch)


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
    ) -> None:
        self._cluster_id = cluster_id
        self._voters = tuple(voters)
        self._majority = len(self._voters) // 2 + 1
        self._clock = clock
        self._rng = rng
        self._claimant = new_id()
        self._patience = patience
        self._committed = LogState()
        self._claim: _Claim | None = None
        self._batches: dict[DataName, Batch] = {}
        """Batches that were read and are not known to be committed yet."""

    # ------------------------------------------------------------------------------------ read

    def read(self) -> ClusterImage:
        """Everything that was committed before this call. A reader may have to finish what others left
        undone: copy their last batch on, at last claim an epoch and commit an empty batch.

        Raises: InvalidCallError when the cluster was never formatted; NoMajorityError; StorageError;
            CorruptionError kinds.
        """
        for attempt in self._attempts(self._patience.attempts):
            try:
                listings = self._list()
                state = self._greatest(listings)
                if state.last is None:
                    raise InvalidCallError(f"cluster {self._cluster_id!r} has no metadata: format it first")
                if attempt > 0 and not self._is_majority(state, listings):
                    listings = self._copy_on(state, listings)
                if self._is_majority(state, listings):
                    self._settle(state)
                    return state.image
                if attempt >= self._patience.courtesy:
                    # Claims are in the way, and whoever made them does not go on.
                    self._claim = None
                    self.claim()
                    return self.commit((NoOpRecord(),))
            except (SourceChangedError, NotControllerError, OutcomeUnknownError):
                continue  # somebody else has moved the log on
        raise NoMajorityError(f"the metadata log's end could not be settled on {self._named()}: try again")

    def _copy_on(self, state: LogState, listings: Sequence[VoterListing]) -> list[VoterListing]:
        """Give the voters what they lack of ``state``; list them again."""
        after = []
        for listing in listings:
            try:
                if listing.epoch <= state.epoch and not state.shown_by(listing):
                    self._copy_missing(state.files, listing, listings)
                    after.append(listing.voter.list())
                else:
                    after.append(listing)
            except _UNREACHABLE:
                continue  # it does not count in this attempt
        return after

    def contains(self, name: DataName) -> bool:
        """Whether the batch that this driver tried to commit under ``name`` is in the log, as claimed last
        or else as read last. The lineage tells: nobody else writes in that epoch.
        """
        state = self._committed if self._claim is None else self._claim.state
        return name.base_offset < state.image.next_offset and (
            state.lineage.epoch_at(name.base_offset) == name.epoch
        )

    # ----------------------------------------------------------------------------------- claim

    def claim(self) -> ClusterImage:
        """Become the active controller, unless this driver is it already. What the image shows is not
        known to be committed before this driver's next commit is.

        Raises: NoMajorityError; NotControllerError when others kept claiming; CorruptionError kinds.
        """
        if self._claim is not None:
            return self._claim.state.image
        for attempt in self._attempts(self._patience.attempts):
            # 1. A majority, and the greatest claim seen + 1.
            listings = self._list()
            epoch = max(listing.epoch for listing in listings) + 1
            written = max(listing.last_epoch for listing in listings)
            if epoch > written + 1 and attempt < self._patience.courtesy:
                continue  # somebody has claimed and is about to commit; let them
            # 2. Claim it on the voters.
            mine = [voter for voter in self._voters if self._claims(voter, epoch)]
            if len(mine) < self._majority:
                continue
            # 3. Only then list the claimed majority.
            try:
                listings = self._list(mine)
                if any(listing.epoch > epoch for listing in listings):
                    continue
                # 4. The greatest log of these is what the epoch goes on from.
                state = self._greatest(listings)
            except (NoMajorityError, SourceChangedError):
                continue
            self._claim = _Claim(
                epoch=epoch,
                state=state,
                lineage=state.lineage.continued_by(epoch, state.image.next_offset),
                listings={listing.voter.broker_id: listing for listing in listings},
            )
            return state.image
        raise NotControllerError(
            f"no metadata epoch could be claimed in {self._patience.attempts} attempts: others are faster; "
            "try again"
        )

    def _claims(self, voter: Voter, epoch: int) -> bool:
        try:
            return voter.claim(epoch, self._claimant)
        except _UNREACHABLE:
            return False

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
        after = LogState(claim.state.files | {name}, name, claim.lineage, image)
        data = encode_batch(self._cluster_id, name, claim.lineage, records, self._clock.now_ms())
        listings = dict(claim.listings)
        written = False
        failure: StratalogError | None = None
        for _ in self._attempts(self._patience.attempts):
            for voter in self._voters:
                try:
                    listing = listings.get(voter.broker_id) or voter.list()
                    if listing.epoch <= name.epoch:
                        # 1. Copy what the voter lacks, oldest first.
                        self._copy_missing(claim.state.files, listing, listings.values())
                        # 2. Create the batch. A create without an answer may come true at any time.
                        with suppress(OutcomeUnknownError):
                            voter.create(name, data)
                        written = True
                        # 3. List the voter again; only what this listing shows counts.
                        listing = voter.list()
                    listings[voter.broker_id] = listing
                except _UNREACHABLE as error:
                    failure = error
                    listings.pop(voter.broker_id, None)
            # 4. A majority: committed. A later epoch: fenced. Else go on with the same batch.
            if self._is_majority(after, listings.values()):
                self._settle(after)
                self._claim = replace(claim, state=after, listings=listings)
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

    # ---------------------------------------------------------------------------------- voters

    def _attempts(self, most: int) -> Iterator[int]:
        """0, 1, ..., with a random wait between them."""
        limit = self._patience.first_wait_s
        for attempt in range(most):
            if attempt > 0:
                self._clock.sleep(self._rng.uniform(0, limit))
                limit = min(2 * limit, self._patience.longest_wait_s)
            yield attempt

    def _list(self, voters: Sequence[Voter] | None = None) -> list[VoterListing]:
        """Listings of all voters that can be reached. Raises: NoMajorityError."""
        listings: list[VoterListing] = []
        failures: list[StratalogError] = []
        for voter in self._voters if voters is None else voters:
            try:
                listings.append(voter.list())
            except _UNREACHABLE as error:
                failures.append(error)
        if len(listings) < self._majority:
            raise NoMajorityError(
                f"{len(listings)} of {len(self._voters)} metadata voters can be reached, {self._majority} are "
                f"needed: {'; '.join(map(str, failures))}"
            ) from failures[0]
        return listings

    def _is_majority(self, state: LogState, listings: Iterable[VoterListing]) -> bool:
        return sum(state.shown_by(listing) for listing in listings) >= self._majority

    def _named(self) -> str:
        return ", ".join(map(str, self._voters))

    # -------------------------------------------------------------------------------- contents

    def _greatest(self, listings: Sequence[VoterListing]) -> LogState:
        """The log with the greatest (epoch of the last file, end) among the listings, folded.

        Raises: CorruptionError when committed history has changed; LogGapError; SourceChangedError.
        """
        known = self._committed
        last = max(
            (listing.last for listing in listings if listing.last is not None),
            key=lambda name: (name.epoch, name.base_offset),
            default=None,
        )
        if last is None or last == known.last:
            return known
        lineage = self._batch(last, listings).lineage
        names = {name for listing in listings for name in listing.files}
        files = frozenset(name for name in names if lineage.epoch_at(name.base_offset) == name.epoch)
        if not known.files <= files:
            raise CorruptionError(
                f"the metadata log of cluster {self._cluster_id!r} lacks what was committed: "
                f"{min(known.files - files)} on {self._named()}"
            )
        records: list[MetadataRecord] = []
        offset = start = known.image.next_offset
        for name in sorted(files - known.files):
            if name.base_offset != offset:
                raise LogGapError(f"the metadata log has a gap at offset {offset}, before {name}: {self._named()}")
            batch = self._batch(name, listings)
            records += batch.records
            offset = batch.next_offset
        return LogState(files, last, lineage, apply(known.image, start, records))

    def _batch(self, name: DataName, listings: Iterable[VoterListing]) -> Batch:
        if name not in self._batches:
            self._batches[name] = self._fetch(name, listings)[1]
        return self._batches[name]

    def _fetch(self, name: DataName, listings: Iterable[VoterListing]) -> tuple[bytes, Batch]:
        """A file from any voter that has it whole.

        Raises: SourceChangedError, StorageError, CorruptionError kinds when none of them has.
        """
        failure: StratalogError | None = None
        for listing in listings:
            if name not in listing.files:
                continue
            try:
                data = listing.voter.read(name)
                return data, decode_batch(self._cluster_id, name, data, f"{listing.voter}: {name}")
            except StratalogError as error:
                failure = error
        raise failure or SourceChangedError(f"{name} is on none of {self._named()}")

    def _copy_missing(
        self, files: frozenset[DataName], listing: VoterListing, sources: Iterable[VoterListing]
    ) -> None:
        """Give a voter the files of a log that it lacks, oldest first.

        Raises: RetriableError, CorruptionError kinds; OutcomeUnknownError.
        """
        for name in sorted(files - listing.files.keys()):
            listing.voter.create(name, self._fetch(name, sources)[0])

    def _settle(self, state: LogState) -> None:
        """``state`` is committed."""
        self._committed = state
        self._batches.clear()
        if self._claim is not None and state.epoch > self._claim.epoch:
            self._claim = None
