"""Keeps the metadata log short with snapshots, with the same policy and the same metrics as for other logs.

``stratalog.engine.quorum.upkeep`` does the work on the voters. This module decides when a snapshot is due, and
reports the result, either as one row after the rows of the topics, or (for ``stratalog.engine.admin.quorum``) as
one row per voter.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from stratalog.engine.config.settings import topic_config
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.metrics import GEN_LATENCY, LAG, SIZE
from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.run import PartitionRow, Row
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.upkeep import SnapshotState, Upkeep, due, keep_up, snapshot_state
from stratalog.partitions.clock import Clock
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.snapshots.snapshot_id import EMPTY


@dataclass(frozen=True, slots=True)
class MetadataUpkeep:
    """The metadata log after a run."""

    looked: SnapshotState
    """The log as the run found it."""
    wait: str | None
    """The reason why no snapshot was due."""
    done: Upkeep | None
    """None in a dry run, and if no snapshot was due."""


def keep_metadata_short(
    metadata: MetadataClient, clock: Clock, memory: Memory, *, by_hand: bool, dry_run: bool
) -> MetadataUpkeep:
    """Take a snapshot of the metadata log if the policy requires one (``by_hand``: of all new records), copy it to
    every voter, move the log start, and delete the files below it.

    Raises: NoMajorityError and other RetriableError kinds; StaleMetadataError, CorruptionError kinds.
    """
    config = topic_config({}, metadata.image().configs, "the metadata log")
    now_ms = clock.now_ms()
    looked, wait = metadata.with_log(lambda log: due(log, config.snapshotting, now_ms, by_hand=by_hand))
    if wait is not None or dry_run:
        return MetadataUpkeep(looked, wait, None)
    lag_ms = config.metadata_start_offset_lag_time_max_ms
    done = metadata.with_log(lambda log: keep_up(log, clock, lag_ms=lag_ms))
    if done.made is not None:
        memory.snapshot_metrics.add(GEN_LATENCY, METADATA_TOPIC, 0, done.made.ms)
    return MetadataUpkeep(looked, None, done)


def metadata_failures(done: Upkeep) -> list[Failure]:
    """Voters that did not get the snapshot, and damaged snapshots on voters."""
    found = [Failure.of(one.voter, one.failure) for one in done.voters if one.failure is not None]
    return found + [Failure.of(one.voter, error) for one in done.voters for error in one.damaged]


class GaugeRow(Row, frozen=True, kw_only=True):
    """The current value of a metric of a partition."""

    metric: str
    topic: str
    partition: int
    value: int


class SnapshotRow(
    PartitionRow, frozen=True, kw_only=True, rename={"size_bytes": SIZE, "lag": LAG, "gen_latency_ms": GEN_LATENCY}
):
    """A partition, or the metadata log. Its metrics have KIP-630's names."""

    outcome: str
    snapshot: str | UnsetType | None = UNSET
    """The snapshot's end offset and epoch."""
    records: int | UnsetType | None = UNSET
    size_bytes: int | UnsetType | None = UNSET
    lag: int | UnsetType | None = UNSET
    gen_latency_ms: float | UnsetType | None = UNSET
    log_start: int | UnsetType = UNSET
    copied_bytes: int | UnsetType = UNSET
    deleted: int | UnsetType = UNSET
    """The number of deleted snapshots."""
    expired: int | UnsetType = UNSET
    """The number of appended records that delete expired state."""
    published: bool | UnsetType = UNSET
    why: str | UnsetType | None = UNSET


def metadata_row(kept: MetadataUpkeep, dry_run: bool) -> SnapshotRow:
    """The run as a row of the report of ``stratalog.engine.upkeep.snapshots.snapshot``."""
    looked, done = kept.looked, kept.done
    latest = None if looked.latest == EMPTY else str(looked.latest)
    made = None if done is None else done.made
    copies = 0 if done is None else sum(one.copied for one in done.voters)
    return SnapshotRow(
        topic=METADATA_TOPIC,
        partition=0,
        outcome=_outcome(kept),
        snapshot=latest if done is None else f"{done.snapshot.end_offset}-{done.snapshot.epoch}",
        records=None if made is None else made.records,
        size_bytes=looked.size_bytes if done is None else done.size_bytes,
        lag=looked.lag if done is None else 0,
        gen_latency_ms=None if made is None else round(made.ms, 1),
        log_start=looked.log_start if done is None else max(looked.log_start, done.log_start),
        copied_bytes=UNSET if dry_run else 0 if done is None else copies * done.size_bytes,
        deleted=UNSET if dry_run else 0 if done is None else sum(one.deleted for one in done.voters),
        expired=UNSET if dry_run else 0,
        published=UNSET if dry_run else False,
        why=kept.wait,
    )


def _outcome(kept: MetadataUpkeep) -> str:
    if kept.wait is not None:
        return "not now"
    if kept.done is None:
        return f"would be made up to {kept.looked.end.end_offset}"
    return "there already" if kept.done.made is None else "made"


def metadata_gauges(metadata: MetadataClient) -> list[GaugeRow]:
    """SnapshotSizeBytes and SnapshotLag of the metadata log, as rows of ``Cluster.metrics``.

    Raises: NoMajorityError and other RetriableError kinds; CorruptionError kinds.
    """
    looked = snapshot_state(metadata.with_log(lambda log: log.committed_log()))
    return [
        GaugeRow(metric=metric, topic=METADATA_TOPIC, partition=0, value=value)
        for metric, value in ((SIZE, looked.size_bytes), (LAG, looked.lag))
    ]
