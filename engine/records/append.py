"""Append: a DataFrame to acknowledged offsets (protocol section 2, Append).

0. Probe the roots, and fence lost brokers, so that nothing waits for them.
1. Run one Spark job: per partition, write one file on the leader, and sync it to the maximal ISR (steps 1 to 5).
2. Make one linearizable read for all partitions (step 6).
3. Advance the high watermark of unchanged partitions, which acknowledges them (step 7).
4. Sync changed partitions again under the new view, or append again with the same sequence.

The outcomes of a partition:

    acknowledged   at ``[base_offset, next_offset)``
    duplicate      this producer appended this sequence before the call, at ``[base_offset, next_offset)`` if these
                   offsets are still known. Never for an append without a named producer
    not appended   the report names the failure; no record of this call is in the log, now or later. Earlier calls
                   with the same producer and sequence may have succeeded
    not tried      another partition that has the sequence refused the append; a note names it
    unknown        records of this call or an earlier call may be in the log, or get there later: repeat the append
                   with the same producer and sequence

An append fails unless every partition is acknowledged or duplicate.

A sequence of a named producer identifies one set of records. A retry with other records is refused
(OUT_OF_ORDER_SEQUENCE_NUMBER) and stores nothing: partitions that have the sequence come first (``earlier``), and
compare the records. A sequence whose records are too old to be known is also refused (DUPLICATE_SEQUENCE_NUMBER,
*unknown*; ``stratalog.engine.replication.append``). If some partitions have the sequence and others do not, the
append completes an interrupted attempt. ``on_changed_replay="accept"`` accepts any records under the sequence, for
records that cannot be recomputed exactly, such as random values. Each partition then has the records of one of the
attempts, which is not exactly once.

A record that the topic's log cannot store refuses the append, or is left out (``bad_record_lane``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

import pyarrow as pa
from msgspec.structs import replace

from stratalog.engine.brokers.probe import probe_brokers, read_and_probe
from stratalog.engine.config.mirrored import ENDED, check_not_mirrored
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.execution import measured
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.acknowledge import PendingAppend
from stratalog.engine.records.answers import answer
from stratalog.engine.records.bad_record_lane import (
    Lane,
    LeaveOut,
    producer_of_bad_records,
    topic_of_bad_records,
    with_bad_records,
)
from stratalog.engine.records.bad_records import BadRecordRule, with_places
from stratalog.engine.records.earlier import EarlierTries, earlier_tries
from stratalog.engine.records.rounds import PartitionTask, RunTasks, TaskResult, append_all, state_after
from stratalog.engine.records.tables import plain_batch
from stratalog.engine.records.through_rules import acknowledge_through_rules
from stratalog.engine.records.unknown_fields import settled, unknown_in_batches, without_unknown
from stratalog.engine.replicas.taking_writes import FailedCreates, unwritable_leaders
from stratalog.engine.replication.append import Appended, NotAppended
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.state.internal_topics import check_not_internal
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import ChangedReplayError, InvalidCallError, PolicyViolationError, StratalogError
from stratalog.partitions.growth import grew
from stratalog.partitions.producers import Acks, OnChangedReplay, ProducerAppend
from stratalog.partitions.records import check_columns, schema_of, typed_nulls
from stratalog.partitions.runner import values
from stratalog.partitions.unknown_fields import OnUnknownField, arrow_to_json

_NONE = EarlierTries()

MAX_PRODUCER_LENGTH = 1000
"""The maximum length of a caller's producer name, in characters."""


def append_batches(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    batches: Mapping[int, Sequence[pa.RecordBatch]],
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    bad_records: LeaveOut | None = None,
    on_unknown_field: OnUnknownField = "fail",
    probed: ClusterImage | None = None,
) -> Report:
    """Append batches of the record columns, by partition, in threads of this process; otherwise like
    ``append_frame``. Partitions without records are not changed.

    Structs may lack trailing nullable fields of the declared type, which become null. Columns of nulls or empty
    lists need no type. Batches may also have ``topic``, ``partition`` and ``offset``, which give the origin of
    their records for the headers of bad records.

    Raises: see ``append_frame``.
    """
    check_not_internal(topic, "append to")
    lane = None if bad_records is None else Lane(bad_records)
    batches = {
        partition: [plain_batch(batch, f"append to {topic}-{partition}") for batch in given]
        for partition, given in batches.items()
    }
    image, as_registered = (probed, True) if probed is not None else read_and_probe(metadata, storage)
    of_topic = image.topic(topic)
    check_call(image, of_topic, acks, bad_records)
    fields = settled(
        *(metadata, of_topic, partial(unknown_in_batches, batches), on_unknown_field, arrow_to_json),
        f"append to {topic}",
    )
    if fields.dropped:
        batches = without_unknown(batches, fields.topic)
    if lane is not None:
        batches = {partition: [with_places(batch) for batch in given] for partition, given in batches.items()}
    report = append_given(
        *(metadata, storage, clock, memory, topic, batches, who),
        acks=acks,
        image=image if fields.image is None else fields.image,
        probed=as_registered,
        lane=lane,
    )
    return fields.add_notes(report)


