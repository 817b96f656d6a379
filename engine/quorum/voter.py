"""One voter of the metadata log: a folder on the root of a broker (protocol section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partitions import paths
from partitions.errors import BrokerUnreachableError, OutcomeUnknownError, SourceChangedError, StaleBrokerError
from partitions.paths import ClaimName, DataName, base_name, parse_name
from partitions.replica import read_broker_file
from partitions.store.protocol import Store, StoredObject


@dataclass(frozen=True, slots=True)
class VoterListing:
    """What a voter held when it was listed."""

    voter: Voter
    claimed_epoch: int
    """The greatest epoch claimed here, 0 when none."""
    files: Mapping[DataName, StoredObject]
    last: DataName | None
    """The file with the greatest (epoch, base offset); its lineage says which files are the log."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last file, 0 when there is none."""
        return 0 if self.last is None else self.last.epoch

    @property
    def epoch(self) -> int:
        """The greatest epoch this voter knows of: a claimant writes to voters that it did not claim, too."""
        return max(self.claimed_epoch, self.last_epoch)


@dataclass(frozen=True, slots=True)
class Voter:
    """One incarnation of the root of a broker, as a voter."""

    broker_id: int
    store: Store
    directory_id: str

    def __str__(self) -> str:
        return f"voter {self.broker_id} ({self.store.uri})"

    def path(self, name: paths.Name) -> str:
        """The name in the store of one of this voter's files."""
        return paths.join(paths.voter_path(self.directory_id), str(name))

    def list(self) -> VoterListing:
        """The voter's files; only then the root is checked, so that what was listed was this incarnation's.

        Raises: StaleBrokerError when the root holds another directory id; BrokerUnreachableError when it
            holds none; ListingUnstableError, StorageError.
        """
        claimed_epoch = 0
        files: dict[DataName, StoredObject] = {}
        for stored in self.store.list(paths.voter_path(self.directory_id)):
            match parse_name(base_name(stored.name)):
                case ClaimName(epoch):
                    claimed_epoch = max(claimed_epoch, epoch)
                case DataName() as name if not name.merged:
                    files[name] = stored
                case _:
                    pass
        self._check_root()
        last = max(files, key=lambda name: (name.epoch, name.base_offset), default=None)
        return VoterListing(self, claimed_epoch, files, last)

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
        """Whether ``claimant`` has claimed ``epoch`` here, now or before.

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
