"""Mirror: what topics of another cluster have got since the last run, at the same offsets.

1. ask the source: its topics, what its groups have committed, and then where its logs end
2. make the topics that are not here, and the partitions that were added; one with another id is left alone
3. look at the log ends here, which are the places in the source
4. read the source from there on, and append piece by piece, each at its place or nowhere: where much is new, by
   tasks (``bulk``), the rest by threads of this process
5. log starts follow those of the source, but of an archive
6. groups go on here at what they had committed there

A run ends at the ends of step 1. Where another mirror is faster, the run looks at the log end again, and goes on
behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.admin.topics import alter_configs, create_partitions, create_topic
from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.formats.typed import TypedValues
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.mirror.bulk import mirror_in_bulk
from stratalog.engine.mirror.configs import configs_here
from stratalog.engine.mirror.group_offsets import GroupOffsets, commit_here
from stratalog.engine.mirror.partitions import MIRROR, MirroredPartition, Piece, deal, new_offsets
from stratalog.engine.mirror.progress import OffsetSteps
from stratalog.engine.mirror.rows import batches_of, undecoded_of
from stratalog.engine.mirror.source import InconsistentTopicIdError, MirrorSource, SourceBounds, SourceTopic
from stratalog.engine.mirror.typed_topics import let_grow
from stratalog.engine.reading.bounds import ReadQuery
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.records.append import append_mirrored
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.replica_selector import NOWHERE
from stratalog.engine.replication.throttle import Throttle
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.delete_records import delete_records
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidTopicError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RetriableError,
    StratalogError,
    TopicAlreadyExistsError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.runner import Done, Failed, values

_ROUNDS = 20
_READERS = 4
"""Threads of which each has a connection to the source: one encodes a piece, or waits for the disk, while another
reads. More gained nothing on two cores."""
_READER_OFFSETS = 50_000
"""That are new, for one of them more."""
_FASTER = frozenset({"OFFSET_OUT_OF_RANGE", "DUPLICATE_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH"})
"""The codes of an append whose place another mirror has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """How to mirror."""

    replication_factor: int | None = None
    """Of topics that are made; None: the cluster's default."""
    archive: bool = False
    """Of topics that are made: their records stay when the source's go."""
    groups: bool = True
    """Whether offsets of consumer groups come along."""
    values: TypedValues | None = None
    """How values are decoded; None: they are bytes."""
    throttle: float | None = None
    """Bytes of records a second, at most."""
    budget_s: float | None = None
    """After so long no further piece is begun; the next run goes on there."""
    bulk_offsets: int | None = None
    """As many as this are new: executors read and append. None: where that is faster (``mirror_in_bulk``)."""
    dry_run: bool = False


def mirror(context: Context, source: MirrorSource, names: Sequence[str], options: MirrorOptions) -> Report:
    """Mirror these topics, once. A row a partition; a topic or a partition that cannot be is a failure, and the
    others go on. ``lag`` is of offsets, when the run ended.

    Raises: InvalidCallError for no topics; errors of asking the source, and of reading the metadata.
    """
    if not names:
        raise InvalidCallError("name the topics to mirror: --topics a,b")
    with context.run("mirror", dry_run=options.dry_run) as run:
        began_s = context.clock.monotonic_s()
        there = source.topics(names)
        groups = _group_offsets(run, source, names) if options.groups else {}
        keys = [(topic.name, p) for topic in there.values() for p in range(topic.partitions)]
        bounds = source.bounds(keys)
        for key in keys:
            if key not in bounds:
                run.fail(f"{key[0]}-{key[1]}", _without_leader(key))
        run.notes += probe_brokers(context).notes
        kept = [name for name, topic in there.items() if _is_here(context, run, topic, bounds, options)]
        parts = [] if options.dry_run else _parts(context, run, kept, bounds)
        _read_and_append(context, source, run, parts, options, began_s)
        starts = _follow_starts(context, run, parts)
        ends = source.bounds([part.key for part in parts]) if parts else {}
        committed = commit_here(context, run, groups, {part.key: part.log_end for part in parts})
        run.rows += [
            _row(part, ends.get(part.key, part.bounds), starts, typed=options.values is not None) for part in parts
        ]
        spent_s = context.clock.monotonic_s() - began_s
    for part in parts:
        if part.error is not None:
            run.fail(part, part.error)
    records = sum(part.mirrored for part in parts)
    lag = sum(int(row["lag"] or 0) for row in run.rows)
    run.totals |= {"records": records, "bytes": sum(part.mirrored_bytes for part in parts), "lag": lag}
    if records and spent_s > 0:
        run.totals |= {"records_per_s": round(records / spent_s, 1), "left_s": round(lag * spent_s / records, 1)}
    if options.values is not None:
        run.totals["undecoded"] = sum(part.undecoded for part in parts)
    if options.groups:
        run.totals["group_offsets"] = committed
    return run.report()


