"""The operation ``mirror``: copies the records since the last run to the same offsets.

1. read the source's topics (their names here may differ: ``renamed``), its groups' offsets, and then its log ends
2. create missing topics and added partitions; a topic with another id is not changed
3. read the log ends here, which are the positions in the source
4. read the source from there, and append piece by piece, each at its offset or not at all: many new records by
   tasks (``side_by_side``, ``bulk``), the rest by threads of this process (``catch_up``)
5. set log starts to the source's log starts, except in an archive
6. commit the groups' offsets

A run ends at the log ends of step 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.bridges.mirror.catch_up import catch_up, check_acknowledged, partitions_here
from stratalog.bridges.mirror.group_offsets import GroupOffsets, commit_here
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.partitions import MirroredPartition
from stratalog.bridges.mirror.renamed import names_here, renamed, under_names_here
from stratalog.bridges.mirror.source import MirrorSource, SourceBounds, without_leader
from stratalog.bridges.mirror.topics import ensure_here
from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.retention.delete_records import delete_records
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.identity import TopicPartition


def mirror(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    source: MirrorSource,
    names: Sequence[str],
    options: MirrorOptions,
) -> Report:
    """Mirror these topics once. The report has one row per partition. A topic or partition that cannot be mirrored
    is a failure, and the others continue. ``lag`` is the number of offsets left at the end of the run; None if the
    source does not say where a partition ends.

    Raises: InvalidCallError for no topics, see also ``renamed.names_here``; errors from the source and the
    metadata.
    """
    if not names:
        raise InvalidCallError("name the topics to mirror")
    with execution.run("mirror", dry_run=options.dry_run) as run:
        began_s = execution.clock.monotonic_s()
        of_source = source.topics(names)
        found = names_here(metadata.image(), of_source, options.rename)
        there = {here: renamed(of_source[name], here) for name, here in found.items()}
        source = under_names_here(source, found)
        groups = _group_offsets(run, source, list(there)) if options.groups else {}
        keys = [(topic.name, p) for topic in there.values() for p in range(topic.partitions)]
        bounds = source.bounds(keys)
        for key in keys:
            if key not in bounds:
                run.fail(f"{key[0]}-{key[1]}", without_leader(key))
        probe_first(metadata, storage, run)
        kept = [
            name
            for name, topic in there.items()
            if ensure_here(metadata, storage, execution, run, topic, bounds, options)
        ]
        parts = [] if options.dry_run else partitions_here(metadata, storage, execution, memory, run, kept, bounds)
        catch_up(metadata, storage, execution, memory, source, run, parts, options, began_s)
        check_acknowledged(metadata, storage, execution, memory, parts)
        starts = _follow_starts(metadata, storage, execution, run, parts)
        ends = _ends(run, source, parts)
        log_ends = {part.key: part.log_end for part in parts if part.acknowledged}
        committed = commit_here(metadata, storage, execution, memory, run, groups, log_ends)
        run.rows += [_row(part, ends.get(part.key), starts, options) for part in parts]
        spent_s = execution.clock.monotonic_s() - began_s
    run.notes += source.notes()
    for part in parts:
        run.notes += dict.fromkeys(part.notes)
        if part.error is not None:
            run.fail(part, part.error)
    records = sum(part.mirrored for part in parts)
    lags = [row["lag"] for row in run.rows]
    lag = None if None in lags else sum(int(one or 0) for one in lags)
    run.totals |= {"records": records, "bytes": sum(part.mirrored_bytes for part in parts), "lag": lag}
    if records and spent_s > 0:
        left_s = None if lag is None else round(lag * spent_s / records, 1)
        run.totals |= {"records_per_s": round(records / spent_s, 1), "left_s": left_s}
    if options.tier:
        run.totals["from_tier"] = sum(part.from_tier for part in parts)
    if options.values is not None:
        run.totals["undecoded"] = sum(part.undecoded for part in parts)
    if options.groups:
        run.totals["group_offsets"] = committed
    return run.report()


def end_mirror(
    metadata: MetadataClient,
    execution: Execution,
    names: Sequence[str],
    *,
    dry_run: bool = False,
) -> Report:
    """End the mirroring of topics, which become ordinary topics. If a topic has a different name in the source,
    its config keeps that name, so no later run makes a second copy by accident. A running mirror may still append
    its last piece, unless another producer has appended. A topic whose mirror cannot be ended is a failure.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a topic that is not a mirror, without any change.
    """
    image = metadata.image()
    ended = {name: image.topic(name).configs.get(MIRROR_SOURCE, "") for name in names}
    for name, mirrored in ended.items():
        if not mirrored:
            raise InvalidCallError(
                f"topic {name!r} is not a mirror: it has no {MIRROR_SOURCE}; nothing was changed"
            )
    with execution.run("mirror end", dry_run=dry_run) as run:
        for name, mirrored in ended.items():
            changes = {MIRROR_SOURCE: None, "mirror.archive.enable": None}
            try:
                metadata.submit(AlterConfigs(name, changes), dry_run=dry_run)
            except StratalogError as error:  # the mirrors of the topics before it have ended
                run.fail(name, error)
                continue
            run.rows.append({"topic": name, "mirrored": mirrored})
    return run.report()


def _group_offsets(run: OperationRun, source: MirrorSource, names: Sequence[str]) -> GroupOffsets:
    """The offsets of groups in the source. Groups that cannot be read are failures, and records are still
    copied.
    """
    try:
        there = source.group_offsets(names)
    except StratalogError as error:
        run.fail("consumer groups", error)
        return {}
    for item, failed in there.failures:
        run.fail(item, failed)
    return there.offsets


def _follow_starts(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    run: OperationRun,
    parts: Sequence[MirroredPartition],
) -> dict[TopicPartition, int]:
    """Advance log starts to the source's log starts. Returns the new log starts."""
    image = metadata.image()
    starts: dict[TopicPartition, int] = {}
    wanted: dict[TopicPartition, int | str] = {}
    for part in parts:
        topic = image.topic(part.key[0])
        present = starts[part.key] = image.view(topic.topic_id, part.key[1]).log_start_offset
        config = topic_config_of(image, topic)
        start = min(part.bounds.log_start, part.log_end)
        if not config.mirror_archive_enable and not config.snapshots and start > present and part.error is None:
            wanted[part.key] = start
    if wanted:
        moved = delete_records(metadata, storage, execution, wanted)
        run.failures += moved.failures
        starts |= {
            (str(row["topic"]), int(row["partition"] or 0)): int(row["low_watermark"] or 0)
            for row in moved.rows
            if row["low_watermark"] is not None
        }
    return starts


def _ends(
    run: OperationRun, source: MirrorSource, parts: Sequence[MirroredPartition]
) -> Mapping[TopicPartition, SourceBounds]:
    """The source's current bounds of the partitions that answer. The records are copied, so an error of the source
    is only a failure.
    """
    try:
        return source.bounds([part.key for part in parts]) if parts else {}
    except StratalogError as error:
        run.fail("source", error)
        return {}


def _row(
    part: MirroredPartition, end: SourceBounds | None, starts: Mapping[TopicPartition, int], options: MirrorOptions
) -> dict[str, Value]:
    return {
        "topic": part.key[0],
        "partition": part.key[1],
        "log_start": starts[part.key],
        "log_end": part.log_end,
        "source_end": None if end is None else end.stable_end,
        "lag": None if end is None else max(0, end.stable_end - part.log_end),
        "records": part.mirrored,
        **({"from_tier": part.from_tier} if options.tier else {}),
        **({"undecoded": part.undecoded} if options.values is not None else {}),
        "gaps": part.gaps,
        "bytes": part.mirrored_bytes,
        "leader_epoch": part.leader_epoch,
    }
