"""DeleteRecords: moves the log start of a partition, as its owner requests (Kafka's Admin API; KIP-107).

1. List the leaders. Check that deletion is allowed, and up to which offset each log is committed. If a leader does
   not answer, probe the brokers, which may elect another leader, and list again.
2. Commit the new log start offsets, in one commit for all partitions. Repeat this for partitions with a new
   leader.
3. If a topic is tiered, write a description of the cluster to the remote tier, so that no restore brings deleted
   records back.

Readers and followers use the new log start immediately. ``retain`` deletes files that are completely below the log
start, in the remote tier and on the brokers, after ``file.delete.delay.ms``.

If snapshots replace the deleted records of a log, only a snapshot may move the log start (KIP-630, "When to
Increase the LogStartOffset"), so the call fails with POLICY_VIOLATION.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stratalog.engine.brokers.probe import LEADER_AWAY, probe_first
from stratalog.engine.config.topic_config import COMPACT
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.partition_commands import AdvanceLogStart, LogStart, RefusedPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.positions import spec_of
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.upkeep.tiering.point import describe_first
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    InvalidCallError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    StratalogError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.runner import Done, Failed

HIGH_WATERMARK = -1
"""An offset that means all committed records."""

_ATTEMPTS = 5


class DeleteRecordsRow(PartitionRow, frozen=True, kw_only=True):
    """A partition, with its new log start."""

    low_watermark: int | None
    deleted_records: int


@dataclass(frozen=True, slots=True)
class _Start:
    """The current and the requested log start of a partition."""

    present: int
    wanted: LogStart


def delete_records(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    before: Mapping[TopicPartition, int | str],
    *,
    dry_run: bool = False,
) -> Report:
    """Delete the records below these offsets (``HIGH_WATERMARK``: all committed records). The report has one row
    per partition, with its low watermark: the offset at which its log then starts. An offset below the current log
    start changes nothing.

    Raises: PolicyViolationError, UnknownTopicOrPartitionError, OffsetOutOfRangeError beyond the high watermark,
    InvalidCallError; errors of the metadata. If it raises any error but OutcomeUnknownError, nothing was changed.
    A leader that cannot be listed is a failure of its partition, and so is an error of the metadata after the
    first commit.
    """
    wanted = {
        (topic, whole(number, f"topic {topic!r}: partition")): _offset(offset, f"{topic}-{number}: offset")
        for (topic, number), offset in before.items()
    }
    rows: dict[TopicPartition, DeleteRecordsRow] = {}
    refused: dict[TopicPartition, StratalogError] = {}
    waiting = dict(wanted)
    with execution.run("delete_records", dry_run=dry_run) as run:
        for attempt in range(_ATTEMPTS):
            try:
                image = metadata.image()
                found, errors = _starts(storage, image, waiting)
                bad_call = next((error for error in errors.values() if isinstance(error, InvalidCallError)), None)
                if attempt == 0 and bad_call is not None:
                    raise bad_call
                if attempt == 0 and any(isinstance(error, LEADER_AWAY) for error in errors.values()):
                    image = probe_first(metadata, storage, run, image)
                    found, errors = _starts(storage, image, waiting)
                refused |= errors
                errors = _commit(metadata, image, found, dry_run)
            except StratalogError as error:
                if not rows:
                    raise
                refused |= {one: error for one in waiting if one not in refused}
                break
            rows |= {one: _row(one, start) for one, start in found.items() if one not in errors}
            waiting = {one: wanted[one] for one, e in errors.items() if isinstance(e, FencedLeaderEpochError)}
            if attempt == _ATTEMPTS - 1:
                waiting = {}
            refused |= {one: error for one, error in errors.items() if one not in waiting}
            if not waiting:
                break
        run.failures += [Failure.of(f"{topic}-{number}", error) for (topic, number), error in refused.items()]
        if not dry_run and any(row.deleted_records for row in rows.values()):
            with run.still_reporting():
                run.failures += _describe(metadata, storage, {topic for topic, _ in rows})
    run.add(rows.get(one) or _row(one, None) for one in wanted)
    return run.report()


def _offset(given: object, what: str) -> int:
    """The offset that the caller gave, as an int. Raises: InvalidCallError, also for a position other than the
    end.
    """
    if isinstance(given, OffsetSpec | str):
        if spec_of(given, what) is OffsetSpec.LATEST:
            return HIGH_WATERMARK
        raise InvalidCallError(f"{what} {given!r}: give an offset below which records are deleted, or latest")
    return whole(given, what)


def _starts(
    storage: Storage, image: ClusterImage, before: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, _Start], dict[TopicPartition, StratalogError]]:
    """Step 1. Returns the requested log starts, and the errors of all other partitions."""
    found: dict[TopicPartition, _Start] = {}
    errors: dict[TopicPartition, StratalogError] = {}
    for outcome in storage.threads.run(lambda one: _start(storage, image, one, before[one]), list(before)):
        match outcome:
            case Done(one, start):
                found[one] = start
            case Failed(one, error):
                errors[one] = error
    return found, errors


def _start(storage: Storage, image: ClusterImage, one: TopicPartition, before: int) -> _Start:
    """The requested log start of a partition. Raises: see ``delete_records``; errors from listing the leader."""
    topic, partition = one
    what = f"partition {partition} of topic {topic!r}"
    if topic == METADATA_TOPIC or topic_config_of(image, image.topic(topic)).snapshots:
        raise PolicyViolationError(
            f"records of {what} cannot be deleted: cleanup.policy is snapshot, and only a snapshot advances the "
            "start of such a log (stratalog snapshot)"
        )
    if topic_config_of(image, image.topic(topic)).cleanup_policy == COMPACT:
        raise PolicyViolationError(
            f"records of {what} cannot be deleted: cleanup.policy is compact, so the last record of each key "
            "is kept; append a tombstone for each key, or set cleanup.policy = compact,delete first"
        )
    replicas = storage.replicas(image.view(image.topic(topic).topic_id, partition))
    present = replicas.view.log_start_offset
    high_watermark = max(look_at_leader(replicas).high_watermark, present)
    wanted = high_watermark if before == HIGH_WATERMARK else before
    if not 0 <= wanted <= high_watermark:
        raise OffsetOutOfRangeError(
            f"records of {what} below offset {before} cannot be deleted: the high watermark is {high_watermark} "
            f"(to delete all records below it, use {HIGH_WATERMARK})"
        )
    return _Start(present, LogStart(replicas.view.topic_id, partition, wanted, replicas.epoch))


def _commit(
    metadata: MetadataClient, image: ClusterImage, found: Mapping[TopicPartition, _Start], dry_run: bool
) -> dict[TopicPartition, StratalogError]:
    """Step 2; returns the refused partitions, with the errors. A dry run decides on ``image``."""
    grown = {one: start.wanted for one, start in found.items() if start.wanted.log_start_offset > start.present}
    if not grown:
        return {}
    answers = metadata.submit(AdvanceLogStart(tuple(grown.values())), dry_run=dry_run, dry_image=image)
    return {
        one: answer.error
        for one, answer in zip(grown, answers, strict=True)
        if isinstance(answer, RefusedPartition)
    }


def _describe(metadata: MetadataClient, storage: Storage, topics: Iterable[str]) -> list[Failure]:
    """Step 3."""
    image = metadata.image()
    there = [image.topics[image.topic_ids[topic]] for topic in topics if topic in image.topic_ids]
    if any(topic_config_of(image, topic).remote_storage_enable for topic in there):
        return describe_first(metadata, storage, image)
    return []


def _row(one: TopicPartition, start: _Start | None) -> DeleteRecordsRow:
    """The row of a partition. If ``start`` is None, the partition has failed, and its log start is unknown."""
    low_watermark = None if start is None else max(start.present, start.wanted.log_start_offset)
    deleted = 0 if start is None or low_watermark is None else low_watermark - start.present
    return DeleteRecordsRow(topic=one[0], partition=one[1], low_watermark=low_watermark, deleted_records=deleted)