def end_mirror(context: Context, names: Sequence[str], *, dry_run: bool = False) -> Report:
    """From here on the topics are like any others, and mirrors leave them alone. A mirror that is at work may
    still append its last piece, as long as nobody else has appended.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for one that is no mirror: nothing was changed.
    """
    image = context.metadata.image()
    ended = {name: image.topic(name).configs.get(MIRROR_SOURCE, "") for name in names}
    for name, mirrored in ended.items():
        if not mirrored:
            raise InvalidCallError(f"topic {name!r} is no mirror: it has no {MIRROR_SOURCE}; nothing was changed")
    with context.run("end mirror", dry_run=dry_run) as run:
        for name, mirrored in ended.items():
            alter_configs(context, name, {MIRROR_SOURCE: None, "mirror.archive.enable": None}, dry_run=dry_run)
            run.rows.append({"topic": name, "mirrored": mirrored})
    return run.report()


def _group_offsets(run: OperationRun, source: MirrorSource, names: Sequence[str]) -> GroupOffsets:
    """Offsets of groups there; a failure where they cannot be had now, and records come all the same."""
    try:
        return source.group_offsets(names)
    except RetriableError as error:
        run.fail("consumer groups", error)
        return {}


def _without_leader(key: TopicPartition) -> LeaderNotAvailableError:
    return LeaderNotAvailableError(
        f"{key[0]}-{key[1]} of the source has no leader, or it does not answer; a later run goes on here"
    )


# ------------------------------------------------------------------------------------------- topics


def _is_here(
    context: Context,
    run: OperationRun,
    topic: SourceTopic,
    bounds: Mapping[TopicPartition, SourceBounds],
    options: MirrorOptions,
) -> bool:
    """Whether the topic is here, or is made now, with all its partitions."""
    try:
        image = context.metadata.image()
        if topic.name not in image.topic_ids:
            _create(context, topic, bounds, options)
            run.notes.append(
                f"{topic.name}: {'would be ' if options.dry_run else ''}created, {topic.partitions} "
                f"partitions, of {topic.source}"
            )
            if options.dry_run:
                return False
            image = context.metadata.image()
        here = image.topic(topic.name)
        _check_source(here, topic)
        let_grow(context, here, options.values, dry_run=options.dry_run)
        if topic.partitions > len(here.partitions):
            create_partitions(context, topic.name, topic.partitions, dry_run=options.dry_run)
            run.notes.append(f"{topic.name}: the source has {topic.partitions} partitions now")
    except StratalogError as error:
        run.fail(topic.name, error)
        return False
    return True


def _create(
    context: Context, topic: SourceTopic, bounds: Mapping[TopicPartition, SourceBounds], options: MirrorOptions
) -> None:
    """Raises: LeaderNotAvailableError while it is not known where all of its logs start."""
    keys = [(topic.name, partition) for partition in range(topic.partitions)]
    for key in keys:
        if key not in bounds:
            raise _without_leader(key)
    try:
        create_topic(
            context,
            topic.name,
            partitions=topic.partitions,
            replication_factor=options.replication_factor,
            value_schema=None if options.values is None else options.values.schema,
            configs=configs_here(topic, archive=options.archive),
            log_starts=[bounds[key].log_start for key in keys],
            dry_run=options.dry_run,
        )
    except TopicAlreadyExistsError:
        return  # another mirror was faster: whether it is of the same source is looked at next


def _check_source(here: TopicImage, there: SourceTopic) -> None:
    """Raises: TopicAlreadyExistsError, InvalidTopicError, InconsistentTopicIdError."""
    mirrored = here.configs.get(MIRROR_SOURCE, "")
    if not mirrored:
        raise TopicAlreadyExistsError(
            f"topic {here.name!r} is here already, and mirrors no other one, or not any more"
        )
    if mirrored == there.source:
        return
    cluster_id, _, topic_id = mirrored.rpartition("/")
    if cluster_id != there.source.rpartition("/")[0]:
        raise InvalidTopicError(f"topic {here.name!r} mirrors {mirrored}, of another cluster than {there.source}")
    raise InconsistentTopicIdError(
        f"topic {here.name!r} mirrors the source's topic id {topic_id}; now it has "
        f"{there.source.rpartition('/')[2]}: it was deleted there, and made again. Keep what is here, and mirror "
        "no more: stratalog mirror --end; or delete the topic here, and mirror the new one"
    )


