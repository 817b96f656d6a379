"""The engine's access to the metadata: read the image, submit a command.

Commands that a driver's threads (several streams, for example) submit during a commit are decided one after the
other, each on the result of the commands before it. The commands are committed as one batch, but each command gets
its own answer or refusal (``stratalog.partitions.group_commit``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from stratalog.engine.metadata.commands import Command, Decision
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.protection import Now, check_protected
from stratalog.engine.metadata.records import MetadataRecord, NoOpRecord, VoterId, check_readable
from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter
from stratalog.engine.quorum.contents import Note
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.repeated import unrepeated
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import NEVER_MS, keep_up
from stratalog.partitions.agreed_time import agreed_by_most
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    NotControllerError,
    OutcomeUnknownError,
    RetriableError,
    StratalogError,
)
from stratalog.partitions.group_commit import GroupCommit
from stratalog.partitions.paths import DataName

Answer = TypeVar("Answer")
T = TypeVar("T")

MOST_BATCHES = 50
"""The number of batches after the latest snapshot at which a commit takes the next snapshot. A snapshot costs 15
requests per voter, and 50 commits cost 150, so a snapshot adds a tenth to the cost of a commit. A snapshot of
10,000 partitions takes as much CPU time as 15 commits.
"""

MOST_UNREPEATED = 4
"""The maximum number of batches since the latest snapshot that are too large for later batches to repeat: opening
a cluster takes one request for each of these batches.
"""

_ATTEMPTS = 20
_MOST_COMMANDS = 256
"""The maximum number of commands in one batch."""

_NOTHING_WRITTEN = (RetriableError, CorruptionError, InvalidCallError)
"""The errors after which a commit has certainly written nothing."""


@dataclass(frozen=True, slots=True)
class _Answered:
    answer: Any


@dataclass(frozen=True, slots=True)
class _Refused:
    error: Exception


_Outcome = _Answered | _Refused


class _Request:
    """A command of one thread, and its outcome."""

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.outcome: _Outcome | None = None
        self.tried: dict[DataName, _Outcome] = {}
        """Batches that may be committed, each with the outcome that the command has if its batch is committed."""

    @property
    def over(self) -> bool:
        return self.outcome is not None

    @property
    def group(self) -> None:
        """Commands of all kinds share a batch."""

    @property
    def kind(self) -> str:
        """The command's name, for errors."""
        return type(self.command).__name__

    def decide_on(self, image: ClusterImage, now_ms: Now) -> tuple[_Outcome, Sequence[MetadataRecord]]:
        """The outcome and the records that the command decides on this image."""
        try:
            decision = _decided(self.command, image, now_ms)
        except Exception as error:  # a bug is also raised in the thread of its command
            return _Refused(error), ()
        return _Answered(decision.answer), decision.records


def _decided(command: Command[Answer], image: ClusterImage, now_ms: Now) -> Decision[Answer]:
    """The decision. Raises: errors of the command's ``decide``; see ``check_readable``, ``check_protected``."""
    decision = command.decide(image)
    check_protected(image, decision.records, now_ms)
    for record in decision.records:
        check_readable(record)
    return decision


