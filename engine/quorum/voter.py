"""One voter of the metadata log: a folder on the root of a broker (protocol section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.metadata.records import VoterId
from partitions import paths
from partitions.errors import (
    BrokerUnreachableError,
    OutcomeUnknownError,
    SourceChangedError,
    StaleBrokerError,
    StratalogError,
)
from partitions.paths import CheckpointName, ClaimName, DataName, base_name, parse_name
from partitions.replica import read_broker_file
from partitions.store.protocol import Store, StoredObject

Position = tuple[int, int, bool]
"""How far a file takes a log: its epoch, then an offset, then whether it goes on from there (a batch) or ends
there (a snapshot). Positions of one cluster's log are ordered."""


def position_of(name: DataName | CheckpointName) -> Position:
    """The position of a batch or a snapshot. A batch is after the snapshots that end at its base offset, and
    before those that cover it: one claimant writes an epoch's batches, one after the other."""
    match name:
        case DataName(base_offset=offset, epoch=epoch):
            return epoch, offset, True
        case CheckpointName(end_offset=offset, epoch=epoch):
            return epoch, offset, False


@dataclass(frozen=True, slots=True)
class VoterListing:
    """What a voter held when it was listed."""

    voter: Voter
    claims: tuple[int, ...]
    """The epochs claimed here, ascending."""
    files: Mapping[DataName, StoredObject]
    checkpoints: Mapping[CheckpointName, StoredObject]
    last: DataName | CheckpointName | None
    """The file with the greatest position; its lineage says which files are the log."""

    @property
    def claimed_epoch(self) -> int:
        """The greatest epoch claimed here, 0 when none."""
        return self.claims[-1] if self.claims else 0

    @property
    def last_epoch(self) -> int:
        """The epoch of the last file, 0 when there is none."""
        return 0 if self.last is None else self.last.epoch

    @property
    def epoch(self) -> int:
        """The greatest epoch this voter knows of: a claimant writes to voters that it did not claim, too."""
        return max(self.claimed_epoch, self.last_epoch)

    @property
    def snapshot_end(self) -> int:
        """Up to where the latest snapshot stands for the log here, 0 when there is none."""
        return max((name.end_offset for name in self.checkpoints), default=0)


@dataclass(frozen=True, slots=True)
class Voter:
    """One incarnation of the root of a broker, as a voter."""

    broker_id: int
    store: Store
    directory_id: str

    def __str__(self) -> str:
        return f"voter {self.broker_id} ({self.store.uri})"

    @property
    def id(self) -> VoterId:
        """As the metadata names it."""
        return VoterId(self.broker_id, self.directory_id)

    @property
    def folder(self) -> str:
        """This voter's folder under the root."""
        return paths.voter_path(self.directory_id)

    def path(self, name: paths.Name) -> str:
        """The name in the store of one of this voter's files."""
        return paths.join(self.folder, str(name))

    def list(self) -> VoterListing:
        """The voter's files; only then the root is checked, so that what was listed was this incarnation's.

        Raises: StaleBrokerError when the root holds another directory id; BrokerUnreachableError when it
            holds none; ListingUnstableError, StorageError.
        """
        claims: list[int] = []
        files: dict[DataName, StoredObject] = {}
        checkpoints: dict[CheckpointName, StoredObject] = {}
        for stored in self.store.list(self.folder):
            match parse_name(base_name(stored.name)):
                case ClaimName(epoch):
                    claims.append(epoch)
                case DataName() as name if not name.merged:
                    files[name] = stored
                case CheckpointName() as name:
                    checkpoints[name] = stored
                case _:
                    pass
        self._check_root()
        names: list[DataName | CheckpointName] = [*files, *checkpoints]
        last = max(names, key=position_of, default=None)
        return VoterListing(self, tuple(sorted(claims)), files, checkpoints, last)

    def _check_root(self) -> None:
        found = read_broker_file(self.store)
        if found is None:
            raise BrokerUnreachableError(f"{self}: no broker.json is there; is the volume mounted?")
        if found.directory_id != self.directory_id:
            raise StaleBrokerError(
                f"{self}: its root is directory {found.directory_id} now, the voter is {self.directory_id}: "
                "it was wiped, and is no voter until it is added again"
            )

    def claim(self, epoch: int, claimant: str) -> bool:
        """Whether ``claimant`` has claimed ``epoch`` here, now or before. The claim of an epoch below another
        one's may have been deleted, and made again by somebody else: it is worth nothing to either, for both
        list the voter afterwards, and see the greater one.

        Raises: StorageError and other RetriableError kinds.
        """
        name = self.path(ClaimName(epoch))
        try:
            if self.store.create(name, claimant.encode()):
                return True
        except OutcomeUnknownError:
            pass  # reading tells
        try:
            return self.store.read(name) == claimant.encode()
        except FileNotFoundError:
            return False

    def claimant_of(self, epoch: int) -> str:
        """Who has claimed an epoch here; empty when nobody has, or it cannot be read."""
        try:
            return self.store.read(self.path(ClaimName(epoch))).decode(errors="replace")
        except (FileNotFoundError, StratalogError):
            return ""

    def create(self, name: DataName, data: bytes) -> None:
        """Create a data file, or find that it is there: a name has the same bytes on every voter.

        Raises: StorageError, OutcomeUnknownError.
        """
        self.store.create(self.path(name), data)

    def read(self, name: DataName) -> bytes:
        """A data file. Raises: SourceChangedError when it is gone; StorageError."""
        try:
            return self.store.read(self.path(name))
        except FileNotFoundError as error:
            raise SourceChangedError(f"{self}: {name} was deleted since it was listed") from error
