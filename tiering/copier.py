"""Uploads a run of the leader's log to the remote tier (KIP-405, RLM task, step 2).

An upload runs in a task, and only creates a file: the driver commits the results in batches. A repeated,
speculative or late upload is harmless, because names are exclusive and only objects that the table lists are part
of the log.

Verification
    * During the copy: the store reads exactly the listed object. Before the new object has a name, the bytes read
      are compared with the CRC-32 in the file's footer. (A difference means that the leader's storage is damaged.)
      S3 checks the CRC-32 of each received part. A rewritten run is read page by page, and each page is compared
      with its own checksum.
    * Before the name appears: if a run has several files, the leader's log is listed again (protocol section 3,
      step 4). Each file must still be in the log, or be hidden there by a merge of the same records. For a single
      file, one ``stat`` shows that it is the listed object; the cost of a ``stat`` does not grow with the log.
      Neither check detects a leader that was deposed meanwhile: the commit then skips the deposed leader's
      segments (``stratalog.engine.upkeep.tiering``).
    * Afterwards: the store must have the object with the written size. The object's footer must have a valid
      checksum, and be equal to the footer that was copied or written.
    * An existing file (of a run that crashed before its commit, or of another driver) is read completely, and
      compared with the CRC-32 in its footer. A cheaper check would prove less. Size and footer prove nothing about
      the pages. The writer of the object is unknown, and the store may not have checked the parts on arrival. Not
      every store keeps S3's checksums. The full check costs little, because only uploads without a commit are
      read, from the last seconds of a crashed run. The file must also equal this upload byte for byte
      (``crc32_of``). If an intact file differs, it is kept, and this upload gets the next name.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import isal_zlib

from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptionError, CorruptSegmentError, SourceChangedError, StorageError
from stratalog.partitions.listing import DataFile, Link
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.rewrites.rewrite import as_whole, check_in_log, stage_run, state_after
from stratalog.partitions.segments.check import check_copy, verify_bytes
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.store.protocol import Staged, Store, StoredObject
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.statistics import statistics_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


MOST_OF_A_NAME = 1000
"""The maximum number of objects with one name. Repairs and restored brokers never need that many."""


def upload(leader: Replica, run: Run, remote: Store, folder: str, *, compression: str) -> Uploaded:
    """Upload ``run`` to ``folder`` (the topic's) of ``remote``, under the name of its segment. If an object with
    that name has different content, use the next name (``RemoteSegment.rebuilt``).

    1. Stage the bytes. 2. List the leader again: the run must still exist. 3. Give the bytes their name. 4. Look
    up the object, and read it back. A crash leaves at most an uncommitted file, which the next upload reuses. If
    bytes and name are sent together (``StoreOptions.bytes_with_name``), step 2 comes first: if the leader is
    deposed meanwhile, the commit of the segment detects it (``stratalog.engine.upkeep.tiering``).

    Raises: SourceChangedError if the run left the leader's log meanwhile (nothing was uploaded; plan again);
        CorruptionError if the object of that name is damaged, or, with the leader's ``broker_id``, if the leader's
        storage is damaged; StorageError, OutcomeUnknownError.
    """
    with errors_of(leader):
        run = as_whole(leader, run)
    for rebuilt in range(MOST_OF_A_NAME):
        name = paths.join(folder, paths.remote_segment_path(leader.partition, run.segment_name, rebuilt))
        uploaded = _upload_as(name, leader, run, remote, compression)
        if uploaded is not None:
            return replace(uploaded, segment=replace(uploaded.segment, rebuilt=rebuilt))
    raise StorageError(
        f"{remote.uri_of(folder)}: {MOST_OF_A_NAME} objects have the name {run.segment_name}; run vacuum for "
        "the topic"
    )


def _upload_as(name: str, leader: Replica, run: Run, remote: Store, compression: str) -> Uploaded | None:
    """Upload the run under this name; returns None if the name has different content. Raises: see ``upload``."""
    try:
        already = remote.stat(name)
    except FileNotFoundError:
        pass
    else:
        return _reused(leader, run, remote, already, compression)
    with errors_of(leader):
        staged, expected = _stage(leader, run, remote, name, compression)
    try:
        if len(run.links) == 1:
            _check_same_object(leader, run.links[0])
        else:
            check_in_log(leader, run, or_merged=True)
        created = staged.commit()
    except BaseException:
        with suppress(Exception):
            staged.abort()
        raise
    there = found_object(remote, name)
    if not created:
        return _reused(leader, run, remote, there, compression)
    segment = segment_of(leader, run, expected, staged.size_bytes)
    found = read_segment(remote, DataFile(run.segment_name, there))
    if there.size_bytes != staged.size_bytes or found.footer != expected:
        raise CorruptionError(
            f"{remote.uri_of(name)} is not the object that was just written: its size or footer differs"
        )
    return Uploaded(segment, there.modified_ms, statistics_json(found), staged.size_bytes)


def _stage(leader: Replica, run: Run, remote: Store, name: str, compression: str) -> tuple[Staged, SegmentFooter]:
    if not run.is_segment:
        return stage_run(
            leader.store,
            run,
            remote,
            name,
            compression=compression,
            state=lambda: state_after(leader, run),
            leaves=True,
        )
    file = run.links[0].file
    segment = leader.segment(file)
    if segment.footer.next_offset != run.end:
        raise CorruptionError(
            f"{leader}: {file.name} ends at offset {segment.footer.next_offset}, but in "
            f"the log it ends at {run.end}"
        )
    staged = remote.stage_copy(leader.store, file.object, name)
    try:
        check_copy(leader.store, segment, staged)
    except BaseException:
        with suppress(Exception):
            staged.abort()
        raise
    return staged, segment.footer


def _check_same_object(leader: Replica, link: Link) -> None:
    """Check that the file is the object that was listed. Raises: SourceChangedError."""
    listed = link.file.object
    try:
        same = leader.store.stat(listed.name).version == listed.version
    except FileNotFoundError:
        same = False
    if not same:
        raise SourceChangedError(f"{leader}: {link.name} left the log while it was being read")


def found_object(remote: Store, name: str) -> StoredObject:
    """The object that was just created. Raises: SourceChangedError if the object was deleted."""
    try:
        return remote.stat(name)
    except FileNotFoundError as error:
        raise SourceChangedError(
            f"{remote.uri_of(name)} was created, but has already been deleted; plan again"
        ) from error


def _reused(leader: Replica, run: Run, remote: Store, there: StoredObject, compression: str) -> Uploaded | None:
    """The object that another driver, or a crashed run, has uploaded; None if this upload would write different
    bytes.
    """
    try:
        found = verify_bytes(remote, DataFile(run.segment_name, there))
    except CorruptSegmentError as error:
        remedy = "if a deep verify does not name it, no table lists it: delete it, then run tier"
        raise CorruptSegmentError(f"{error}. No upload replaces it; {remedy}") from error
    with errors_of(leader):
        expected = crc32_of(leader, run, compression=compression)
    if found.crc32 != expected:
        return None
    segment = segment_of(leader, run, found.footer, there.size_bytes)
    return Uploaded(segment, there.modified_ms, statistics_json(found), 0)


def segment_of(leader: Replica, run: Run, footer: SegmentFooter, size_bytes: int) -> RemoteSegment:
    """The table's entry for an uploaded run of a replica; ``footer`` is the object's footer.

    Raises: CorruptionError if the footer belongs to another partition.
    """
    if footer.topic_id != leader.topic_id or footer.partition != leader.partition:
        raise CorruptionError(
            f"{leader}: {run.segment_name} claims to be of partition {footer.partition} of topic {footer.topic_id}"
        )
    if footer.max_timestamp_offset is None:
        return RemoteSegment(leader.partition, run.segment_name, run.end, size_bytes)
    return RemoteSegment(
        leader.partition,
        run.segment_name,
        run.end,
        size_bytes,
        footer.min_timestamp_us // 1000,
        -(-footer.max_timestamp_us // 1000),
    )


def crc32_of(leader: Replica, run: Run, *, compression: str) -> int:
    """The CRC-32 of the segment that an upload of this run would create, to compare it with an existing object of
    that name.

    A name does not imply content: brokers that were restored to an older state, with their metadata, may assign
    the same offsets to different records under the same epoch. A copied file states its checksum. A rewritten run
    is encoded but not stored: the same files always give the same bytes
    (``stratalog.partitions.rewrites.rewrite``).

    Raises: see ``stage_run``.
    """
    if run.is_segment:
        return leader.segment(run.links[0].file).crc32
    discarded = _ChecksumOnly()
    stage_run(
        leader.store,
        run,
        discarded,
        str(run.segment_name),
        compression=compression,
        state=lambda: state_after(leader, run),
        leaves=True,
    )
    return discarded.sink.crc32


class _Checksum(io.RawIOBase):
    def __init__(self) -> None:
        self.crc32 = 0
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        self.crc32 = isal_zlib.crc32(view, self.crc32)
        self.size_bytes += view.nbytes
        return view.nbytes


class _ChecksumOnly:
    """Discards the bytes of one file, and keeps their checksum."""

    def __init__(self) -> None:
        self.sink = _Checksum()
        self.file = cast("BinaryIO", self.sink)

    def stage_writer(self, name: str) -> _ChecksumOnly:
        return self

    @property
    def size_bytes(self) -> int:
        return self.sink.size_bytes

    def commit(self) -> bool:
        raise NotImplementedError

    def replace(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        """Does nothing, because nothing was stored."""
