"""Existing snapshots: locates and verifies them for readers, lists them, and reports the metrics of KIP-630."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.metrics import LAG, LOAD_LATENCY, SIZE
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.snapshots import checkpoints_of, newest_id, usable_snapshot
from stratalog.engine.upkeep.snapshots.metadata import GaugeRow, metadata_gauges
from stratalog.engine.upkeep.snapshots.snapshot import snapshot_topics
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import LogGapError, StratalogError
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.replica import Replica
from stratalog.partitions.runner import values
from stratalog.partitions.store.protocol import StoredObject
from stratalog.snapshots.reader import Snapshot
from stratalog.snapshots.snapshot_id import SnapshotId


@dataclass(frozen=True, slots=True)
class LocateWork(PartitionWork):
    """Find and verify the latest snapshot of one partition."""

    clock: Clock


@dataclass(frozen=True, slots=True)
class Located:
    """The latest intact snapshot of a partition, from its leader; or from a follower, if the leader has no
    snapshot that replaces the records below its log start.
    """

    partition: int
    snapshot_id: SnapshotId
    broker_id: int
    stored: StoredObject
    """The snapshot in the store of this broker."""
    records: int
    ms: float
    """LoadSnapshotLatencyMs: the time to read and verify every byte."""


def locate_snapshot(work: LocateWork) -> Located | None:
    """The task; None when the partition has no snapshot, and its log begins at 0.

    Raises: LeaderNotAvailableError; LogGapError when the log starts after the latest usable snapshot of any
    replica.
    """
    return while_it_changes(lambda: _locate_once(work))


def _locate_once(work: LocateWork) -> Located | None:
    began_s = work.clock.monotonic_s()
    replicas = work.replicas
    log = look_at_leader(replicas)
    needed = max(log.local_start, replicas.view.log_start_offset)
    found = usable_snapshot(replicas.leader, log).snapshot
    holder = replicas.leader
    if (0 if found is None else found.snapshot_id.end_offset) < needed:
        holder, found = _of_a_follower(replicas, log, needed)
    if found is None:
        return None
    ms = 1000 * (work.clock.monotonic_s() - began_s)
    return Located(holder.partition, found.snapshot_id, holder.broker_id, found.stored, found.records, ms)


def _of_a_follower(replicas: PartitionReplicas, log: ReplicaLog, needed: int) -> tuple[Replica, Snapshot]:
    """An intact snapshot of the leader's history that ends at ``needed`` or later, from a follower."""
    for follower in map(replicas.replica, replicas.followers):
        with suppress(StratalogError):
            found = usable_snapshot(follower, follower.log(), until=log.log_end).snapshot
            if found is None:
                continue
            end, epoch = found.snapshot_id.end_offset, found.snapshot_id.epoch
            if end >= needed and log.lineage.epoch_at(end - 1) == epoch:
                return follower, found
    raise LogGapError(
        f"{replicas.leader}: the log starts at offset {needed}, and no readable replica has a usable snapshot "
        "that ends there or later: bring back a replica that has one",
        broker_id=replicas.leader.broker_id,
    )


def locate(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topic: str,
    partitions: Sequence[int] | None = None,
) -> tuple[TopicImage, list[Located]]:
    """The latest snapshots of these partitions (None: all) of a topic, verified, by partition. Partitions without
    one are left out.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a topic without snapshots; see ``locate_snapshot``.
    """
    image = metadata.image()
    (topic_image,) = snapshot_topics(image, [topic])
    chosen = range(len(topic_image.partitions)) if partitions is None else dict.fromkeys(partitions)
    works = [LocateWork(storage.replicas(image.view(topic_image.topic_id, p)), execution.clock) for p in chosen]
    found = [located for located in values(execution.tasks.run(locate_snapshot, works)) if located is not None]
    for located in found:
        memory.snapshot_metrics.add(LOAD_LATENCY, topic, located.partition, located.ms)
    return topic_image, sorted(found, key=lambda located: located.partition)


class ListedSnapshotRow(PartitionRow, frozen=True, kw_only=True):
    """A snapshot of a replica."""

    broker: int
    end_offset: int
    epoch: int
    size_bytes: int
    lag: int


def list_snapshots(
    metadata: MetadataClient, storage: Storage, execution: Execution, topics: Sequence[str] | None = None
) -> Report:
    """Every snapshot of every replica of the topics (None: all with snapshots), as a table, unverified. A replica
    that cannot be read is a failure in the report.

    Raises: UnknownTopicOrPartitionError, InvalidCallError for a topic without snapshots.
    """
    with execution.run("snapshots") as run:
        image = metadata.image()
        for replicas in storage.replicas_of(image, snapshot_topics(image, topics)):
            for broker in replicas.view.replicas:
                try:
                    log = replicas.replica(broker).log()
                except StratalogError as error:
                    run.fail(f"{replicas} on broker {broker}", error)
                    continue
                run.add(
                    ListedSnapshotRow(
                        topic=replicas.view.topic,
                        partition=replicas.view.partition,
                        broker=broker,
                        end_offset=name.end_offset,
                        epoch=name.epoch,
                        size_bytes=stored.size_bytes,
                        lag=log.high_watermark - name.end_offset,
                    )
                    for name, stored in checkpoints_of(log)
                )
    run.totals["snapshots"] = len(run.rows)
    return run.report()


def metrics(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> Report:
    """The metrics of KIP-630: latencies that this driver has measured since it opened the cluster; the current
    size and lag of the latest snapshot of every partition and of the metadata log. A partition that cannot be read
    is a failure in the report.
    """
    with execution.run("metrics") as run:
        image = metadata.image()
        gauges = _gauges(storage, image, run)
        gauges += metadata_gauges(metadata)
        run.add(memory.snapshot_metrics.rows({*image.topic_ids, METADATA_TOPIC}))
        gauges.sort(key=lambda row: (row.metric, row.topic, row.partition))
        run.add(gauges)
    return run.report()


def _gauges(storage: Storage, image: ClusterImage, run: OperationRun) -> list[GaugeRow]:
    def look(replicas: PartitionReplicas) -> tuple[int, int]:
        log = replicas.leader.log()
        latest = newest_id(log)
        if latest is None:
            return 0, log.high_watermark
        return dict(checkpoints_of(log))[latest.name].size_bytes, log.high_watermark - latest.end_offset

    found: list[GaugeRow] = []
    chosen = storage.replicas_of(image, snapshot_topics(image, None))
    for replicas, gauges in run.done(storage.threads.run(look, chosen)):
        found += (
            GaugeRow(metric=name, topic=replicas.view.topic, partition=replicas.view.partition, value=value)
            for name, value in zip((SIZE, LAG), gauges, strict=True)
        )
    return found
