"""Creates the first batch of a metadata log, and finds the voters that it names.

The cluster file names voters by broker; the log's latest ``VotersRecord`` names the *incarnation* of the root. A
root that was wiped and formatted again belongs to a broker, but is not a voter. When a cluster is formatted, the
roots of the voters come first, then ``bootstrap``, then the other roots. So a formatted root of a broker that is
not a voter shows that there was a log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import MappingProxyType

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import NoOpRecord, VoterId, VotersRecord
from stratalog.engine.quorum.checkpoints import Loading
from stratalog.engine.quorum.contents import Note
from stratalog.engine.quorum.damage import DAMAGED
from stratalog.engine.quorum.finding import Search
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import NEVER_MS, Upkeep, keep_up
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import (
    InvalidCallError,
    MetadataLostError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    StorageAuthorizationError,
)
from stratalog.partitions.root import BrokerFile, read_broker_file
from stratalog.partitions.store.protocol import Store


def bootstrap(cluster_id: str, log: MetadataLog, voters: Sequence[Voter], others: Mapping[int, Store]) -> None:
    """Create the metadata log of a new cluster; do nothing when the log already exists with these voters.

    ``log`` is the log of ``voters``, whose roots are formatted; ``others`` are the roots of all other brokers.

    Raises: InvalidCallError when the cluster has different voters, or its log is lost; CorruptionError,
        RetriableError kinds.
    """
    ids = tuple(VoterId(voter.broker_id, voter.directory_id) for voter in voters)
    if has_log(cluster_id, voters, others):
        image = log.read()
    else:
        image = log.claim()
        if image.next_offset == 0:
            image = log.commit((VotersRecord(cluster_id=cluster_id, voters=ids),))
    _check_same(image, cluster_id, ids)


def has_log(cluster_id: str, voters: Iterable[Voter], others: Mapping[int, Store]) -> bool:
    """Whether a voter holds a metadata log, by its file names. ``others`` are the roots of all other brokers.

    Raises: MetadataLostError when no voter holds one, and another broker shows that the cluster had a log;
    StorageError.
    """
    looks = [voter.look() for voter in voters]  # check all voters: an unreachable one might have the log
    if any(look.last is not None for look in looks):
        return True
    _refuse_lost_log(cluster_id, others)
    return False


def _refuse_lost_log(cluster_id: str, others: Mapping[int, Store]) -> None:
    for broker_id, store in others.items():
        found = read_broker_file(store)
        if found is not None and found.cluster_id == cluster_id:
            raise MetadataLostError(
                f"broker {broker_id} ({store.uri}) already belongs to cluster {cluster_id!r}, but no voter has "
                "its metadata: a voter's storage was lost or is not mounted; "
                "mount or recover that storage, or restore the cluster from the remote tier under another id"
            )


def _check_same(image: ClusterImage, cluster_id: str, ids: Sequence[VoterId]) -> None:
    if image.cluster_id != cluster_id or set(image.voters) != set(ids):
        raise InvalidCallError(
            f"the metadata log belongs to cluster {image.cluster_id!r} with voters {image.voters}, not to "
            f"{cluster_id!r} with {tuple(ids)}"
        )


@dataclass(frozen=True, slots=True)
class FoundLog:
    """The metadata log of an existing cluster, from one listing of the brokers. A majority of its voters must
    still confirm it.
    """

    voters: tuple[Voter, ...]
    state: LogState


def find_log(
    cluster_id: str,
    named: Collection[int],
    stores: Mapping[int, Store],
    *,
    cached: LogState = LogState(),  # noqa: B008 - immutable
    note: Note = lambda text: None,
    loading: Loading = nullcontext,
    as_logged: bool = False,
    key: ClusterKey | None = None,
    whose: Mapping[int, BrokerFile] = MappingProxyType({}),
) -> FoundLog:
    """Find the voters of an existing cluster, and their log. ``stores`` are the roots of all brokers, ``named``
    the voters in the cluster file, ``whose`` the known owners of some roots. If the named voters do not include
    all voters of the log, all brokers are listed. ``cached`` is an earlier log, used if it fits. ``as_logged``
    ignores the voters in the file. With ``key``, unsigned objects are ignored.

    The number of requests does not depend on the length of the log. The function reads ``broker.json`` of each
    voter of a majority before (unless it is in ``whose``) and after a listing, then the latest snapshot (2
    requests) and the last batch: 6 requests with one voter, 9 with three. If the last batches are large, they
    repeat few earlier batches, and the function needs up to 3 more requests. The protocol's minimum is 2 per voter
    of a majority, 1 for the snapshot, and 1 for the batch.

    Raises: InvalidCallError when there is no cluster, or the voters in the file differ from the log's voters;
        InconsistentClusterIdError, LogDirError for a foreign root; NoMajorityError, or StorageAuthorizationError
        when all voters refuse this driver; CorruptionError kinds.
    """
    others = {broker: store for broker, store in stores.items() if broker not in named}
    search = Search(cluster_id, cached, note, loading, key, whose)
    try:
        state = search.at({broker: stores[broker] for broker in named}, majority=True)
        all_named = {voter.broker_id for voter in state.image.voters} <= set(named) and state.end > 0
    except DAMAGED:  # too few of the named voters are intact, and the log may have other voters
        if not others:
            raise
        all_named = False
    if not all_named:
        state = search.at(others)
    if state.end == 0:
        if search.failures and all(isinstance(error, StorageAuthorizationError) for error in search.failures):
            raise search.failures[0]
        for error in search.failures:
            if isinstance(error, InvalidCallError):  # a foreign root
                raise error
        if search.failures:
            raise NoMajorityError(
                f"no metadata voter can be read: {'; '.join(dict.fromkeys(map(str, search.failures)))}"
            )
        _refuse_lost_log(cluster_id, others)
        raise InvalidCallError(
            f"cluster {cluster_id!r} has no metadata: create it with Cluster.format or stratalog format"
        )
    brokers = {voter.broker_id for voter in state.image.voters}
    if brokers | set(state.image.replaced) != set(named) and not as_logged:
        raise InvalidCallError(
            f"the cluster file names brokers {sorted(named)} as voters, but the metadata log names "
            f"{sorted(brokers)}: name the log's voters in the file; to change voters, use stratalog quorum "
            "instead of editing the file"
        )
    if missing := sorted(brokers - stores.keys()):
        raise InvalidCallError(
            f"brokers {missing} are metadata voters of cluster {cluster_id!r}, but the "
            "cluster file does not name them: add them there"
        )
    voters = tuple(
        Voter(one.broker_id, stores[one.broker_id], one.directory_id, key) for one in state.image.voters
    )
    return FoundLog(voters, state)


_SNAPSHOTS = 2


def sign_log(log: MetadataLog, clock: Clock) -> Upkeep:
    """Sign the log; returns the result of the second snapshot. ``log`` has a key, and accepts the existing
    unsigned files. Idempotent.

    Raises: see ``keep_up``.
    """
    done: Upkeep | None = None
    for _ in range(_SNAPSHOTS):
        with suppress(NotControllerError, OutcomeUnknownError):  # another driver has committed something first
            log.claim()
            log.commit((NoOpRecord(),))
        done = keep_up(log, clock, lag_ms=NEVER_MS)
    assert done is not None
    return done
