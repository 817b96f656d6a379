"""Lists files that replicas have discarded but not yet deleted, to find records that are not in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, topic_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.former import find_former, truncated_in
from stratalog.engine.replication.partition import PartitionWork
from stratalog.partitions.discarded import Discarded, discarded
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog, resolve
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import Store

_MAY_COME_BACK = "not yet: the file is above the high watermark"
_NOT_CLOSED = "not yet: vacuum has not closed the folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedWork(PartitionWork):
    """The work for one partition: list the files that its replicas have discarded."""

    brokers: tuple[int, ...]
    former: tuple[Replica, ...]

    def stores_used(self) -> Iterable[Store]:
        return [*PartitionWork.stores_used(self), *(replica.store for replica in self.former)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWork(DiscardedWork):
    """The work of the task that lists these files."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Relic:
    """A discarded file of one replica; ``next_offset`` is None if the file cannot be read."""

    broker_id: int
    discarded: Discarded
    next_offset: int | None
    former: bool = False


class RelicRow(PartitionRow, frozen=True, kw_only=True):
    """A discarded file of one replica, with offsets ``[start, end)``."""

    broker: int
    file: str
    epoch: int
    start: int
    end: int | None
    records: int | None
    bytes: int
    written: str
    why: str
    deletable: str


def discarded_files(
    work: DiscardedWork, failed: list[tuple[int, StratalogError]]
) -> Iterator[tuple[Replica, Lineage, Sequence[Discarded]]]:
    """The files that each replica has discarded, with the lineage under which it has discarded them; for former
    replicas, the files of other histories. A replica that cannot be listed is added to ``failed``, and so is a
    leader whose history cannot be read, because it is then unknown which files the others will discard.
    """
    leader, lineage, began_ms = work.replicas.view.leader, Lineage(), 0
    if leader is not None:
        try:
            listing = work.replicas.leader.list()
            lineage, began_ms = work.replicas.leader.lineage(listing), listing.joined_ms
        except StratalogError as error:
            failed.append((leader, error))
    for broker in work.brokers:
        try:
            replica = work.replicas.replica(broker)
            log = log_under(replica, lineage)
        except StratalogError as error:
            if all(known != broker for known, _ in failed):
                failed.append((broker, error))
        else:
            yield replica, log.lineage, [*discarded(log)]
    for replica in work.former if lineage.entries else ():
        try:
            found = [*truncated_in(replica, lineage, began_ms)]
        except StratalogError as error:
            failed.append((replica.broker_id, error))
        else:
            yield replica, lineage, found


def read_history(work: HistoryWork) -> tuple[list[Relic], list[tuple[int, StratalogError]]]:
    """The task."""
    relics: list[Relic] = []
    failed: list[tuple[int, StratalogError]] = []
    for replica, _, found in discarded_files(work, failed):
        try:
            for each in found:
                with suppress(SourceChangedError):  # the file was deleted after it was listed
                    relics.append(_relic(replica, each, former=replica in work.former))
        except StratalogError as error:
            failed.append((replica.broker_id, error))
    return relics, failed


def log_under(replica: Replica, lineage: Lineage) -> ReplicaLog:
    """The replica's log under the leader's lineage, even if the replica has not joined the leader's epoch yet: the
    log then shows the records that the replica will discard. Raises: see ``Replica.log``.
    """
    log = replica.log()
    if log.lineage.latest_epoch < lineage.latest_epoch:
        log = resolve(log.listing, lineage, replica.end_of_append)
    return log


def _relic(replica: Replica, each: Discarded, *, former: bool) -> Relic:
    try:
        return Relic(replica.broker_id, each, replica.footer(each.file).next_offset, former)
    except CorruptSegmentError:  # no log depends on the file; verify --deep reports the damage
        return Relic(replica.broker_id, each, each.file.name.next_offset, former)


def history(
    metadata: MetadataClient, storage: Storage, execution: Execution, topics: Sequence[str] | None = None
) -> Report:
    """List the data files of the topics (None: all) that no log uses, one row per file. For a replica, these are
    the files that its own log does not use; for a former replica (``stratalog.engine.replicas.former``), files
    whose history differs from the leader's.

    Raises: UnknownTopicOrPartitionError; a replica that cannot be listed is a failure.
    """
    with execution.run("discarded") as run:
        image = metadata.image()
        works = _plan(storage, image, topics, run)
        for work, (relics, failed) in run.each(read_history, works):
            run.add(_row(work, relic) for relic in relics)
            run.failures += [Failure.of(f"{work} on broker {broker}", error) for broker, error in failed]
    run.sort("topic", "partition", "broker", "file")
    run.totals |= {"files": len(run.rows), "bytes": run.sum("bytes")}
    return run.report()


def _plan(
    storage: Storage, image: ClusterImage, topics: Sequence[str] | None, run: OperationRun
) -> list[HistoryWork]:
    chosen = chosen_topics(image, topics)
    former = find_former(storage, image, [topic.topic_id for topic in chosen], run)
    return [
        HistoryWork(
            replicas=storage.replicas(view),
            brokers=view.replicas,
            former=tuple(former.get(view.key, ())),
            delay_ms=topic_config_of(image, topic).file_delete_delay_ms,
        )
        for topic in chosen
        for view in image.views(topic.name)
    ]


def _row(work: HistoryWork, relic: Relic) -> RelicRow:
    file, name = relic.discarded.file, relic.discarded.file.name
    deletable = relic.discarded.deletable_ms(work.delay_ms)
    return RelicRow(
        topic=work.replicas.view.topic,
        partition=work.replicas.view.partition,
        broker=relic.broker_id,
        file=str(name),
        epoch=name.epoch,
        start=name.base_offset,
        end=relic.next_offset,
        records=None if relic.next_offset is None else relic.next_offset - name.base_offset,
        bytes=file.object.size_bytes,
        written=_time(file.object.modified_ms),
        why=str(relic.discarded.why),
        deletable=(_NOT_CLOSED if relic.former else _MAY_COME_BACK) if deletable is None else _time(deletable),
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
