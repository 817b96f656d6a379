"""The metadata quorum: describes it, takes a snapshot of its log, changes its voters.

Voters change one at a time. To replace a voter that has lost its storage, remove the voter, and add it again with
its new storage:

1. Format and register the broker again (``bootstrap``). 2. Copy the snapshot and the log to its new root, which is
not a voter yet. 3. Commit the removal of the voter with the old storage. 4. Commit the addition of the voter with
the new storage.

A crash between two steps leaves a working quorum, and the replacement can be repeated.
"""

from __future__ import annotations

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import VoterId
from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter, Voters
from stratalog.engine.quorum.bootstrap import sign_log
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.inspection import VoterFound, inspect
from stratalog.engine.quorum.upkeep import Upkeep
from stratalog.engine.quorum.voter import Voter
from stratalog.engine.upkeep.snapshots.metadata import keep_metadata_short, metadata_failures
from stratalog.partitions.errors import BrokerUnreachableError, InvalidCallError
from stratalog.partitions.root import check_broker_file, read_broker_file
from stratalog.partitions.store.local_space import staging_in_the_way, takes_no_files


class VoterRow(Row, frozen=True, kw_only=True):
    """A voter and its copy of the log. A value that cannot be read is None."""

    voter: int
    directory: str
    claimed_epoch: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    files: int | None
    snapshots: str
    size_bytes: int | None


class VoterSnapshotRow(Row, frozen=True, kw_only=True):
    """A voter that has a new snapshot."""

    voter: int
    snapshot: str
    """``made``, ``copied``, or ``there``."""
    deleted_files: int


class ElectedVoterRow(Row, frozen=True, kw_only=True):
    voter: int
    directory: str


def describe_quorum(metadata: MetadataClient, execution: Execution) -> Report:
    """Describe the voters, one row per voter: claims, log end, lag, snapshots. If too few voters are reachable,
    the report has a failure with the last known high watermark.

    Raises: RetriableError, CorruptionError kinds.
    """
    with execution.run("quorum describe") as run:
        found = metadata.with_log(inspect)
    run.add(_voter_row(voter, found.end) for voter in found.voters)
    if found.incomplete is not None:
        run.fail("metadata", found.incomplete)
    run.failures += [Failure.of(voter.voter, voter.error) for voter in found.voters if voter.error is not None]
    snapshots = [voter.snapshot_end for voter in found.voters if voter.snapshot_end is not None]
    run.totals |= {
        "leader": found.leader,
        "epoch": found.epoch,
        "high_watermark": found.end,
        "snapshot_lag": found.end - max(snapshots) if snapshots else None,
    }
    run.notes += [*_even(len(found.voters)), *_replaced(found.replaced)]
    return run.report()


def _voter_row(found: VoterFound, end: int) -> VoterRow:
    return VoterRow(
        voter=found.voter.broker_id,
        directory=found.voter.directory_id,
        claimed_epoch=found.claimed_epoch,
        log_start=found.log_start,
        log_end=found.log_end,
        lag=None if found.log_end is None else max(0, end - found.log_end),
        files=found.files,
        snapshots=", ".join(found.snapshots),
        size_bytes=found.size_bytes,
    )


def snapshot_metadata(
    metadata: MetadataClient, execution: Execution, memory: Memory, *, by_hand: bool = True, dry_run: bool = False
) -> Report:
    """Take a snapshot of the metadata log by hand (without ``by_hand``: if the policy requires a snapshot), and
    report the result for every voter. The operation ``snapshot`` also takes this snapshot, along with those of
    topics, but reports it in one row.

    Raises: see ``keep_metadata_short``.
    """
    with execution.run("quorum snapshot", dry_run=dry_run) as run:
        kept = keep_metadata_short(metadata, execution.clock, memory, by_hand=by_hand, dry_run=dry_run)
    done = kept.done
    if done is None:
        run.notes.append("a snapshot would be taken" if kept.wait is None else kept.wait)
        return run.report()
    run.totals |= {"snapshot": str(done.snapshot), "size_bytes": done.size_bytes, "log_start": done.log_start}
    _add_upkeep(run, done)
    return run.report()


def sign_metadata(metadata: MetadataClient, execution: Execution, *, dry_run: bool = False) -> Report:
    """Trust the content of the voters, and sign it (``stratalog.engine.quorum.bootstrap``). The report has the
    result for every voter.

    Raises: see ``sign_log``.
    """
    with execution.run("quorum sign", dry_run=dry_run) as run:
        signed = metadata.last_known.signed
        done = None if dry_run else metadata.with_log(lambda log: sign_log(log, execution.clock))
    if done is None:
        again = "the metadata log is already signed, and would be signed again"
        run.notes.append(again if signed else "the metadata log would be signed")
        return run.report()
    run.totals |= {"snapshot": str(done.snapshot), "log_start": done.log_start}
    run.notes.append("from now on, every driver that changes anything needs the key")
    _add_upkeep(run, done)
    return run.report()


