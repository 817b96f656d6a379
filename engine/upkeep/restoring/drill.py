"""A drill: restores a running cluster from its remote tier to a temporary folder, and compares the two clusters.

The copy has the cluster's id, and its own roots in a temporary folder. The copy reads the remote tier through a
store that refuses every change, so the tables are not taken over, and the running cluster is not affected. The
drill compares:

the description         its topics, with the current metadata
log starts, log ends    records that are not tiered yet would be lost
leader epochs           the epochs of all records below the end, if there are any: the last segment has these
                        epochs
producers               the producer states, if the two logs end at the same offset
records                 the first and the last record of each partition, from either tier of the running cluster;
                        with ``deep``, all records that the leaders hold, and the checksum of every byte in the
                        remote tier
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from stratalog.engine.brokers.format import format_cluster
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.opening import OpenStore, Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.description import describe
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.reading.look import PartitionState, look
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.engine.upkeep.restoring.plan import RestoredPartition, RestorePlan, RestoreRow, plan_restore
from stratalog.engine.upkeep.restoring.restore import bring_back
from stratalog.engine.upkeep.verification.verify import verify
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.rewrites.merge import oldest_by
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.read_only import ReadOnlyStore
from stratalog.tiering.plan import waiting_since_ms

PIECE_BYTES = 16 * 1024 * 1024
"""The number of bytes of a partition to compare in one piece."""


class DrillRow(RestoreRow, frozen=True, kw_only=True):
    """A partition after the restore, compared with the partition of the running cluster."""

    high_watermark: int
    """The high watermark of the partition in the running cluster."""
    lost_records: int
    lost_ms: int
    """The age of the first record that would be lost."""
    deleted_records_back: int
    compared_records: int


def read_only_remote(ports: Ports, opener: OpenStore) -> OpenStore:
    """An opener for the copy: the same as ``opener``, but read-only for the remote tier."""

    def open_root(uri: str, options: StoreOptions, clock: Clock) -> Store:
        if uri == ports.storage.file.remote:
            return ReadOnlyStore(ports.storage.remote_store("a drill restores the cluster from the remote tier"))
        return opener(uri, options, clock)

    return open_root


def copy_of_file(file: ClusterFile, folder: Path) -> ClusterFile:
    """The cluster file of the copy: the same as ``file``, but with new roots below ``folder``."""
    brokers = []
    for broker in file.brokers:
        root = folder / f"broker-{broker.broker_id}"
        root.mkdir()
        brokers.append(replace(broker, log_dir=f"file://{root}", storage=StoreOptions()))
    return replace(file, path=str(folder / "cluster.toml"), brokers=tuple(brokers), cache=None, client_rack=None)


def drill(ports: Ports, opener: OpenStore, *, deep: bool = False) -> Report:
    """Restore the cluster to a temporary folder, compare the copy with the cluster, and remove the folder. Every
    difference that would make a restore wrong is a failure in the report. ``lost_records`` is the number of
    records that are not tiered yet; ``lost_ms`` is the age of the oldest of these records. Their totals are None
    if some partition could not be compared.

    Raises: InvalidCallError when the remote tier does not describe this cluster yet; errors from reading the
        metadata, or from making the copy.
    """
    remote = ports.storage.remote_store("a drill restores the cluster from the remote tier")
    plan = plan_restore(ports.storage.file, remote, ports.storage.file.cluster_id, ports.clock, ports.storage.key)
    with tempfile.TemporaryDirectory(prefix="stratalog-drill-") as folder:
        file = copy_of_file(ports.storage.file, Path(folder))

        def copy() -> Ports:
            open_root = read_only_remote(ports, opener)
            return format_cluster(file, clock=ports.clock, new_id=ports.storage.new_id, opener=open_root)

        return _drill(ports, plan, copy, deep=deep)


def _drill(ports: Ports, plan: RestorePlan, copy: Callable[[], Ports], *, deep: bool = False) -> Report:
    restore_s = 0.0
    with ports.execution.run("restore --drill") as run:
        run.failures += plan.failures
        run.notes += [*plan.notes, *_not_described(ports, plan)]
        if not run.failures:
            copied = copy()
            restored = bring_back(copied.metadata, copied.storage, copied.execution, copied.memory, plan)
            restore_s = restored.seconds
            run.failures += restored.failures
            if deep:
                run.failures += verify(copied.metadata, copied.storage, copied.execution, deep=True).failures
        if not run.failures:
            compared = ports.storage.threads.run(lambda one: compare(ports, copied, one, deep), plan.partitions)
            run.add(row for _, row in run.done(compared))
    run.sort("topic", "partition")
    run.totals |= plan.totals
    run.total("lost_records")
    run.totals["lost_ms"] = max((int(row["lost_ms"] or 0) for row in run.rows), default=0)
    if len(run.rows) < len(plan.partitions) or plan.failures:
        run.totals |= {"lost_records": None, "lost_ms": None}
    run.totals["restore_s"] = round(restore_s, 3)
    return run.report()


def _not_described(ports: Ports, plan: RestorePlan) -> Iterator[str]:
    """A note for each change since the restore point."""
    now = describe(ports.metadata.image())
    described = {topic.topic_id: topic for topic in plan.description.topics}
    if now.configs != plan.description.configs:
        yield (
            "the configs of the cluster have changed since the restore point: the next tier run "
            "writes a new restore point"
        )
    for topic in now.topics:
        known = described.get(topic.topic_id)
        if known is None and topic.name not in INTERNAL_TOPICS:
            yield f"topic {topic.name} is newer than the restore point, so a restore would lose it; run tier"
        elif known is not None and (known.configs, len(known.partitions)) != (
            topic.configs,
            len(topic.partitions),
        ):
            yield (
                f"topic {topic.name} has changed since the restore point: the next tier run writes a "
                "new restore point"
            )


def compare(living: Ports, copied: Ports, one: RestoredPartition, deep: bool) -> DrillRow:
    """Compare a partition; returns its row. Raises: CorruptionError for a difference; errors from reading either
    log.
    """
    name, partition = one.topic.name, one.partition
    (before,), (after,) = (
        look(ports.metadata, ports.storage, ports.memory, name, [partition])[1] for ports in (living, copied)
    )
    end = after.positions.high_watermark
    if end > before.positions.log_end:
        raise CorruptionError(
            f"the remote log ends at offset {end}, but the leader's log ends at offset {before.positions.log_end}"
        )
    has_records = one.log_start < one.log_end
    if has_records and (found := _below(after, end)) != (wanted := _below(before, end)):
        raise CorruptionError(
            f"the leader epochs below offset {end} are {found.to_json().decode()}, but in the "
            f"running cluster they are {wanted.to_json().decode()}"
        )
    if has_records and end == before.leader.log.log_end:
        states = [
            state.leader.replicas.leader.producers(state.leader.log)
            for ports, state in ((living, before), (copied, after))
        ]
        if states[0] != states[1]:
            raise CorruptionError(f"the producer states at offset {end} differ from those of the running cluster")
    start = max(before.positions.log_start, after.positions.log_start)
    compared = 0
    if start < end:
        compared += _same(living, copied, one, start, start + 1) + _same(living, copied, one, end - 1, end)
        local = max(start, before.positions.local_start)
        if deep and local < end:
            compared += _same(living, copied, one, local, end)
    return DrillRow(
        **msgspec.structs.asdict(one.row),
        high_watermark=before.positions.high_watermark,
        lost_records=max(0, before.positions.high_watermark - end),
        lost_ms=_lost_ms(living, before, end),
        deleted_records_back=max(0, min(before.positions.log_start, end) - after.positions.log_start),
        compared_records=compared,
    )


def _lost_ms(living: Ports, before: PartitionState, end: int) -> int:
    """The age in ms of the first record that would be lost; 0 if no record would be lost."""
    if before.positions.high_watermark <= end:
        return 0
    leader = before.leader.replicas.leader
    since_ms = waiting_since_ms(before.leader.log, end, oldest_by(leader.footer))
    return 0 if since_ms is None else max(0, living.clock.now_ms() - since_ms)


def _below(state: PartitionState, end: int) -> Lineage:
    return Lineage(entry for entry in state.leader.log.lineage if entry.start_offset < end)


def _same(living: Ports, copied: Ports, one: RestoredPartition, start: int, end: int) -> int:
    """Compare the records that consumers see at the offsets ``[start, end)``; returns the number of offsets. The
    offset of a transaction marker, or of a record that compaction has removed, has no such record.

    Raises: CorruptionError for the first difference; errors from reading either cluster.
    """
    position = start
    while position < end:
        size = 1 if end - start == 1 else PIECE_BYTES
        two = [
            fetch(*ports.for_records, one.topic.name, one.partition, position, max_bytes=size)
            for ports in (living, copied)
        ]
        until = min(end, *(found.next_offset for found in two))
        expected, restored = (found.records.filter(pc.field("offset") < until) for found in two)
        if until == position or not expected.equals(restored):
            raise CorruptionError(
                f"the records [{position}, {max(until, position + 1)}) differ from those of the running cluster"
            )
        position = until
    return end - start
