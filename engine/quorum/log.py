"""The metadata log over its voters: claim, commit, linearizable read (protocol section 5)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import MetadataRecord, NoOpRecord, VoterId, VotersRecord
from stratalog.engine.quorum.batch import encode_batch
from stratalog.engine.quorum.checkpoints import Loading
from stratalog.engine.quorum.claim import Claim, Refusals
from stratalog.engine.quorum.contents import Contents, Note
from stratalog.engine.quorum.damage import DAMAGED, check_voter
from stratalog.engine.quorum.electorate import (
    UNREACHABLE,
    Electorate,
    Survey,
    ids_of,
    proven_by,
    read_names_near,
    read_names_of,
)
from stratalog.engine.quorum.patience import ClaimBackoff, Patience
from stratalog.engine.quorum.proof import UnprovenError
from stratalog.engine.quorum.repeated import BatchRecords, latest_of
from stratalog.engine.quorum.state import CommittedLog, LogState, is_majority
from stratalog.engine.quorum.voter import Voter, VoterListing, VoterLook
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import (
    ClusterKeyError,
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    SourceChangedError,
    StorageRefusedError,
    StratalogError,
)
from stratalog.partitions.identity import NewId
from stratalog.partitions.numbers import GREATEST_EPOCH
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.protocol import Store


class MetadataLog:
    """One driver's access to the metadata log. Not thread-safe.

    Caches the folded image of the known committed log: a read costs one listing per voter, and the new files.
    """

    def __init__(
        self,
        cluster_id: str,
        voters: Sequence[Voter],
        *,
        clock: Clock,
        rng: random.Random,
        new_id: NewId,
        patience: Patience = Patience(),  # noqa: B008 - immutable
        stores: Mapping[int, Store] | None = None,
        hint: LogState = LogState(),  # noqa: B008 - immutable
        note: Note = lambda text: None,
        loading: Loading = nullcontext,
        key: ClusterKey | None = None,
    ) -> None:
        """``voters`` may be outdated; the log names the current voters, whose storage is looked up by broker in
        ``stores`` (by default the storage of ``voters``). ``hint``: an earlier log, used if this log continues it.
        ``note`` receives damage that was worked around. Snapshots are loaded in ``loading``. ``voters`` have the
        same ``key``: with a key, every file is signed; without a key, a signed log can only be read.
        """
        self._cluster_id = cluster_id
        self._key = key
        roots = stores if stores is not None else {voter.broker_id: voter.store for voter in voters}
        self._electorate = Electorate(cluster_id, voters, roots, note, key)
        self._clock = clock
        self._rng = rng
        self._claimant = new_id()
        self._patience = patience
        self._claim_backoff = ClaimBackoff(patience)
        self._contents = Contents(cluster_id, note, loading)
        self._refusals = Refusals(note)
        self._hint = hint
        self._committed = LogState()
        self._signed = hint.signed
        """Whether any file that was read is signed."""
        self._claim: Claim | None = None
        self._seen: Survey | None = None
        """The survey of the last ``read_at_once``, so that a claim does not have to list the voters again."""
        self._epoch = 0
        """The greatest epoch tried by this driver, which tries each once: epoch and offset identify a batch."""
        self._begun = 0
        """The epoch of an unfinished claim, which this driver tries again unless another driver has it."""

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters as this driver knows them."""
        return self._electorate.voters

    @property
    def last_known(self) -> LogState:
        """The committed log as this driver last read it."""
        return self._committed if self._committed.end > 0 else self._hint

    # ------------------------------------------------------------------------------------ read

    def read(self) -> ClusterImage:
        """Everything that was committed before this call. Raises: see ``committed_log``."""
        image = self.read_at_once()
        return self._committed_state().image if image is None else image

    def read_at_once(self) -> ClusterImage | None:
        """Do the same as ``read``, from one listing of a majority. None if other drivers are at work, or have left
        work unfinished. Raises: see ``committed_log``.
        """
        try:
            survey = self._survey()
        except SourceChangedError:
            return None
        self._yield_to_others(survey.looks)
        image = None
        if survey.state.end > 0 and self._is_committed(survey.state, survey.looks):
            image = self._mark_committed(survey.state, survey.looks).image
        self._seen = survey
        return image

    def committed_log(self) -> CommittedLog:
        """Return the log that was committed before this call, and then list the files on its voters.

        Raises: InvalidCallError when the cluster was never formatted; NoMajorityError; StorageError;
            CorruptionError kinds.
        """
        state = self._committed_state()
        listings = []
        for voter in self._electorate.voters:
            with suppress(*UNREACHABLE):
                listing = voter.list()
                check_voter(listing, state)
                listings.append(listing)
        return CommittedLog(state, tuple(listings))

    def _committed_state(self) -> LogState:
        """The committed log. A reader may have to finish the work of other drivers: copy their last batch, and
        finally claim an epoch and commit an empty batch. A reader without write access answers with the log that
        its listings prove. Raises: see ``committed_log``.
        """
        unproven, refused = "", False
        for attempt in self._patience.attempt(self._clock, self._rng):
            try:
                survey = self._survey(everybody=True)
                state, looks = survey.state, list(survey.looks)
                if state.end == 0:
                    raise InvalidCallError(
                        f"cluster {self._cluster_id!r} has no metadata: create it with Cluster.format or "
                        "stratalog format"
                    )
                self._yield_to_others(looks)
                if attempt > 0 and not self.lacks_key and not self._is_committed(state, looks):
                    looks = self._copy_on(state, looks)
                if self._is_committed(state, looks):
                    return self._mark_committed(state, looks)
                if self._refusals or self.lacks_key:
                    try:
                        return self._mark_committed(self._proven(survey), survey.looks)
                    except UnprovenError as error:
                        unproven = str(error)
                if attempt >= self._patience.claimant_attempts and not refused and not self.lacks_key:
                    # Claims of drivers that do not continue would block the log.
                    self._claim = None
                    self.claim()
                    self.commit((NoOpRecord(),))
                    return self._committed
            except (SourceChangedError, NotControllerError, OutcomeUnknownError):
                continue  # another driver has advanced the log
            except StorageRefusedError:
                if not self._refusals:
                    raise
                refused = True
        if refused:
            raise self._refusals.as_error(
                f"{unproven}; to find out, this driver would need the right to write: read again after "
                "another driver has written"
            )
        if self.lacks_key:
            raise NoMajorityError(
                f"{unproven}; to find out, this driver would have to write with the key of cluster "
                f"{self._cluster_id!r}, which it lacks: read again after another driver has written"
            )
        raise NoMajorityError(f"the metadata log's end could not be committed on {self._electorate}: try again")

    def _proven(self, survey: Survey) -> LogState:
        """The log that the listings prove to be committed. Raises: see ``proven_by``."""
        return proven_by(survey, self._contents, self._committed, self._hint)

    def _survey(self, *, everybody: bool = False) -> Survey:
        """See ``Electorate.survey``. Without a majority, this driver abandons its claim. So it writes nothing
        useless until there is a majority again, and errors can state that nothing was written.
        """
        try:
            survey = self._electorate.survey(self._contents, self._committed, self._hint, everybody=everybody)
        except NoMajorityError:
            self._claim = None
            raise
        self._signed = self._signed or survey.state.signed or any(look.tagged for look in survey.looks)
        return survey

    def _copy_on(self, state: LogState, looks: Sequence[VoterLook]) -> list[VoterLook]:
        """Copy missing parts of ``state`` to its voters, and list these voters again."""
        after = []
        voters = self._electorate.of(state)
        for look in looks:
            try:
                lacks = look.voter in voters and not state.shown_by(look)
                if lacks and look.epoch <= state.epoch:
                    self._contents.bring_up(state, look, looks)
                    after.append(read_names_near(look.voter, state.epoch))
                else:
                    after.append(look)
            except StorageRefusedError as error:
                self._refusals.add(look.voter, error)
                after.append(look)
            except UNREACHABLE:
                continue  # this attempt leaves the voter out
        return after

    def _yield_to_others(self, looks: Iterable[VoterLook]) -> None:
        """Abandon a claim if a majority has a greater claim, because writes under it would be useless."""
        if self._claim is not None:
            above = [look.voter.id for look in looks if look.epoch > self._claim.epoch]
            if is_majority(above, ids_of(self._electorate.voters)):
                self._claim = None

    def contains(self, name: DataName) -> bool:
        """Whether the batch that this driver tried to commit under ``name`` is in the log as last claimed, or
        without a claim, as last read. The lineage shows this, because no other driver writes in that epoch.

        Raises: OutcomeUnknownError when the log now starts above the batch: the lineage no longer shows this.
        """
        state = self._committed if self._claim is None else self._claim.state
        epoch = state.lineage.epoch_at(name.base_offset)
        if epoch is None and state.end > 0:
            raise OutcomeUnknownError(
                f"the metadata log now starts above offset {name.base_offset}; it is unknown whether {name} was "
                "committed"
            )
        return name.base_offset < state.end and epoch == name.epoch

    # ----------------------------------------------------------------------------------- claim

    @property
    def claimed_image(self) -> ClusterImage | None:
        """The image that the next commit continues, the latest at the time of the claim; None without a claim."""
        return None if self._claim is None else self._claim.state.image

    def claim(self) -> ClusterImage:
        """Become the active controller, unless this driver already is. The image is known to be committed only
        after this driver's next commit.

        Raises: NoMajorityError, StorageRefusedError, CorruptionError; NotControllerError: other drivers are
            faster.
        """
        too_few = 0  # attempts in a row that found too few voters to take a claim, and no faster driver
        if self._claim is not None:
            return self._claim.state.image
        survey, self._seen = self._seen, None
        rival: Voter | None = None  # another driver was first there: only its listing shows when to try again
        for _ in self._patience.attempt(self._clock, self._rng):
            try:
                # 1. The greatest claim seen + 1, unless another driver has claimed and is about to commit.
                shown: Sequence[VoterLook] = () if rival is None else read_names_of([rival], self._epoch)
                if survey is None or (rival is not None and not shown):
                    survey = self._survey()
                self.check_may_write()
                shown = shown or survey.looks
                greatest = max(look.epoch for look in (*survey.looks, *shown))
                epoch = self._begun
                if epoch < max(1, greatest):
                    if self._claim_backoff.asks_to_wait(shown):
                        rival = max(shown, key=lambda look: look.epoch).voter
                        continue
                    epoch = 1 + max(self._epoch, greatest)
                if epoch > GREATEST_EPOCH:
                    raise CorruptionError(f"a majority of {self._electorate} shows the greatest possible epoch")
                # 2. Claim that epoch on the voters that were listed; the other voters may have any claim.
                self._epoch, self._begun = epoch, 0
                mine, rival = self._claimed(survey, epoch)
                if not is_majority(ids_of(mine), ids_of(survey.voters)):
                    too_few = too_few + 1 if rival is None else 0
                    if rival is None:
                        self._begun, survey = epoch, None
                    if self._refusals and too_few >= self._patience.claimant_attempts:
                        break  # a voter that refuses needs an operator
                    continue
                too_few = 0
                # 3. Then list the claimed majority. If a listing misses a batch of a smaller epoch, the batch came
                #    after the claim, so its writer finds the claim and does not count that voter (I6).
                looks = [look for look in read_names_of(mine, epoch) if not look.disputed(epoch)]
                rival = next((look.voter for look in looks if look.epoch > epoch), None)
                if rival is not None:
                    continue
                # 4. Continue the greatest log, if a majority of its voters was listed. Majorities intersect, so
                #    every committed batch is listed. Fewer listings, or another log, could miss a batch (I6).
                if is_majority(ids_of(look.voter for look in looks), ids_of(survey.voters)):
                    # An unfinished change of voters may be on a single earlier voter.
                    latest = list({look.voter.id: look for look in (*survey.looks, *looks)}.values())
                    try:
                        state = self._contents.greatest(latest, self._committed, self._hint)
                    except DAMAGED:
                        # Leave out a damaged voter that a majority does not need, here and in the claim below. Do
                        # so in every attempt, because other files may be damaged by then.
                        survey, rival = self._survey(everybody=True), None
                        continue
                    if is_majority(ids_of(look.voter for look in looks), ids_of(self._electorate.of(state))):
                        self._claim = Claim.of(epoch, state, latest, survey.damaged)
                        self._claim_backoff = ClaimBackoff(self._patience)
                        return state.image
                survey = None
            except SourceChangedError:
                survey = rival = None
        raise self._refusals.as_failed_claim(self._electorate, self._patience.attempts, too_few=too_few > 0)

    @property
    def lacks_key(self) -> bool:
        """Whether the files read so far are signed and this driver has no key. Other drivers would reject its
        batches as foreign. One signed voter is enough, because an attacker may have written to the others.
        """
        return self._key is None and self._signed

    def check_may_write(self) -> None:
        """Check that this driver does not lack the cluster's key. Raises: ClusterKeyError."""
        if self.lacks_key:
            raise ClusterKeyError(
                f"the metadata of cluster {self._cluster_id!r} is signed, but this process does "
                "not have the cluster key: without it, reads are unverified and writes are refused; set "
                "STRATALOG_CLUSTER_KEY, or give the job --cluster-key-file"
            )

    def _claimed(self, survey: Survey, epoch: int) -> tuple[list[Voter], Voter | None]:
        """The voters on which this driver has the epoch, and the voter on which another driver was first. All
        drivers use the same order, and stop at that voter. So one of two concurrent drivers claims all voters.

        Raises: StorageRefusedError if the refusing voters leave no majority.
        """
        mine: list[Voter] = []
        others = list(survey.voters)
        for voter in survey.voters:
            if voter.id in survey.away:
                continue
            try:
                if not survey.shows(voter):
                    voter.check_root()  # a create would make folders below the mount point of an unmounted volume
                if not voter.claim(epoch, self._claimant):
                    return mine, voter
                mine.append(voter)
                self._refusals.remove(voter)
            except StorageRefusedError as error:
                self._refusals.add(voter, error)
                others.remove(voter)
                if not is_majority(ids_of(others), ids_of(survey.voters)):
                    raise self._refusals.as_error(f"metadata epoch {epoch} cannot be claimed") from error
            except UNREACHABLE:
                continue
        return mine, None

    @property
    def next_name(self) -> DataName:
        """The name under which ``commit`` will write, for ``contains``.

        Raises: NotControllerError without a claim.
        """
        if self._claim is None:
            raise NotControllerError("no metadata epoch is claimed")
        return self._claim.next_name

    # ---------------------------------------------------------------------------------- commit

    def commit(self, records: Sequence[MetadataRecord]) -> ClusterImage:
        """Commit ``records`` (at least one) at the end of the claimed log; returns the image with them. Any error
        ends the claim.

        Raises: NotControllerError when another driver has claimed (the outcome is then unknown, see ``contains``,
            unless this driver had no claim); OutcomeUnknownError. If nothing was written: NoMajorityError,
            StorageRefusedError; CorruptionError when the records do not fit the image.
        """
        name = self.next_name
        claim, self._claim = self._claim, None
        assert claim is not None
        image = apply(claim.state.image, name.base_offset, records)
        now_ms = self._clock.now_ms()
        content = BatchRecords.of(name, records, now_ms)
        files = claim.state.files | {name}
        after = replace(
            claim.state,
            image=image,
            lineage=claim.lineage,
            epoch=claim.epoch,
            files=files,
            appended_ms=now_ms,
            signed=claim.state.signed or self._key is not None,
            latest=latest_of((*claim.state.latest, content), claim.state.start),
        )
        if any(isinstance(record, VotersRecord) for record in records) and claim.state.end > 0:
            claim.check_change(after)
        electorates = [self._electorate.of(claim.state), self._electorate.of(after)]
        everybody = list(dict.fromkeys(voter for voters in electorates for voter in voters))
        data = encode_batch(self._cluster_id, content, claim.lineage, self._key, claim.state.latest)
        looks = dict(claim.looks)
        written = False
        failure: StratalogError | None = None
        refusing: set[Voter] = set()
        for _ in self._patience.attempt(self._clock, self._rng):
            for voter in everybody:
                try:
                    look = looks.get(voter.id) or read_names_near(voter, name.epoch)
                    if look.epoch > name.epoch and voter.id in claim.damaged:
                        continue
                    if look.epoch <= name.epoch:
                        # 1. Copy the files that the voter lacks, oldest first.
                        self._contents.bring_up(claim.state, look, looks.values())
                        # 2. Create the batch. A create without an answer may still take effect at any time.
                        try:
                            voter.create(name, data)
                        except OutcomeUnknownError as error:
                            failure = error
                        written = True
                        # 3. List the voter again; only this listing decides.
                        look = read_names_near(voter, name.epoch)
                    looks[voter.id] = look
                except UNREACHABLE as error:
                    failure = error
                    looks.pop(voter.id, None)
                    if isinstance(error, StorageRefusedError):
                        self._refusals.add(voter, error)
                        refusing.add(voter)
            # 4. If a majority shows the batch, it is committed. A later epoch fences this driver. Else, try again.
            showing = ids_of(look.voter for look in looks.values() if after.shown_by(look))
            if all(is_majority(showing, ids_of(voters)) for voters in electorates):
                self._mark_committed(after, looks.values())
                self._claim = replace(claim, state=self._committed, looks=looks)
                return image
            if any(look.epoch > name.epoch for look in looks.values()):
                # Wait from now on: claiming again immediately would start a duel.
                self._claim_backoff.asks_to_wait(looks.values())
                raise NotControllerError(
                    f"another driver has claimed an epoch above {name.epoch}; it is unknown whether metadata "
                    f"offset {name.base_offset} was committed"
                )
            willing = [voter.id for voter in everybody if voter not in refusing]
            if not all(is_majority(willing, ids_of(voters)) for voters in electorates):
                break
        what = f"metadata offset {name.base_offset} could not be written on a majority of {self._electorate}"
        why = "" if failure is None else f" ({failure})"
        if written:
            raise OutcomeUnknownError(f"{what}; read the metadata before you retry{why}") from failure
        if refusing:
            raise self._refusals.as_error(what) from failure
        raise NoMajorityError(f"{what}{why}") from failure

    # ---------------------------------------------------------------------------------- voters

    def admit(self, voter_id: VoterId) -> None:
        """Copy everything that is committed to a root that is to become a voter, so that its vote causes no delay.

        Raises: InvalidCallError when its storage is unknown; RetriableError, StaleMetadataError, CorruptionError
            kinds when it cannot be read or written; OutcomeUnknownError.
        """
        committed = self.committed_log()
        self.check_may_write()
        voter = self._electorate.root(voter_id)
        self._contents.bring_up(committed.state, voter.look(), committed.listings)
        if not committed.state.held_by(voter.look()):
            raise SourceChangedError(f"files on {voter} disappeared immediately after the copy; try again")

    def end_of(self, name: DataName, listing: VoterListing) -> int:
        """The next offset of a batch on a voter. Raises: CorruptionError kinds, InconsistentClusterIdError;
        SourceChangedError, StorageError."""
        return self._contents.batch(name, [listing]).next_offset

    def _is_committed(self, state: LogState, looks: Iterable[VoterLook]) -> bool:
        """Whether a majority of the voters in force in ``state`` shows that log."""
        return state.is_committed(ids_of(self._electorate.of(state)), looks)

    def _mark_committed(self, state: LogState, looks: Iterable[VoterLook]) -> LogState:
        self._committed = state.trimmed(looks)
        self._electorate.voters = self._electorate.of(state)
        self._hint = LogState()
        self._seen = None  # possibly committed by earlier voters
        self._contents.forget()
        if self._claim is not None and state.epoch > self._claim.epoch:
            self._claim = None
        return self._committed
