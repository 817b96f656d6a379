"""Publishes the latest record of each key as an open Delta table, for topics with ``remote.snapshot.table.enable``
(``stratalog.tiering.snapshot_table``).

1. open the table of each topic; find listed files that are missing or have another size
2. tasks: if the leader's snapshot differs from the table's, write the records of the leader's snapshot to the
   remote tier
3. one commit per topic; replaced files are deleted after ``file.delete.delay.ms``

A file that was written but not committed is litter, which ``vacuum`` deletes. After a crash, a later run does the
rest: it compares the table with the leader to find what is missing. A partition that changes meanwhile is tried
again under its present view. ``erase`` publishes, too, and deletes replaced files itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionWork
from stratalog.engine.replication.snapshots import (
    check_not_erased_since,
    check_still_there,
    newest_id,
    usable_snapshot,
)
from stratalog.engine.state.latest_by_key import record_schema
from stratalog.engine.upkeep.snapshots.partition import SnapshotWork
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.partitions import paths
from stratalog.partitions.errors import SourceChangedError, StaleMetadataError, StratalogError
from stratalog.partitions.growth import fitted
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.replica import errors_of
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store
from stratalog.snapshots.reader import Snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.tiering.published import Publication, Published, published_schema, write_published

if TYPE_CHECKING:
    from stratalog.tiering.snapshot_table import Listed, SnapshotTable

_VIEWS = 3
"""The number of views under which a partition is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWork(PartitionWork):
    """The work: copy one partition's latest snapshot into the table's folder."""

    remote: Store
    folder: str
    schema: pa.Schema
    """The physical schema of the topic."""
    compression: str
    listed: Published | None
    is_there: bool
    """Whether the listed file is in the folder, with the listed size."""
    file_id: str

    def stores_used(self) -> Iterable[Store]:
        return (*self.replicas.stores.values(), self.remote)


def write_latest(work: PublishWork) -> Publication | None:
    """The task; None if the table has the latest snapshot, or there is none.

    Raises: see ``look_at_leader``; CorruptionError kinds; StorageError, OutcomeUnknownError; SourceChangedError if
        the snapshot, or the new file, was deleted each time.
    """
    return while_it_changes(lambda: _write_once(work))


def _write_once(work: PublishWork) -> Publication | None:
    leader = work.replicas.leader
    log = look_at_leader(work.replicas)
    newest = newest_id(log)
    if newest is None or _holds(work, log, newest):
        return None
    with errors_of(leader):
        found = usable_snapshot(leader, log).snapshot
        if found is None or _holds(work, log, found.snapshot_id):
            return None
        path = paths.published_path(leader.partition, found.snapshot_id.name, work.file_id)
        name = paths.join(work.folder, path)
        schema = published_schema(work.schema)
        staged = work.remote.stage_writer(name)
        try:
            records = write_published(
                staged.file,
                _records(work, found),
                schema,
                leader.partition,
                found.snapshot_id.name,
                work.compression,
            )
            # As before a snapshot gets its name: an erasure meanwhile did not find this file by a name.
            listing = look_at_leader(work.replicas).listing
            check_not_erased_since(leader, listing, work.replicas.view)
            check_still_there(leader, listing, found.stored)
            staged.commit()  # the id in its name is unique
        finally:
            staged.abort()
    try:
        there = work.remote.stat(name)
    except FileNotFoundError as error:  # an erasure deletes outdated files that no table lists
        raise SourceChangedError(f"{work.remote.uri_of(name)} was deleted before it was listed") from error
    return Publication(
        partition=leader.partition,
        leader_epoch=work.replicas.epoch,
        snapshot=found.snapshot_id.name,
        path=path,
        size_bytes=there.size_bytes,
        modified_ms=there.modified_ms,
        records=records,
        instead_of=None if work.listed is None else work.listed.path,
    )


def _holds(work: PublishWork, log: ReplicaLog, wanted: SnapshotId) -> bool:
    """Whether the table has this snapshot, or a later one of the leader's history."""
    if work.listed is None or not work.is_there:
        return False
    listed = work.listed.snapshot
    of_history = log.lineage.epoch_at(listed.end_offset - 1) == listed.epoch
    of_history = of_history and listed.generation == wanted.generation
    return of_history and wanted.end_offset <= listed.end_offset <= log.log_end


