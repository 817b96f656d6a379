"""Recover: exports truncated records that replicas still have (``history`` lists them), for an operator to check.

    1. tasks: find files of other histories on the replicas of a partition, verify every byte of them, and export
       them
    2. driver: write the manifest

The footer of an exported file has a description of the file. The manifest lists these descriptions, and can be
rebuilt from the folder at any time.

The log is not changed. To restore the records, append them again as new records. Exported files are never changed,
so it is safe to run recover again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow.parquet as pq

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.look import chosen_views
from stratalog.engine.replicas.former import find_former
from stratalog.engine.upkeep.healing.history import DiscardedWork, discarded_files
from stratalog.partitions import paths
from stratalog.partitions.bounded import parse_json, read_bounded
from stratalog.partitions.clock import Clock
from stratalog.partitions.discarded import Truncated
from stratalog.partitions.errors import CorruptionError, InvalidCallError, SourceChangedError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.numbers import Epoch, Int64, Natural
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import Replica
from stratalog.partitions.segments.check import verify_segment
from stratalog.partitions.segments.parquet_decoding import read_end
from stratalog.partitions.segments.parquet_footer import SUFFIX_BYTES, key_values
from stratalog.partitions.segments.reader import Segment, read_row_groups
from stratalog.partitions.store import Store, open_store
from stratalog.partitions.store.address import parse_address

RECOVERED_KEY = b"stratalog.recovered"
MANIFEST = "manifest.json"
MOST_FOOTER_BYTES = 16 * 1024 * 1024
"""The maximum size of an exported file's Parquet footer. The size is limited because the folder may contain
arbitrary files of other writers.
"""


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The records of an exported file: ``[base_offset, next_offset)`` of one partition, unchanged."""

    path: str
    cluster_id: str
    topic: str
    topic_id: str
    partition: Int64
    epoch: Epoch
    base_offset: Natural
    next_offset: Natural
    broker_id: Int64
    file: str
    """The name of the source file on that broker."""
    why: str

    @property
    def records(self) -> int:
        """The number of records; offsets have no gaps."""
        return self.next_offset - self.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverWork(DiscardedWork):
    """The work for one partition: export the replicas' files of other histories."""

    cluster_id: str
    target: Store
    dry_run: bool

    def stores_used(self) -> Iterable[Store]:
        return [*DiscardedWork.stores_used(self), self.target]


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported file; ``bytes`` is None if the file already existed."""

    what: Recovered
    bytes: int | None


class ExportedRow(PartitionRow, frozen=True, kw_only=True):
    """An exported file, with offsets ``[start, end)``."""

    epoch: int
    start: int
    end: int
    records: int
    bytes: int | None
    broker: int
    why: str
    path: str
    outcome: str


@dataclass(frozen=True, slots=True)
class _FoundFiles:
    """A verified file of another history; the log lacks the file's records ``[start, end)``."""

    replica: Replica
    file: DataFile
    segment: Segment
    why: Truncated
    start: int

    @property
    def end(self) -> int:
        return self.segment.footer.next_offset

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.segment.footer.lineage)

    def covers(self, other: _FoundFiles) -> bool:
        """Whether this file is a merged segment that has all records of the ``other`` file."""
        merged = self.file.name.merged and self.file.name != other.file.name
        inside = self.start <= other.start and other.end <= self.end
        return merged and inside and other.lineage.parts_from(self.lineage, other.start, other.end) is None


def recover_partition(work: RecoverWork) -> tuple[list[Exported], list[tuple[int, StratalogError]]]:
    """The task. Returns the exported files, and the failures by broker. An unreadable replica or file does not
    prevent other exports. A damaged file is a failure only if no replica has a good copy.
    """
    found, failed = _find(work)
    exported: list[Exported] = []
    for one in found:
        if any(other.covers(one) for other in found):
            continue
        what = _described(work, one)
        try:
            written = None if work.dry_run else export(one.replica.store, one.file, work.target, what)
        except StratalogError as error:
            failed.append((one.replica.broker_id, error))
        else:
            exported.append(Exported(what, written))
    return exported, failed