# ---------------------------------------------------------------------------------------- partitions


def _parts(
    context: Context, run: OperationRun, names: Iterable[str], bounds: Mapping[TopicPartition, SourceBounds]
) -> list[MirroredPartition]:
    """The partitions of these topics, as they are here."""

    def look(key: TopicPartition) -> MirroredPartition:
        return MirroredPartition(key, *_look_and_acknowledge(context, key), bounds[key])

    wanted = set(names)
    found: list[MirroredPartition] = []
    for outcome in context.threads.run(look, [key for key in bounds if key[0] in wanted]):
        match outcome:
            case Done(_, part):
                found.append(part)
                if part.lost:
                    run.notes.append(
                        f"{part}: offsets [{part.log_end}, {part.bounds.log_start}) had left the source before "
                        "they were mirrored: here they are gaps"
                    )
            case Failed((topic, partition), error):
                run.fail(f"{topic}-{partition}", error)
    for part in found:
        part.share(len(found))
    return sorted(found, key=lambda part: part.key)


def _look_and_acknowledge(context: Context, key: TopicPartition) -> tuple[int, int | None]:
    """Where the log ends, and the source's leader epoch of its last record; all of it is acknowledged, if it can
    be."""
    log_end, epoch, acknowledged = _look(context, key)
    if not acknowledged:  # a mirror died before the end of its last append
        replicate(context, [key[0]])
    return log_end, epoch


def _look(context: Context, key: TopicPartition) -> tuple[int, int | None, bool]:
    """Where the log ends, the source's leader epoch of its last record, and whether all of it is acknowledged."""

    def once() -> tuple[int, int | None, bool]:
        image = context.metadata.image()
        replicas = context.replicas(image.view(image.topic(key[0]).topic_id, key[1]))
        log = leader_log(replicas)
        last = replicas.leader.producers(log).get(MIRROR)
        return log.log_end, None if last is None else last.epoch, log.high_watermark == log.log_end

    return while_it_changes(once)