class MetadataClient:
    """Linearizable reads of the metadata, and commands on it. Thread-safe."""

    def __init__(self, log: MetadataLog, clock: Clock, note: Note, most_batches: int = MOST_BATCHES) -> None:
        """A commit takes a snapshot ``most_batches`` batches after the latest one. If that fails, ``note``
        receives the failure.
        """
        self._log = log
        self._clock = clock
        self._note = note
        self._most_batches = most_batches
        self._kept_up_to = 0
        """The end of the log at this driver's last attempt to keep it short."""
        self._commits: GroupCommit[_Request] = GroupCommit(_MOST_COMMANDS)

    def image(self) -> ClusterImage:
        """Everything that was committed before this call.

        Raises: InvalidCallError when the cluster was never formatted; RetriableError kinds, most often
        NoMajorityError; CorruptionError kinds.
        """
        with self._commits.turn:
            return self._log.read()

    @property
    def last_known(self) -> LogState:
        """The last known committed log, or the log read when the cluster was opened. Sends no request."""
        return self._log.last_known

    @property
    def lacks_key(self) -> bool:
        """See ``MetadataLog.lacks_key``."""
        return self._log.lacks_key

    def check_may_commit(self) -> None:
        """Check that this process could commit a change, for dry runs. Raises: ClusterKeyError."""
        self._log.check_may_write()

    @property
    def waiting(self) -> int:
        """The number of waiting commands."""
        return self._commits.waiting

    def _agreed_ms(self) -> int | None:
        """The time for deletion by time, from the clocks of this driver and of the voters' storage."""
        return agreed_by_most(self._clock.now_ms(), [voter.store.now_ms() for voter in self._log.voters])

    def with_log(self, work: Callable[[MetadataLog], T]) -> T:
        """Run ``work`` with exclusive use of the log. Raises: errors from ``work``."""
        with self._commits.turn:
            return work(self._log)

    def submit(
        self, command: Command[Answer], *, dry_run: bool = False, dry_image: ClusterImage | None = None
    ) -> Answer:
        """Read the image, decide the command, and commit; if another driver has committed first, decide again on
        the new image. With ``dry_run``, return the answer as it would be now (or on ``dry_image``), and commit
        nothing; the errors are the same.

        Raises: errors of the command's ``decide``, InvalidCallError for records that could not be read again, and
            RetriableError kinds, if nothing was changed. OutcomeUnknownError: the command may have been committed.
            CorruptionError kinds.
        """
        if dry_run:
            decision = _decided(command, dry_image or self.image(), self._agreed_ms)
            if decision.records:
                self.check_may_commit()
            return decision.answer
        mine = _Request(command)
        self._commits.commit(mine, self._submit)
        if isinstance(mine.outcome, _Refused):
            raise mine.outcome.error
        assert mine.outcome is not None
        if mine.tried:
            self._keep_short()
        return cast(Answer, mine.outcome.answer)

    def _keep_short(self) -> None:
        """Take a snapshot and trim the log if it has grown long. The commands are already committed, so a failure
        here does not fail them; a commit ``most_batches`` batches later tries again. When several drivers commit,
        one of them does this; if that driver is busy, the next commit tries again.
        """
        if not self._is_long():
            return
        with self._commits.turn:
            try:
                if not self._is_long() or self._log.read_at_once() is None or not self._is_long():
                    return  # another thread or driver has done it, or other drivers are at work
                self._kept_up_to = self._log.last_known.end
                done = keep_up(self._log, self._clock, lag_ms=NEVER_MS)
                failures = [one.failure for one in done.voters if one.failure is not None]
            except StratalogError as error:
                failures = [error]
        for failure in failures:
            self._note(f"the metadata log was not shortened; a later commit tries again: {failure}")

    def _is_long(self) -> bool:
        known = self._log.last_known
        if len(known.files) < min(self._most_batches, MOST_UNREPEATED):
            return False
        batches = [name for name in known.files if name.base_offset >= self._kept_up_to]
        return len(batches) >= self._most_batches or unrepeated(batches, known.latest) >= MOST_UNREPEATED

    def change_voters(self, command: AddVoter | RemoveVoter, *, dry_run: bool = False) -> tuple[VoterId, ...]:
        """Add or remove one voter; returns the new voters. Safe to repeat after any error. ``dry_run``: nothing is
        changed.

        Raises: see ``submit``; when a new voter cannot be written, nothing was changed.
        """
        if dry_run:
            return self.submit(command, dry_run=True)
        with self._commits.turn:
            for _ in range(_ATTEMPTS):
                decision = _decided(command, self._log.read(), self._agreed_ms)
                if not decision.records:
                    return decision.answer
                if isinstance(command, AddVoter):
                    self._log.admit(command.voter)
                with suppress(NotControllerError, OutcomeUnknownError):
                    self._log.claim()
                    image = self._log.commit((NoOpRecord(),))  # no change on top of a change that is not committed
                    decision = _decided(command, image, self._agreed_ms)
                    if decision.records:
                        self._log.commit(decision.records)
                    return decision.answer
        raise RetriableError(f"{type(command).__name__} lost {_ATTEMPTS} races against other drivers; try again")

    def _submit(self, asked: Sequence[_Request]) -> None:
        """Give each request its outcome."""
        if any(one.tried for one in asked):  # a driver was interrupted during a commit
            self._commit(asked)
            return
        claimed, now_ms = self._log.claimed_image, self._agreed_ms
        if claimed is not None and any(one.decide_on(claimed, now_ms)[1] for one in asked):
            # Skip the read: the commit itself proves that no other driver committed in between.
            self._commit(asked)
            return
        try:
            image = self._log.read_at_once()
        except StratalogError as error:
            for one in asked:
                one.outcome = _Refused(error)
            return
        if image is None:  # other drivers are at work: a claim waits for them once; reading first would wait twice
            self._commit(asked)
            return
        # Refusals, and answers that change nothing, are based on a linearizable read, up to the first change.
        for at, one in enumerate(asked):
            outcome, records = one.decide_on(image, now_ms)
            if records:
                self._commit(asked[at:])
                return
            one.outcome = outcome

    def _commit(self, asked: Sequence[_Request]) -> None:
        failure: StratalogError | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._attempt(asked)
                return
            except (NotControllerError, OutcomeUnknownError):
                continue
            except StratalogError as error:
                failure = error
                break
        for one in asked:
            what = str(failure or f"{one.kind} lost {_ATTEMPTS} races against other drivers")
            if one.tried and not isinstance(failure, CorruptionError):  # it does not say that nothing was changed
                one.outcome = _Refused(
                    OutcomeUnknownError(
                        f"{what}; {one.kind} may have been committed: read the metadata before you retry"
                    )
                )
            else:
                one.outcome = _Refused(failure or RetriableError(f"{what}; try again"))

    def _attempt(self, asked: Sequence[_Request]) -> None:
        """Claim, decide, commit. A command that an earlier batch has put into the log gets the outcome of that
        batch.

        The state that was read under the claim is certain to last only after something is committed on top of it.
        So every exit except an error of the log commits first.
        """
        image, now_ms = self._log.claim(), self._agreed_ms
        outcomes: list[_Outcome] = []
        records: list[MetadataRecord] = []
        for one in asked:
            landed = self._landed(one)
            outcome, decided = (landed, ()) if landed is not None else one.decide_on(image, now_ms)
            if decided and one is not asked[-1]:
                image = apply(image, image.next_offset, decided)
            outcomes.append(outcome)
            records += decided
        name = self._log.next_name
        for one, outcome in zip(asked, outcomes, strict=True):
            one.tried[name] = outcome  # however this ends, even by an interruption
        try:
            self._log.commit(records or (NoOpRecord(),))
        except _NOTHING_WRITTEN:
            for one in asked:
                del one.tried[name]
            raise
        for one, outcome in zip(asked, outcomes, strict=True):
            one.outcome = outcome

    def _landed(self, one: _Request) -> _Outcome | None:
        """The outcome of a command in a batch of the claimed log; None when no such batch is there."""
        try:
            return next((outcome for name, outcome in one.tried.items() if self._log.contains(name)), None)
        except OutcomeUnknownError as error:
            return _Refused(error)
