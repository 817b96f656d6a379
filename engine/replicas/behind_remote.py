"""Lets a leader continue from the end of the remote log if all members of the ISR have only a prefix of that log.

Acknowledged records that were never tiered are already lost, because all brokers were restored from older copies.
If a replica outside the ISR may still have these records, nothing is changed, and the error says what an operator
must decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.tasks import TaskRunner
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.partition_commands import Altered, RefusedPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.remote_records import RecordsWork, compare_records
from stratalog.engine.replication.damage import check_whole, uncommitted_epoch
from stratalog.engine.replication.remote_end import DivergentRemoteError, LogBehindRemoteError, same_until
from stratalog.partitions.errors import CorruptionError, RetriableError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed
from stratalog.tiering.remote_log import RemoteLog

_RECOVER = "recover --keep remote --dry-run shows both logs; without --dry-run, it keeps the remote log"

Behind = Mapping[TopicIdPartition, tuple[PartitionView, LogBehindRemoteError]]
"""The partitions whose leader is behind the remote log, each with its view and the error."""


def continue_from_remote(
    metadata: MetadataClient, storage: Storage, tasks: TaskRunner, behind: Behind
) -> tuple[dict[TopicIdPartition, str], dict[TopicIdPartition, StratalogError]]:
    """Elect each leader again, alone in its ISR, to continue from the end of the remote log; one commit for all.
    Returns a note for each partition with an elected leader, and an error for each partition whose election would
    be unsafe.
    """
    refused: dict[TopicIdPartition, StratalogError] = {}
    prefixes: list[TopicIdPartition] = []
    for checked in storage.threads.run(lambda key: _check_others(storage, *behind[key]), list(behind)):
        match checked:
            case Done():
                prefixes.append(checked.item)
            case Failed(key, why):
                refused[key] = why
    elections: list[Election] = []
    for compared in tasks.run(compare_records, _records_works(storage, prefixes, behind, refused)):
        key = compared.item.replicas.view.key
        view, error = behind[key]
        match compared:
            case Done(_, None):
                assert error.wrote is not None
                remote_epoch = error.wrote.latest_epoch
                elections.append(
                    Election(
                        *key,
                        view.leader,
                        partition_epoch=view.partition_epoch,
                        remote_epoch=remote_epoch,
                        remote_end=behind[key][1].remote_end,
                    )
                )
            case Done(_, first):
                refused[key] = DivergentRemoteError(
                    f"{error}. But from offset {first} on the two logs have different records, under the same "
                    "leader "
                    f"epochs: {_RECOVER}"
                )
            case Failed(_, why):
                refused[key] = why
    notes: dict[TopicIdPartition, str] = {}
    for answer in metadata.submit(ElectLeaders(tuple(elections))) if elections else ():
        view, error = behind[answer.key]
        match answer:
            case Altered():
                notes[answer.key] = (
                    f"{view}: broker {view.leader}, whose log was behind the remote log, continues from the end "
                    f"of the remote log, offset {error.remote_end}. The other replicas follow this leader. "
                    "Acknowledged records from this offset on that were not tiered are lost"
                )
            case RefusedPartition(_, _, why):
                refused[answer.key] = why
    return notes, refused


def _records_works(
    storage: Storage,
    keys: Iterable[TopicIdPartition],
    behind: Behind,
    refused: dict[TopicIdPartition, StratalogError],
) -> list[RecordsWork]:
    """The tasks that compare all records that a leader and its remote log both hold, before the leader drops its
    own log. Partitions whose remote log cannot be read are added to ``refused``.
    """
    logs: dict[str, RemoteLog] = {}
    works: list[RecordsWork] = []
    for key in keys:
        view, _ = behind[key]
        replicas = storage.replicas(view)
        assert replicas.remote is not None
        try:
            log = logs[view.topic_id] = logs.get(view.topic_id) or replicas.remote.read()
        except StratalogError as error:
            refused[key] = error
            continue
        works.append(
            RecordsWork(replicas, replicas.remote.store, replicas.remote.folder, log.of_partition(view.partition))
        )
    return works


def _check_others(storage: Storage, view: PartitionView, error: LogBehindRemoteError) -> None:
    """Check that every other member of the ISR can be listed, and has no high watermark beyond the remote log.
    Check also that no unfenced replica holds records beyond the remote log.

    Raises: CorruptionError, which is valid only while the view is current; RetriableError when an intact member
    holds more records than the remote log; errors from listing a member of the ISR.
    """
    replicas, wrote = storage.replicas(view), error.wrote
    assert wrote is not None
    for broker in view.replicas:
        if broker == view.leader or view.brokers[broker].fenced:
            continue
        member = broker in (*view.isr, *view.adding)
        try:
            replica = replicas.replica(broker)
            log = replica.log(fresh=True)
        except StratalogError:
            if member:
                raise
            continue
        if member and log.log_end > max(error.remote_end, view.written_to - 1):
            check_whole(replica, log)
            if log.joined_epoch > view.leader_epoch:
                raise uncommitted_epoch(replica, log.joined_epoch, view.leader_epoch)
            raise RetriableError(
                f"{view}: broker {broker}, a member of the ISR, has more records than the remote log, but did not "
                "answer before; run replicate again to make it the leader"
            )
        if log.log_end > error.remote_end:
            raise CorruptionError(
                f"{error}. But the log of broker {broker} ends at {log.log_end}, after the end of the "
                f"remote log. If the records on broker {broker} are the right ones, fence the members "
                f"of the ISR, {sorted(view.isr)}, and elect --unclean. If not, remove that replica. "
                "Then run replicate again",
                broker_id=view.leader,
            )
        same = same_until(wrote, error.remote_end, log, view.log_start_offset)
        if member and log.claimed_high_watermark > same:
            raise DivergentRemoteError(
                f"{error}. But broker {broker} has recorded the high watermark {log.claimed_high_watermark}, and "
                f"its log equals the remote log only up to {same}: {_RECOVER}"
            )
