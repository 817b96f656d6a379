"""One voter of the metadata log: a folder on the root of a broker (protocol section 5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from stratalog.engine.metadata.records import VoterId
from stratalog.engine.quorum.batch import BATCH_BYTES
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.cluster_key import TAG_DIGITS, ClusterKey
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    OutcomeUnknownError,
    SourceChangedError,
    StaleBrokerError,
    StratalogError,
    UnsignedError,
)
from stratalog.partitions.paths import CheckpointName, ChunkName, ClaimName, DataName, Name, name_in, parse_name
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.store.protocol import Store, StoredObject

CLAIM_BYTES = 1024
"""The maximum size of a claim, which is an id."""

Position = tuple[int, int, bool]
"""The end of a log up to a file: its epoch, then an offset, then whether the log continues from there (a batch) or
ends there (a snapshot). Positions of one cluster's log are ordered."""


def position_of(name: DataName | CheckpointName) -> Position:
    """The position of a batch or snapshot. A batch is after the snapshots that end at its base offset, and before
    the snapshots that cover it, because one claimant writes an epoch's batches in order.
    """
    match name:
        case DataName(base_offset=offset, epoch=epoch):
            return epoch, offset, True
        case CheckpointName(end_offset=offset, epoch=epoch):
            return epoch, offset, False


@dataclass(frozen=True, slots=True)
class VoterLook:
    """The file names on a voter, from a single listing. The quorum's decisions depend only on names."""

    voter: Voter
    claims: tuple[int, ...]
    """The epochs claimed on this voter, ascending; if the cluster has a key, only the epochs claimed by holders of
    the key.
    """
    files: Collection[DataName]
    checkpoints: Collection[CheckpointName]
    last: DataName | CheckpointName | None
    """The file with the greatest position; its lineage shows which files belong to the log."""
    chunks: tuple[ChunkName, ...] = ()
    """Parts of snapshots that are being fetched, or were abandoned."""
    claim_names: tuple[ClaimName, ...] = ()
    """All existing claims, including foreign ones."""

    @property
    def unsigned(self) -> UnsignedError | None:
        """Claims above the greatest valid claim, by drivers without the cluster key. Lower claims of such drivers
        are deleted with all other outdated claims.
        """
        above = [name for name in self.claim_names if name.epoch > self.epoch]
        unsigned = [name for name in above if not self.voter.believes(name)]
        if not unsigned:
            return None
        more = f" and {len(unsigned) - 1} more" if unsigned[1:] else ""
        return UnsignedError(
            f"{self.voter}: the claim {unsigned[0]}{more} is not signed with the key of "
            "the cluster; it is ignored and left unchanged"
        )

    @property
    def tagged(self) -> bool:
        """Whether the name of any claim on this voter shows that the cluster has a key."""
        return any(name.tag for name in self.claim_names)

    def disputed(self, epoch: int) -> bool:
        """Whether several drivers have claimed the epoch on this voter, each under its own name because their keys
        differ. If so, no driver has the epoch: if two drivers list the voter after claiming, at least one sees the
        other's claim.
        """
        return sum(name.epoch == epoch for name in self.claim_names) > 1

    @property
    def claimed_epoch(self) -> int:
        """The greatest epoch claimed on this voter; 0 without claims."""
        return self.claims[-1] if self.claims else 0

    @property
    def last_epoch(self) -> int:
        """The epoch of the last file; 0 without files."""
        return 0 if self.last is None else self.last.epoch

    @property
    def epoch(self) -> int:
        """The greatest epoch on this voter: a claimant also writes to voters on which it has no claim."""
        return max(self.claimed_epoch, self.last_epoch)

    @property
    def log_start(self) -> int:
        """The start of the log on this voter: 0, or the end of the voter's first snapshot."""
        if any(name.base_offset == 0 for name in self.files):
            return 0
        return min((name.end_offset for name in self.checkpoints), default=0)

    @property
    def snapshot_end(self) -> int:
        """The end of the latest snapshot on this voter; 0 if there is none."""
        return max((name.end_offset for name in self.checkpoints), default=0)


@dataclass(frozen=True, slots=True)
class VoterListing(VoterLook):
    """A listing that includes the sizes and ages of the files."""

    files: Mapping[DataName, StoredObject]
    checkpoints: Mapping[CheckpointName, StoredObject]


