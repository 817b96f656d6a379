"""The Delta table of one topic: KIP-405's remote log metadata, one commit per batch.

A commit is planned on one version and becomes the next one or nothing: the conditional put of the log
entry decides, with the application transaction ``stratalog`` (its version is the table's) as a second lock
for writers that rebase. Whoever loses reads the table again and drops what the winner has committed by
then. So does whoever got no answer: the table itself says whether a commit has landed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from partitions import paths
from partitions.clock import Clock
from partitions.errors import (
    CorruptionError,
    InconsistentClusterIdError,
    InvalidRecordError,
    OutcomeUnknownError,
    RemoteObjectMissingError,
    StorageError,
)
from partitions.store.protocol import Store, StoreOptions
from tiering import delta_options
from tiering.remote_log import RemoteLog
from tiering.remote_segment import RemoteSegment, Uploaded
from tiering.statistics import INDEXED_COLUMNS

APPLICATION = "stratalog"
CLUSTER_ID = "stratalog.cluster_id"
TOPIC = "stratalog.topic"
TOPIC_ID = "stratalog.topic_id"

COMMIT_ATTEMPTS = 20
_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 2.0
_HOUR_MS = 3_600_000

_PROPERTIES = {
    "delta.checkpointInterval": "20",  # opening costs one checkpoint and at most this many entries
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.dataSkippingNumIndexedCols": str(INDEXED_COLUMNS),
}
_ONE_ATTEMPT = 0  # as max_commit_retries: the next version, or a conflict


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a batch. ``log`` is the table after it, read anew."""

    log: RemoteLog
    listed: tuple[Uploaded, ...]
    """In the table now, by this commit or by somebody else's."""
    superseded: tuple[Uploaded, ...]
    """Not in the table: other files hold their offsets since. Litter in the remote tier."""


