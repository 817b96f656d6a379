"""The latest record of each key of a topic as a Delta table: one file per partition, from the partition's latest
snapshot. KIP-630 has no counterpart of this table.

    partition, end_offset, epoch        the snapshot: the records ``[0, end_offset)``, the last one of ``epoch``
    timestamp, key, value, headers      the latest record of a key; keys without a value (tombstones) are absent

A file replaces the previous one in one version. The table decides between concurrent jobs: each version is planned
on the previous version, and the application transaction ``stratalog.<partition>`` has the leader epoch of a
partition's last publication. A later leader's snapshot replaces any other; a snapshot of the same leader replaces
a snapshot that ends earlier.

The generation in the name of a file is that of its snapshot (``stratalog.snapshots.erasure``). Only a file of the
generation in the metadata is added, and it replaces any file of another generation. The metadata are read after
the table: so a job that has read them before an erasure either adds its file before the erasure replaces it, or
finds that its version is taken, and reads both again.

The table is derived: the next snapshot job removes files of other writers, and creates a table again that it
cannot read, or that cannot list its files. After a restore, the table may have the only copy of a record. So
either happens only when every partition that has a file in the table gets one from its leader.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from stratalog.partitions import paths
from stratalog.partitions.agreed_time import stamp_ms
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidRecordError,
    StorageError,
    StratalogError,
)
from stratalog.partitions.paths import CheckpointName
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering import delta_options
from stratalog.tiering.delta_commit import Action, commit, removal
from stratalog.tiering.delta_entries import check_log
from stratalog.tiering.delta_schema import check_commits, is_append_only
from stratalog.tiering.erasure import older_log_files
from stratalog.tiering.foreign_commits import ListedFile
from stratalog.tiering.listed_files import whatever_is_listed
from stratalog.tiering.published import Publication, Published, published_schema, statistics_of
from stratalog.tiering.remote_objects import RemovedFiles
from stratalog.tiering.topic_table import BACKOFF, COMMIT_ATTEMPTS, TopicTable

_APPLICATION = "stratalog.{}"
"""The application transaction of a partition; its version is the leader epoch of the last publication."""
_FORGETS = "delta.setTransactionRetentionDuration"
"""The property with which Delta forgets application transactions that are older."""
_OPERATION = "stratalog.operation"
"""The field of the commit info that each version of this writer with files has."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The table at one version."""

    version: int
    files: Mapping[int, Published] = field(default_factory=dict)
    """Keyed by partition."""
    foreign: tuple[ListedFile, ...] = ()
    """Other files that the table lists: they belong to no partition, or are not the latest file of their
    partition."""
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    """By partition, the epoch of the leader that published last."""
    unusable: str = ""
    """The reason why the table must be created again (``create_again``); empty if it can be used."""


