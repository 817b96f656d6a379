"""Merging: reads the records of a run and writes them as one segment, under the rules for copies.

This is the only step of the engine that decodes and re-encodes records. The segment's name appears atomically or
not at all. The merged files are kept until a later vacuum.

The schemas of a run's files may have grown from one another (``stratalog.partitions.growth``). The segment has the
widest of these schemas, not the topic's current schema. So the segment depends only on the files, and the same
files always merge into the same bytes. A transaction's outcome follows from its marker, which is already in the
log.

The footer of a segment combines the producer state of the merged files. It has all producers, or only the
producers that changed after an earlier offset (``producer_changes``). It has all producers if the segment is much
larger than this state, or if the segment will leave the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import booleans, constant, numbers, scalar
from stratalog.partitions.errors import LogGapError, SourceChangedError
from stratalog.partitions.growth import widest
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Link
from stratalog.partitions.paths import DataName
from stratalog.partitions.producer_changes import Level, ProducerPart, applied, combined, part_of, whole
from stratalog.partitions.producers import ProducerState, without_transactions
from stratalog.partitions.records import ABORTED, GAP
from stratalog.partitions.removal import Rule
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.segments.check import SMALL_BYTES
from stratalog.partitions.segments.footer import SegmentFooter, TransactionPart
from stratalog.partitions.segments.reader import Segment, batches_of, forget_files, read_segment, segment_of
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.protocol import Readable, Staged, StagedWriter, Store
from stratalog.partitions.store.reader import HeldObject

_HELD_BYTES = 32 * 1024 * 1024
"""The memory for the small files of one run: 10,000 appends of a few records, or 32 appends of 1 MiB."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The records that a segment leaves out: at these offsets it has gaps."""

    rule: Rule
    removed: Callable[[int, int], npt.NDArray[np.bool_]]
    """A boolean for each offset in a range: whether the rule removes its record."""


class Target(Protocol):
    """Receives the bytes of a segment: a store, or a checksum."""

    def stage_writer(self, name: str) -> StagedWriter:
        """See ``Store.stage_writer``."""
        ...


def merge_run(replica: Replica, run: Run, *, compression: str) -> int | None:
    """Merge a run of the replica's log into one segment there. Returns the size of the new file in bytes, or None
    if another driver has already made the segment.

    Raises: SourceChangedError when a file of the run left the log meanwhile; CorruptSegmentError, LogGapError.
    """
    _, size_bytes = _rewritten(replica, run, run.segment_name, None, compression)
    return size_bytes


def remove_from_run(
    replica: Replica, run: Run, name: DataName, removal: Removal, *, compression: str
) -> Rewritten:
    """Rewrite a run of the replica's log as the segment ``name``, without the records of the removal.

    Raises: see ``merge_run``.
    """
    footer, size_bytes = _rewritten(replica, run, name, removal, compression)
    return Rewritten(footer.gaps or 0, size_bytes or 0)