class DeltaTopicTable:
    """The table of one topic in a remote store; its folder is ``<topic>-<topic_id>``."""

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
        return f"DeltaTopicTable({self.uri!r})"

    def path(self, segment: RemoteSegment) -> str:
        """The name of a segment's object in the remote store."""
        return paths.join(self.folder, segment.path)

    def load(self) -> RemoteLog:
        """The remote log at the newest version; an empty one (version -1) when there is no table.

        Raises: InconsistentClusterIdError, CorruptionError for a table that is not this topic's or was
            written by somebody else; LogGapError; StorageError.
        """
        table = self._open()
        return RemoteLog.empty(self.uri) if table is None else self._fold(table)

    def ensure(self, schema: pa.Schema) -> None:
        """Create the table if there is none; ``schema`` is the physical schema of the topic's segments.

        Raises: InvalidRecordError when the table there has another schema; as ``load``.
        """
        wanted = _delta_schema(schema, self.uri)
        table = self._open()
        if table is None:
            self._create(wanted)
            table = self._open()
            if table is None:
                raise StorageError(f"the table {self.uri} was created and cannot be found; try again")
        if table.schema() != wanted:
            raise InvalidRecordError(
                f"the table {self.uri} has the schema {table.schema().to_json()}, the segments of topic "
                f"{self.topic} have {wanted.to_json()}"
            )

    def commit(self, adds: Sequence[Uploaded], removes: Sequence[RemoteSegment] = ()) -> Committed:
        """Add uploaded files and remove expired ones in one version (KIP-405: COPY_SEGMENT_FINISHED and
        DELETE_SEGMENT_STARTED). Nothing left to do makes no version.

        1. read the table; 2. see what of the batch it lacks, and that it stays a log with the batch;
        3. put the next version, if nobody has; 4. whatever the answer was, go to 1.

        Raises: LogGapError, CorruptionError when the batch would break the log (nothing is committed);
            StorageError when other writers always came first; OutcomeUnknownError; as ``load``.
        """
        failures: list[Exception] = []
        while True:
            table = self._open()
            if table is None:
                raise CorruptionError(f"there is no table at {self.uri}: create it first, or restore it")
            log = self._fold(table)
            needed = log.needed([upload.segment for upload in adds], removes)
            listed = {segment.path for segment in log.all_segments()}
            gone = [segment for segment in removes if segment.path in listed]
            if not needed and not gone:
                return _committed(log, adds, listed)
            log.after(needed, gone, log.version + 1)
            if len(failures) == COMMIT_ATTEMPTS:
                self._give_up(failures[-1])
            lacking = {segment.path for segment in needed}
            try:
                self._put(table, [upload for upload in adds if upload.segment.path in lacking], gone)
            except (DeltaError, OSError) as error:
                failures.append(error)
                longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** len(failures))
                self._clock.sleep(longest * self._rng.uniform(0.0, 1.0))

    def missing_objects(self, log: RemoteLog) -> list[RemoteSegment]:
        """Segments of the log whose object is not in the store, or has another size there."""
        sizes = {stored.name: stored.size_bytes for stored in self.remote.list(self.folder)}
        return [segment for segment in log.all_segments() if sizes.get(self.path(segment)) != segment.size_bytes]

    def check_objects(self, log: RemoteLog) -> None:
        """Raises: RemoteObjectMissingError naming the first listed object that is missing or truncated."""
        missing = self.missing_objects(log)
        if missing:
            raise RemoteObjectMissingError(
                f"{self.uri} lists {missing[0].path} with {missing[0].size_bytes} bytes, which is not there "
                f"as such; {len(missing)} such objects in all"
            )

    def expired_objects(self, delay_ms: int) -> list[str]:
        """Names in the store of files that were removed from the table at least ``delay_ms`` ago, rounded
        up to whole hours, and that are not listed again. Never a file that was uploaded but not
        committed: only removed ones are looked at. Removals older than delta.deletedFileRetentionDuration
        are forgotten at the next checkpoint: whoever runs this less often than weekly leaves litter.
        """
        table = self._open()
        if table is None:
            return []
        hours = -(-delay_ms // _HOUR_MS)
        try:
            removed = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
        except (DeltaError, OSError) as error:
            self._failed("vacuum", error)
        present = {stored.name for stored in self.remote.list(self.folder)} if removed else set()
        return sorted(present.intersection(paths.join(self.folder, path) for path in removed))

    def vacuum(self, delay_ms: int) -> list[str]:
        """Delete ``expired_objects`` from the store (KIP-405's DELETE_SEGMENT_FINISHED); their names.

        Raises: StorageError naming what could not be deleted; as ``load``.
        """
        expired = self.expired_objects(delay_ms)
        if expired:
            self.remote.delete(expired)
        return expired

    def delete(self) -> None:
        """Delete the whole folder, of a topic that the cluster has forgotten: the log of the table last,
        so that what a crash leaves is still recognised as this topic's.
        """
        names = [stored.name for stored in self.remote.list(self.folder)]
        log_folder = paths.join(self.folder, "_delta_log") + "/"
        self.remote.delete(name for name in names if not name.startswith(log_folder))
        self.remote.delete(name for name in names if name.startswith(log_folder))

    def _open(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self.uri, storage_options=delta_options.storage_options(self.uri, self._options))
            found = table.metadata().configuration
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            self._failed("read", error)
        if found.get(CLUSTER_ID) != self.cluster_id:
            raise InconsistentClusterIdError(
                f"the table {self.uri} belongs to cluster {found.get(CLUSTER_ID)!r}, not to "
                f"{self.cluster_id!r}: correct the remote tier in the cluster file"
            )
        if found.get(TOPIC_ID) != self.topic_id:
            raise CorruptionError(
                f"the table {self.uri} is of topic id {found.get(TOPIC_ID)!r}, not {self.topic_id!r}"
            )
        return table

    def _create(self, schema: Schema) -> None:
        try:
            DeltaTable.create(
                self.uri,
                schema,
                name=self.topic,
                description=f"Remote log of topic {self.topic}; stratalog commits to it, others may read",
                configuration={
                    **_PROPERTIES,
                    CLUSTER_ID: self.cluster_id,
                    TOPIC: self.topic,
                    TOPIC_ID: self.topic_id,
                },
                storage_options=delta_options.storage_options(self.uri, self._options),
                commit_properties=CommitProperties(max_commit_retries=_ONE_ATTEMPT),
                raise_if_key_not_exists=False,  # Delta does not know the keys of this product
            )
        except (DeltaError, OSError) as error:
            if self._open() is None:  # else somebody else was first
                self._failed("create", error)

    def _put(self, table: DeltaTable, adds: Iterable[Uploaded], removes: Iterable[RemoteSegment]) -> None:
        now_ms = self._clock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=upload.segment.path,
                size=upload.segment.size_bytes,
                partition_values={},
                modification_time=upload.modified_ms,
                data_change=True,
                stats=upload.statistics,
            )
            for upload in adds
        ]
        actions += [RemoveAction(segment.path, True, now_ms, segment.size_bytes, {}) for segment in removes]
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            commit_properties=CommitProperties(
                max_commit_retries=_ONE_ATTEMPT,
                app_transactions=[Transaction(APPLICATION, table.version() + 1, now_ms)],
            ),
        )

    def _fold(self, table: DeltaTable) -> RemoteLog:
        actions = pa.table(table.get_add_actions())
        listed = zip(
            actions["path"].to_pylist(),
            actions["size_bytes"].to_pylist(),
            actions["num_records"].to_pylist(),
            _timestamps(actions, "min"),
            _timestamps(actions, "max"),
            strict=True,
        )
        segments = [RemoteSegment.listed(*row, what=self.uri) for row in listed]
        return RemoteLog.of(self.uri, table.version(), segments)

    def _give_up(self, error: Exception) -> NoReturn:
        said = delta_options.said(error)
        if isinstance(error, CommitFailedError):
            raise StorageError(f"{self.uri}: other writers were faster {COMMIT_ATTEMPTS} times; try again: {said}")
        raise OutcomeUnknownError(
            f"commits to {self.uri} failed {COMMIT_ATTEMPTS} times, the last may still land; read before you "
            f"retry: {said}"
        )

    def _failed(self, what: str, error: Exception) -> NoReturn:
        raise StorageError(f"cannot {what} the table {self.uri}: {delta_options.said(error)}") from None


def _committed(log: RemoteLog, adds: Sequence[Uploaded], listed: set[str]) -> Committed:
    return Committed(
        log,
        tuple(upload for upload in adds if upload.segment.path in listed),
        tuple(upload for upload in adds if upload.segment.path not in listed),
    )


def _delta_schema(schema: pa.Schema, what: str) -> Schema:
    try:
        return Schema.from_arrow(schema)
    except (DeltaError, ValueError) as error:
        raise InvalidRecordError(f"{what}: a Delta table cannot have the schema {schema}: {error}") from error


def _timestamps(actions: pa.Table, bound: str) -> list[int | None]:
    """The bound of the records' timestamps of each action, in milliseconds."""
    index = actions.schema.get_field_index(bound)
    if index < 0 or actions.schema.field(index).type.get_field_index("timestamp") < 0:
        return [None] * actions.num_rows
    micros = pc.struct_field(actions.column(index), "timestamp").cast(pa.int64()).to_pylist()
    return [None if us is None else cast(int, us) // 1000 for us in micros]