class SnapshotTable(TopicTable):
    """The table of one topic; its folder in the remote store is ``_snapshots/<topic>-<topic_id>``."""

    parent = paths.SNAPSHOT_TABLES
    remedy = (
        "Set remote.snapshot.table.enable to false, run `stratalog vacuum`, which deletes the table, and set it "
        "to true again"
    )
    description = "The latest record of each key of topic {}; stratalog replaces it, others may read"

    def load(self) -> Listed:
        """The table at the newest version. Without a table, this is version -1 with no files.

        Raises: InconsistentClusterIdError, CorruptionError for a table that belongs to another topic, or cannot be
        read; StorageError.
        """
        table = self._open()
        return Listed(-1) if table is None else self._listed(table)

    def open(self, schema: pa.Schema) -> Listed:
        """Open the table, and create it if it is missing; ``schema`` is the topic's physical schema. A table whose
        log is unreadable, that has other columns, or that another writer has partitioned or made unwritable, is
        ``unusable``.

        Raises: InconsistentClusterIdError, StorageError.
        """
        try:
            self.load()
            self.ensure(published_schema(schema))
            table = self._open()
            if table is None:
                return Listed(-1)
            self._check_usable(table)
            return self._listed(table)
        except (CorruptionError, InvalidRecordError) as error:
            return Listed(-1, unusable=str(error))
        except StorageError as error:
            if not self._is_damaged():
                raise
            return Listed(-1, unusable=str(error))

    def create_again(self, schema: pa.Schema, partitions: Container[int], all_partitions: Iterable[int]) -> None:
        """Delete the log of an unusable table, and create the table without files; ``partitions`` are about to be
        published, of the topic's ``all_partitions``.

        Raises: StorageError, with nothing changed, if the table or its folder may have the only copy of a record
        of another partition; CorruptionError, for example for a link in the log.
        """
        if not self.open(schema).unusable:
            return  # another job has created it again
        table = None
        with suppress(StratalogError):  # its log is unreadable
            table = self._open()
        if table is not None:
            self._check_replaced(table, all_partitions, partitions)
        walked = self.remote.walk(self.folder)
        there = (paths.parse_published_path(one.name.removeprefix(f"{self.folder}/")) for one in walked)
        if lacking := sorted({one[0] for one in there if one is not None and one[0] not in partitions}):
            raise StorageError(
                f"the table {self.uri} is unreadable, and is created again when all its partitions are published "
                f"in one run; these were not: {lacking}. Run `stratalog snapshot` again"
            )
        log = self.remote.walk(paths.join(self.folder, paths.DELTA_LOG))
        self.remote.delete([stored.name for stored in log if not stored.special])
        self.ensure(published_schema(schema))

    def commit(
        self, publications: Sequence[Publication], generations: Callable[[], Mapping[int, int]]
    ) -> frozenset[int]:
        """Replace the listed file of each partition, if the new one takes precedence (see the module), in one
        version; returns the partitions whose new file is now listed. The same version removes files of other
        writers. ``generations`` reads the generation of each of the topic's partitions from the metadata.

        1. Read the table, and then the metadata.
        2. Select the files that it is to list.
        3. Commit the next version, if no writer has.
        4. Whatever the answer, go to 1: the table shows whether the version has landed.

        Raises: StorageError when other writers always came first, or when a file of another writer may have the
        only rows of a partition; OutcomeUnknownError; see ``load``.
        """
        failures: list[Exception] = []
        removed: set[str] = set()
        versions = 0
        while True:
            table = self._open()
            if table is None:
                raise StorageError(
                    f"the table {self.uri} was deleted during the commit; the next snapshot job creates it again"
                )
            listed = self._listed(table)
            current = generations()
            due = [
                one
                for one in publications
                if current.get(one.partition) == one.snapshot.generation and _replaces(one, listed)
            ]
            if not due and not listed.foreign:
                held = {file.path for file in listed.files.values()}
                return frozenset(one.partition for one in publications if one.path in held)
            if listed.foreign:
                self._check_replaced(table, current, {*listed.files, *(one.partition for one in due)})
                self._check_removable(listed, removed)
                if versions == COMMIT_ATTEMPTS:
                    raise StorageError(
                        f"another program has added files to the table {self.uri} {versions} times since its "
                        f"files were removed, the last one {listed.foreign[0].path}: stop it, then try again"
                    )
            races = self._races(failures)
            try:
                self._put(table, listed, due)
                removed |= {one.path for one in listed.foreign}
                versions += 1
            except (DeltaError, OSError) as error:
                if len(failures) == races and self._refusal(error, "create") is not None:
                    self._failed("commit to", error, "create")
                failures.append(error)
                self._clock.sleep(BACKOFF.pause_s(len(failures), self._rng.random()))

    def litter(self, objects: Iterable[StoredObject], *, delay_ms: int, before_ms: int) -> list[StoredObject]:
        """The unused files in the table's folder. They were removed from the table ``delay_ms`` ago, rounded up to
        whole hours, or were never listed and were created before ``before_ms``. The table is read after
        ``objects`` were listed.

        Raises: see ``load``.
        """
        listed, removed = self.load_with_removed(delay_ms)
        if listed.version < 0:
            return []
        held = {file.path for file in listed.files.values()}
        found = []
        for stored in objects:
            path = stored.name.removeprefix(f"{self.folder}/")
            if path in held or stored.special or paths.parse_published_path(path) is None:
                continue
            if path in removed.due or (path not in removed.ever and stored.modified_ms < before_ms):
                found.append(stored)
        return found

    def load_with_removed(self, delay_ms: int) -> tuple[Listed, RemovedFiles]:
        """The table at the newest version (see ``load``), and the files removed from it. Files removed at least
        ``delay_ms`` ago, rounded up to whole hours, are due for deletion.

        Raises: see ``load``.
        """
        table = self._open()
        if table is None:
            return Listed(-1), RemovedFiles()
        return self._listed(table), self._removed(table, delay_ms)

    def delete_history(self, generations: Mapping[int, int]) -> int:
        """Write a checkpoint of the newest version, and delete the log entries of all earlier versions. Returns
        the newest version; -1 without a table. ``generations`` has the present generation by partition.

        Raises: StorageError, with nothing deleted, if the table lists files of other writers, or of an earlier
        generation (after a RESTORE); see ``load``.
        """
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            if table is None:
                return -1
            listed = self._listed(table)
            if listed.foreign:
                raise StorageError(f"another program has added {listed.foreign[0].path} to the table {self.uri}")
            for partition, file in listed.files.items():
                if file.snapshot.generation != generations.get(partition, file.snapshot.generation):
                    raise StorageError(
                        f"another program has restored {file.path} to the table {self.uri}, where readers may now "
                        "miss it: run `stratalog snapshot --by-hand`"
                    )
            older = older_log_files(self.remote.walk(paths.join(self.folder, paths.DELTA_LOG)), listed.version)
            # An entry of another writer may have values of keys, in its statistics or its commit info.
            ours = listed.version == 0 or _OPERATION in self._last_commit(table)
            if not ours:
                self._alter("commit to", partial(self._put, table, listed, ()))
                continue
            if self._delete_older(table, older):
                return listed.version
        raise StorageError(f"{self.uri}: other writers were faster {COMMIT_ATTEMPTS} times; try again")

    def clean_log(self) -> None:
        """Write a checkpoint, and delete the log entries that it replaces and that are older than
        delta.logRetentionDuration.

        Raises: StorageError; see ``load``.
        """
        table = self._open()
        if table is not None:
            self._clean(table)

    def _is_damaged(self) -> bool:
        """Whether the table's log can be read completely, but delta-rs finds no table in it.

        Raises: CorruptionError for a file in it that delta-rs must not read; StorageError.
        """
        check_log(self.remote, self.folder)
        options = delta_options.storage_options(self.uri, self._options)
        try:
            with delta_options.panics():
                DeltaTable(self.uri, storage_options=options).get_add_actions()
        except DeltaError as error:
            return self._refusal(error, "read") is None
        except OSError as error:
            self._failed("read", error)
        return False

    def _check_usable(self, table: DeltaTable) -> None:
        """Raises: CorruptionError if the table cannot list this writer's files."""
        check_commits(table, self.uri)
        if columns := table.metadata().partition_columns:
            raise CorruptionError(
                f"the table {self.uri} was partitioned by another writer, by {', '.join(columns)}: readers would "
                "find nulls in these columns"
            )
        if is_append_only(table):
            raise CorruptionError(
                f"the table {self.uri} was made append-only by another writer, so no file in it can be replaced"
            )

    def _check_removable(self, listed: Listed, removed: Container[str]) -> None:
        """Raises: StorageError if the table still lists a foreign file that was ``removed``."""
        for one in listed.foreign:
            if one.path in removed:
                raise StorageError(
                    f"the table {self.uri} still lists {one.path} of another program after its removal, because "
                    "that program has not encoded the path as Delta requires: set remote.snapshot.table.enable to "
                    "false, run `stratalog vacuum`, which deletes the table, and set it to true again"
                )

    def _check_replaced(self, table: DeltaTable, partitions: Iterable[int], own: Container[int]) -> None:
        """Check that each partition that was ever published is in ``own``, the partitions with a file of this
        writer: files of other writers may have the rows of the others. Raises: StorageError."""
        others = [partition for partition in partitions if partition not in own]
        lacking = [partition for partition, epoch in self._epochs(table, others).items() if epoch is not None]
        if lacking:
            raise StorageError(
                f"another program has rewritten the table {self.uri}. Its files are replaced when all partitions "
                f"are published in one run; these were not: {lacking}. Run `stratalog snapshot` again; for a "
                "partition without a snapshot, append a record first"
            )

    def _listed(self, table: DeltaTable) -> Listed:
        files: dict[int, Published] = {}
        foreign: list[ListedFile] = []
        try:
            with delta_options.panics():
                everything = whatever_is_listed(table)
        except (DeltaError, OSError) as error:
            self._failed("read", error)
        except (pa.ArrowException, ValueError, LookupError, OverflowError) as error:
            raise CorruptionError(f"the table {self.uri} lists files that cannot be read: {error}") from error
        for one in everything:
            parsed = paths.parse_published_path(one.path)
            if parsed is None or parsed[0] in files:
                foreign.append(one)
            else:
                files[parsed[0]] = Published(parsed[1], one.path, one.size_bytes)
        epochs = self._epochs(table, files)
        known = {partition: -1 if epoch is None else epoch for partition, epoch in epochs.items()}
        return Listed(table.version(), files, tuple(foreign), known)

    def _epochs(self, table: DeltaTable, partitions: Iterable[int]) -> dict[int, int | None]:
        """The leader epoch of each partition's last publication; None if it has none.

        Raises: StorageError; CorruptionError if Delta may have forgotten an epoch.
        """
        found = {one: self._transaction_version(table, _APPLICATION.format(one)) for one in partitions}
        if None in found.values() and _FORGETS in table.metadata().configuration:
            raise CorruptionError(
                f"another writer has set {_FORGETS} of the table {self.uri}, so Delta may have forgotten which "
                f"leader published a file last: ALTER TABLE delta.`{self.uri}` UNSET TBLPROPERTIES "
                f"('{_FORGETS}'), then run `stratalog snapshot`"
            )
        return found

    def _last_commit(self, table: DeltaTable) -> Mapping[str, object]:
        """The commit info of the newest version; empty if only its checkpoint is left."""
        try:
            with delta_options.panics():
                return next(iter(table.history(1)), {})
        except (DeltaError, OSError) as error:
            self._failed("read", error)

    def _put(self, table: DeltaTable, listed: Listed, due: Sequence[Publication]) -> None:
        now_ms = stamp_ms(self._clock, self.remote)  # the time of removal: the delay of deletion starts here
        actions: list[Action] = [
            AddAction(
                path=one.path,
                size=one.size_bytes,
                partition_values={},
                modification_time=one.modified_ms,
                data_change=True,
                stats=statistics_of(one),
            )
            for one in due
        ]
        gone = [(one.path, one.size_bytes) for one in listed.foreign]
        for one in due:
            if one.partition in listed.files:
                present = listed.files[one.partition]
                gone.append((present.path, present.size_bytes))
        actions += [removal(path, size, now_ms, of_data=True) for path, size in gone]
        ends = {f"stratalog.{one.partition}": _place(one.snapshot) for one in due}
        transactions = [Transaction(_APPLICATION.format(one.partition), one.leader_epoch, now_ms) for one in due]
        info = {"stratalog.topic": self.topic, _OPERATION: "snapshot" if due else "erase", **ends}
        commit(table, actions, table.version(), transactions, info)

    def _remove_again(self, table: DeltaTable, files: Sequence[ListedFile]) -> None:
        now_ms = stamp_ms(self._clock, self.remote)
        actions = [removal(one.path, one.size_bytes, now_ms, of_data=False) for one in files]
        commit(table, actions, table.version(), (), {"stratalog.topic": self.topic, _OPERATION: "erase"})


def _place(snapshot: CheckpointName) -> str:
    """A snapshot in the commit info."""
    return f"{snapshot.end_offset}-{snapshot.epoch}{f'.{snapshot.generation}' if snapshot.generation else ''}"


def _replaces(one: Publication, listed: Listed) -> bool:
    present = listed.files.get(one.partition)
    if present is None or one.snapshot.generation != present.snapshot.generation:
        return True
    if one.leader_epoch != listed.leader_epochs[one.partition]:
        return one.leader_epoch > listed.leader_epochs[one.partition]
    return one.snapshot.end_offset > present.snapshot.end_offset or present.path == one.instead_of