def who_appends(
    producer: str | None,
    sequence: int | None,
    producer_epoch: int | None = None,
    *,
    on_changed_replay: OnChangedReplay = "refuse",
) -> ProducerAppend | None:
    """The producer that a caller names; None without a name.

    Raises: InvalidCallError for an empty name; for a sequence or epoch without a producer, because a retry would
        append again; for a producer without a sequence, whose second append would look like a retry.
    """
    if on_changed_replay not in ("refuse", "accept"):
        raise InvalidCallError(f"on_changed_replay is {on_changed_replay!r}: use 'refuse' or 'accept'")
    if producer is not None:
        check_producer(producer)
        if sequence is None:
            raise InvalidCallError(
                f"producer {producer!r} needs a sequence, which identifies its appends: give "
                "each append the next number from 0, and a repeated append the same number as before"
            )
        return ProducerAppend(producer, producer_epoch or 0, sequence, on_changed_replay=on_changed_replay)
    if sequence is not None or producer_epoch is not None or on_changed_replay == "accept":
        raise InvalidCallError(
            "a sequence, a producer epoch and on_changed_replay need a producer: name the producer as well"
        )
    return None


def check_producer(producer: str) -> str:
    """The producer's name. Raises: InvalidCallError for a name that is empty, or that is too long, because every
    file of a log repeats it.
    """
    if not producer:
        raise InvalidCallError("the name of the producer is empty: give a name, or omit it")
    if isinstance(producer, str) and len(producer) > MAX_PRODUCER_LENGTH:
        raise InvalidCallError(
            f"producer {producer[:20]!r}... has {len(producer):,} characters: a name has at most "
            f"{MAX_PRODUCER_LENGTH:,}"
        )
    return producer


def append_given(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    batches: Mapping[int, Sequence[pa.RecordBatch]],
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    image: ClusterImage | None = None,
    probed: bool = False,
    partition_count: int | None = None,
    earlier: EarlierTries | None = None,
    lane: Lane | None = None,
) -> Report:
    """Like ``append_batches``, for the engine's own appends, which may go to internal topics. ``who``, ``probed``
    and ``partition_count``: see ``append_with``. ``image`` is the metadata as just read. ``earlier``: the earlier
    tries that the caller found. ``lane`` receives bad records.

    Raises: see ``append_frame``.
    """
    image = metadata.image() if image is None else image
    image_of_topic = image.topic(topic)
    options = append_options(image_of_topic, topic_config_of(image, image_of_topic), acks, who)
    schema = options.schema
    rule = BadRecordRule(topic, schema, options.keys_required)
    batches = {partition: [typed_nulls(batch, schema) for batch in given] for partition, given in batches.items()}
    for partition, given in batches.items():
        image.partition(image_of_topic.topic_id, partition)
        for batch in given:
            check_columns(batch.schema, schema, f"append to {topic}-{partition}", fits=grew)
            if lane is None:
                rule.refuse(batch, f"append to {topic}-{partition}")
    if earlier is None:
        earlier = earlier_tries(metadata, storage, memory, image, image_of_topic, who)
    tasks = in_threads(storage, batches)
    return append_with(
        *(metadata, storage, clock, memory),
        image,
        image_of_topic,
        tasks,
        who,
        acks=acks,
        partition_count=partition_count,
        earlier=earlier,
        probed=probed,
        lane=lane,
    )


def append_mirrored(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    partition: int,
    rows: Sequence[pa.RecordBatch],
    who: ProducerAppend,
) -> Report:
    """Append rows of a mirror's source (with ``records.GAP`` for offsets without a record) at ``who.base_offset``,
    with acks=all. ``image`` is the metadata, read after the log end where the rows begin. The roots were probed
    recently.

    Raises: PolicyViolationError; see ``append_with``.
    """
    tasks = in_threads(storage, {partition: rows})
    return _append_as(metadata, storage, clock, memory, image, topic, tasks, who, "all", _NONE, probed=True)


