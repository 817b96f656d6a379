"""The operation ``export``: writes records of topics to another cluster, the target.

For each topic, one after the other:
1. plan the range: by offsets, by times, from a group's offsets; or the whole topic
2. begin: fence earlier runs of the export, and read the journal
3. create the topic in the target, or check that it is still the topic of this export
4. read here, and write each piece to the target once
5. for a whole topic: set log starts, and commit groups' offsets
6. update the map of offsets, a Delta table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.bridges.export import kept
from stratalog.bridges.export.group_offsets import commit_there
from stratalog.bridges.export.journal import PREFIX, Begun, Entry, Journal, Range, Written, decode, encode, runs_of
from stratalog.bridges.export.offset_map import write_map
from stratalog.bridges.export.options import ExportOptions
from stratalog.bridges.export.parts import ExportedPartition, ExportPiece, Pace, Read
from stratalog.bridges.export.target import ExportTarget, Offsets, OffsetsNotKeptError
from stratalog.bridges.mirror.compare import records_of
from stratalog.bridges.mirror.source import InconsistentTopicIdError, SourceRecord, SourceTopic
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import Bound, ReadQuery
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.replication.replica_selector import NOWHERE
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    InvalidTopicError,
    LogTruncationError,
    RetriableError,
    StratalogError,
)
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lookup import TimeRange

_ROUND_BYTES = 64 * 1024 * 1024
"""The maximum total size of the records that wait to be written, in bytes."""
_LEAST_S = 0.1
"""The sleep between two pieces that are not due yet, in seconds."""
_LONGEST_NAME = 249
"""The maximum length of a Kafka topic's name."""


class PlannedExportRow(PartitionRow, frozen=True, kw_only=True):
    """The offsets ``[start, end)`` that an export would write."""

    start: int
    end: int


class PartitionExportRow(PartitionRow, frozen=True, kw_only=True):
    """A partition after an export: the offsets in this cluster, and the end of its log in the target."""

    began: int
    exported: int
    end: int
    lag: int
    records: int
    gaps: int
    bytes: int
    target_end: int | None


def export(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    target: ExportTarget,
    topics: Sequence[str],
    options: ExportOptions,
) -> Report:
    """Export these topics once. The report has one row per partition. A topic that cannot be exported is a
    failure, and the others continue. ``lag`` is the number of offsets in this cluster that are not yet exported at
    the end of the run.

    Raises: InvalidCallError if no topic is given, or several topics with a ``target_topic``.
    """
    if not topics:
        raise InvalidCallError("name the topics to export")
    if options.target_topic is not None and len(topics) > 1:
        raise InvalidCallError(
            f"{len(topics)} topics would be exported to {options.target_topic!r}: name only one"
        )
    pace = Pace(options.pace, execution.clock)
    throttle = (
        None if options.throttle_bytes_per_s is None else Throttle(options.throttle_bytes_per_s, execution.clock)
    )
    with execution.run("export", dry_run=options.dry_run) as run:
        began_s = execution.clock.monotonic_s()
        for name in topics:
            try:
                _ExportedTopic(metadata, storage, execution, memory, run, target, name, options).export(
                    pace, throttle, began_s
                )
            except StratalogError as error:
                run.fail(name, error)
        spent_s = execution.clock.monotonic_s() - began_s
    sums = {name: sum(int(row.get(name) or 0) for row in run.rows) for name in ("records", "bytes", "lag")}
    run.totals = {**sums, **run.totals}
    if sums["records"] and spent_s > 0:
        run.totals["records_per_s"] = round(sums["records"] / spent_s, 1)
        run.totals["left_s"] = round(sums["lag"] * spent_s / sums["records"], 1)
    return run.report()


