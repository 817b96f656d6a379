"""The first batch of a metadata log, and finding the voters that it names.

The cluster file names voters by broker. Which *incarnation* of a broker's root is a voter stands in the
log's first record: a root that was wiped and formatted anew is a broker again, but no voter, however empty
its folder looks. To format a cluster: the roots of the voters, ``bootstrap``, then the other roots. In this
order a formatted root outside the voters shows that there was a log once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.metadata.image import ClusterImage
from engine.metadata.records import VoterId, VotersRecord
from engine.quorum.batch import Batch, decode_batch
from engine.quorum.log import MetadataLog
from engine.quorum.voter import Voter, VoterListing
from partitions.errors import CorruptionError, InvalidCallError, NoMajorityError, StratalogError
from partitions.paths import DataName
from partitions.replica import check_broker_file, read_broker_file
from partitions.store.protocol import Store


def bootstrap(cluster_id: str, log: MetadataLog, voters: Sequence[Voter], others: Mapping[int, Store]) -> None:
    """Create the metadata log of a new cluster; do nothing when it is there with these voters already.

    ``log`` is over ``voters``, whose roots are formatted; ``others`` are the roots of all other brokers.

    Raises: InvalidCallError when the cluster has other voters, or had a log that is lost; CorruptionError,
        RetriableError kinds.
    """
    listings = [voter.list() for voter in voters]  # all of them: an unreachable one might hold the log
    ids = tuple(VoterId(voter.broker_id, voter.directory_id) for voter in voters)
    if all(listing.last is None for listing in listings):
        _refuse_lost_log(cluster_id, others)
        image = log.claim()
        if image.next_offset == 0:
            image = log.commit((VotersRecord(cluster_id=cluster_id, voters=ids),))
    else:
        image = log.read()
    _check_same(image, cluster_id, ids)


def _refuse_lost_log(cluster_id: str, others: Mapping[int, Store]) -> None:
    for broker_id, store in others.items():
        found = read_broker_file(store)
        if found is not None and found.cluster_id == cluster_id:
            raise InvalidCallError(
                f"broker {broker_id} ({store.uri}) belongs to cluster {cluster_id!r} already, but no voter holds "
                "its metadata: a voter's storage was lost or is not mounted; bring it back, or restore the "
                "cluster from the remote tier under another id"
            )


def _check_same(image: ClusterImage, cluster_id: str, ids: Sequence[VoterId]) -> None:
    if image.cluster_id != cluster_id or set(image.voters) != set(ids):
        raise InvalidCallError(
            f"the metadata log is that of cluster {image.cluster_id!r} with voters {image.voters}, not of "
            f"{cluster_id!r} with {tuple(ids)}"
        )


def find_voters(cluster_id: str, candidates: Mapping[int, Store], others: Mapping[int, Store]) -> list[Voter]:
    """The voters of an existing cluster. ``candidates`` are the roots of the brokers that the cluster file
    names as voters, ``others`` those of all other brokers (they make the error say what has happened).

    Raises: InvalidCallError when there is no cluster, or the file names other voters than the log;
        InconsistentClusterIdError, LogDirError when a root is somebody else's; NoMajorityError.
    """
    listings: list[VoterListing] = []
    failures: list[StratalogError] = []
    for broker_id, store in candidates.items():
        try:
            found = read_broker_file(store)
            if found is not None:
                check_broker_file(found, store, cluster_id, broker_id)
                listings.append(Voter(broker_id, store, found.directory_id).list())
        except InvalidCallError:
            raise
        except StratalogError as error:
            failures.append(error)
    greatest = max(
        (listing for listing in listings if listing.last is not None),
        key=lambda listing: listing.last_epoch,
        default=None,
    )
    if greatest is None:
        if failures:
            raise NoMajorityError(f"no metadata voter can be read: {'; '.join(map(str, failures))}")
        _refuse_lost_log(cluster_id, others)
        raise InvalidCallError(f"cluster {cluster_id!r} has no metadata: format it first")
    voters = _named_in(cluster_id, greatest)
    if {voter.broker_id for voter in voters} != candidates.keys():
        raise InvalidCallError(
            f"the cluster file names brokers {sorted(candidates)} as voters, the metadata log "
            f"{sorted(voter.broker_id for voter in voters)}: voters are not changed by editing the file"
        )
    return [Voter(voter.broker_id, candidates[voter.broker_id], voter.directory_id) for voter in voters]


def _named_in(cluster_id: str, listing: VoterListing) -> tuple[VoterId, ...]:
    """The voters that the first record of a voter's log names."""
    voter = listing.voter
    assert listing.last is not None
    epoch = _read(cluster_id, voter, listing.last).lineage.epoch_at(0)
    first = _read(cluster_id, voter, DataName(0, None, 0 if epoch is None else epoch)).records[0]
    if not isinstance(first, VotersRecord):
        raise CorruptionError(f"{voter}: its metadata log begins with {first}, not with its voters")
    return first.voters


def _read(cluster_id: str, voter: Voter, name: DataName) -> Batch:
    return decode_batch(cluster_id, name, voter.read(name), f"{voter}: {name}")