def _find(work: RecoverWork) -> tuple[list[_FoundFiles], list[tuple[int, StratalogError]]]:
    """The good files of other histories, without duplicates, and the failures."""
    failed: list[tuple[int, StratalogError]] = []
    seen: dict[DataName, _FoundFiles | None] = {}
    damaged: dict[DataName, tuple[int, StratalogError]] = {}
    files = ((replica, under, one) for replica, under, found in discarded_files(work, failed) for one in found)
    for replica, under, each in files:
        name = each.file.name
        if name in seen or not isinstance(each.why, Truncated):
            continue
        try:
            seen[name] = _verified(replica, each.file, each.why, under)
        except SourceChangedError:
            continue  # the file was deleted after it was listed
        except StratalogError as error:
            damaged[name] = replica.broker_id, error
    failed += [lost for name, lost in damaged.items() if name not in seen]
    return [one for one in seen.values() if one is not None], failed


def _verified(replica: Replica, file: DataFile, why: Truncated, log: Lineage) -> _FoundFiles | None:
    """The file, read completely; None if the log has all its records in other files."""
    segment = verify_segment(replica.store, file)
    footer = segment.footer
    start = Lineage(footer.lineage).parts_from(log, footer.base_offset, footer.next_offset)
    return None if start is None else _FoundFiles(replica, file, segment, why, start)


def _described(work: RecoverWork, one: _FoundFiles) -> Recovered:
    view, epoch = work.replicas.view, one.file.name.epoch
    return Recovered(
        path=paths.recovered_path(view.topic, view.partition, epoch, one.start),
        cluster_id=work.cluster_id,
        topic=view.topic,
        topic_id=view.topic_id,
        partition=view.partition,
        epoch=epoch,
        base_offset=one.start,
        next_offset=one.end,
        broker_id=one.replica.broker_id,
        file=str(one.file.name),
        why=str(one.why),
    )


def recover(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None,
    to: str,
    *,
    partitions: Sequence[int] | None = None,
    broker: int | None = None,
    dry_run: bool = False,
) -> Report:
    """Export the files of other histories to the folder or bucket ``to``, from the replicas of the topics (None:
    all). ``partitions`` and ``broker`` restrict the export, if given.

    Raises: UnknownTopicOrPartitionError, UnknownBrokerError; InvalidCallError, LogDirError if ``to`` is not a
        folder, or is part of the cluster.
    """
    with execution.run("recover", dry_run=dry_run) as run:
        target = _target(storage, execution.clock, to)
        image = metadata.image()
        if broker is not None:
            image.broker(broker)
        works = _plan(storage, image, topics, partitions, broker, target, run)
        if not dry_run:
            target.check()
        for work, (exported, lost) in run.each(recover_partition, works):
            run.add(_row(each, work, dry_run) for each in exported)
            run.failures += [Failure.of(f"{work} on broker {b}", error) for b, error in lost]
        run.notes += [_how(target, topic) for topic in sorted({str(row["topic"]) for row in run.rows})]
        if run.rows and not dry_run:
            write_manifest(target, run.notes)
    run.sort("path")
    run.totals |= {"files": len(run.rows), "records": run.sum("records")}
    return run.report()


def _target(storage: Storage, clock: Clock, to: str) -> Store:
    address = parse_address(to, "the folder to export to")
    target = open_store(address, storage.file.storage.options(str(address)), clock)
    for store in storage.all_stores:
        if f"{target.uri}/".startswith(f"{store.uri}/") or f"{store.uri}/".startswith(f"{target.uri}/"):
            raise InvalidCallError(
                f"{to} and {store.uri}, a root of the cluster, share storage: export to a folder or "
                "bucket outside the cluster"
            )
    return target


