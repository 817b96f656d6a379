"""The bad records of one append: the caller's policy, the records found, and the report about them.

The driver appends kept bad records to their topic when every good record is acknowledged. So after a failed
append, the topic of bad records has no record of this append. The second append has the same sequence as the
first. Its producer is named after the first append's producer and topic, so appends to several topics can share a
topic of bad records. If an append is repeated, the topic has each bad record once, even if the first attempt
stopped between the two appends. In a transaction, both appends belong to the transaction. (A transaction for every
append would cost four more appends, and delay readers of committed records.)

A task sends its bad records to the driver, because bad records are few. If too many of a producer's records are
bad, the append is refused (``bad_records.MOST_KEPT_BYTES``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa
from msgspec.structs import replace as with_changes

from stratalog.engine.config.mirrored import check_not_mirrored
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.records.answers import append_row, repetition
from stratalog.engine.records.bad_records import NO_PARTITION, UNKNOWN_PARTITION, BadRecordRule, FoundBad
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.producers import ProducerAppend, is_unnamed

OnBadRecord = Literal["fail", "skip", "topic"]
"""The policy for a record that its topic cannot store: refuse the append, leave the record out, or append it to
another topic."""


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Leave bad records out of the log."""

    topic: str | None = None
    """The topic for bad records. None: bad records are only counted."""


def bad_record_policy(on_bad_record: str, bad_record_topic: str | None, topic: str) -> LeaveOut | None:
    """The caller's policy for an append to ``topic``; None: a bad record refuses the append.

    Raises: InvalidCallError.
    """
    if on_bad_record not in ("fail", "skip", "topic"):
        raise InvalidCallError(f"on_bad_record is {on_bad_record!r}: use 'fail', 'skip' or 'topic'")
    if (on_bad_record == "topic") != (bad_record_topic is not None):
        raise InvalidCallError(
            'on_bad_record="topic" and bad_record_topic, the name of that topic, belong '
            "together: give both or neither"
        )
    if on_bad_record == "fail":
        return None
    if bad_record_topic is not None:
        check_not_internal(bad_record_topic, "append bad records to")
        if bad_record_topic == topic:
            raise InvalidCallError(
                f"bad_record_topic is {topic!r}, the topic that cannot hold the records: name another topic"
            )
    return LeaveOut(bad_record_topic)


@dataclass(slots=True)
class Lane:
    """The bad records of one append."""

    policy: LeaveOut
    found: dict[int, FoundBad] = field(default_factory=dict)
    """Bad records by their partition."""

    def rule(self, topic: str, options: AppendOptions, who: ProducerAppend) -> BadRecordRule:
        """The rule for the tasks of the append."""
        kept = self.policy.topic is not None
        headers = []
        if kept and (who.on_changed_replay is not None or who.transactional):
            headers.append(("producer", who.producer_id))
        if kept and who.on_changed_replay is not None:
            headers.append(("sequence", str(who.sequence)))
        return BadRecordRule(topic, options.schema, options.keys_required, kept=kept, more_headers=tuple(headers))

    def add(self, partition: int, found: FoundBad | None) -> None:
        """Add the bad records of a task. The bad records of a repeated task replace the earlier ones."""
        if found is not None:
            self.found[partition] = found

    @property
    def bad(self) -> int:
        """The number of bad records."""
        return sum(sum(found.counts.values()) for found in self.found.values())

    def batches(self, partitions: int) -> dict[int, list[pa.RecordBatch]]:
        """The kept records, by partition of their topic. Records from one partition stay together."""
        dealt: dict[int, list[pa.RecordBatch]] = {}
        for partition, found in sorted(self.found.items()):
            if found.rows:
                dealt.setdefault(partition % partitions, []).extend(found.rows)
        return dealt

    def rows_of(self, topic: str) -> list[dict[str, Value]]:
        """The rows of the report: one row per partition and reason. Records without a valid partition have no
        row."""
        counts: Counter[tuple[int | None, str]] = Counter()
        for partition, found in self.found.items():
            for reason, count in found.counts.items():
                counts[None if reason in (NO_PARTITION, UNKNOWN_PARTITION) else partition, reason] += count
        return [
            append_row(topic, partition, count, "bad", reason=reason)
            for (partition, reason), count in sorted(counts.items(), key=lambda one: (one[0][0] is None, one[0]))
        ]


def topic_of_bad_records(image: ClusterImage, policy: LeaveOut) -> TopicImage | None:
    """The topic for bad records; None without such a topic.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a topic with declared types, or for a topic that
    keeps the latest record of each key, because bad records may have no key.
    """
    if policy.topic is None:
        return None
    topic = image.topic(policy.topic)
    if topic.key_schema is not None or topic.value_schema is not None:
        raise InvalidCallError(
            f"bad_record_topic {topic.name!r} has declared types, but bad records are bytes: "
            "name a topic that was created without key and value types"
        )
    config = topic_config_of(image, topic)
    if config.keys_required:
        raise InvalidCallError(
            f"bad_record_topic {topic.name!r} has cleanup.policy = {config.cleanup_policy}, and would keep "
            "only one bad record of each key: name another topic"
        )
    check_not_mirrored(topic.name, config, "send bad records to")
    return topic


def producer_of_bad_records(who: ProducerAppend, topic_id: str) -> ProducerAppend:
    """The producer that appends the bad records of an append by ``who`` to a topic."""
    if who.transactional or is_unnamed(who.producer_id):  # no other producer uses this producer's sequences
        return who
    return with_changes(who, producer_id=f"{who.producer_id}#{topic_id}")


def with_bad_records(
    report: Report, topic: str, lane: Lane, appended: Report | None, who: ProducerAppend
) -> Report:
    """The report of an append by ``who`` with its bad records. ``appended`` is the report of the append of the bad
    records, if there was one.
    """
    totals: dict[str, Value] = {**report.totals, "bad_records": lane.bad}
    if appended is None:
        notes = []
        if report.failures and lane.policy.topic is not None and lane.bad:
            notes.append(
                f"bad records are appended to {lane.policy.topic} only after all good records are in {topic}: "
                "run the append again"
            )
        return replace(
            report, rows=[*report.rows, *lane.rows_of(topic)], totals=totals, notes=[*report.notes, *notes]
        )
    again = repetition(who)
    notes = [f"the bad records are not all in {lane.policy.topic}: {again}"]
    return replace(
        report,
        rows=[*report.rows, *lane.rows_of(topic), *appended.rows],
        failures=[*report.failures, *appended.failures],
        totals=totals,
        seconds=report.seconds + appended.seconds,
        counts=report.counts + appended.counts,
        notes=[*report.notes, *(notes if appended.failures else ())],
        remedy=f"fix the cause, and {again}: nothing is appended twice",
    )
