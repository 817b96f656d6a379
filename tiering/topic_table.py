"""A Delta table of one topic in the remote tier: creation, schema growth, opening by its owner only, deletion. The
table lists a remote log (``delta_table``), or the latest record of each key (``snapshot_table``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, NoReturn

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from stratalog.partitions import paths
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    CorruptionError,
    InconsistentClusterIdError,
    InvalidRecordError,
    OutcomeUnknownError,
    Right,
    SourceChangedError,
    StorageError,
    StorageRefusedError,
)
from stratalog.partitions.store.protocol import Store, StoredObject, StoreOptions
from stratalog.tiering import delta_options
from stratalog.tiering.delta_entries import ENTRY, check_log
from stratalog.tiering.delta_metadata import set_properties, set_schema
from stratalog.tiering.delta_schema import (
    check_commits,
    check_readable,
    delta_schema,
    grown_fields,
    with_wider_types,
)
from stratalog.tiering.foreign_commits import ListedFile
from stratalog.tiering.remote_objects import RemovedFiles
from stratalog.tiering.tombstones import removed_paths, tombstones_with_values

CLUSTER_ID = "stratalog.cluster_id"
TOPIC = "stratalog.topic"
TOPIC_ID = "stratalog.topic_id"
DELETED = "stratalog.deleted"

COMMIT_ATTEMPTS = 20
"""The number of tries after lost races."""
UNANSWERED_ATTEMPTS = 4
"""The number of tries after commits that were refused, or got no answer. Each try may take the full deadline of
all retries.
"""
BACKOFF = Backoff(first_s=0.1, longest_s=2.0)
ONE_ATTEMPT = 0
"""For max_commit_retries: the next version, or a conflict."""
HOUR_MS = 3_600_000
_MOST_HOURS = (2**63 - 1) // HOUR_MS
"""The longest time that delta-rs can express; beyond it, delta-rs panics."""

_PROPERTIES = {
    "delta.checkpointInterval": "20",  # opening reads one checkpoint and at most this many entries
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",  # files must stay as long as a RESTORE may need them
    "delta.dataSkippingNumIndexedCols": "-1",  # polars refuses a struct of which only some fields are indexed
}
_AT_ONCE = CommitProperties(max_commit_retries=ONE_ATTEMPT)


class TopicTable:
    """One table of a topic."""

    parent: ClassVar[str] = ""
    """The folder of the remote store that contains the tables of this kind, each in ``<topic>-<topic_id>``."""
    description: ClassVar[str]
    """The description of a table of this kind, with ``{}`` for the topic."""
    remedy: ClassVar[str] = "Restore it to its version before that (RESTORE TABLE)"
    """The advice if another program has replaced the table."""

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
        """Accesses no storage.

        Raises: UnsupportedStoreError, InvalidCallError when ``remote`` cannot hold a Delta table.
        """
        self.remote = remote
        self.topic = topic
        self.topic_id = topic_id
        self.cluster_id = cluster_id
        self.folder = paths.join(self.parent, paths.topic_folder(topic, topic_id))
        self.uri = delta_options.table_uri(remote, self.folder)
        self._options = options
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def is_marked_deleted(self) -> bool | None:
        """Whether the table is marked for deletion with its topic; None if there is no table. Raises: see
        ``load``."""
        table = self._open()
        return None if table is None else self._is_marked(table)

    def has_version(self, version: int) -> bool:
        """Whether the log of the table has the entry of a version. Raises: StorageError."""
        try:
            self.remote.stat(paths.join(self.folder, paths.DELTA_LOG, f"{version:020d}.json"))
        except FileNotFoundError:
            return False
        return True

    def is_newest(self, version: int) -> bool:
        """Whether the table's log has no entry of a later version. Costs one listing. Raises: StorageError."""
        later = self.remote.list(paths.join(self.folder, paths.DELTA_LOG), after=f"{version:020d}.json")
        return not any(ENTRY.fullmatch(paths.base_name(one.name)) for one in later)

    def ensure(self, schema: pa.Schema) -> None:
        """Create the table if it is missing; ``schema`` is the physical schema of the topic's segments. A table
        with a narrower schema grows (``delta_schema``). A table with a wider schema remains unchanged.

        Raises: InvalidRecordError when the existing table has another schema; StorageError; see ``load``.
        """
        wanted = delta_schema(schema, self.uri)
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            if table is None:
                self._create(wanted)
                continue
            fields = grown_fields(table.schema(), wanted)
            wider = None if fields is None else with_wider_types(table.schema(), wanted)
            if wider is not None:
                self._widen(table, wider)
                continue
            if fields is None:
                raise InvalidRecordError(
                    f"the table {self.uri} has the schema {table.schema().to_json()}, but the segments of "
                    f"topic {self.topic} have {wanted.to_json()}: neither schema can be made from the other by "
                    "adding nullable fields at the end, or by widening types"
                )
            if not fields:
                return
            self._alter("grow", partial(table.alter.add_columns, fields, commit_properties=_AT_ONCE))
        raise StorageError(
            f"the table {self.uri} was created or extended {COMMIT_ATTEMPTS} times, but other writers reverted it"
        )

    def _widen(self, table: DeltaTable, schema: str) -> None:
        """Commit a version with this schema, or lose the race to another writer. The version does not declare
        Delta's feature ``typeWidening``: delta-rs neither reads a table with this feature nor commits to it, while
        readers without the feature convert the narrower files.

        Raises: CorruptionError, see ``check_commits``.
        """
        check_commits(table, self.uri)
        if '"timestamp_ntz"' in schema and not _knows_ntz(table):
            add = partial(table.alter.add_feature, TableFeatures.TimestampWithoutTimezone)
            self._alter("grow", partial(add, True, commit_properties=_AT_ONCE))
            return
        with suppress(DeltaError):  # the next read of the table shows the outcome
            set_schema(table, self.remote, self.folder, schema, self._clock.now_ms())

    def mark_deleted(self, deleted: bool) -> None:
        """Mark in the table whether the table is to be deleted with its topic. After a crash, the mark
        distinguishes an interrupted deletion from a table to keep. Does nothing without a table.

        Raises: StorageError; see ``load``.
        """
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            if table is None or self._is_marked(table) == deleted:
                return
            mark = {DELETED: str(deleted).lower()}
            now_ms = self._clock.now_ms()
            self._alter("mark", partial(set_properties, table, self.remote, self.folder, mark, now_ms))
        raise StorageError(f"{self.uri}: other writers were faster {COMMIT_ATTEMPTS} times; try again")

    def delete(self) -> None:
        """Delete the whole folder of a topic that the cluster has deleted. The log of the table is deleted
        last, so that after a crash the remaining objects are still recognized as belonging to this topic. Objects
        without a valid name are kept.
        """
        names = [stored.name for stored in self.remote.walk(self.folder) if not stored.special]
        log_folder = paths.join(self.folder, paths.DELTA_LOG) + "/"
        self.remote.delete(name for name in names if not name.startswith(log_folder))
        self.remote.delete(name for name in names if name.startswith(log_folder))

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
        if CLUSTER_ID not in found:
            raise InconsistentClusterIdError(
                f"the table {self.uri} does not name its cluster: another program has created or replaced it. "
                f"{self.remedy}"
            )
        if found.get(CLUSTER_ID) != self.cluster_id:
            raise InconsistentClusterIdError(
                f"the table {self.uri} belongs to cluster {found.get(CLUSTER_ID)!r}, not to {self.cluster_id!r}: "
                f"correct the remote tier in the cluster file, unless cluster {found.get(CLUSTER_ID)!r} was "
                f"restored from cluster {self.cluster_id!r}"
            )
        if found.get(TOPIC_ID) != self.topic_id:
            raise CorruptionError(
                f"the table {self.uri} belongs to topic id {found.get(TOPIC_ID)!r}, not {self.topic_id!r}"
            )
        check_readable(table, self.uri)
        return table

    @staticmethod
    def _is_marked(table: DeltaTable) -> bool:
        return table.metadata().configuration.get(DELETED) == "true"

    def _create(self, schema: Schema) -> None:
        try:
            DeltaTable.create(
                self.uri,
                schema,
                name=self.topic,
                description=self.description.format(self.topic),
                configuration={
                    **_PROPERTIES,
                    CLUSTER_ID: self.cluster_id,
                    TOPIC: self.topic,
                    TOPIC_ID: self.topic_id,
                },
                storage_options=delta_options.storage_options(self.uri, self._options),
                commit_properties=_AT_ONCE,
                raise_if_key_not_exists=False,  # Delta does not know this product's keys
            )
        except (DeltaError, OSError) as error:
            if self._open() is None:  # otherwise another writer has created the table
                self._failed("create", error, "create")

    def _clean(self, table: DeltaTable) -> None:
        try:
            table.create_checkpoint()
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            self._failed("clean the log of", error, "create")

    def _delete_older(self, table: DeltaTable, older: Sequence[StoredObject]) -> bool:
        """If there are ``older`` files of the log than the version of ``table``, write a checkpoint of it, and
        delete them. Returns whether this was done; if not, nothing was deleted. Either another run has deleted the
        history up to a later version, or the checkpoint has values in its tombstones: a new version has these
        tombstones without the values.
        """
        try:
            if older:
                table.create_checkpoint()
        except (DeltaError, OSError) as error:
            self._failed("write a checkpoint of", error, "create")
        name = f"{table.version():020d}.checkpoint.parquet"
        try:
            checkpoint = self.remote.stat(paths.join(self.folder, paths.DELTA_LOG, name))
            tombstones = self._tombstones_with_values(checkpoint)
        except (FileNotFoundError, SourceChangedError):
            return not older
        if tombstones:
            self._alter("commit to", partial(self._remove_again, table, tombstones))
            return False
        self.remote.delete([stored.name for stored in older])
        return True

    def _transaction_version(self, table: DeltaTable, application: str) -> int | None:
        """The version of an application's last transaction; None if it has none. delta-rs reads the log again for
        it, which an erasure may have deleted meanwhile. Raises: StorageError."""
        try:
            with delta_options.panics():
                return table.transaction_version(application)
        except (DeltaError, OSError) as error:
            self._failed("read", error)

    def _tombstones_with_values(self, checkpoint: StoredObject) -> list[ListedFile]:
        """See ``tombstones_with_values``."""
        return tombstones_with_values(self.remote, checkpoint)

    def _remove_again(self, table: DeltaTable, files: Sequence[ListedFile]) -> None:
        """Commit a version that removes files which the table has removed before. The last removal of a file
        counts. Raises: errors of delta-rs."""
        raise NotImplementedError

    def _removed(self, table: DeltaTable, delay_ms: int) -> RemovedFiles:
        """The files removed from the table; see ``load_with_removed`` of both kinds."""
        due = self._due(table, delay_ms)
        return RemovedFiles(self._removed_paths(table) | due, due)

    def _removed_paths(self, table: DeltaTable) -> frozenset[str]:
        """See ``removed_paths``."""
        return removed_paths(self.remote, check_log(self.remote, self.folder, table.version()))

    def _due(self, table: DeltaTable, delay_ms: int) -> frozenset[str]:
        """See ``RemovedFiles.due``."""
        age = min(-(-delay_ms // HOUR_MS), _MOST_HOURS)
        try:
            with delta_options.panics():
                return frozenset(table.vacuum(retention_hours=age, dry_run=True, enforce_retention_duration=False))
        except (DeltaError, OSError) as error:
            self._failed("vacuum", error)

    def _alter(self, what: str, commit: Callable[[], None]) -> None:
        """Try to commit a version without files. The table shows whether the commit landed."""
        try:
            commit()
        except CommitFailedError:
            self._clock.sleep(BACKOFF.pause_s(1, self._rng.random()))
        except (DeltaError, OSError) as error:
            self._failed(what, error, "create")

    def _races(self, failures: Sequence[Exception]) -> int:
        """The number of a commit's failures that were lost races. Raises: StorageError or OutcomeUnknownError
        after the last try.
        """
        races = sum(isinstance(failure, CommitFailedError) for failure in failures)
        if races < COMMIT_ATTEMPTS and len(failures) - races < UNANSWERED_ATTEMPTS:
            return races
        cause = delta_options.error_text(failures[-1])
        if races == len(failures):
            raise StorageError(f"{self.uri}: other writers were faster {len(failures)} times; try again: {cause}")
        raise OutcomeUnknownError(
            f"commits to {self.uri} failed {len(failures)} times, and the last commit may still succeed; read "
            f"before you retry: {cause}"
        )

    def _refusal(self, error: Exception, right: Right, cause: str = "") -> StorageRefusedError | None:
        return delta_options.refusal_of(error, right, cause, self.uri)

    def _failed(self, what: str, error: Exception, right: Right = "read") -> NoReturn:
        message = f"cannot {what} the table {self.uri}: {delta_options.error_text(error)}"
        if (refused := self._refusal(error, right, message)) is not None:
            raise refused from None
        if delta_options.is_catalog_managed(error):
            raise CorruptionError(
                f"the table {self.uri} was made catalog-managed by another writer (catalogManaged): "
                "only its catalog can commit to it, and delta-rs cannot even read it. Nothing "
                "was changed. Restore its former log from a backup of the remote tier, and "
                "register the table as an external "
                "one (cluster.catalog.create_table)"
            ) from None
        raise StorageError(message) from None


def _knows_ntz(table: DeltaTable) -> bool:
    return "timestampNtz" in (table.protocol().reader_features or ())