class _ExportedTopic:
    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        memory: Memory,
        run: OperationRun,
        target: ExportTarget,
        name: str,
        options: ExportOptions,
    ) -> None:
        self.for_records = metadata, storage, execution.clock, memory
        self.execution, self.run, self.target, self.options = execution, run, target, options
        self.cluster_id, self.remote_storage = storage.file.cluster_id, storage.file.remote_storage
        self.image = metadata.image()
        self.here = self.image.topic(name)
        self.there = options.target_topic or name
        self.export_name = f"{options.name or self.cluster_id}.{name}"
        self.journal = Journal()

    def export(self, pace: Pace, throttle: Throttle | None, began_s: float) -> None:
        """Export the topic. Raises: the error that ends the export. Records that were written before the error
        remain, and the report's rows include them.
        """
        ranges, times = self._planned()
        topic = PREFIX + self.export_name
        if len(topic) > _LONGEST_NAME:
            raise InvalidTopicError(f"{topic!r} is too long for a Kafka topic name: choose a shorter --name")
        if self.options.dry_run:
            self.run.add(
                PlannedExportRow(topic=self.here.name, partition=partition, start=start, end=end)
                for partition, (start, end) in sorted(ranges.items())
            )
            return
        entries = self.target.begin(topic, self.options.replication_factor)
        self.journal.add(decode(entry, topic) for entry in entries)
        parts = self._parts(self._begun(self._made(), ranges), ranges, times)
        try:
            self._write(parts, pace, throttle, began_s)
            self._follow(parts)
        finally:
            self.run.add(map(self._row, parts))
            for part in parts:
                if part.error is not None:
                    self.run.fail(f"{self.here.name}-{part.partition}", part.error)

    # ---------------------------------------------------------------------------------- beginning

    def _planned(self) -> tuple[dict[int, Range], TimeRange | None]:
        """Return the requested offsets by partition, resolved now, and the requested times."""
        query = ReadQuery(
            (self.here.name,), start=self.options.start, end=self.options.end, isolation=Isolation.READ_COMMITTED
        )
        plan = plan_read(*self.for_records, query, NOWHERE)
        return {one.partition: (one.start, one.end) for one in plan.partitions}, plan.times

    def _made(self) -> SourceTopic:
        """Return the topic in the target. Create the topic or its missing partitions if necessary."""
        wanted = len(self.here.partitions)
        there = self.target.topic(self.there)
        if there is None:
            configs = configs_there(topic_config_of(self.image, self.here))
            self.target.create_topic(self.there, wanted, configs, self.options.replication_factor)
            self.run.notes.append(f"{self.there}: created in the target with {wanted} partitions")
        elif there.partitions < wanted:
            self.target.create_partitions(self.there, wanted)
            self.run.notes.append(f"{self.there}: now has {wanted} partitions in the target")
        there = self.target.topic(self.there)
        if there is None:
            raise RetriableError(f"topic {self.there!r} of the target was deleted during the export")
        if there.configs.get("message.timestamp.type", "CreateTime") != "CreateTime":
            raise InvalidConfigError(
                f"topic {self.there!r} of the target has message.timestamp.type="
                f"{there.configs['message.timestamp.type']}: records would lose their timestamps; set it to "
                "CreateTime"
            )
        return there

    def _begun(self, there: SourceTopic, ranges: Mapping[int, Range]) -> Begun:
        """Return the first entry of the journal. If the export begins now, write this entry."""
        source = f"{self.cluster_id}/{self.here.topic_id}"
        bounds = self.target.bounds(self.there, range(there.partitions))
        empty = all(found.log_end == 0 for found in bounds.values())
        asked = ""
        if not self.options.whole:
            asked = f"start={_bound_text(self.options.start)}, end={_bound_text(self.options.end)}"
        begun = self.journal.begun
        if begun is not None and (begun.target_id == there.source or not empty):
            self._check(begun, there, source, asked)
            return begun
        if self.options.keep and not empty:
            raise OffsetsNotKeptError(
                f"topic {self.there!r} of the target already has records, but only an empty topic can keep "
                "offsets; export to another topic (--to-topic), or at new offsets (--new-offsets)"
            )
        begun = Begun(source, there.source, self.options.keep, asked, dict(ranges))
        self._record([begun])
        return begun

    def _check(self, begun: Begun, there: SourceTopic, source: str, asked: str) -> None:
        """Check that this is the export that the journal describes. Raises: InconsistentTopicIdError,
        InvalidCallError.
        """
        for side, was, now in (
            ("here", begun.source, source),
            ("in the target", begun.target_id, there.source),
        ):
            if was != now:
                raise InconsistentTopicIdError(
                    f"export {self.export_name!r} began with topic id {was} {side}, but that id is {now} now: "
                    "choose another --name, or delete the export's journal in the target, topic "
                    f"{PREFIX + self.export_name}"
                )
        if begun.kept != self.options.keep or begun.asked != asked:
            how = "kept" if begun.kept else "new"
            raise InvalidCallError(
                f"export {self.export_name!r} began with {how} offsets and {begun.asked or 'all of the topic'}: "
                "continue with the same options, or use another --name"
            )

    def _parts(
        self, begun: Begun, ranges: Mapping[int, Range], times: TimeRange | None
    ) -> list[ExportedPartition]:
        """The partitions, each with its position in the export."""
        wanted = dict(begun.ranges) if begun.asked else dict(ranges)
        numbers = sorted(wanted)
        there = (
            kept.settled(self.target, self.there, self.journal, numbers, self.execution.clock)
            if begun.kept
            else {}
        )
        most = max(1, min(self.options.piece_bytes, _ROUND_BYTES // max(1, len(numbers))))
        found: list[ExportedPartition] = []
        for partition in numbers:
            start, end = wanted[partition]
            place = there[partition].log_end if begun.kept else self.journal.places.get(partition, start)
            log_start = self.image.view(self.here.topic_id, partition).log_start_offset
            read = self._reader(partition, most, times)
            first = begun.ranges.get(partition, (0, 0))[0]
            part = ExportedPartition(partition, place, end, log_start, first, read)
            if place > end:
                part.error = LogTruncationError(
                    f"{self.here.name}-{partition}: exported up to offset {place}, but the log here ends at "
                    f"{end}, so it has lost its last records; delete the topic and the export's journal in the "
                    "target, and export again",
                    end,
                )
            elif 0 < place < log_start:
                self.run.notes.append(
                    f"{self.here.name}-{partition}: offsets [{place}, {log_start}) were deleted here before they "
                    "were exported"
                )
            found.append(part)
        return found

    def _reader(self, partition: int, most_bytes: int, times: TimeRange | None) -> Read:
        name = self.here.name

        def read(offset: int, end: int) -> tuple[Sequence[SourceRecord], int]:
            wanted = Isolation.READ_COMMITTED
            found = fetch(*self.for_records, name, partition, offset, max_bytes=most_bytes, isolation=wanted)
            if found.next_offset <= offset < end:
                raise RetriableError(f"{name}-{partition}: no records were read at offset {offset}; try again")
            records = found.records
            if times is not None:
                records = records.filter(times.contains(records.column("timestamp")))
            return list(records_of(records)), found.next_offset

        return read

    # ------------------------------------------------------------------------------------ writing

    def _write(
        self, parts: Sequence[ExportedPartition], pace: Pace, throttle: Throttle | None, began_s: float
    ) -> None:
        clock, budget_s = self.execution.clock, self.options.budget_s

        def left_s() -> float:
            return float("inf") if budget_s is None else began_s + budget_s - clock.monotonic_s()

        self.execution.progress.start("export", sum(not part.done for part in parts), "partitions")
        try:
            while (left := [part for part in parts if not part.done]) and left_s() > 0:
                for part in left:
                    try:
                        part.look()
                    except StratalogError as error:
                        part.error = error
                heads = [part.waiting[0] for part in left if part.waiting and not part.done]
                pace.begin(heads)
                pieces = {part.partition: piece for part in left if not part.done and (piece := part.cut(pace))}
                if not pieces and heads:
                    wait_s = max(_LEAST_S, min(map(pace.wait_s, heads)))
                    clock.sleep(max(0.0, min(wait_s, left_s())))
                elif pieces:
                    if throttle is not None:
                        throttle.spend(sum(piece.size_bytes for piece in pieces.values()))
                    self._write_pieces(list(pieces.values()), {part.partition: part for part in left})
                for part in left:
                    if part.done:
                        self.execution.progress.advance(part.written_bytes)
        finally:
            self.execution.progress.finish()

    def _write_pieces(self, pieces: Sequence[ExportPiece], parts: Mapping[int, ExportedPartition]) -> None:
        if not self.options.keep:
            entries: list[Entry] = []

            def journal_entries(there: Offsets) -> list[bytes]:
                for one in pieces:
                    here = [record.offset for record in one.records]
                    runs = runs_of(here, there.get(one.partition, ()))
                    entries.append(Written(one.partition, one.start, one.end, runs))
                return [encode(entry) for entry in entries]

            self.target.transact(
                self.there, {one.partition: one.records for one in pieces if one.records}, journal_entries
            )
            self.journal.add(entries)
            for piece in pieces:
                parts[piece.partition].written(piece)
            return
        writable: list[ExportPiece] = []
        for piece in pieces:
            try:
                kept.check_gap(self.there, piece, parts[piece.partition].gap)
            except OffsetsNotKeptError as error:
                parts[piece.partition].error = error
            else:
                writable.append(piece)
        if not writable:
            return
        self._record([Written(piece.partition, piece.start, piece.end) for piece in writable])
        for piece in writable:
            kept.write(self.target, self.there, piece)
            parts[piece.partition].written(piece)

    def _record(self, entries: Sequence[Entry]) -> None:
        """Write entries of the journal, without records."""
        self.target.transact(self.there, {}, lambda _: [encode(entry) for entry in entries])
        self.journal.add(entries)

    # ------------------------------------------------------------------------------------- ending

    def _follow(self, parts: Sequence[ExportedPartition]) -> None:
        """Set log starts, commit groups and update the map, after all records are written."""
        options, name = self.options, self.here.name
        if options.keep:
            there = self.target.bounds(self.there, [part.partition for part in parts])
            starts = {
                part.partition: part.first
                for part in parts
                if there[part.partition].log_start < part.first <= part.position
            }
            if starts:
                self.target.delete_records(self.there, starts)
        if options.groups and options.whole:
            places = {part.partition: part.position for part in parts}
            moved = commit_there(*self.for_records, self.run, self.target, name, self.there, self.journal, places)
            self.run.totals["group_offsets"] = int(self.run.totals.get("group_offsets") or 0) + moved
        if options.offset_map is not None:
            journal = self.target.topic(PREFIX + self.export_name)
            if journal is None:
                raise RetriableError(f"the journal of export {self.export_name!r} was deleted during the export")
            rows = write_map(
                *(options.offset_map, self.export_name, name, self.there),
                *(self.journal, journal.source, self.remote_storage),
            )
            self.run.totals["map_rows"] = int(self.run.totals.get("map_rows") or 0) + rows

    def _row(self, part: ExportedPartition) -> PartitionExportRow:
        runs = self.journal.runs.get(part.partition)
        return PartitionExportRow(
            topic=self.here.name,
            partition=part.partition,
            began=part.began,
            exported=part.position,
            end=part.end,
            lag=max(0, part.end - part.position),
            records=part.records,
            gaps=part.gaps,
            bytes=part.written_bytes,
            target_end=runs[-1][1] + runs[-1][2] if runs else part.position if self.options.keep else None,
        )


def configs_there(config: TopicConfig) -> dict[str, str]:
    """Return the configs for a new topic in the target: those that mean the same in Kafka."""
    return {
        "retention.ms": str(config.retention_ms),
        "retention.bytes": str(config.retention_bytes),
        "message.timestamp.type": "CreateTime",
    }


def _bound_text(bound: Bound) -> str:
    """Return the text of a bound, in which the order of partitions does not depend on the caller's order."""
    return str(dict(sorted(bound.items())) if isinstance(bound, Mapping) else bound)