def _rewritten(
    replica: Replica, run: Run, name: DataName, removal: Removal | None, compression: str
) -> tuple[SegmentFooter, int | None]:
    """The footer of the new segment, and its size; None if another driver has already made it."""
    staged, footer = stage_run(
        *(replica.store, run, replica.store, replica.path(name)),
        compression=compression,
        state=lambda: state_after(replica, run),
        removal=removal,
    )
    try:
        check_in_log(replica, run)
    except BaseException:
        staged.abort()
        raise
    committed = staged.commit()
    forget_files(replica.store, (link.file for link in run.links))
    return footer, staged.size_bytes if committed else None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment from which records were removed: its gaps, and the bytes written (0: another driver has made the
    segment).
    """

    gaps: int
    size_bytes: int


def check_in_log(replica: Replica, run: Run, *, or_merged: bool = False) -> None:
    """List again: every file of the run must still be in the replica's log, as the object that was read (protocol
    section 3 step 4). With ``or_merged``, a merge may have hidden the file meanwhile. A file that a merge has
    hidden is still live, and the log contains the same records.

    Raises: SourceChangedError.
    """
    log = replica.log(fresh=True)
    present = {link.name: link.file.object.version for link in log.chain}
    if or_merged and all(link.name.generation == run.generation for link in log.over(run.start, run.end)):
        present |= {file.name: file.object.version for file in log.hidden}
    for link in run.links:
        if present.get(link.name) != link.file.object.version:
            raise SourceChangedError(f"{replica}: {link.name} left the log while it was being read")


def state_after(replica: Replica, run: Run) -> ProducerState:
    """The producer state at the end of a run of the replica's log.

    Raises: SourceChangedError when files of the run left the log meanwhile; see ``Replica.producers_at``.
    """
    log = replica.log()
    if all(link.end != run.end for link in log.chain):
        raise SourceChangedError(f"{replica}: {run.links[-1].name} left the log while it was being read")
    return replica.producers_at(log, run.end)


def as_whole(replica: Replica, run: Run) -> Run:
    """The run, marked to be rewritten if it is one file without the complete producer state."""
    if run.is_segment and replica.footer(run.links[0].file).producers_since is not None:
        return replace(run, partial_state=True)
    return run


def stage_run(
    source: Store,
    run: Run,
    target: Target,
    name: str,
    *,
    compression: str,
    state: Callable[[], ProducerState],
    leaves: bool = False,
    removal: Removal | None = None,
) -> tuple[Staged, SegmentFooter]:
    """Write the records ``[run.start, run.end)`` as one segment, staged under ``name`` in ``target``. ``state``
    returns the producer state at the segment's end if the files do not have it. A segment that ``leaves`` its log
    has the complete state. With a ``removal``, the segment follows the removal's rule. Without a ``removal``, it
    follows the rule of its files, if they have one.

    Raises: CorruptSegmentError, SourceChangedError, LogGapError; errors from ``state``.
    """
    files = _Files(source, run)
    segments = files.segments
    for link, segment in zip(run.links, segments, strict=True):
        if segment.footer.next_offset < link.end:
            raise LogGapError(
                f"{source.uri_of(link.file.object.name)} ends at offset {segment.footer.next_offset}, but the "
                f"next file starts at {link.end}: offsets are missing"
            )
    last = segments[-1].footer
    schema = widest((segment.schema for segment in segments), source.uri_of(run.links[0].file.object.name))
    if not run.transactional and any(segment.footer.transaction is not None for segment in segments):
        raise ValueError(
            f"{source.uri_of(run.links[0].file.object.name)}: the outcomes of the transactions "
            "in this run are missing"
        )
    if removal is None:
        removal = _followed(segments)
    staged = target.stage_writer(name)
    try:
        markers = _markers((segment.footer for segment in segments), run.start)
        latest = last.last_transactional_offset
        if latest is not None and segments[0].footer.may_hold_control:
            latest = max(latest, run.start)  # the transaction may begin in the part that was cut off
        oldest_ms = min(segment.footer.oldest_ms for segment in segments)
        joined = combined([(file.footer.base_offset, file.footer.producer_part) for file in segments], run.start)
        producers = without_transactions(applied({}, joined.entries) if joined.since is None else state())
        part: Callable[[ProducerState, int], ProducerPart] = whole
        if joined.since is not None and not leaves:
            part = partial(part_of, Level(joined.since, frozenset(joined.entries)))
        writer = SegmentWriter(
            staged.file,
            schema,
            topic_id=last.topic_id,
            partition=last.partition,
            base_offset=run.start,
            compression=compression,
        )
        gaps = _write_records(files, run, writer, removal)
        if gaps:
            latest = max(latest or 0, run.start)
        # Write nothing that depends on the current time: the same files must merge into the same bytes.
        footer = writer.close(
            lineage=Lineage(last.lineage),
            producers=lambda _: producers,
            part=part,
            created_ms=last.created_ms,
            last_transactional_offset=latest,
            markers=markers,
            first_created_ms=oldest_ms if oldest_ms < last.created_ms else None,
            rule=None if removal is None else removal.rule,
            gaps=None if removal is None else gaps,
        )
    except BaseException:
        with suppress(Exception):
            staged.abort()
        raise
    return staged, footer


class _Files:
    """The files of a run. One request reads a small file with its footers, because a read by columns would need a
    request for each column. Files of up to ``_HELD_BYTES`` in total are kept in memory after the first read. Other
    files are read again. A merged file of an older generation has several links if a rewritten file covers its
    middle.
    """

    segments: list[Segment]
    """The segment of each link, in order."""

    def __init__(self, source: Store, run: Run) -> None:
        """Reads all footers. Raises: see ``read_segment``."""
        self._source = source
        self._held: dict[DataName, HeldObject] = {}
        self._left = Counter(link.name for link in run.links)
        self._by_name: dict[DataName, Segment] = {}
        room = _HELD_BYTES
        for link in run.links:
            if link.name in self._by_name:
                continue
            size = link.file.object.size_bytes
            if size > min(room, SMALL_BYTES):
                self._by_name[link.name] = read_segment(source, link.file)
                continue
            room -= size
            held = self._held[link.name] = HeldObject(source, link.file.object)
            self._by_name[link.name] = segment_of(source, link.file, held)
        self.segments = [self._by_name[link.name] for link in run.links]

    def records(self, link: Link) -> Iterator[pa.RecordBatch]:
        """The records of a link. Call this once for each link. Raises: see ``read_batches``."""
        self._left[link.name] -= 1
        held: Readable | None = self._held.get(link.name)
        if not self._left[link.name]:
            self._held.pop(link.name, None)
        if held is None:
            small = link.file.object.size_bytes <= SMALL_BYTES
            held = HeldObject(self._source, link.file.object) if small else self._source
        return batches_of(held, self._by_name[link.name], link.start, link.end)


def _followed(segments: Sequence[Segment]) -> Removal | None:
    """The rule that these files follow, which removes nothing more from them; None if the files follow no rule."""
    rule, *others = {segment.footer.rule for segment in segments}
    if others:
        raise ValueError(
            f"{segments[0].what}: the files of this run follow {rule or 'no rule'} and {others[0] or 'no rule'}"
        )
    return None if rule is None else Removal(rule, lambda start, end: np.zeros(end - start, bool))


def _markers(footers: Iterable[SegmentFooter], start: int) -> tuple[TransactionPart, ...]:
    """The markers in these files, each once, that end transactions which began before ``start``."""
    parts = (part for footer in footers for part in (footer.transaction, *footer.markers) if part is not None)
    return tuple(
        dict.fromkeys(part for part in parts if part.first_offset is not None and part.first_offset < start)
    )


def _write_records(files: _Files, run: Run, writer: SegmentWriter, removal: Removal | None) -> int:
    """Write the records of the run. Returns the number of gaps; 0 without a removal."""
    gaps = 0
    try:
        for link in run.links:
            for batch in files.records(link):
                if link.name in run.aborted:
                    batch = _aborted(batch)
                if removal is not None:
                    batch = _with_gaps(batch, removal.removed(writer.next_offset, writer.next_offset + len(batch)))
                    gaps += pc.sum(pc.equal(batch.column("control"), GAP), min_count=0).as_py()
                writer.write(batch)
        if writer.next_offset != run.end:
            raise LogGapError(
                f"a run of offsets [{run.start}, {run.end}) holds records only up to {writer.next_offset}"
            )
    except BaseException:
        writer.abort()
        raise
    return gaps


def _with_gaps(batch: pa.RecordBatch, removed: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The records, with a gap in place of each removed record."""
    if not removed.any():
        return batch
    # Taking rows by null indices keeps no byte of a removed value, so the same rule always produces the same
    # bytes.
    kept = numbers(0, len(removed)).buffers()[1]
    places = pa.Array.from_buffers(pa.int64(), len(removed), [booleans(~removed).buffers()[1], kept])
    gap = scalar(GAP, pa.int32())
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "control":
            columns.append(pc.if_else(booleans(removed), gap, column))
        else:
            columns.append(column if name in ("partition", "offset") else column.take(places))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _aborted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records, marked as aborted."""
    index = batch.schema.get_field_index("control")
    field = batch.schema.field(index)
    return batch.set_column(index, field, constant(ABORTED, field.type, batch.num_rows))