def _records(work: PublishWork, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    wanted = record_schema(work.schema)
    return (fitted(batch, wanted, str(work)) for batch in snapshot.batches())


def publish(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    works: Sequence[SnapshotWork],
    run: OperationRun,
    *,
    delete_replaced: bool = True,
) -> frozenset[TopicIdPartition]:
    """Publish the latest snapshots of the partitions that are ``published``; returns the partitions that changed.
    Files of other programs leave the tables. The report lists an error as a failure of its partition or topic.
    ``delete_replaced``: whether to delete replaced files after their delay."""
    by_topic: dict[str, list[SnapshotWork]] = defaultdict(list)
    for work in works:
        if work.published:
            by_topic[work.replicas.view.topic_id].append(work)
    if not by_topic:
        return frozenset()
    image = metadata.image()
    topics = [image.topics[topic_id] for topic_id in by_topic if topic_id in image.topics]
    opened = ask_remote(storage, lambda topic: _open(storage, topic, by_topic[topic.topic_id][0].schema), topics)
    tables: dict[str, _Opened] = {}
    wanted: list[PublishWork] = []
    for topic, found in run.done(opened, lambda topic: topic.name):
        tables[topic.topic_id] = found
        wanted += (_work(storage, work, found) for work in by_topic[topic.topic_id])
    written = _written(metadata, storage, execution, wanted, run)
    done: set[TopicIdPartition] = set()
    for topic_id, one in tables.items():
        publications, first, name = written[topic_id], by_topic[topic_id][0], image.topics[topic_id].name
        if not publications and not one.listed.foreign:
            continue
        try:
            if one.listed.unusable:
                every = [each.partition for each in image.topics[topic_id].partitions]
                one.table.create_again(first.schema, {each.partition for each in publications}, every)
                run.notes.append(f"{name}: the table of its snapshots was created again: {one.listed.unusable}")
            committed = one.table.commit(publications, partial(_generations, metadata, topic_id))
            done |= {TopicIdPartition(topic_id, partition) for partition in committed}
            if delete_replaced:
                _delete_replaced(one.table, first.delete_delay_ms)
        except StratalogError as error:
            run.fail(name, error)
    return frozenset(done)


def _written(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    works: Sequence[PublishWork],
    run: OperationRun,
) -> dict[str, list[Publication]]:
    """Step 2: the files to commit, by topic id."""
    written: dict[str, list[Publication]] = defaultdict(list)
    waiting = [*works]
    for last in (*[False] * (_VIEWS - 1), True):
        again: list[PublishWork] = []
        for outcome in execution.tasks.run(write_latest, waiting):
            match outcome:
                case Done(work, publication):
                    if publication is not None:
                        written[work.replicas.view.topic_id].append(publication)
                case Failed(work, StaleMetadataError()) if not last:
                    again.append(work)
                case Failed(work, error):
                    run.fail(work, error)
        if not again:
            break
        image = metadata.image()
        present = [work for work in again if work.replicas.view.topic_id in image.topics]
        waiting = [replace(one, replicas=storage.replicas(image.view(*one.replicas.view.key))) for one in present]
    return written


def _generations(metadata: MetadataClient, topic_id: str) -> dict[int, int]:
    """The generation of the last removal rule of each partition of a topic."""
    image = metadata.image()
    if topic_id not in image.topics:
        return {}
    numbers = (each.partition for each in image.topics[topic_id].partitions)
    return {number: image.generation_of(TopicIdPartition(topic_id, number)) for number in numbers}


@dataclass(frozen=True, slots=True)
class _Opened:
    """The result of step 1 for a topic."""

    table: SnapshotTable
    listed: Listed
    there: frozenset[str]
    """Paths of the files that exist with the listed size."""


def _open(storage: Storage, topic: TopicImage, schema: pa.Schema) -> _Opened:
    """Raises: see ``SnapshotTable.open``."""
    table = storage.snapshot_table(topic)
    listed = table.open(schema)
    sizes = {stored.name: stored.size_bytes for stored in table.remote.walk(table.folder)}
    there = (
        file.path
        for file in listed.files.values()
        if sizes.get(paths.join(table.folder, file.path)) == file.size_bytes
    )
    return _Opened(table, listed, frozenset(there))


def _work(storage: Storage, work: SnapshotWork, opened: _Opened) -> PublishWork:
    file = opened.listed.files.get(work.replicas.view.partition)
    return PublishWork(
        replicas=work.replicas,
        remote=opened.table.remote,
        folder=opened.table.folder,
        schema=work.schema,
        compression=work.compression,
        listed=file,
        is_there=file is not None and file.path in opened.there,
        file_id=storage.new_id(),
    )


def _delete_replaced(table: SnapshotTable, delay_ms: int) -> None:
    litter = table.litter(table.remote.walk(table.folder), delay_ms=delay_ms, before_ms=0)
    if litter:
        table.remote.delete([stored.name for stored in litter])
