"""The plan of a restore, from the content of the remote tier. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.config.definition import Scope
from stratalog.engine.config.settings import check_config, topic_config
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.report import Failure, Value
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.metadata.description import ClusterDescription, PartitionDescription, TopicDescription
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS, OPERATIONS_TOPIC
from stratalog.engine.upkeep.tiering.point import read_description
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import CorruptionError, InconsistentClusterIdError, LogGapError, StratalogError
from stratalog.partitions.removal import Rule
from stratalog.partitions.runner import Done, Failed, Runner, ThreadRunner
from stratalog.partitions.store import Store
from stratalog.tiering.bootstrap import AuxiliaryState, auxiliary_state
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removal import last_rule

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable


class RestoreRow(PartitionRow, frozen=True, kw_only=True):
    log_start: int
    log_end: int
    records: int
    remote_bytes: int
    replicas: int | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """The log of a partition after the restore: ``[log_start, log_end)``, all in the remote tier."""

    topic: TopicDescription
    partition: int
    log_start: int
    log_end: int
    leader_epoch: int
    """The greatest known leader epoch of the partition."""
    segments: tuple[RemoteSegment, ...]
    rule: Rule | None = None
    """The removal rule with which the partition begins. The next rule has a greater generation than every segment.
    """

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def row(self) -> RestoreRow:
        return RestoreRow(
            topic=self.topic.name,
            partition=self.partition,
            log_start=self.log_start,
            log_end=self.log_end,
            records=self.log_end - self.log_start,
            remote_bytes=sum(segment.size_bytes for segment in self.segments),
        )


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The cluster to restore. According to the footers that were read, everything in it is intact."""

    description: ClusterDescription
    topics: tuple[TopicDescription, ...]
    """The topics, without internal topics. Leader epochs and log starts come from the remote log if the remote log
    is newer than the description.
    """
    tiered: frozenset[str]
    """The ids of the topics that have a table, or will get a table."""
    partitions: tuple[RestoredPartition, ...]
    notes: tuple[str, ...]
    """Notes about what is lost."""
    failures: tuple[Failure, ...]
    """The items that cannot be restored. If there is any such item, nothing is restored."""

    def of(self, topic: TopicDescription) -> Iterator[RestoredPartition]:
        return (one for one in self.partitions if one.topic.topic_id == topic.topic_id)

    @property
    def totals(self) -> dict[str, Value]:
        rows = [one.row for one in self.partitions]
        return {
            "topics": len(self.topics),
            "partitions": len(rows),
            "records": sum(row.records for row in rows),
            "remote_bytes": sum(row.remote_bytes for row in rows),
        }


FAR_AHEAD = 10**15
"""The greatest plausible number of offsets between the end of the remote log and a later log start. (The records
in between were deleted before they were tiered.) A log start beyond this distance is treated as damage, and no
offset is derived from it.
"""
FAR_AHEAD_EPOCHS = 10**8
"""The greatest plausible distance in leader epochs. Each election after the last segment was tiered adds 1, and
each restore adds ``EPOCH_GAP``.
"""

_THREADS = 16

_TableOf = Callable[[TopicDescription, str], "DeltaTopicTable"]
"""The table of a topic, opened for the cluster with this id."""


def plan_restore(
    file: ClusterFile, remote: Store, former: str, clock: Clock, key: ClusterKey | None
) -> RestorePlan:
    """The plan to restore cluster ``former`` from the remote tier. The new cluster, of ``file``, may already have
    taken over some of the tables. Reads every table, checks that every listed object exists, and reads the footer
    of the last segment of every partition. With ``key``, the key of the new cluster, the description must be
    signed.

    Raises: InvalidCallError when the remote tier does not describe the cluster; CorruptionError when the
        description is damaged; StorageError kinds. An error that concerns one topic is a failure in the plan.
    """
    from stratalog.tiering.delta_table import DeltaTopicTable  # imported here, because it loads delta-rs

    def table_of(topic: TopicDescription, cluster_id: str) -> DeltaTopicTable:
        return DeltaTopicTable(
            remote,
            topic=topic.name,
            topic_id=topic.topic_id,
            cluster_id=cluster_id,
            options=file.remote_storage,
            clock=clock,
        )

    runner = ThreadRunner(_THREADS)
    description = read_description(remote, former, None if key is None else key.of(former))
    topics: list[TopicDescription] = []
    partitions: list[RestoredPartition] = []
    failures: list[Failure] = []
    notes: list[str] = []
    tiered: set[str] = set()
    for topic in description.topics:
        if topic.name in INTERNAL_TOPICS:
            notes.append(
                f"{topic.name} restarts empty: the tiered part of the former topic remains in "
                f"{paths.topic_folder(topic.name, topic.topic_id)} of the remote tier"
                if topic.name == OPERATIONS_TOPIC
                else f"{topic.name} is lost, because it was only on brokers; the restored topic starts empty"
            )
            continue
        try:
            config = _checked_config(topic, description)
            log = RemoteLog.empty(topic.name)
            if config.remote_storage_enable:
                tiered.add(topic.topic_id)
                log = _load(topic, former, file.cluster_id, table_of)
            else:
                notes.append(
                    f"the records of {topic.name} are lost, because the topic was not tiered; the topic is "
                    "restored empty"
                )
            if config.snapshots:
                topic = _started_at_zero(topic)
            folder = paths.topic_folder(topic.name, topic.topic_id)
            found = _partitions_of(remote, folder, topic, log, runner)
        except StratalogError as error:
            failures.append(Failure.of(topic.name, error))
            continue
        partitions += found
        known = tuple(PartitionDescription(one.leader_epoch, one.log_start) for one in found)
        topics.append(msgspec.structs.replace(topic, partitions=known))
    return RestorePlan(
        description, tuple(topics), frozenset(tiered), tuple(partitions), tuple(notes), tuple(failures)
    )


