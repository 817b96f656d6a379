"""Removes records from remote segments: rewrites them with gaps in place of the records that a removal names.

A task only creates objects; the driver commits them (``DeltaTopicTable.remove_records``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.partitions import paths
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptSegmentError, LogGapError
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.producers import ProducerState
from stratalog.partitions.removal import Rule
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.rewrites.removing import (
    RemovingOptions,
    check_stable,
    erased_before,
    key_field,
    keys_of,
    keys_of_log,
    removed_by,
)
from stratalog.partitions.rewrites.rewrite import Removal, stage_run
from stratalog.partitions.rewrites.superseded import Superseded
from stratalog.partitions.store.protocol import Store
from stratalog.partitions.transactions import LogTransactions
from stratalog.tiering.copier import segment_of
from stratalog.tiering.rebuilder import bring
from stratalog.tiering.remote_file import read_remote, remote_file
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.removal import Replaced, to_rewrite
from stratalog.tiering.statistics import statistics_json


@dataclass(frozen=True, slots=True)
class RemovedRemotely:
    """The result of a part of the work."""

    replaced: tuple[Replaced, ...] = ()
    examined: frozenset[str] = frozenset()
    """The paths of the segments below the bound that have no record to remove."""
    left: int = 0
    """The number of segments that are still to be made."""
    made: int = 0
    """The number of segments that earlier parts made."""
    gaps: int = 0
    """The number of offsets without a record in the new segments."""
    read_bytes: int = 0
    written_bytes: int = 0
    keyless: int = 0
    """The number of records without a key below the bound."""

    @property
    def segments(self) -> int:
        """The number of segments made."""
        return self.made + len(self.replaced)

    def after(self, before: RemovedRemotely) -> RemovedRemotely:
        """The figures of this part and of the parts before it, without their segments."""
        return RemovedRemotely(
            left=self.left,
            made=before.segments + self.segments,
            gaps=before.gaps + self.gaps,
            read_bytes=before.read_bytes + self.read_bytes,
            written_bytes=before.written_bytes + self.written_bytes,
            keyless=max(before.keyless, self.keyless),  # the first part has counted all of them
        )


NOTHING_REMOVED = RemovedRemotely()


def _free(size_bytes: int) -> None:
    """Copies without a quota."""


def carry_out_remotely(
    leader: Replica,
    log: ReplicaLog,
    transactions: LogTransactions,
    rule: Rule,
    remote: Store,
    folder: str,
    segments: Sequence[RemoteSegment],
    options: RemovingOptions,
    spend: Callable[[int], None] = _free,
) -> RemovedRemotely:
    """Rewrite the segments of a partition's remote log from which ``rule`` removes records: those whose key has a
    later record in either tier. ``segments`` are all segments of the partition; ``log`` is the leader's log;
    ``folder`` is the topic's folder. ``spend``: see ``rewrite_segments``. Nothing is committed.

    Raises: RetriableError for a rule above the last stable offset; LogGapError if the segments end before the
        leader's log starts, which may happen if they were read long before the log; see ``rewrite_segments``.
    """
    todo = to_rewrite(segments, rule)
    if not todo:
        return NOTHING_REMOVED
    check_stable(rule, transactions, str(leader))
    start = segments[0].base_offset
    with Superseded(start, rule, options.memory_bytes, options.folder) as found:
        erased = erased_before(rule, options.erasures)
        found.find(_keys(leader, log, transactions, rule, erased, remote, folder, segments))

        def by_rule(first: int, end: int) -> npt.NDArray[np.bool_]:
            """Return a boolean for each record: whether the rule removes the record. Records above the bound are
            kept."""
            until = max(first, min(end, rule.bound))
            return np.concatenate([found.removed(first, until), np.zeros(end - until, bool)])

        removed = removed_by(erased, by_rule)

        leave = [segment for segment in todo if removed(segment.base_offset, segment.next_offset).any()]
        done = rewrite_segments(leader, remote, folder, leave, Removal(rule, removed), options, spend)
        keyless = found.keyless
    gone = {segment.path for segment in leave}
    kept = frozenset(segment.path for segment in todo if segment.path not in gone)
    return replace(done, examined=kept, keyless=keyless)


def rewrite_segments(
    replica: Replica,
    remote: Store,
    folder: str,
    segments: Sequence[RemoteSegment],
    removal: Removal,
    options: RemovingOptions,
    spend: Callable[[int], None] = _free,
) -> RemovedRemotely:
    """Rewrite segments of a partition, in ascending order, without the records of ``removal``; neighbors of at
    most ``options.segment_bytes`` in total become one segment. ``replica`` is any replica of the partition;
    ``folder`` is the topic's folder in ``remote``. Each new object is read back. ``spend`` is called before each
    run of segments is read, and returns when the bytes may be copied. Nothing is committed.

    Raises: RemoteObjectMissingError, CorruptSegmentError; StorageError, OutcomeUnknownError.
    """
    runs = _runs(segments, options.segment_bytes)
    done = RemovedRemotely(left=len(runs[options.most :]) if options.most is not None else 0)
    for run in runs[: options.most]:
        size_bytes = sum(segment.size_bytes for segment in run)
        spend(size_bytes)
        made, gaps = _rewrite(replica, remote, folder, run, removal, options.compression)
        done = replace(
            done,
            replaced=(*done.replaced, made),
            gaps=done.gaps + gaps,
            read_bytes=done.read_bytes + size_bytes,
            written_bytes=done.written_bytes + made.upload.copied_bytes,
        )
    return done


def _rewrite(
    replica: Replica,
    remote: Store,
    folder: str,
    segments: Sequence[RemoteSegment],
    removal: Removal,
    compression: str,
) -> tuple[Replaced, int]:
    run = Run(tuple(_link(folder, segment) for segment in segments))
    name = DataName(run.start, run.end, segments[-1].epoch, removal.rule.generation)

    def state() -> ProducerState:
        raise CorruptSegmentError(
            f"{segments[0].path} lacks the state of some producers: a remote segment must have the state of all"
        )

    rebuilt, there, found = bring(
        lambda path: stage_run(
            remote, run, remote, path, compression=compression, state=state, leaves=True, removal=removal
        ),
        remote,
        partial(paths.remote_segment_path, replica.partition, name),
        folder,
        0,
    )
    segment = replace(segment_of(replica, run, found.footer, there.size_bytes), name=name, rebuilt=rebuilt)
    upload = Uploaded(segment, there.modified_ms, statistics_json(found), there.size_bytes)
    return Replaced(tuple(segments), upload), found.footer.gaps or 0


def _keys(
    leader: Replica,
    log: ReplicaLog,
    transactions: LogTransactions,
    rule: Rule,
    erased: Sequence[Erasure],
    remote: Store,
    folder: str,
    segments: Sequence[RemoteSegment],
) -> Iterator[pa.RecordBatch]:
    """Read the keys of both tiers below the bound: from the remote segments up to the leader's local start, and
    from the leader above that offset.
    """
    until, what = min(log.local_start, rule.bound), str(leader)
    cold = [segment for segment in segments if segment.base_offset < until]
    if segments[-1].next_offset < until:
        raise LogGapError(
            f"{what}: the remote log ends at offset {segments[-1].next_offset}, before the local log starts at "
            f"{log.local_start}: run tier, which names what is missing"
        )
    start = max(log.local_start, segments[0].base_offset)  # earlier offsets were removed from the remote log
    hot = [Link(max(link.start, start), link.end, link.file) for link in log.over(start, rule.bound)]
    schemas = [read_remote(remote, folder, segment).schema for segment in cold]
    with errors_of(leader):
        schemas += [leader.segment(link.file).schema for link in hot]
    key = key_field(schemas, what)

    def of_leader() -> Iterator[pa.RecordBatch]:
        with errors_of(leader):
            yield from keys_of_log(leader, hot, transactions, rule, erased, key)

    links = (
        Link(segment.base_offset, min(segment.next_offset, until), remote_file(folder, segment))
        for segment in cold
    )
    return chain(
        chain.from_iterable(keys_of(remote, link, rule, erased, key, what) for link in links), of_leader()
    )


def _runs(segments: Iterable[RemoteSegment], segment_bytes: int) -> list[list[RemoteSegment]]:
    """Runs of neighbors of at most ``segment_bytes`` in total, or single segments; ascending."""
    runs: list[list[RemoteSegment]] = []
    size = 0
    for segment in segments:
        size += segment.size_bytes
        if runs and runs[-1][-1].next_offset == segment.base_offset and size <= segment_bytes:
            runs[-1].append(segment)
        else:
            runs.append([segment])
            size = segment.size_bytes
    return runs


def _link(folder: str, segment: RemoteSegment) -> Link:
    return Link(segment.base_offset, segment.next_offset, remote_file(folder, segment))
