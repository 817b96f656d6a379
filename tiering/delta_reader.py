"""Reads the Delta table of one topic: its newest version, as a remote log.

The application transaction ``stratalog`` names the last version at which the table is known to be a remote log. If
other writers have committed since, ``foreign_commits`` judges their commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from stratalog.partitions import paths
from stratalog.partitions.errors import (
    CorruptionError,
    RemoteObjectMissingError,
    StorageError,
)
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering import delta_options
from stratalog.tiering.delta_entries import check_log
from stratalog.tiering.erasure import erasures_of
from stratalog.tiering.foreign_commits import (
    APPLICATION,
    ForeignCommit,
    Rewrite,
    commits_since,
    rewrite_of,
    standing,
)
from stratalog.tiering.foreign_files import Range, records_in
from stratalog.tiering.listed_files import files_with, listed_segments, whatever_is_listed
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removal import rules_of
from stratalog.tiering.topic_table import TopicTable

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.")


class DeltaTopicReader(TopicTable):
    """The content of one topic's table; its folder in the remote store is ``<topic>-<topic_id>``."""

    description = "Remote log of topic {}; stratalog commits to it, others may read"

    def path(self, segment: RemoteSegment) -> str:
        """The name of a segment's object in the remote store."""
        return paths.join(self.folder, segment.path)

    def load(self) -> RemoteLog:
        """Read the remote log at the newest version; an empty log (version -1) if there is no table. If other
        writers have rewritten the table without changing data, this is the log before the rewrite, with
        ``rewrite`` set.

        Raises: InconsistentClusterIdError, CorruptionError for a table of another topic, or with data changed by
            another writer; LogGapError; StorageError.
        """
        table = self._open()
        return RemoteLog.empty(self.uri) if table is None else self._fold(table)

    def missing_objects(self, log: RemoteLog) -> list[RemoteSegment]:
        """Segments of the log whose object is missing in the store, or has another size."""
        found = self.objects()
        return [segment for segment in log.all_segments() if not found.holds(segment)]

    def check_objects(self, log: RemoteLog) -> None:
        """Check that all listed objects exist with their size. Raises: RemoteObjectMissingError naming the first
        object that is missing or truncated.
        """
        missing = self.missing_objects(log)
        if missing:
            raise RemoteObjectMissingError(
                f"{self.uri} lists {missing[0].path} with {missing[0].size_bytes} bytes, but "
                f"no such object exists; {len(missing)} objects are affected in all"
            )

    def objects(self) -> RemoteObjects:
        """The objects in the topic's folder, from one walk. Includes all segments that stay committed during the
        walk.
        """
        return RemoteObjects.of(self.folder, self.remote.walk(self.folder))

    def records(self, segment: RemoteSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records of a segment from the files that the table lists, in order; ``schema`` is the topic's.

        Raises: CorruptionError unless the table has each record once; StorageError; see ``load``, ``records_in``.
        """
        table = self._open()
        if table is None:
            raise CorruptionError(f"no table exists at {self.uri}: restore it")
        try:
            with delta_options.panics():
                listed = files_with(table, segment.partition, segment.base_offset, segment.next_offset)
        except (DeltaError, OSError) as error:
            self._failed("read the records of", error)
        files = [StoredObject(paths.join(self.folder, one.path), one.size_bytes, 0, "") for one in listed]
        wanted = f"offsets [{segment.base_offset}, {segment.next_offset}) of partition {segment.partition}"
        return records_in(
            self.remote,
            files,
            Range(segment.partition, segment.base_offset, segment.next_offset, f"{self.uri}, {wanted}"),
            schema,
        )

    def load_with_removed(self, delay_ms: int) -> tuple[RemoteLog, RemovedFiles]:
        """Return the remote log (see ``load``), and the files removed from the table as of its newest version.
        Files removed at least ``delay_ms`` ago, rounded up to whole hours, are due for deletion. The next
        checkpoint omits removals older than delta.deletedFileRetentionDuration: such files look as if they were
        never committed.

        Raises: see ``load``.
        """
        table = self._open()
        if table is None:
            return RemoteLog.empty(self.uri), RemovedFiles()
        removed = self._removed(table, delay_ms)
        return self._fold(table), removed

    def load_with_due(self, delay_ms: int) -> tuple[RemoteLog, frozenset[str]]:
        """Like ``load_with_removed``, but only with the files that are due, which costs one listing less."""
        table = self._open()
        if table is None:
            return RemoteLog.empty(self.uri), frozenset()
        due = self._due(table, delay_ms)
        return self._fold(table), due

    def _open_at(self, version: int) -> DeltaTable:
        check_log(self.remote, self.folder, version)
        try:
            with delta_options.panics():
                return DeltaTable(
                    self.uri, version, storage_options=delta_options.storage_options(self.uri, self._options)
                )
        except (DeltaError, OSError) as error:
            self._check_history(version)
            self._failed(f"read version {version} of", error)

    def _check_history(self, version: int) -> None:
        """Raises: StorageError for a version whose entry is no longer in the table's log."""
        if not self.has_version(version):
            raise StorageError(
                f"the table {self.uri} cannot be read at version {version}, which its log no longer has: an "
                "erasure deletes all earlier versions, because their statistics contain erased values; without an "
                "erasure, entries are kept for delta.logRetentionDuration. Read the newest version"
            )

    def _fold(self, table: DeltaTable) -> RemoteLog:
        try:
            with delta_options.panics():
                return self._folded(table)
        except (DeltaError, OSError) as error:
            self._failed("read", error)
        except (pa.ArrowException, ValueError, LookupError, OverflowError) as error:
            raise CorruptionError(f"the table {self.uri} lists files that cannot be read: {error}") from error

    def _folded(self, table: DeltaTable) -> RemoteLog:
        known, version = table.transaction_version(APPLICATION), table.version()
        if known != version:
            since, commits = commits_since(self.remote, self.folder, known, version)
            if since is None:
                since, commits = self._from_readable(commits, version)
            if any(commit.touches_files for commit in commits):
                return self._rewritten(table, since, commits)
        return self._log(table, listed_segments(table, self.uri))

    def _from_readable(self, commits: Sequence[ForeignCommit], version: int) -> tuple[int, list[ForeignCommit]]:
        """The version from which ``commits``, the last ones up to ``version``, can be judged, and the commits
        after it. It is the first checkpoint after the missing entries. It is a RESTORE instead if one follows,
        because that may revert a change in a missing entry.
        """
        at = version
        if commits:
            before = f"{commits[0].version - 1:020d}"
            later = self.remote.list(paths.join(self.folder, paths.DELTA_LOG), after=before)
            found = (_CHECKPOINT.match(paths.base_name(one.name)) for one in later)
            restores = [commit.version for commit in commits if commit.operation == "RESTORE"]
            at = max([min((int(one[1]) for one in found if one), default=version), *restores])
        return at, [commit for commit in commits if commit.version > at]

    def _rewritten(self, table: DeltaTable, since: int, commits: Sequence[ForeignCommit]) -> RemoteLog:
        """The log of a table after other writers have changed its files.

        Raises: CorruptionError if they also changed its data.
        """
        segments = listed_segments(self._open_at(since), self.uri)
        commits = standing(segments, commits)
        if not commits:
            return self._log(table, segments)
        rewrite = rewrite_of(self.uri, since, commits, segments, whatever_is_listed(table))
        return self._log(table, segments, rewrite)

    def _log(
        self, table: DeltaTable, segments: Iterable[RemoteSegment], rewrite: Rewrite | None = None
    ) -> RemoteLog:
        found = table.metadata().configuration
        rules, erased = rules_of(found, self.uri), erasures_of(found, self.uri)
        return RemoteLog.of(self.uri, table.version(), segments, rewrite, rules, erased)
