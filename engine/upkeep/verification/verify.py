"""Verify: compares every replica and the remote tier with each other.

1. the partitions of the topics (``audit``)
2. the metadata log on its voters: the files of each voter, and with ``deep`` every byte. Only a contradiction
   within a voter is a finding. A voter that is behind is not a finding, because a majority is enough. A voter
   whose broker is fenced, or that was wiped and must be replaced, is not a finding either: ``stratalog quorum``
   shows these voters

No log is changed. Damage is a failure of the report, with the replica, the file and the offsets. A damaged file
that no log uses is only a note. Damage is stored, and ``health`` reports it until a later check finds it repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics
from stratalog.engine.quorum.batch import KIND, decode_batch
from stratalog.engine.quorum.checkpoints import verify_checkpoint
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.damage import check_voter
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import VoterListing, position_of
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS, without_metadata
from stratalog.engine.upkeep.memory.kept_times import METADATA_LOG, remember_look
from stratalog.engine.upkeep.verification.audit import (
    Audited,
    audit,
    failures_of,
    found_in,
    notes_of,
    rewrites_of,
    unseen_in,
)
from stratalog.engine.upkeep.verification.findings import foreign_file
from stratalog.engine.upkeep.verification.registers import MENDED
from stratalog.partitions.errors import (
    CorruptSegmentError,
    LogGapError,
    SourceChangedError,
    StaleBrokerError,
    StratalogError,
)
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import METADATA_TOPIC, DataName, name_in, parse_name
from stratalog.partitions.segments.check import check_segment
from stratalog.partitions.segments.signature import check_signature_of
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.start_offset import check_invariant


class VerifyRow(PartitionRow, frozen=True, kw_only=True):
    """A partition; for the metadata log, the voters are the replicas."""

    replicas: int
    """The number of replicas that were checked."""
    files: int
    bytes: int
    remote_files: int
    findings: int


def verify(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    *,
    deep: bool = False,
) -> Report:
    """Verify the topics (None: all, and the metadata log, which is named ``__cluster_metadata``): check names,
    sizes, contiguity and footers, and with ``deep`` every byte. If all topics are verified, empty partitions of
    the engine's own topics have no rows, because most of them never hold a record.

    Raises: UnknownTopicOrPartitionError; errors from reading the metadata.
    """
    topics, with_metadata = without_metadata(topics)
    with execution.run("verify") as run:
        image = metadata.image()
        audits = audit(metadata, storage, image, chosen_topics(image, topics), run, deep=deep)
        run.failures += failures_of(audits)
        found, unseen = found_in(audits), unseen_in(audits)
        run.notes += [f"{image.topics[topic_id].name}: {note}" for topic_id, note in rewrites_of(audits).items()]
        run.notes += notes_of(audits)
        looked = [_row(each) for each in audits if each.looked is not None]
        run.add(
            row
            for row in looked
            if topics is not None or row.topic not in INTERNAL_TOPICS or row.files or row.findings
        )
        if with_metadata:
            row, wrong, unseen[METADATA_LOG] = metadata.with_log(partial(_check_metadata, deep=deep))
            run.add([row])
            run.failures += wrong
            found[METADATA_LOG] = wrong
        run.notes += remember_look(storage, execution.clock, image, found, deep=deep, unseen=unseen)
    run.totals |= {
        "partitions": len(looked),
        "bytes": run.sum("bytes"),
        "findings": len(run.failures),
    }
    return run.report()


def _row(each: Audited) -> VerifyRow:
    assert each.looked is not None
    looks = each.looked.replicas
    return VerifyRow(
        topic=each.replicas.view.topic,
        partition=each.replicas.view.partition,
        replicas=len(looks),
        files=sum(len(look.live) + len(look.bad) for look in looks),
        bytes=sum(held.size_bytes for look in looks for held in look.live),
        remote_files=len(each.cold),
        findings=len(failures_of([each])),
    )


def _check_metadata(log: MetadataLog, *, deep: bool) -> tuple[VerifyRow, list[Failure], set[str]]:
    """The row and the failures of the metadata log, and the names of the voters that cannot be read, which is no
    failure.

    Raises: NoMajorityError and other RetriableError kinds; CorruptionError kinds when the log cannot be read at
    all.
    """
    state = log.committed_log().state
    failures: list[Failure] = []
    unseen: set[str] = set()
    voters = files = size_bytes = 0
    for voter in log.voters:
        try:
            listing = voter.list()
        except StratalogError as error:
            broker = state.image.brokers.get(voter.broker_id)
            if isinstance(error, StaleBrokerError) or (broker is not None and broker.fenced):
                unseen.add(str(voter))
            else:
                failures.append(Failure.of(voter, error))
            continue
        stored = [*listing.files.values(), *listing.checkpoints.values()]
        voters, files = voters + 1, files + len(stored)
        size_bytes += sum(one.size_bytes for one in stored)
        failures += [Failure.of(voter, error) for error in _wrong(log, listing, state, deep)]
    row = VerifyRow(
        topic=METADATA_TOPIC,
        partition=0,
        replicas=voters,
        files=files,
        bytes=size_bytes,
        remote_files=0,
        findings=len(failures),
    )
    return row, failures, unseen


def _wrong(log: MetadataLog, listing: VoterListing, state: LogState, deep: bool) -> Iterator[StratalogError]:
    """The errors of one voter, which was listed after ``state`` was found."""
    voter = listing.voter
    live = sorted(
        name
        for name in listing.files
        if name.base_offset < state.end and state.lineage.epoch_at(name.base_offset) == name.epoch
    )
    start = live[0].base_offset if live else listing.snapshot_end
    try:
        for stored in voter.store.list(voter.folder):
            if stored.special or parse_name(name_in(voter.folder, stored.name)) is None:
                yield foreign_file(voter.store, stored)
        if listing.unsigned is not None:
            yield listing.unsigned
        check_voter(listing, state)
        for name in sorted(name for name in listing.files if position_of(name) > state.position):
            # the batch belongs to a later commit, or to an abandoned commit
            _check_batch(log.cluster_id, listing, name)
        _check_start(log, listing, start, state)
        if deep:
            yield from _damaged(log.cluster_id, listing, live)
    except SourceChangedError:
        return  # another run has shortened the log, and has verified the remaining files
    except StratalogError as error:
        yield error


def _check_start(log: MetadataLog, listing: VoterListing, start: int, state: LogState) -> None:
    """Check the start of a voter's log. A snapshot may include commits that were made after ``state`` was found.

    Raises: CorruptionError.
    """
    ends = [SnapshotId.of(name) for name in listing.checkpoints]
    committed = state.end
    if start > 0 and max(ends, default=SnapshotId(0, 0)).end_offset > committed:
        committed = log.committed_log().state.end
    check_invariant(start, committed, ends, str(listing.voter))


def _damaged(cluster_id: str, listing: VoterListing, live: list[DataName]) -> Iterator[StratalogError]:
    """The errors of a voter's snapshots, and of the batches after the latest intact snapshot. Reads every byte,
    and checks that no batch is missing.

    Raises: SourceChangedError when a snapshot or batch is deleted meanwhile; StorageError.
    """
    voter = listing.voter
    expected: int | None = 0
    for name in sorted(listing.checkpoints):
        try:
            verify_checkpoint(cluster_id, voter, listing.checkpoints[name])
            expected = name.end_offset
        except CorruptSegmentError as error:
            yield CorruptSegmentError(f"{error}{MENDED}")
    covered = expected or 0
    for batch in (name for name in live if name.base_offset >= covered):
        if expected is not None and batch.base_offset != expected:
            yield LogGapError(f"{voter}: offsets [{expected}, {batch.base_offset}) are missing, before {batch}")
        try:
            checked = check_segment(voter.store, DataFile(batch, listing.files[batch]))
            if checked.bad:
                raise checked.bad[0].error
            expected = _check_batch(cluster_id, listing, batch)
        except CorruptSegmentError as error:
            yield error
            expected = None


def _check_batch(cluster_id: str, listing: VoterListing, name: DataName) -> int:
    """The end of a batch that matches its name. Raises: CorruptionError kinds; SourceChangedError,
    StorageError."""
    data, what = listing.voter.read(name), f"{listing.voter}: {name}"
    check_signature_of(listing.voter.key, KIND, str(name), data, what)
    return decode_batch(cluster_id, name, data, what).next_offset
