"""What the engine uses of the metadata: read the image, submit a command."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TypeVar

from engine.metadata.commands import Command
from engine.metadata.image import ClusterImage
from engine.metadata.records import NoOpRecord
from engine.quorum.log import MetadataLog
from partitions.errors import NotControllerError, OutcomeUnknownError, RetriableError, StratalogError
from partitions.paths import DataName

Answer = TypeVar("Answer")

_ATTEMPTS = 20


class MetadataClient:
    """Linearizable reads of the metadata, and commands on it. Threads of one driver (several streams, say)
    take turns.
    """

    def __init__(self, log: MetadataLog) -> None:
        self._log = log
        self._turn = threading.Lock()

    def image(self) -> ClusterImage:
        """Everything that was committed before this call.

        Raises: InvalidCallError when the cluster was never formatted; RetriableError kinds, NoMajorityError
            above all; CorruptionError kinds.
        """
        with self._turn:
            return self._log.read()

    def decide(self, command: Command[Answer]) -> Answer:
        """What ``submit`` would answer now; nothing is changed.

        Raises: what the command's ``decide`` raises, and RetriableError kinds.
        """
        return command.decide(self.image()).answer

    def submit(self, command: Command[Answer]) -> Answer:
        """Read, decide, commit; where somebody else was faster, decide again on what they left.

        Raises: what the command's ``decide`` raises, and RetriableError kinds: nothing was changed then.
            OutcomeUnknownError: it may have been committed all the same. CorruptionError kinds.
        """
        with self._turn:
            return self._submit(command)

    def _submit(self, command: Command[Answer]) -> Answer:
        # A refusal, or an answer that changes nothing, rests on a linearizable read.
        decision = command.decide(self._log.read())
        if not decision.records:
            return decision.answer
        unknown: dict[DataName, Answer] = {}
        what = f"{type(command).__name__} lost {_ATTEMPTS} races against other drivers"
        try:
            for _ in range(_ATTEMPTS):
                with suppress(NotControllerError, OutcomeUnknownError):
                    return self._attempt(command, unknown)
        except RetriableError as error:
            if not unknown:
                raise
            what = str(error)
        if unknown:
            raise OutcomeUnknownError(f"{what}; {type(command).__name__} may have been committed: read first")
        raise RetriableError(f"{what}; try again")

    def _attempt(self, command: Command[Answer], unknown: dict[DataName, Answer]) -> Answer:
        """Claim, decide, commit. ``unknown`` has the batches of earlier attempts whose outcome is open, each
        with the answer that it stands for.

        Whatever is found under the claim is sure to last only once something is committed on top of it;
        therefore every way out of here but an error of the log leads through a commit.
        """
        image = self._log.claim()
        landed = [answer for name, answer in unknown.items() if self._log.contains(name)]
        if landed:
            self._log.commit((NoOpRecord(),))
            return landed[0]
        try:
            decision = command.decide(image)
        except StratalogError:
            self._log.commit((NoOpRecord(),))
            raise
        name = self._log.next_name
        try:
            self._log.commit(decision.records or (NoOpRecord(),))
        except (NotControllerError, OutcomeUnknownError):
            unknown[name] = decision.answer
            raise
        return decision.answer
