"""Reading the Delta table of one topic: its newest version, as the remote log that it lists.

The application transaction ``stratalog`` names the last version at which the table is known to be a remote log.
Where others have committed since, ``foreign_commits`` tells what that means.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    CorruptionError,
    InconsistentClusterIdError,
    RemoteObjectMissingError,
    Right,
    StorageAuthorizationError,
    StorageError,
)
from stratalog.partitions.store.protocol import Store, StoredObject, StoreOptions
from stratalog.tiering import delta_options
from stratalog.tiering.delta_entries import check_log
from stratalog.tiering.delta_schema import check_readable
from stratalog.tiering.foreign_commits import ForeignCommit, read_commits, rewrite_of, standing
from stratalog.tiering.foreign_files import Range, records_in
from stratalog.tiering.listed_files import files_with, listed_segments, whatever_is_listed
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles
from stratalog.tiering.remote_segment import RemoteSegment

APPLICATION = "stratalog"
CLUSTER_ID = "stratalog.cluster_id"
TOPIC = "stratalog.topic"
TOPIC_ID = "stratalog.topic_id"
DELETED = "stratalog.deleted"

_HOUR_MS = 3_600_000


class DeltaTopicReader:
    """The content of one topic's table; its folder in the remote store is ``<topic>-<topic_id>``."""

    def __init__(
        self,
        remote: Store,
        *,
        topic: str,
        topic_id: str,
        cluster_id: str,
        options: StoreOptions,
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        """Touches no storage.

        Raises: UnsupportedStoreError, InvalidCallError when no Delta table can lie in ``remote``.
        """
        self.remote = remote
        self.topic = topic
        self.topic_id = topic_id
        self.cluster_id = cluster_id
        self.folder = paths.topic_folder(topic, topic_id)
        self.uri = delta_options.table_uri(remote, self.folder)
        self._options = options
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def path(self, segment: RemoteSegment) -> str:
        """The name of a segment's object in the remote store."""
        return paths.join(self.folder, segment.path)

    def load(self) -> RemoteLog:
        """The remote log at the newest version; an empty one (version -1) when there is no table.

        Where others have rewritten the table without a change of data, it is the log before that (``rewrite`` says
        so).

        Raises: InconsistentClusterIdError, CorruptionError for a table that is not this topic's or whose data
            somebody else has changed; LogGapError; StorageError.
        """
        table = self._open()
        return RemoteLog.empty(self.uri) if table is None else self._fold(table)

    def missing_objects(self, log: RemoteLog) -> list[RemoteSegment]:
        """Segments of the log whose object is not in the store, or has another size there."""
        found = self.objects()
        return [segment for segment in log.all_segments() if not found.holds(segment)]

    def check_objects(self, log: RemoteLog) -> None:
        """Raises: RemoteObjectMissingError naming the first listed object that is missing or truncated."""
        missing = self.missing_objects(log)
        if missing:
            raise RemoteObjectMissingError(
                f"{self.uri} lists {missing[0].path} with {missing[0].size_bytes} bytes, which is not there "
                f"as such; {len(missing)} such objects in all"
            )

    def objects(self) -> RemoteObjects:
        """The objects in the topic's folder: one walk. A segment that is committed all the while is among them."""
        return RemoteObjects.of(self.folder, self.remote.walk(self.folder))

    def records(self, segment: RemoteSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records of a segment from whatever files the table lists, in order; ``schema`` is the topic's.

        Raises: CorruptionError when the table does not have each of them once; StorageError; as ``load``,
            ``records_in``.
        """
        table = self._open()
        if table is None:
            raise CorruptionError(f"there is no table at {self.uri}: restore it")
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
        """The remote log, as ``load``, and the files that were removed from this very version of the table; which
        of them at least ``delay_ms`` ago, rounded up to whole hours. Removals older than
        delta.deletedFileRetentionDuration are forgotten at the next checkpoint: then they look as if they had
        never been committed.

        Raises: as ``load``.
        """
        table = self._open()
        if table is None:
            return RemoteLog.empty(self.uri), RemovedFiles()
        hours = -(-delay_ms // _HOUR_MS)
        try:
            ever, due = (
                frozenset(table.vacuum(retention_hours=age, dry_run=True, enforce_retention_duration=False))
                for age in (0, hours)
            )
        except (DeltaError, OSError) as error:
            self._failed("vacuum", error)
        return self._fold(table), RemovedFiles(ever, due)

    def is_marked_deleted(self) -> bool | None:
        """Whether the topic was to be deleted with its table; None when there is no table. Raises: as ``load``."""
        table = self._open()
        return None if table is None else self._is_marked(table)

    def _open(self) -> DeltaTable | None:
        check_log(self.remote, self.folder)
        try:
            with delta_options.panics():
                table = DeltaTable(
                    self.uri, storage_options=delta_options.storage_options(self.uri, self._options)
                )
                found = table.metadata().configuration
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            self._failed("read", error)
        if found.get(CLUSTER_ID) != self.cluster_id:
            raise InconsistentClusterIdError(
                f"the table {self.uri} belongs to cluster {found.get(CLUSTER_ID)!r}, not to {self.cluster_id!r}: "
                "correct the remote tier in the cluster file, unless that cluster was restored from this one"
            )
        if found.get(TOPIC_ID) != self.topic_id:
            raise CorruptionError(
                f"the table {self.uri} is of topic id {found.get(TOPIC_ID)!r}, not {self.topic_id!r}"
            )
        check_readable(table, self.uri)
        return table

    def _open_at(self, version: int) -> DeltaTable:
        check_log(self.remote, self.folder, version)
        try:
            with delta_options.panics():
                return DeltaTable(
                    self.uri, version, storage_options=delta_options.storage_options(self.uri, self._options)
                )
        except (DeltaError, OSError) as error:
            self._failed(f"read version {version} of", error)

    @staticmethod
    def _is_marked(table: DeltaTable) -> bool:
        return table.metadata().configuration.get(DELETED) == "true"

    def _fold(self, table: DeltaTable) -> RemoteLog:
        try:
            with delta_options.panics():
                return self._folded(table)
        except (DeltaError, OSError) as error:
            self._failed("read", error)
        except (pa.ArrowException, ValueError, LookupError, OverflowError) as error:
            raise CorruptionError(f"the table {self.uri} lists files that cannot be read: {error}") from error

    def _folded(self, table: DeltaTable) -> RemoteLog:
        since, version = table.transaction_version(APPLICATION) or 0, table.version()
        if since < version:
            commits = read_commits(self.remote, self.folder, since + 1, version)
            if commits is not None and any(commit.touches_files for commit in commits):
                return self._rewritten(table, since, commits)
        return RemoteLog.of(self.uri, version, listed_segments(table, self.uri))

    def _rewritten(self, table: DeltaTable, since: int, commits: Sequence[ForeignCommit]) -> RemoteLog:
        """The log of a table whose files others have changed since it was the log.

        Raises: CorruptionError when its data changed with them.
        """
        segments = listed_segments(self._open_at(since), self.uri)
        commits = standing(segments, commits)
        if not commits:
            return RemoteLog.of(self.uri, table.version(), segments)
        rewrite = rewrite_of(self.uri, since, commits, segments, whatever_is_listed(table))
        return RemoteLog.of(self.uri, table.version(), segments, rewrite)

    def _failed(self, what: str, error: Exception, right: Right = "read") -> NoReturn:
        said = f"cannot {what} the table {self.uri}: {delta_options.said(error)}"
        if delta_options.is_refused(error):
            raise StorageAuthorizationError(f"{said}: let its owner {right} there", right, self.uri) from None
        if delta_options.is_catalog_managed(error):
            raise CorruptionError(
                f"the table {self.uri} was made catalog-managed by somebody else (catalogManaged): only its "
                "catalog commits to it, and delta-rs does not even read it. Nothing was changed. Bring back its "
                "log as it was before, from a backup of the remote tier, and register the table as an external "
                "one (cluster.catalog.create_table)"
            ) from None
        raise StorageError(said) from None