def _plan(
    storage: Storage,
    image: ClusterImage,
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
    broker: int | None,
    target: Store,
    run: OperationRun,
) -> list[RecoverWork]:
    chosen = chosen_views(image, topics, partitions)
    former = find_former(storage, image, [topic.topic_id for topic, _ in chosen], run)
    return [
        RecoverWork(
            replicas=storage.replicas(view),
            brokers=tuple(b for b in view.replicas if broker in (None, b)),
            former=tuple(one for one in former.get(view.key, ()) if broker in (None, one.broker_id)),
            cluster_id=image.cluster_id,
            target=target,
            dry_run=run.dry_run,
        )
        for _, views in chosen
        for view in views
    ]


def _how(target: Store, topic: str) -> str:
    files = target.uri_of(paths.join(topic, "*", "*", "*.parquet"))
    return (
        f'to append the records again, as new records: cluster.append("{topic}", spark.read.parquet("{files}"), '
        'key="key", value="value", headers="headers", timestamp="timestamp", partition="partition"). If '
        "several folders epoch-* have the same offsets, choose one of them"
    )


def _row(each: Exported, work: RecoverWork, dry_run: bool) -> ExportedRow:
    what = each.what
    return ExportedRow(
        topic=what.topic,
        partition=what.partition,
        epoch=what.epoch,
        start=what.base_offset,
        end=what.next_offset,
        records=what.records,
        bytes=each.bytes,
        broker=what.broker_id,
        why=what.why,
        path=work.target.uri_of(what.path),
        outcome="planned" if dry_run else "was there" if each.bytes is None else "exported",
    )


def export(source: Store, file: DataFile, target: Store, what: Recovered) -> int | None:
    """Write the records to ``what.path``. Returns the number of bytes written; None if the file already exists.
    Raises: InvalidCallError if the path has other content; CorruptSegmentError, StorageError.
    """
    staged = target.stage_writer(what.path)
    try:
        writer: pq.ParquetWriter | None = None
        for _, table in read_row_groups(source, file, what.base_offset, what.next_offset):
            if writer is None:
                writer = pq.ParquetWriter(
                    staged.file, table.schema.remove_metadata(), compression="zstd", write_page_checksum=True
                )
            writer.write_table(table.replace_schema_metadata(None))
        if writer is None:
            raise CorruptionError(f"{source.uri_of(file.object.name)} has none of its expected records")
        writer.add_key_value_metadata({RECOVERED_KEY: msgspec.json.encode(what)})
        writer.close()
        created = staged.commit()
    except BaseException:
        with suppress(StratalogError):
            staged.abort()
        raise
    if created:
        return staged.size_bytes
    there = described(target, what.path)
    if there is None or _content(there) != _content(what):
        raise InvalidCallError(
            f"{target.uri_of(what.path)} already exists with other content: export to another folder"
        )
    return None


def _content(what: Recovered) -> tuple[object, ...]:
    """The key of an export. Exports with the same key are equal, even if they come from different brokers."""
    return what.cluster_id, what.topic_id, what.partition, what.epoch, what.base_offset, what.next_offset


def described(target: Store, path: str) -> Recovered | None:
    """The description in an exported file; None for a foreign file."""
    try:
        stored = target.stat(path)
        with target.open(stored) as source:
            end = read_end(source, stored.size_bytes, target.uri_of(path), MOST_FOOTER_BYTES)
        return parse_json(key_values(end[:-SUFFIX_BYTES]).get(RECOVERED_KEY, b""), Recovered)
    except (FileNotFoundError, ValueError):
        return None


def write_manifest(target: Store, how: Iterable[str]) -> int:
    """List every exported file of the folder in its manifest. Returns the number of files. ``how`` explains how to
    use the files. An existing manifest with different content is replaced.
    """
    names = [stored.name for stored in target.list("") if paths.base_name(stored.name).endswith(".parquet")]
    files = [found for name in names if (found := described(target, name)) is not None]
    content = msgspec.json.format(
        msgspec.json.encode({"files": [msgspec.structs.asdict(file) for file in files], "how": list(how)}),
        indent=2,
    )
    with suppress(FileNotFoundError, CorruptionError):
        if read_bounded(target, MANIFEST, len(content)) == content:
            return len(files)
    target.delete([MANIFEST])
    target.create(MANIFEST, content)
    return len(files)
