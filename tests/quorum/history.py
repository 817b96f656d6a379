"""The naive twin: one list of committed batches. It learns of commits from the drivers that consider them
committed, and of each batch when a driver first tries to create it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import RegisterBrokerRecord, VoterId, VotersRecord
from stratalog.engine.quorum.batch import Batch
from stratalog.engine.quorum.state import LogState
from stratalog.partitions.paths import CheckpointName, DataName
from tests.quorum.remembering import decoded, fold
from tests.simulation.scheduler import Violation

CLUSTER = "c"


class History:
    """The committed batches, and the answers about them."""

    def __init__(self) -> None:
        self.bytes: dict[DataName, bytes] = {}
        """Every batch that any driver ever tried to create."""
        self.batches: dict[DataName, Batch] = {}
        self.files: list[DataName] = []
        """The committed batches, in order."""
        self.images: dict[int, ClusterImage] = {0: ClusterImage()}
        """The image after each committed batch."""
        self.end = 0
        self.tokens: dict[int, int] = {}
        """The place where each token was registered."""
        self.never: set[int] = set()
        """Tokens whose driver received the answer that nothing was changed."""
        self.refused: set[int] = set()
        """Tokens whose driver received the answer that they are taken."""
        self.snapshots: set[CheckpointName] = set()
        """All snapshots that were ever frozen."""
        self.counts: Counter[str] = Counter()
        self._by_end: dict[tuple[int, int], DataName] = {}

    def copy(self) -> History:
        """A copy with the same knowledge and without answers."""
        twin = History()
        twin.bytes, twin.batches = dict(self.bytes), dict(self.batches)
        twin.files, twin.images, twin.end = list(self.files), dict(self.images), self.end
        twin.tokens, twin._by_end = dict(self.tokens), dict(self._by_end)
        return twin

    @property
    def image(self) -> ClusterImage:
        """The latest committed one."""
        return self.images[self.end]

    # -------------------------------------------------------------------------------- batches

    def meet(self, name: DataName, data: bytes) -> None:
        """A driver is about to create a batch. Raises: Violation if another batch has its name."""
        known = self.bytes.setdefault(name, data)
        if known is data:
            batch = self.batches[name] = decoded(CLUSTER, name, data, str(name))
            self._by_end[name.epoch, batch.next_offset] = name
        elif known != data and decoded(CLUSTER, name, data, str(name)) != self.batches[name]:
            raise Violation(
                f"I6: two batches are called {name}"
            )  # a batch with a flipped bit that changes no meaning may be copied

    def voters_ahead(self) -> list[tuple[VoterId, ...]]:
        """Electorates of batches that may be committed."""
        return [
            record.voters
            for name, batch in self.batches.items()
            if name.base_offset >= self.end
            for record in batch.records
            if isinstance(record, VotersRecord)
        ]

    # ------------------------------------------------------------------------------ committed

    def believe(self, state: LogState, who: str) -> None:
        """A driver considers a log committed. Raises: Violation if it differs from the one that others considered
        committed."""
        if state.end > self.end:
            self._extend(state, who)
        known = self.images.get(state.end)
        if known is None:
            raise Violation(f"I6: {who} takes a log for committed that ends at {state.end}, inside a batch")
        if known is not state.image and known != state.image:
            raise Violation(f"I6: what {who} takes for committed up to {state.end} belongs to another history")

    def _extend(self, state: LogState, who: str) -> None:
        chain: list[DataName] = []
        name = self._by_end.get((state.epoch, state.end))
        while name is not None and name.base_offset > self.end:
            chain.append(name)
            name = self._before(name)
        if name is None or name.base_offset != self.end:
            raise Violation(
                f"I6: {who} takes a log for committed that goes over {self.files[-1]}: {state.lineage}"
            )
        chain.append(name)
        before = self.batches[name].lineage.epoch_at(self.end - 1)
        if self.files and before is not None and before != self.files[-1].epoch:
            raise Violation(f"I6: {who} takes {name} for committed, which does not follow {self.files[-1]}")
        for name in reversed(chain):
            self._commit(name)

    def _before(self, name: DataName) -> DataName | None:
        """The batch before a batch. If the lineage begins with the batch, it does not name the previous batch,
        which is then the batch that ends there, if there is only one.
        """
        epoch = self.batches[name].lineage.epoch_at(name.base_offset - 1)
        if epoch is not None:
            return self._by_end.get((epoch, name.base_offset))
        (only,) = [found for (_, end), found in self._by_end.items() if end == name.base_offset]
        return only

    def _commit(self, name: DataName) -> None:
        batch = self.batches[name]
        for offset, record in enumerate(batch.records, start=self.end):
            if isinstance(record, RegisterBrokerRecord) and record.broker_id >= 100:
                token = record.broker_id
                if token in self.never:
                    raise Violation(
                        f"I6: {token} is committed at {offset}; its driver got the answer that nothing changed"
                    )
                if token in self.tokens:
                    raise Violation(f"I6: {token} is committed at {self.tokens[token]}, and again at {offset}")
                self.tokens[token] = offset
        self.images[batch.next_offset] = fold(self.images[self.end], self.end, batch.records)
        self.files.append(name)
        self.end = batch.next_offset
        self.counts["batches"] += 1

    # -------------------------------------------------------------------------------- answers

    def acknowledge(self, token: int, offset: int) -> None:
        """A registration was acknowledged. Raises: Violation unless it is committed there."""
        if self.tokens.get(token) != offset:
            raise Violation(
                f"I6: {token} was acknowledged at {offset}, and is committed at {self.tokens.get(token)}"
            )
        self.counts["commands acknowledged"] += 1

    def deny(self, token: int, why: object) -> None:
        """A driver received the answer that its registration changed nothing. Raises: Violation if it is
        committed."""
        if token in self.tokens:
            raise Violation(
                f"I6: {token} is committed at {self.tokens[token]}, and its driver got the answer: {why}"
            )
        self.never.add(token)
        self.counts["commands failed"] += 1

    def check_read(self, image: ClusterImage, known: int) -> None:
        """Check a read that began when the log was committed up to ``known``. Raises: Violation."""
        if image.next_offset < known:
            raise Violation(f"I6: a read returned offset {image.next_offset}, {known} was committed when it began")

    def check_refusals(self) -> None:
        """Check the refusals at the end. Raises: Violation."""
        if missing := self.refused - self.tokens.keys():
            raise Violation(f"I6: {sorted(missing)} were refused as taken, and nobody has them")

    def check_snapshot(self, name: CheckpointName, state: LogState) -> None:
        """Raises: Violation unless it is the replay of the committed log up to its end."""
        expected = self.images.get(name.end_offset) if name.end_offset > 0 else None
        if expected is None:
            raise Violation(f"I6: {name} is of a log that nobody has found committed")
        last = next(file for file in reversed(self.files) if file.base_offset < name.end_offset)
        if state.image != expected or last.epoch != name.epoch:
            raise Violation(f"I6: {name} is not the replay of the log up to {last}")
        self.snapshots.add(name)
        self.counts["snapshot files"] += 1

    def serves(self, names: Collection[object]) -> bool:
        """Whether a voter with these intact files has the committed log."""
        start = max((name.end_offset for name in names if isinstance(name, CheckpointName)), default=0)
        for file in reversed(self.files):
            if file.base_offset < start:
                break
            if file not in names:
                return False
        return start <= self.end
