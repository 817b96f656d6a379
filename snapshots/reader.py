"""Reading a snapshot: every byte is verified before any record is returned (KIP-630, "Snapshot Format")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, BinaryIO
from weakref import finalize

import pyarrow as pa
from isal import isal_zlib

from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    InvalidCallError,
    SourceChangedError,
    StorageError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import CheckpointName, DataName, base_name, folder_of, name_in, parse_name
from stratalog.partitions.producer_changes import applied
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.segments.check import check_copy, check_segment
from stratalog.partitions.segments.reader import Segment, batches_of, read_batches
from stratalog.partitions.segments.signature import TAG_KEY
from stratalog.partitions.store.protocol import Readable, StagedCopy, Store, StoredObject
from stratalog.partitions.store.reader import RangeReader
from stratalog.snapshots.layout import FOOTER_CONTROL, HEADER_CONTROL, Mark, check_footer, decode_mark, read_header
from stratalog.snapshots.snapshot_id import SnapshotId

HELD_BYTES = 64 * 1024 * 1024
"""A snapshot up to this size is read by one request and stays in memory; a larger one is read one row group at a
time. If a larger snapshot must pass a check, it is kept in a temporary file, because the storage may return other
bytes the next time.
"""

_PIECE_BYTES = 8 * 1024 * 1024
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot whose checksums are all correct."""

    snapshot_id: SnapshotId
    lineage: Lineage
    """The lineage of the records that the snapshot replaces."""
    last_contained_log_timestamp_ms: int
    """The time when the last of these records was appended."""
    records: int
    """The number of its records, without header and footer."""
    size_bytes: int
    created_ms: int
    producers: Mapping[str, ProducerEntry]
    """The producer state at the snapshot's end."""
    segment: Segment
    """The description in the file; ``segment.crc32`` covers all bytes of the file."""
    stored: StoredObject
    """The exact object that was verified, as it was listed."""
    signed: bool
    """Whether it has a tag (``stratalog.partitions.segments.signature``)."""
    _source: Readable = field(repr=False)
    _file: DataFile = field(repr=False)

    def content(self) -> bytes:
        """All bytes of the snapshot. They are exactly the verified bytes if the snapshot has at most
        ``HELD_BYTES``, or if it was checked. Raises: see ``batches``.
        """
        with self._source.open(self.stored) as source:
            return source.read()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records in order: columns timestamp, key, value, headers.

        Raises: SourceChangedError when the snapshot has been deleted meanwhile.
        """
        return read_batches(self._source, self._file, 1, self.records + 1, list(RECORD_COLUMNS))

    def rows(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Keys and values, if they are binary. Raises: see ``batches``."""
        for batch in self._slices(["key", "value"]):
            yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)

    def values(self) -> Iterator[bytes]:
        """The values, for a state machine whose records have nothing else. Raises: see ``batches``."""
        for batch in self._slices(["value"]):
            yield from batch.column("value").to_pylist()

    def _slices(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        # Python objects take several times the memory of their row group, so convert a few at a time.
        for batch in read_batches(self._source, self._file, 1, self.records + 1, columns):
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield batch.slice(start, _ROWS_AT_ONCE)


Check = Callable[[Readable, StoredObject], None]
"""A check that the bytes of a snapshot must pass before any of them is decoded."""


def believed(source: Readable, stored: StoredObject) -> None:
    """The check that accepts any bytes."""


def read_snapshot(
    store: Store, folder: str, stored: StoredObject, *, owner: str, partition: int, check: Check = believed
) -> Snapshot:
    """Read a snapshot from a listing of ``folder``, and verify it fully: first ``check``, then every checksum, its
    header and footer, its name and its owner.

    Raises: errors from ``check``; CorruptSegmentError if it is damaged, truncated, or has no header or footer;
        CorruptionError for a later version or another partition; InconsistentClusterIdError for another owner;
        SourceChangedError if it was deleted or replaced; StorageError.
    """
    if folder_of(stored.name) != folder.strip("/"):
        raise InvalidCallError(f"{stored.name!r} is not in folder {folder!r}")
    if stored.size_bytes > HELD_BYTES:
        check(store, stored)
        if check is believed:
            return verify_snapshot(store, stored, owner=owner, partition=partition)
    held = _Held(store, stored)
    check(held, stored)
    found = verify_snapshot(held, _anonymous(stored), owner=owner, partition=partition)
    return replace(found, stored=stored)


def verify_snapshot(source: Readable, stored: StoredObject, *, owner: str, partition: int) -> Snapshot:
    """Like ``read_snapshot``, for a file with a snapshot's name that ``source`` opens as ``stored``."""
    name = parse_name(base_name(stored.name))
    what = source.uri_of(stored.name)
    if not isinstance(name, CheckpointName):
        raise InvalidCallError(f"{what} does not have the name of a snapshot")
    file = DataFile(DataName(0, None, name.epoch), stored)
    checked = check_segment(source, file)
    segment = checked.segment
    metadata = segment.parquet.metadata
    mark = decode_mark(metadata, what)
    marked = SnapshotId(mark.end_offset, mark.epoch, mark.generation)
    if marked != SnapshotId.of(name):
        raise CorruptSegmentError(f"{what} claims to be snapshot {marked}, which its name contradicts")
    _check_owner(segment, owner, partition, what)
    if segment.footer.producers_since is not None:
        raise CorruptSegmentError(
            f"{what}: it lacks the state of all producers, which every snapshot must contain"
        )
    lineage = Lineage(segment.footer.lineage)
    if lineage.epoch_at(name.end_offset - 1) != name.epoch:
        raise CorruptSegmentError(f"{what}: its lineage {lineage} does not end with epoch {name.epoch}")
    _check_records(source, stored, mark, what)
    if checked.bad:
        raise checked.bad[0].error
    return Snapshot(
        snapshot_id=SnapshotId.of(name),
        lineage=lineage,
        last_contained_log_timestamp_ms=_check_control_rows(source, segment),
        records=segment.footer.records - 2,
        size_bytes=stored.size_bytes,
        created_ms=segment.footer.created_ms,
        producers=applied({}, segment.footer.producers),
        segment=segment,
        stored=stored,
        signed=TAG_KEY in metadata,
        _source=source,
        _file=file,
    )


def stage_snapshot(source: Store, snapshot: Snapshot, target: Store, name: str) -> StagedCopy:
    """Stage a copy of a verified snapshot under ``name`` in another store; every byte is checked on its way.

    Raises: CorruptSegmentError when ``source`` now returns other bytes; SourceChangedError, StorageError.
    """
    staged = target.stage_copy(source, snapshot.stored, name)
    try:
        check_copy(source, snapshot.segment, staged)
    except BaseException:
        staged.abort()
        raise
    return staged


@dataclass(frozen=True, slots=True)
class Usable:
    """The usable snapshot of a replica, and its damaged ones."""

    snapshot: Snapshot | None
    """The greatest snapshot that passes verification; None if there is no such snapshot."""
    damaged: tuple[tuple[StoredObject, CorruptSegmentError], ...]
    """Greater snapshots that are damaged, each with its error, for reports and for repair."""


def latest_usable(
    store: Store, folder: str, stored: Iterable[StoredObject], *, owner: str, partition: int
) -> Usable:
    """The greatest snapshot of a listing of ``folder`` that passes verification. With the log after it, it can be
    used instead of the damaged ones.

    Raises: CorruptionError for a later version or another partition, InconsistentClusterIdError: these are not
        damage, and no older snapshot can replace them; SourceChangedError, StorageError.
    """
    found: list[tuple[SnapshotId, StoredObject]] = []
    for one in stored:
        name = parse_name(name_in(folder, one.name))
        if isinstance(name, CheckpointName):
            found.append((SnapshotId.of(name), one))
    damaged: list[tuple[StoredObject, CorruptSegmentError]] = []
    for _, one in sorted(found, key=lambda pair: pair[0], reverse=True):
        try:
            return Usable(read_snapshot(store, folder, one, owner=owner, partition=partition), tuple(damaged))
        except CorruptSegmentError as error:
            damaged.append((one, error))
    return Usable(None, tuple(damaged))


def _check_owner(segment: Segment, owner: str, partition: int, what: str) -> None:
    footer = segment.footer
    if footer.topic_id != owner:
        raise InconsistentClusterIdError(
            f"{what} is a snapshot of {footer.topic_id!r}, not of {owner!r}: it was copied from elsewhere"
        )
    if footer.partition != partition:
        raise CorruptionError(
            f"{what} is a snapshot of partition {footer.partition}, in the folder of partition {partition}"
        )


def _check_records(source: Readable, stored: StoredObject, mark: Mark, what: str) -> None:
    """Check the checksum of the bytes before the page index. Raises: CorruptSegmentError."""
    crc, position = 0, 0
    with source.open(stored) as opened:
        while position < mark.record_bytes:
            piece = opened.read(min(_PIECE_BYTES, mark.record_bytes - position))
            if not piece:
                raise CorruptSegmentError(f"{what} ends at byte {position}: truncated")
            crc = isal_zlib.crc32(piece, crc)
            position += len(piece)
    if crc != mark.record_crc:
        raise CorruptSegmentError(f"{what}: its records are damaged: the checksum differs")


def _check_control_rows(source: Readable, segment: Segment) -> int:
    """LastContainedLogTimestamp of the header; checks that the footer exists, and that no control row is between
    them.
    """
    what, rows = segment.what, segment.footer.records
    if rows < 2:
        raise CorruptSegmentError(f"{what} is not a complete snapshot: it has {rows} row")
    ends: list[pa.RecordBatch] = []
    controls: list[int] = []
    for batch in batches_of(source, segment, 0, rows, ["headers", "control"]):
        ends = [ends[0] if ends else batch.slice(0, 1), batch.slice(batch.num_rows - 1)]
        controls += batch.column("control").drop_null().to_pylist()
    header, footer = ends
    timestamp_ms = read_header(_headers(header, what), what)
    check_footer(_headers(footer, what), what)
    if controls != [HEADER_CONTROL, FOOTER_CONTROL]:
        raise CorruptSegmentError(f"{what}: its control records have the types {controls[:5]}")
    return timestamp_ms


def _headers(batch: pa.RecordBatch, what: str) -> Any:
    try:
        return batch.column("headers")[0].as_py()
    except UnicodeDecodeError as error:  # Arrow validates text only on request
        raise CorruptSegmentError(f"{what}: a name in its control records is not a string: {error}") from error


class _Held:
    """The bytes of one object, read once: in memory, or in a temporary file if they are many."""

    def __init__(self, store: Store, stored: StoredObject) -> None:
        """Raises: SourceChangedError when the object has been replaced; StorageError."""
        self._uri = store.uri_of(stored.name)
        self._size_bytes = stored.size_bytes
        self._file = SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115 - lives as long as this
        finalize(self, self._file.close)
        with store.open(stored) as source:
            while piece := source.read(HELD_BYTES):
                try:
                    self._file.write(piece)
                except OSError as error:
                    raise StorageError(
                        f"{self._uri} cannot be stored in {gettempdir()}: {error.strerror}"
                    ) from error
        if self._file.tell() != stored.size_bytes:
            raise SourceChangedError(f"{self._uri} is not the object that was listed: list it again")

    def open(self, source_object: StoredObject) -> BinaryIO:
        return RangeReader(self._size_bytes, self._fetch).as_file()

    def uri_of(self, name: str) -> str:
        return self._uri

    def _fetch(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return self._file.read(end - start)


def _anonymous(stored: StoredObject) -> StoredObject:
    """The object without its version, so that its footers and bytes are not cached."""
    return StoredObject(stored.name, stored.size_bytes, stored.modified_ms, "")