def in_threads(storage: Storage, batches: Mapping[int, Sequence[pa.RecordBatch]]) -> RunTasks:
    """Runs the tasks of partitions with records in threads of this process."""
    filled = [partition for partition, given in batches.items() if any(batch.num_rows for batch in given)]

    def run(task: PartitionTask, partitions: Sequence[int]) -> list[TaskResult]:
        def one(partition: int) -> TaskResult:
            return task(partition, iter(batches[partition]))

        return values(storage.threads.run(one, [p for p in filled if p in partitions]))

    return RunTasks(run, filled)


def append_with(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    tasks: RunTasks,
    who: ProducerAppend | None,
    *,
    acks: str = "all",
    partition_count: int | None = None,
    earlier: EarlierTries = _NONE,
    probed: bool = False,
    lane: Lane | None = None,
) -> Report:
    """Append the records of ``tasks`` to ``topic``, and acknowledge them. Bad records go to ``lane``, and
    afterwards to the lane's topic, if there is one.

    ``image`` is the metadata as just read; ``probed``: the roots were probed recently, so step 0 is skipped.
    ``tasks`` run again for some partitions after a change of leader or a lost race. Without ``who`` this driver is
    the producer, and reports its id only if the outcome is unknown. ``earlier`` and ``partition_count``
    (``ProducerEntry``) describe the tries before this one.

    Raises: InvalidCallError, UnknownTopicOrPartitionError; errors from ``tasks``, or from reading the
        metadata. Any other error is a failure of its partition in the report.
    """
    check_acks(acks)
    if lane is not None:
        topic_of_bad_records(image, lane.policy)
    if who is not None:
        memory.begun_sequences.begin(topic.topic_id, who)
    producer = memory.unnamed_producers.take(storage.new_id) if who is None else who
    by = replace(producer, partition_count=partition_count)
    report = _append_as(
        *(metadata, storage, clock, memory, image, topic, tasks, by, acks, earlier),
        probed=probed,
        named=who is not None,
        lane=lane,
    )
    if lane is not None:
        report = append_bad_records(metadata, storage, clock, memory, topic, report, by, acks, lane)
    known = all(row["outcome"] != "unknown" for row in report.rows) and (lane is None or report.ok)
    if who is None and known:
        memory.unnamed_producers.give_back(producer)
    return report


def append_bad_records(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: TopicImage,
    report: Report,
    who: ProducerAppend,
    acks: str,
    lane: Lane,
) -> Report:
    """Append the bad records of an append to their own topic, if there is one and all good records are
    acknowledged. Returns the report of the append to ``topic``, with its bad records. Every error is a failure in
    this report, because the good records are in the log.
    """
    appended = None
    if report.ok and lane.policy.topic is not None and lane.bad:
        try:
            appended = _append_kept(metadata, storage, clock, memory, topic, who, acks, lane)
        except StratalogError as error:
            appended = Report("append", (), [Failure.of(lane.policy.topic, error)])
    return with_bad_records(report, topic.name, lane, appended, who)


def _append_kept(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: TopicImage,
    who: ProducerAppend,
    acks: str,
    lane: Lane,
) -> Report:
    image = metadata.image()
    theirs = topic_of_bad_records(image, lane.policy)
    assert theirs is not None
    who = producer_of_bad_records(who, topic.topic_id)
    earlier = earlier_tries(metadata, storage, memory, image, theirs, who)
    count = earlier.partition_count or len(theirs.partitions)
    tasks = in_threads(storage, lane.batches(count))
    memory.begun_sequences.begin(theirs.topic_id, who)
    who = replace(who, partition_count=count)
    return _append_as(metadata, storage, clock, memory, image, theirs, tasks, who, acks, earlier, probed=True)


def _append_as(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    tasks: RunTasks,
    who: ProducerAppend,
    acks: str,
    earlier: EarlierTries,
    *,
    probed: bool,
    named: bool = True,
    lane: Lane | None = None,
) -> Report:
    with measured(clock, storage.counts) as measure:
        notes: list[str] = []
        if not probed:
            found = probe_brokers(metadata, storage, image)
            image, notes = found.image, [*found.notes]
        options = append_options(topic, topic_config_of(image, topic), acks, who)

        def append_to(by: ProducerAppend, partitions: Sequence[int]) -> dict[int, PendingAppend]:
            ports = metadata, storage, clock, memory
            return append_all(*ports, image, topic, tasks, by, options, partitions, notes, lane)

        given = [one.partition for one in topic.partitions] if tasks.partitions is None else tasks.partitions
        states = _append_by_turns(append_to, image, topic, given, who, earlier, notes)
    return answer(topic.name, who, states, measure, notes, named=named)


