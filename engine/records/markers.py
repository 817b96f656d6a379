"""Writes markers, which end a transaction in each of its partitions (KIP-98, "WriteTxnMarkers").

Each marker is an append of one record with acks=all, and all partitions get their markers at the same time. In
``__consumer_offsets`` the marker is a record of the partition's state. A marker has the raised producer epoch, and
takes effect only if the partition has no marker of that epoch yet, so any number of writers have the effect of
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, Value
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_with, in_threads
from stratalog.engine.records.state_log import append_state, read_state, stamp_of
from stratalog.engine.state.consumer_offsets import EndTransaction
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.engine.state.keyed import OFFSETS
from stratalog.engine.state.transaction_state import State, Transaction
from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import constant
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.producers import marker
from stratalog.partitions.records import schema_of
from stratalog.partitions.runner import Done, Failed


class MarkerRow(PartitionRow, frozen=True, kw_only=True):
    """A partition that has its marker. The offset of the marker is None if the partition already had the
    marker."""

    marker: int | None


@dataclass(slots=True)
class MarkersWritten:
    """A row per partition that has its marker, and a failure per partition without its marker."""

    rows: list[MarkerRow] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def fail(self, item: str, error: StratalogError) -> None:
        """Add the failure of a partition."""
        self.failures.append(Failure.of(item, error))


def write_markers(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    ended: Transaction,
    probed: ClusterImage | None = None,
) -> MarkersWritten:
    """Write the markers of a transaction in PrepareCommit or PrepareAbort to all its partitions, except those of
    deleted topics. ``probed`` is the metadata as just read, after a probe of the roots.
    """
    image = probed or metadata.image()
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in ended.partitions:
        if topic_id in image.topics:
            by_topic.setdefault(topic_id, []).append(partition)

    def write(topic_id: str) -> MarkersWritten:
        topic, partitions = image.topics[topic_id], by_topic[topic_id]
        if topic.name == OFFSETS_TOPIC:
            return _end_offsets(metadata, storage, clock, memory, image, topic, partitions, ended)
        return _append_markers(
            metadata, storage, clock, memory, image, topic, partitions, ended, probed=probed is not None
        )

    written = MarkersWritten()
    for outcome in storage.threads.run(write, by_topic):
        match outcome:
            case Done(_, of_topic):
                written.rows += of_topic.rows
                written.failures += of_topic.failures
            case Failed(topic_id, error):
                written.fail(image.topics[topic_id].name, error)
    written.rows.sort(key=lambda row: (row.topic, row.partition))
    return written


def _append_markers(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    partitions: Sequence[int],
    ended: Transaction,
    *,
    probed: bool,
) -> MarkersWritten:
    row = _marker_row(schema_of(topic.key_schema, topic.value_schema), clock.now_ms())
    who = marker(ended.producer_id, ended.producer_epoch, commit=ended.state is State.PREPARE_COMMIT)
    tasks = in_threads(storage, {partition: [row] for partition in partitions})
    report = append_with(metadata, storage, clock, memory, image, topic, tasks, who, probed=probed)
    done = [row for row in report.rows if row["outcome"] in ("acknowledged", "duplicate")]
    rows = [
        MarkerRow(topic=topic.name, partition=int(row["partition"] or 0), marker=_offset(row["base_offset"]))
        for row in done
    ]
    return MarkersWritten(rows, list(report.failures))


def _offset(value: Value) -> int | None:
    return None if value is None else int(value)


def _marker_row(schema: pa.Schema, now_ms: int) -> pa.RecordBatch:
    stamp = constant(now_ms * 1000, schema.field("timestamp").type, 1)
    names = ["key", "value", "headers"]
    nulls = [pa.nulls(1, schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays([stamp, *nulls], ["timestamp", *names])


def _end_offsets(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    partitions: Sequence[int],
    ended: Transaction,
) -> MarkersWritten:
    """Write the end of a transaction for the pending offsets of a group's partition. A late end has no effect
    (``ConsumerOffsets``). An end that is already in the state is not written again.
    """
    expiration_ms = cluster_config_of(image).transactional_id_expiration_ms
    end = EndTransaction(
        producer_id=ended.producer_id,
        producer_epoch=ended.producer_epoch,
        committed=ended.state is State.PREPARE_COMMIT,
        expires_ms=stamp_of(storage, clock, image, topic.topic_id, partitions[0]) + expiration_ms,
    )
    written = MarkersWritten()
    for partition in partitions:
        try:
            view = metadata.image().view(topic.topic_id, partition)
            known = read_state(storage, clock, memory, view, OFFSETS).state.producers.get(ended.producer_id)
            offset = None
            if known is None or known.epoch < ended.producer_epoch:
                offset = append_state(metadata, storage, clock, memory, topic, partition, OFFSETS, [end])
        except StratalogError as error:
            written.fail(f"{topic.name}-{partition}", error)
        else:
            written.rows.append(MarkerRow(topic=topic.name, partition=partition, marker=offset))
    return written