def _add_upkeep(run: OperationRun, done: Upkeep) -> None:
    run.failures += metadata_failures(done)
    run.add(
        VoterSnapshotRow(
            voter=one.voter.broker_id,
            snapshot="made" if one.created else "copied" if one.copied else "there",
            deleted_files=one.deleted,
        )
        for one in done.voters
        if one.failure is None
    )


def add_voter(
    metadata: MetadataClient, storage: Storage, execution: Execution, broker_id: int, *, dry_run: bool = False
) -> Report:
    """Make a broker a metadata voter.

    Raises: UnknownBrokerError, StaleBrokerError, InvalidCallError. If it raises any of these, nothing was changed.
        Also RetriableError kinds.
    """
    with execution.run("quorum add_voter", dry_run=dry_run) as run:
        there = _root_of(storage, broker_id)
        voters = metadata.change_voters(AddVoter(there), dry_run=dry_run)
        if dry_run and there not in metadata.last_known.image.voters:
            _check_takes_files(storage, there, run)
    return _changed(storage, run, voters)


def remove_voter(
    metadata: MetadataClient, storage: Storage, execution: Execution, broker_id: int, *, dry_run: bool = False
) -> Report:
    """Remove a broker from the metadata voters. The broker keeps its files.

    Raises: see ``add_voter``.
    """
    with execution.run("quorum remove_voter", dry_run=dry_run) as run:
        voters = metadata.change_voters(RemoveVoter(broker_id), dry_run=dry_run)
    return _changed(storage, run, voters)


def replace_voter(
    metadata: MetadataClient, storage: Storage, execution: Execution, broker_id: int, *, dry_run: bool = False
) -> Report:
    """Let a voter vote with its new storage, after the loss of its old storage. Does nothing if the voter already
    votes with the new storage.

    Raises: see ``add_voter``; InvalidCallError if the broker is not a voter.
    """
    with execution.run("quorum replace_voter", dry_run=dry_run) as run:
        there = _root_of(storage, broker_id)
        image = metadata.image()
        voters = image.voters
        if there not in voters:
            _check_replaceable(image, there)
            if dry_run:
                _check_takes_files(storage, there, run)
                voters = (*(voter for voter in voters if voter.broker_id != broker_id), there)
            else:
                metadata.with_log(lambda log: log.admit(there))
                metadata.change_voters(RemoveVoter(broker_id, returning=True))
                voters = metadata.change_voters(AddVoter(there))
    return _changed(storage, run, voters)


def _check_replaceable(image: ClusterImage, there: VoterId) -> None:
    """Check that the voter can be replaced. Raises: InvalidCallError, StaleBrokerError, UnknownBrokerError."""
    broker_id = there.broker_id
    if broker_id not in image.replaced and all(voter.broker_id != broker_id for voter in image.voters):
        raise InvalidCallError(
            f"broker {broker_id} is not a metadata voter; add it with `quorum add-voter {broker_id}`"
        )
    without = RemoveVoter(broker_id, returning=True).decide(image)
    AddVoter(there).check_registered(image)
    if not without.answer:
        raise InvalidCallError(f"broker {broker_id} was the only metadata voter: its log is lost")


def _root_of(storage: Storage, broker_id: int) -> VoterId:
    store = storage.stores.get(broker_id)
    if store is None:
        raise InvalidCallError(f"the cluster file does not name broker {broker_id}: add the broker to the file")
    found = read_broker_file(store)
    if found is None:
        raise BrokerUnreachableError(f"broker {broker_id} ({store.uri}) has no broker.json: bootstrap it first")
    check_broker_file(found, store, storage.file.cluster_id, broker_id)
    return VoterId(broker_id, found.directory_id)


def _check_takes_files(storage: Storage, there: VoterId, run: OperationRun) -> None:
    """For a dry run: check without writing that the log can be copied to a new voter.

    Raises: see ``Voter.look``; CorruptionError, UnwritableStorageError if the root is known to refuse files.
    """
    broker_id, store = there.broker_id, storage.stores[there.broker_id]
    Voter(broker_id, store, there.directory_id).look()
    if (in_the_way := staging_in_the_way(store.uri)) is not None:
        raise in_the_way
    if (unwritable := takes_no_files(store.uri)) is not None:
        raise unwritable.of_broker(broker_id)
    run.notes.append(f"a dry run creates no file, so it does not test whether broker {broker_id} accepts files")


def _changed(storage: Storage, run: OperationRun, voters: Voters) -> Report:
    run.add(ElectedVoterRow(voter=voter.broker_id, directory=voter.directory_id) for voter in voters)
    named = ", ".join(str(voter.broker_id) for voter in voters)
    if {voter.broker_id for voter in voters} != {*storage.file.voters}:
        run.notes.append(f"set voters = [{named}] in the cluster file")
    run.notes += _even(len(voters))
    return run.report()


def _even(voters: int) -> tuple[str, ...]:
    even = f"{voters} voters: an even number tolerates no more losses than one voter fewer"
    return () if voters % 2 else (even,)


def _replaced(replaced: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(
        f"broker {broker} is being replaced as a voter: replace it again to finish" for broker in replaced
    )