def _append_by_turns(
    append_to: Callable[[ProducerAppend, Sequence[int]], dict[int, PendingAppend]],
    image: ClusterImage,
    topic: TopicImage,
    given: Sequence[int],
    who: ProducerAppend,
    earlier: EarlierTries,
    notes: list[str],
) -> dict[int, PendingAppend]:
    """Append to the partitions ``given`` in two turns: first only compare the partitions that have the sequence of
    an earlier try. If all of these have the same records, append to the other partitions.
    """
    late = replace(who, late=earlier.late)
    if not earlier.partitions:
        return append_to(late, given)
    states = append_to(who, sorted(earlier.partitions))
    if who.on_changed_replay == "refuse":
        for partition in earlier.partitions - states.keys():
            error = ChangedReplayError(
                f"{topic.name}-{partition}: sequence {who.sequence} of producer {who.producer_id!r} "
                "was appended before with records for this partition, but now has none; nothing was stored"
            )
            states[partition] = PendingAppend(image.view(topic.topic_id, partition), error=error)
    others = [partition for partition in given if partition not in earlier.partitions]
    if not others:
        return states
    failed = sorted(partition for partition, state in states.items() if state.error is not None)
    if not failed:
        return states | append_to(late, others)
    named = ", ".join(str(partition) for partition in others)
    notes.append(f"not tried: partitions {named} of {topic.name}, because partition {failed[0]} was refused")
    return states | {partition: PendingAppend(image.view(topic.topic_id, partition)) for partition in others}


def end_appends(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    who: ProducerAppend,
    outcomes: Mapping[int, tuple[PartitionView, Appended | NotAppended]],
) -> Report:
    """End appends that tasks made elsewhere, each under its view: acknowledge them (steps 6 and 7), or report them
    as failed. An append whose leader has changed has failed, and the caller appends the records again.

    Raises: UnknownTopicOrPartitionError; errors from reading the metadata.
    """
    with measured(clock, storage.counts) as measure:
        notes: list[str] = []
        image = metadata.image()
        config = topic_config_of(image, image.topic(topic))
        states: dict[int, PendingAppend] = {}
        for partition, (view, outcome) in outcomes.items():
            states[partition] = state_after(outcome, view)
            silent = memory.remote_ends.is_silent(view.topic_id, clock.now_ms())
            if isinstance(outcome, Appended) and not silent:
                memory.remote_ends.remember(view)  # the plan of the appends has checked the remote ends
        acknowledge_through_rules(metadata, storage, clock, states, who, config.min_insync_replicas, notes)
        unwritable = unwritable_leaders((state.view, state.error) for state in states.values())
        notes += FailedCreates(metadata, storage).resign(unwritable)[0].values()
    return answer(topic, who, states, measure, notes, named=True)


def check_acks(acks: str) -> None:
    """Raises: InvalidCallError unless ``acks`` is ``all`` or ``leader``."""
    if acks not in get_args(Acks):
        hint = {"-1": "; Kafka's -1 is 'all'", "1": "; Kafka's 1 is 'leader'", "0": "; the weakest is 'leader'"}
        raise InvalidCallError(f"acks is {acks!r}: use 'all' or 'leader'{hint.get(str(acks), '')}")


def check_call(image: ClusterImage, topic: TopicImage, acks: str, bad_records: LeaveOut | None) -> None:
    """Check the parts of a call that do not depend on its records, before the topic's type gets new fields.

    Raises: InvalidCallError for ``acks``; PolicyViolationError for a mirror; see ``topic_of_bad_records``.
    """
    check_acks(acks)
    check_not_mirrored(topic.name, topic_config_of(image, topic), "append to")
    if bad_records is not None:
        topic_of_bad_records(image, bad_records)


def append_options(
    topic: TopicImage, config: TopicConfig, acks: str, who: ProducerAppend | None = None
) -> AppendOptions:
    """The options of an append to a topic with its current configs.

    Raises: PolicyViolationError if the topic is a mirror and ``who`` is not its mirror, or vice versa.
    """
    if who is None or who.base_offset is None:
        check_not_mirrored(topic.name, config, "append to")
    elif not config.mirror_source:
        raise PolicyViolationError(f"topic {topic.name!r} mirrors no other topic, or no longer does: {ENDED}")
    return AppendOptions(
        schema=schema_of(topic.key_schema, topic.value_schema),
        acks_all=acks == "all",
        min_insync_replicas=config.min_insync_replicas,
        compression=config.compression_type,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
        producer_expiration_ms=config.producer_id_expiration_ms,
        keys_required=config.keys_required,
    )