def _read_and_append(
    context: Context,
    source: MirrorSource,
    run: OperationRun,
    parts: Sequence[MirroredPartition],
    options: MirrorOptions,
    began_s: float,
) -> None:
    throttle = None if options.throttle is None else Throttle(options.throttle, context.clock)

    def left_s() -> float | None:
        if options.budget_s is None:
            return None
        return max(0.0, options.budget_s - (context.clock.monotonic_s() - began_s))

    steps = OffsetSteps(context.progress, parts)

    def one(share: Sequence[MirroredPartition]) -> None:
        left = {part.key: part for part in share}
        _round(context, source, left, options, throttle, steps, lambda: left_s() == 0)

    try:
        _in_bulk(context, source, run, parts, options, steps, left_s)
        for _ in range(_ROUNDS):
            left = [part for part in parts if not part.done]
            if not left or left_s() == 0:
                break
            shares = deal(left, min(_READERS, 1 + new_offsets(left) // _READER_OFFSETS))
            values(context.threads.run(one, shares))
        else:
            run.notes += [f"{part}: left to another mirror, which is faster" for part in parts if not part.done]
    finally:
        context.progress.finish()


def _in_bulk(
    context: Context,
    source: MirrorSource,
    run: OperationRun,
    parts: Sequence[MirroredPartition],
    options: MirrorOptions,
    steps: OffsetSteps,
    left_s: Callable[[], float | None],
) -> None:
    tasks, troubled = mirror_in_bulk(
        context,
        source,
        parts,
        steps,
        least_offsets=options.bulk_offsets,
        throttle=options.throttle,
        values=options.values,
        left_s=left_s,
    )
    if tasks:
        run.totals["tasks"] = tasks
    for part in troubled:
        try:
            part.begin_at(*_look_and_acknowledge(context, part.key))
        except StratalogError as error:
            part.error = error


def _round(
    context: Context,
    source: MirrorSource,
    left: dict[TopicPartition, MirroredPartition],
    options: MirrorOptions,
    throttle: Throttle | None,
    steps: OffsetSteps,
    over: Callable[[], bool],
) -> None:
    """Read on from where each partition is, until all are done; one that another mirror has got ahead of waits for
    the next round. Runs in a thread."""
    reads = source.read({key: part.range() for key, part in left.items()})
    try:
        for read in reads:
            part = left.get(read.key)
            if part is None:
                continue
            if read.error is not None:
                _failed(context, source, part, read.error, options)
                del left[read.key]
            else:
                for piece in part.pieces(read):
                    if throttle is not None:
                        throttle.spend(piece.size_bytes)
                    if not _append(context, part, piece, options):
                        del left[read.key]
                        break
                    steps.passed(piece.end - piece.start, piece.size_bytes)
                if part.done:
                    left.pop(read.key, None)
            if not left or over():
                return
    finally:
        reads.close()


def _failed(
    context: Context, source: MirrorSource, part: MirroredPartition, error: StratalogError, options: MirrorOptions
) -> None:
    """The source cannot read on: records that wait are appended. Where its log starts later now, the next round
    goes on there. Where it lacks the history of what is here, the next round asks for it up to the last record.
    """
    if not all(_append(context, part, piece, options) for piece in part.rest()):
        return
    now = source.bounds([part.key]).get(part.key)
    if now is None:
        part.error = _without_leader(part.key)
    elif not isinstance(error, OffsetOutOfRangeError):
        part.error = error
    elif now.log_start > part.position:
        part.bounds = SourceBounds(now.log_start, max(part.bounds.stable_end, now.log_start), now.log_end)
        part.begin_at(part.log_end, part.leader_epoch)
    elif part.log_end > now.log_end or part.doubted:
        part.error = part.truncated(now)
    else:
        try:
            part.doubt(_last_record(context, part.key))
        except StratalogError as found:
            part.error = found


def _last_record(context: Context, key: TopicPartition) -> int | None:
    """The offset of the last record here that is no gap; None where all are gaps.

    Raises: errors of reading.
    """
    query = ReadQuery(topics=(key[0],), partitions=(key[1],), last=1)
    (plan,) = plan_read(context, query, NOWHERE).partitions
    records = fetch(context, *key, plan.start).records
    return max(records.column("offset").to_pylist(), default=None)


def _append(context: Context, part: MirroredPartition, piece: Piece, options: MirrorOptions) -> bool:
    """Whether the piece is here now, and this mirror goes on behind it."""
    topic, partition = part.key
    try:
        image = context.metadata.image()  # after the log end was looked at: the topic is a mirror still
        rows = list(batches_of(piece.batches, piece.start, piece.end, options.values))
        report = append_mirrored(context, image, image.topic(topic), partition, rows, piece.producer)
        row = report.rows[0]
        if report.ok and row["next_offset"] == piece.end:
            part.appended(piece, undecoded_of(rows))
            return True
        if report.ok or report.failures[0].code in _FASTER:
            log_end, epoch, _ = _look(context, part.key)
            part.begin_at(log_end, epoch)
        else:
            failure = report.failures[0]
            part.error = RetriableError(f"{topic}-{partition}: {failure.code}: {failure.message}")
    except StratalogError as error:
        part.error = error
    return False


def _follow_starts(
    context: Context, run: OperationRun, parts: Sequence[MirroredPartition]
) -> dict[TopicPartition, int]:
    """Log starts move on with those of the source; where they are then."""
    image = context.metadata.image()
    starts: dict[TopicPartition, int] = {}
    wanted: dict[TopicPartition, int | str] = {}
    for part in parts:
        topic = image.topic(part.key[0])
        present = starts[part.key] = image.view(topic.topic_id, part.key[1]).log_start_offset
        config = context.topic_config(image, topic)
        start = min(part.bounds.log_start, part.log_end)
        if not config.mirror_archive_enable and not config.snapshots and start > present and part.error is None:
            wanted[part.key] = start
    if wanted:
        moved = delete_records(context, wanted)
        run.failures += moved.failures
        starts |= {
            (str(row["topic"]), int(row["partition"] or 0)): int(row["low_watermark"] or 0) for row in moved.rows
        }
    return starts


def _row(
    part: MirroredPartition, end: SourceBounds, starts: Mapping[TopicPartition, int], *, typed: bool
) -> dict[str, Value]:
    return {
        "topic": part.key[0],
        "partition": part.key[1],
        "log_start": starts[part.key],
        "log_end": part.log_end,
        "source_end": end.stable_end,
        "lag": max(0, end.stable_end - part.log_end),
        "records": part.mirrored,
        **({"undecoded": part.undecoded} if typed else {}),
        "gaps": part.gaps,
        "bytes": part.mirrored_bytes,
        "leader_epoch": part.leader_epoch,
    }