def _started_at_zero(topic: TopicDescription) -> TopicDescription:
    """The topic, with logs that start at 0. A log with a later start would need the snapshot that replaces the
    deleted records (KIP-630, "Validation of Snapshot and Log"), but only brokers hold snapshots.
    """
    partitions = tuple(one._replace(log_start_offset=0) for one in topic.partitions)
    return msgspec.structs.replace(topic, partitions=partitions)


def _checked_config(topic: TopicDescription, description: ClusterDescription) -> TopicConfig:
    """Check that this version accepts the configs. A config key of a later version is refused. Raises:
    InvalidConfigError.
    """
    what = f"topic {topic.name!r}"
    for name, text in description.configs.items():
        check_config(Scope.CLUSTER, name, text, "cluster")
    for name, text in topic.configs.items():
        check_config(Scope.TOPIC, name, text, what)
    return topic_config(topic.configs, description.configs, what)


def _load(topic: TopicDescription, former: str, heir: str, table_of: _TableOf) -> RemoteLog:
    """Load the table of a topic. Raises: see ``DeltaTopicTable.load``; RemoteObjectMissingError."""
    table = table_of(topic, former)
    try:
        log = table.load()
    except InconsistentClusterIdError:
        table = table_of(topic, heir)
        log = table.load()
    if log.version >= 0:
        table.check_objects(log)
    return log


def _partitions_of(
    remote: Store, folder: str, topic: TopicDescription, log: RemoteLog, runner: Runner
) -> list[RestoredPartition]:
    """The partitions of a topic. Raises: LogGapError; errors from reading a last segment."""
    if beyond := [partition for partition in log.segments if partition >= len(topic.partitions)]:
        raise LogGapError(
            f"the table of {topic.name} has partition {beyond[0]}, but the description has "
            f"{len(topic.partitions)} partitions: the restore point is older than the table"
        )
    lasts = [segments[-1] for segments in log.segments.values()]
    states: dict[int, AuxiliaryState] = {}
    for outcome in runner.run(lambda last: auxiliary_state(remote, folder, last), lasts):
        match outcome:
            case Done(last, state):
                states[last.partition] = state
            case Failed(_, error):
                raise error
    return [
        replace(
            _partition(topic, number, described, log.of_partition(number), states.get(number)),
            rule=last_rule(log, number),
        )
        for number, described in enumerate(topic.partitions)
    ]


def _partition(
    topic: TopicDescription,
    number: int,
    described: PartitionDescription,
    segments: tuple[RemoteSegment, ...],
    state: AuxiliaryState | None,
) -> RestoredPartition:
    """One partition. After the description was written, the log start may have grown, and segments may have been
    deleted.

    Raises: CorruptionError if offsets or epochs are implausibly far ahead of the remote log.
    """
    first = segments[0].base_offset if segments else 0
    log_start = max(described.log_start_offset, first)
    end = log_start if state is None else max(log_start, state.offset)
    known = 0 if state is None else state.lineage.latest_epoch
    epoch = max(described.leader_epoch, known)
    if (
        epoch > known + FAR_AHEAD_EPOCHS
        or log_start > max(first, 0 if state is None else state.offset) + FAR_AHEAD
    ):
        raise CorruptionError(
            f"{topic.name}-{number} is described with leader epoch {epoch} and log start offset {log_start}, "
            f"but its remote log has epoch {known} and ends at "
            f"{0 if state is None else state.offset}: stratalog did not write this restore point; "
            "delete it, so that the previous one is used"
        )
    return RestoredPartition(topic, number, log_start, end, epoch, segments)