@dataclass(frozen=True, slots=True)
class Voter:
    """One incarnation of the root of a broker, as a voter."""

    broker_id: int
    store: Store
    directory_id: str
    key: ClusterKey | None = field(default=None, compare=False)
    """The key that verifies the files of this voter; None: all files are accepted."""

    def __str__(self) -> str:
        return f"voter {self.broker_id} ({self.store.uri})"

    @property
    def id(self) -> VoterId:
        """The voter's id, as the metadata has it."""
        return VoterId(self.broker_id, self.directory_id)

    @property
    def folder(self) -> str:
        """This voter's folder below the root."""
        return paths.voter_path(self.directory_id)

    def path(self, name: paths.Name) -> str:
        """The name in the store of one of this voter's files."""
        return paths.join(self.folder, str(name))

    def look(self) -> VoterLook:
        """List the file names on the voter. The root is checked afterwards, so the names belong to this
        incarnation.

        Each scan contains all entries that exist during the entire scan, but two scans must agree
        (``Store.names``): a claim that fences a commit may be deleted during a scan, because a greater claim has
        been created at a place that the scan has already passed. That scan would show neither claim, and the voter
        would be counted for the commit by mistake.

        Raises: StaleBrokerError when the root holds another directory id; BrokerUnreachableError when it holds
            none; ListingUnstableError, StorageError.
        """
        folder = self.folder
        parsed = [_parsed(name_in(folder, name)) for name in self.store.names(folder)]
        self.check_root()
        files = frozenset(name for name in parsed if isinstance(name, DataName) and not name.merged)
        checkpoints = frozenset(
            name for name in parsed if isinstance(name, CheckpointName) and not name.generation
        )
        names = _claim_names(parsed)
        last = last_of(files, checkpoints)
        return VoterLook(self, self._claims(names), files, checkpoints, last, _chunks(parsed), names)

    def list(self) -> VoterListing:
        """Like ``look``, with sizes and ages for upkeep and inspection. Raises: see ``look``."""
        folder = self.folder
        stored = {_parsed(name_in(folder, one.name)): one for one in self.store.list(folder)}
        self.check_root()
        files = {name: one for name, one in stored.items() if isinstance(name, DataName) and not name.merged}
        checkpoints = {
            name: one for name, one in stored.items() if isinstance(name, CheckpointName) and not name.generation
        }
        names = _claim_names(stored)
        last = last_of(files, checkpoints)
        return VoterListing(self, self._claims(names), files, checkpoints, last, _chunks(stored), names)

    def _claims(self, names: Iterable[ClaimName]) -> tuple[int, ...]:
        return tuple(sorted({name.epoch for name in names if self.believes(name)}))

    def believes(self, name: ClaimName) -> bool:
        """Whether the claim is valid. The name of a claim identifies its author, so listing a voter does not read
        claims. The name is bound to this voter, so that another voter's claim cannot be copied here.
        """
        return self.key is None or _believed(self.key, self.directory_id, name)

    def claim_name(self, epoch: int) -> ClaimName:
        """The name under which an epoch is claimed here. All holders of one secret use the same name, so only one
        of them can create it.
        """
        if self.key is None:
            return ClaimName(epoch)
        return ClaimName(epoch, self.key.tag("claim", f"{self.directory_id}/{epoch}", b"")[: TAG_DIGITS // 2])

    def check_root(self) -> None:
        """Check that the root holds this voter. Raises: BrokerUnreachableError, StaleBrokerError; see ``look``."""
        found = read_broker_file(self.store)
        if found is None:
            raise BrokerUnreachableError(f"{self}: broker.json does not exist; is the volume mounted?")
        if found.directory_id != self.directory_id:
            raise StaleBrokerError(
                f"{self}: its root now has directory id {found.directory_id}, but the voter "
                f"has {self.directory_id}: the root was wiped, and is not a voter until it is added again"
            )

    def claim(self, epoch: int, claimant: str) -> bool:
        """Claim ``epoch`` on this voter. Returns whether ``claimant`` has the claim, from now or before. A claim
        lower than another may be deleted and then created again by a second driver. That is harmless: both drivers
        list the voter afterwards, see the higher claim, and cannot use their own.

        Raises: StorageError and other RetriableError kinds.
        """
        name = self.path(self.claim_name(epoch))
        try:
            if self.store.create(name, claimant.encode()):
                return True
        except OutcomeUnknownError:
            pass  # a read shows the outcome
        try:
            return read_bounded(self.store, name, CLAIM_BYTES) == claimant.encode()
        except (FileNotFoundError, CorruptionError):
            return False

    def claimant_of(self, epoch: int) -> str:
        """The driver that claimed an epoch on this voter; empty without a readable claim."""
        try:
            name = self.path(self.claim_name(epoch))
            return read_bounded(self.store, name, CLAIM_BYTES).decode(errors="replace")
        except (FileNotFoundError, StratalogError):
            return ""

    def create(self, name: DataName, data: bytes) -> None:
        """Create a data file, or find that it exists with the same bytes: a name has the same bytes on every
        voter.

        Raises: StorageError, OutcomeUnknownError.
        """
        self.store.create(self.path(name), data)

    def stat(self, name: CheckpointName) -> StoredObject:
        """A snapshot as it is now. Raises: SourceChangedError when the snapshot is gone; StorageError."""
        try:
            return self.store.stat(self.path(name))
        except FileNotFoundError as error:
            raise SourceChangedError(f"{self}: {name} has been deleted since it was listed") from error

    def read(self, name: DataName) -> bytes:
        """A data file. Raises: SourceChangedError when the file is gone; CorruptionError when the file is too
        large for a data file; StorageError.
        """
        try:
            return read_bounded(self.store, self.path(name), BATCH_BYTES)
        except FileNotFoundError as error:
            raise SourceChangedError(f"{self}: {name} has been deleted since it was listed") from error


_parsed = lru_cache(2**16)(parse_name)
"""Cached, because every commit lists each voter, and most names stay the same."""


@lru_cache(2**16)
def _believed(key: ClusterKey, directory_id: str, name: ClaimName) -> bool:
    return key.knows("claim", f"{directory_id}/{name.epoch}", b"", name.tag)


def _claim_names(names: Iterable[Name | None]) -> tuple[ClaimName, ...]:
    return tuple(sorted(name for name in names if isinstance(name, ClaimName)))


def _chunks(names: Iterable[Name | None]) -> tuple[ChunkName, ...]:
    return tuple(name for name in names if isinstance(name, ChunkName))


def last_of(files: Iterable[DataName], checkpoints: Iterable[CheckpointName]) -> DataName | CheckpointName | None:
    """The file with the greatest position; None without files."""
    names: Iterable[DataName | CheckpointName] = chain(files, checkpoints)
    return max(names, key=position_of, default=None)
