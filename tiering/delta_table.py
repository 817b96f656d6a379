"""Writing the Delta table of one topic: KIP-405's remote log metadata, one commit per batch.

A commit is planned on one version and becomes the next one or nothing: the conditional put of the log
entry decides, with the application transaction ``stratalog`` (its version is the table's) as a second lock
for writers that rebase. A writer that lost the race, or got no answer, reads the table again and drops the part of
its batch that is committed now: the table itself says whether a commit has landed.

Every version that is made here lists a whole remote log and nothing else: before a commit a rewrite by others
(``delta_reader``) is taken back, in a version of its own that changes no data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from stratalog.partitions import paths
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidRecordError,
    OutcomeUnknownError,
    RemoteObjectMissingError,
    StorageError,
)
from stratalog.tiering import delta_options
from stratalog.tiering.delta_commit import ONE_ATTEMPT, actions_of, commit
from stratalog.tiering.delta_reader import CLUSTER_ID, DELETED, TOPIC, TOPIC_ID, DeltaTopicReader
from stratalog.tiering.delta_schema import check_writable, delta_schema, grown_fields
from stratalog.tiering.divergence import Histories
from stratalog.tiering.foreign_commits import Rewrite
from stratalog.tiering.listed_files import listed_files
from stratalog.tiering.remote_change import CommittedBatch, Rebuilt, TableChange, decide, decide_rebuilt
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.statistics import INDEXED_COLUMNS

T = TypeVar("T")

COMMIT_ATTEMPTS = 20
"""Lost races: the next writer is quick."""
UNANSWERED_ATTEMPTS = 4
"""Commits that were refused, or got no answer: each may have taken a deadline with all its retries."""
_BACKOFF = Backoff(first_s=0.1, longest_s=2.0)

_PROPERTIES = {
    "delta.checkpointInterval": "20",  # opening costs one checkpoint and at most this many entries
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",  # nobody vacuums what the log could still bring back
    "delta.dataSkippingNumIndexedCols": str(INDEXED_COLUMNS),
}
_NOBODYS = Histories()
_AT_ONCE = CommitProperties(max_commit_retries=ONE_ATTEMPT)


class DeltaTopicTable(DeltaTopicReader):
    """The table of one topic, for writers."""

    def undo_rewrites(self) -> RemoteLog:
        """Take back what others have rewritten: the table lists the segments again, and no foreign file, in one
        version that changes no data. Without a rewrite it makes no version, and is a ``load``.

        Raises: RemoteObjectMissingError when a segment was vacuumed meanwhile: the table stays as it is, for the
            foreign files may be all there is of its records; as ``commit``.
        """
        log = self.load()
        return log if log.rewrite is None else self._commit(lambda log: log)[0]

    def ensure(self, schema: pa.Schema) -> None:
        """Create the table if it is missing; ``schema`` is the physical schema of the topic's segments. A table
        with a narrower one grows (``delta_schema``), one with a wider one stays.

        Raises: InvalidRecordError when the table there has another schema; StorageError; as ``load``.
        """
        wanted = delta_schema(schema, self.uri)
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            if table is None:
                self._create(wanted)
                continue
            fields = grown_fields(table.schema(), wanted)
            if fields is None:
                raise InvalidRecordError(
                    f"the table {self.uri} has the schema {table.schema().to_json()}, the segments of topic "
                    f"{self.topic} have {wanted.to_json()}: neither is the other and nullable fields behind it"
                )
            if not fields:
                return
            self._alter("grow", partial(table.alter.add_columns, fields, commit_properties=_AT_ONCE))
        raise StorageError(f"the table {self.uri} was made, or grew, {COMMIT_ATTEMPTS} times, and did not stay so")

    def commit(
        self,
        adds: Sequence[Uploaded],
        removes: Sequence[RemoteSegment] = (),
        histories: Histories = _NOBODYS,
    ) -> CommittedBatch:
        """Add uploaded files and remove expired ones in one version (KIP-405: COPY_SEGMENT_FINISHED and
        DELETE_SEGMENT_STARTED). In the same version go the segments that are not of the history of
        ``histories``, which has to name every partition of ``adds``. If nothing changes, no version is written.

        1. read the table; 2. see what of the batch it lacks, and that it stays a log with the batch;
        3. ask who leads, and where logs start: a partition with a later epoch than its history is left alone,
           and what a log start has passed is not added, and leaves the table;
        4. put the next version, if nobody has; 5. whatever the answer was, go to 1.

        Step 3 comes after step 1, and so a driver that believes in a deposed leader changes nothing once a
        later one has committed: a commit under a later epoch in the table of step 1 was made after the
        metadata knew that epoch, hence step 3 tells of it. If the later leader commits afterwards, step 4
        fails; and if it was elected after step 3, its first commit removes segments of another history.
        Likewise nothing is added anew that retention has taken out by step 1, and may have deleted since.

        Raises: LogGapError, CorruptionError when the batch would break the log (nothing is committed);
            StorageError when other writers always came first, StorageAuthorizationError when commits are refused;
            OutcomeUnknownError; as ``load``, and as ``undo_rewrites``, which comes first.
        """
        done, made = self._commit(lambda log: decide(log, adds, removes, histories))
        return replace(done, made=made)

    def replace(self, rebuilt: Sequence[Rebuilt]) -> CommittedBatch:
        """Let rebuilt segments take the place of those of which the objects are damaged or missing, in one version
        that changes no data. Where others have rewritten the table, that is taken back in the same one.

        Raises: as ``commit``.
        """
        return self._commit(lambda log: decide_rebuilt(log, rebuilt))[0]

    def _commit(self, decision: Callable[[RemoteLog], TableChange | T]) -> tuple[T, frozenset[str]]:
        """Put what is decided on the newest version, until nothing is left to do; and the paths of the files that
        were added so. Of a version without an answer nobody else is to say that it was theirs.
        """
        made: set[str] = set()
        failures: list[Exception] = []
        while True:
            table = self._open()
            if table is None:
                raise CorruptionError(f"there is no table at {self.uri}: create it first, or restore it")
            log = self._fold(table)
            change = decision(log)
            if log.rewrite is not None:
                change = self._undoing(log.rewrite, change if isinstance(change, TableChange) else None)
            if not isinstance(change, TableChange):
                return change, frozenset(made)
            races = sum(isinstance(failure, CommitFailedError) for failure in failures)
            if races == COMMIT_ATTEMPTS or len(failures) - races == UNANSWERED_ATTEMPTS:
                self._give_up(failures)
            check_writable(table, change, self.uri)
            try:
                self._put(table, change)
                made |= {upload.segment.path for upload in change.adds}
            except (DeltaError, OSError) as error:
                if len(failures) == races and delta_options.is_refused(error):
                    self._failed("commit to", error, "create")
                failures.append(error)
                if not isinstance(error, CommitFailedError):
                    made |= {upload.segment.path for upload in change.adds}
                self._clock.sleep(_BACKOFF.pause_s(len(failures), self._rng.random()))

    def vacuum(self, delay_ms: int) -> list[str]:
        """Delete from the store what was removed from the table ``delay_ms`` ago and is not listed again
        (KIP-405's DELETE_SEGMENT_FINISHED); the names.

        Raises: StorageError naming what could not be deleted; as ``load``.
        """
        log, removed = self.load_with_removed(delay_ms)
        due = removed.due.difference(segment.path for segment in log.all_segments())
        if not due:
            return []
        segments = self.objects().segments
        doomed = [segments[path].object.name for path in sorted(due & segments.keys())]
        if doomed:
            self.remote.delete(doomed)
        return doomed

    def mark_deleted(self, deleted: bool) -> None:
        """Say in the table that its topic is to be deleted with it, or not: what a crash of the deletion leaves
        is told by it from what somebody wants to keep. A table that is not there needs no mark.

        Raises: StorageError; as ``load``.
        """
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            if table is None or self._is_marked(table) == deleted:
                return
            set_properties = table.alter.set_table_properties
            mark = {DELETED: str(deleted).lower()}
            self._alter(
                "mark", partial(set_properties, mark, raise_if_not_exists=False, commit_properties=_AT_ONCE)
            )
        raise StorageError(f"{self.uri}: other writers were faster {COMMIT_ATTEMPTS} times; try again")

    def clean_log(self) -> None:
        """Write a checkpoint, and delete the entries of the table's log that are older than
        delta.logRetentionDuration and that it stands for. (Commits do both too, every ``delta.checkpointInterval``
        versions: this is for tables to which nobody commits any more.)

        That of a table that others have rewritten stays: it says what was there before.

        Raises: StorageError; as ``load``.
        """
        table = self._open()
        if table is not None and self._fold(table).rewrite is None:
            try:
                table.create_checkpoint()
                table.cleanup_metadata()
            except (DeltaError, OSError) as error:
                self._failed("clean the log of", error, "create")

    def delete(self) -> None:
        """Delete the whole folder, of a topic that the cluster has forgotten: the log of the table last,
        so that the rest after a crash is still recognised as this topic's. Objects under no valid name stay.
        """
        names = [stored.name for stored in self.remote.walk(self.folder) if not stored.special]
        log_folder = paths.join(self.folder, paths.DELTA_LOG) + "/"
        self.remote.delete(name for name in names if not name.startswith(log_folder))
        self.remote.delete(name for name in names if name.startswith(log_folder))

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
                commit_properties=_AT_ONCE,
                raise_if_key_not_exists=False,  # Delta does not know the keys of this product
            )
        except (DeltaError, OSError) as error:
            if self._open() is None:  # else somebody else was first
                self._failed("create", error, "create")

    def _alter(self, what: str, commit: Callable[[], None]) -> None:
        """Try to put a version without files; whether it landed, the table tells."""
        try:
            commit()
        except CommitFailedError:
            self._clock.sleep(_BACKOFF.pause_s(1, self._rng.random()))
        except (DeltaError, OSError) as error:
            self._failed(what, error, "create")

    def _undoing(self, rewrite: Rewrite, besides: TableChange | None) -> TableChange:
        """The change that takes a rewrite back, and makes another one with it that changes no data either.

        Raises: RemoteObjectMissingError, StorageError.
        """
        also = TableChange((), ()) if besides is None or besides.of_data else besides
        gone = {segment.path for segment in also.removes}
        back = {segment.path: segment for segment in rewrite.lacking if segment.path not in gone}
        found = self.objects()
        missing = [segment for segment in back.values() if not found.holds(segment)]
        if missing:
            raise RemoteObjectMissingError(
                f"{self.uri}: {rewrite}, and {len(missing)} of them, first {missing[0].path}, are not there any "
                "more; heal makes them again, from replicas or from the foreign files"
            )
        lacking = {segment.path for segment in rewrite.lacking}
        listed = listed_files(self._open_at(rewrite.since), self.uri)
        return TableChange(
            (*also.adds, *(upload for upload in listed if upload.segment.path in back)),
            tuple(segment for segment in also.removes if segment.path not in lacking),
            rewrite.files,
            of_data=False,
            why=f"takes back: {rewrite}",
        )

    def _put(self, table: DeltaTable, change: TableChange) -> None:
        now_ms = self._clock.now_ms()
        commit(table, actions_of(change, now_ms), table.version(), now_ms, change.why)

    def _give_up(self, failures: Sequence[Exception]) -> NoReturn:
        said = delta_options.said(failures[-1])
        if all(isinstance(failure, CommitFailedError) for failure in failures):
            raise StorageError(f"{self.uri}: other writers were faster {len(failures)} times; try again: {said}")
        raise OutcomeUnknownError(
            f"commits to {self.uri} failed {len(failures)} times, the last may still land; read before you "
            f"retry: {said}"
        )
