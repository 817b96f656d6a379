"""Writes the Delta table of one topic: KIP-405's remote log metadata, one commit per batch.

A commit is planned on one version, and becomes the next version or nothing. The conditional put of the log entry
decides. The application transaction ``stratalog``, whose version is the table's, is a second lock for writers that
rebase. A writer that lost the race, or got no answer, reads the table again, which shows whether the commit
succeeded. The writer then drops the part of its batch that has been committed meanwhile.

Every version made here lists a complete remote log and nothing else. So a rewrite by other writers
(``delta_reader``) is reverted before a commit, in a separate version that changes no data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from stratalog.partitions.agreed_time import stamp_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import (
    CorruptionError,
    InconsistentClusterIdError,
    OutcomeUnknownError,
    RemoteObjectMissingError,
    StorageError,
)
from stratalog.partitions.removal import Rule
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.tiering import delta_options
from stratalog.tiering.delta_commit import actions_of, commit
from stratalog.tiering.delta_entries import check_log
from stratalog.tiering.delta_metadata import set_properties
from stratalog.tiering.delta_reader import DeltaTopicReader
from stratalog.tiering.delta_schema import check_commits, check_writable
from stratalog.tiering.divergence import Histories
from stratalog.tiering.erasure import ERASURES, decide_begun, decide_erased, erasures_json, older_log_files
from stratalog.tiering.foreign_commits import APPLICATION, ListedFile, Rewrite, commits_since
from stratalog.tiering.listed_files import listed_files
from stratalog.tiering.remote_change import CommittedBatch, Rebuilt, TableChange, decide, decide_rebuilt
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.removal import (
    RULES,
    Followed,
    Replaced,
    adopted_rules,
    decide_followed,
    decide_removed,
    rules_json,
)
from stratalog.tiering.topic_table import BACKOFF, CLUSTER_ID, COMMIT_ATTEMPTS, TopicTable

T = TypeVar("T")

_NOBODYS = Histories()


class DeltaTopicTable(DeltaTopicReader):
    """The table of one topic, for writers."""

    def undo_rewrites(self) -> RemoteLog:
        """Revert rewrites of other writers: one version, which changes no data, lists the segments again and no
        foreign file. If there is no rewrite, only load the table.

        Raises: RemoteObjectMissingError when a segment was vacuumed meanwhile: the table stays unchanged, because
            the foreign files may have the only copy of the segment's records; see ``commit``.
        """
        log = self.load()
        return log if log.rewrite is None else self._commit(lambda log: log)[0]

    def commit(
        self,
        adds: Sequence[Uploaded],
        removes: Sequence[RemoteSegment] = (),
        histories: Histories = _NOBODYS,
    ) -> CommittedBatch:
        """Add uploaded files and remove expired files in one version (KIP-405: COPY_SEGMENT_FINISHED and
        DELETE_SEGMENT_STARTED). The same version removes segments outside of ``histories``, which must name every
        partition of ``adds``. If nothing changes, no version is written.

        1. Read the table.
        2. Find the part of the batch that the table lacks. Check that the table with this part is still a log.
        3. Read the current leaders and log starts. Skip partitions with a later epoch than their history. Do not
           add segments below a log start, and remove such segments from the table.
        4. Commit the next version, if no writer has.
        5. Whatever the answer, go to 1.

        Step 3 comes after step 1, so a driver with a deposed leader changes nothing once a later leader has
        committed. The metadata had the later epoch before that commit. Step 1 reads the commit, so step 3 finds
        the epoch. If the later leader commits after step 1, step 4 fails. If the later leader is elected after
        step 3, its first commit removes segments of another history. Likewise, segments that retention has removed
        by step 1, and may have deleted since, are not added again.

        Raises: LogGapError, CorruptionError when the batch would break the log (nothing is committed);
            StorageError when other writers always came first, StorageAuthorizationError when commits are refused;
            OutcomeUnknownError; see ``load``, and ``undo_rewrites``, which is called first.
        """
        done, made = self._commit(lambda log: decide(log, adds, removes, histories))
        return dataclasses.replace(done, made=made)

    def replace(self, rebuilt: Sequence[Rebuilt], histories: Histories = _NOBODYS) -> CommittedBatch:
        """Replace segments with damaged or missing objects by rebuilt segments, in one version that changes no
        data and reverts any rewrite of other writers. Partitions with an erasure that is missing in ``histories``
        are skipped.

        Raises: see ``commit``.
        """
        return self._commit(lambda log: decide_rebuilt(log, rebuilt, histories))[0]

    def remove_records(self, replaced: Sequence[Replaced], operation: str = "compact") -> CommittedBatch:
        """Replace segments by segments with fewer records at the same offsets, in one version that changes data.
        ``operation`` is the name of the change in the commit info.

        Raises: see ``commit``.
        """
        done, made = self._commit(lambda log: decide_removed(log, replaced, operation))
        return dataclasses.replace(done, made=made)

    def record_rules(self, followed: Mapping[int, Followed]) -> RemoteLog:
        """Record, by partition, the removal rules that the remote log follows, in a separate version. Returns the
        log. The rule of a partition whose segments have changed meanwhile is not recorded. After that version, no
        segment of a lesser generation is added below a rule's bound.

        Raises: see ``commit``.
        """
        return self._commit(lambda log: decide_followed(log, followed))[0]

    def record_erasures(
        self, erasures: Mapping[int, Sequence[Erasure]], compacted: Mapping[int, Rule]
    ) -> RemoteLog:
        """Record the last erasure of each of these partitions, in a separate version. Returns the log. The erasure
        of a partition that still lists a segment with erased records is not recorded. After that version, no
        segment with erased records is added. ``compacted`` has the last compaction of each partition that has one:
        see ``decide_erased``.

        Raises: see ``commit``.
        """
        return self._commit(lambda log: decide_erased(log, erasures, compacted))[0]

    def record_beginning(
        self, erasures: Mapping[int, Sequence[Erasure]], compacted: Mapping[int, Rule]
    ) -> RemoteLog:
        """Like ``record_erasures``, but only for partitions that have no segment yet.

        Raises: see ``commit``.
        """
        return self._commit(lambda log: decide_begun(log, erasures, compacted))[0]

    def delete_history(self) -> int:
        """Write a checkpoint of the newest version, and delete the log entries of all earlier versions. Returns
        the newest version; -1 without a table. Reverts rewrites of other writers first.

        Raises: see ``undo_rewrites``; StorageError.
        """
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            if table is None:
                return -1
            version, log = table.version(), self._fold(table)
            if log.rewrite is not None:
                self.undo_rewrites()
                continue
            older = older_log_files(self.objects().log_entries, version)
            since, _ = commits_since(self.remote, self.folder, max(version - 1, 0), version)
            if since != version:  # the last version is another writer's
                # Later commits of other writers are judged from this version.
                change = TableChange((), (), erased=log.erased, operation="erase")
                self._alter("commit to", partial(self._put, table, change))
                continue
            if self._delete_older(table, older):
                return version
        raise StorageError(f"{self.uri}: other writers were faster {COMMIT_ATTEMPTS} times; try again")

    def adopted(self, table: DeltaTable) -> dict[str, str]:
        """The properties of the table, at this version, that change when another cluster becomes its owner.
        Raises: see ``load``."""
        if not table.metadata().configuration.get(RULES):
            return {}
        return {RULES: rules_json(adopted_rules(self._fold(table)))}

    def _commit(self, decision: Callable[[RemoteLog], TableChange | T]) -> tuple[T, frozenset[str]]:
        """Make the decision from the newest version of the table and commit it; repeat until nothing is left to
        do. Returns the paths of the added files. A commit without an answer is retried, so that no other driver
        claims its version.
        """
        made: set[str] = set()
        failures: list[Exception] = []
        while True:
            table = self._open()
            if table is None:
                raise CorruptionError(f"no table exists at {self.uri}: create it first, or restore it")
            log = self._fold(table)
            change = decision(log)
            if log.rewrite is not None:
                change = self._undoing(log.rewrite, change if isinstance(change, TableChange) else None)
            if not isinstance(change, TableChange):
                return change, frozenset(made)
            races = self._races(failures)
            check_writable(table, change, self.uri)
            try:
                self._put(table, change)
                made |= {upload.segment.path for upload in change.adds}
            except (DeltaError, OSError) as error:
                if len(failures) == races and self._refusal(error, "create") is not None:
                    self._failed("commit to", error, "create")
                failures.append(error)
                if not isinstance(error, CommitFailedError):
                    made |= {upload.segment.path for upload in change.adds}
                self._clock.sleep(BACKOFF.pause_s(len(failures), self._rng.random()))

    def vacuum(self, delay_ms: int) -> list[str]:
        """Delete objects that left the table at least ``delay_ms`` ago and are not listed again (KIP-405's
        DELETE_SEGMENT_FINISHED); returns their names.

        Raises: StorageError naming the objects that could not be deleted; see ``load``.
        """
        log, due = self.load_with_due(delay_ms)
        due = due.difference(segment.path for segment in log.all_segments())
        if not due:
            return []
        segments = self.objects().segments
        doomed = [segments[path].object.name for path in sorted(due & segments.keys())]
        if doomed:
            self.remote.delete(doomed)
        return doomed

    def clean_log(self) -> None:
        """Write a checkpoint, and delete the log entries that it replaces and that are older than
        delta.logRetentionDuration. (Commits do both every ``delta.checkpointInterval`` versions; this is for
        tables without commits.) A table that other writers have rewritten is skipped, because its log is needed to
        find the earlier content.

        Raises: StorageError; see ``load``.
        """
        table = self._open()
        if table is not None and self._fold(table).rewrite is None:
            self._clean(table)

    def _undoing(self, rewrite: Rewrite, besides: TableChange | None) -> TableChange:
        """The change that reverts a rewrite, combined with another change that changes no data.

        Raises: RemoteObjectMissingError, StorageError.
        """
        also = TableChange((), ()) if besides is None or besides.of_data else besides
        gone = {segment.path for segment in also.removes}
        back = {segment.path: segment for segment in rewrite.lacking if segment.path not in gone}
        found = self.objects()
        missing = [segment for segment in back.values() if not found.holds(segment)]
        if missing:
            raise RemoteObjectMissingError(
                f"{self.uri}: {rewrite}, and {len(missing)} of the replaced segments no longer exist (the first "
                f"is {missing[0].path}); run heal to rebuild them from replicas or from the foreign files"
            )
        lacking = {segment.path for segment in rewrite.lacking}
        listed = listed_files(self._open_at(rewrite.since), self.uri)
        return TableChange(
            (*also.adds, *(upload for upload in listed if upload.segment.path in back)),
            tuple(segment for segment in also.removes if segment.path not in lacking),
            rewrite.files,
            of_data=False,
            why=f"reverts: {rewrite}",
        )

    def _remove_again(self, table: DeltaTable, files: Sequence[ListedFile]) -> None:
        self._put(table, TableChange((), (), tuple(files), of_data=False, operation="erase"))

    def _put(self, table: DeltaTable, change: TableChange) -> None:
        now_ms = stamp_ms(self._clock, self.remote)  # the time of removal: the delay of deletion starts here
        version = table.version()
        transaction = Transaction(APPLICATION, version + 1, now_ms)
        properties = {}
        if change.rules:
            properties[RULES] = rules_json(change.rules)
        if change.erased is not None:
            properties[ERASURES] = erasures_json(change.erased)
        if properties:
            set_properties(
                table, self.remote, self.folder, properties, now_ms, change.info(self.topic), [transaction]
            )
            return
        commit(table, actions_of(change, now_ms), version, [transaction], change.info(self.topic))


_PAUSE_S = 0.2


def hand_over(topic: TopicTable, former: str, to: str, options: StoreOptions, clock: Clock) -> bool:
    """Make cluster ``to`` the owner of the topic's table, if ``former`` was the owner. Returns whether there is a
    table. Idempotent.

    The removal rules that the table records then end with the remote log (``removal.adopted_rules``).

    Only the cluster in the table's properties may commit. An ordinary commit changes this property, and so decides
    between two clusters. The former cluster's earlier commits are in the table that the restored cluster reads.
    The former cluster's later commits lose the race, read the table again, and find another owner
    (``DeltaTopicTable``).

    Raises: InconsistentClusterIdError when a third cluster owns the table; StorageError;
        StorageAuthorizationError when commits are refused; OutcomeUnknownError; CorruptionError, see ``check_log``
        and ``check_commits``.
    """
    uri = topic.uri
    failure: Exception | None = None
    for _ in range(COMMIT_ATTEMPTS):
        table = _open(topic, options)
        if table is None:
            return False
        found = table.metadata().configuration.get(CLUSTER_ID)
        if found == to:
            return True
        if found != former:
            raise InconsistentClusterIdError(
                f"the table {uri} belongs to cluster {found!r}, neither to {former!r} nor to {to!r}"
            )
        check_commits(table, uri)
        try:
            adopted = topic.adopted(table) if isinstance(topic, DeltaTopicTable) else {}
            set_properties(table, topic.remote, topic.folder, {CLUSTER_ID: to, **adopted}, clock.now_ms())
        except (DeltaError, OSError) as error:  # a lost race, or no answer: the table shows which
            if isinstance(failure, CommitFailedError | None) and topic._refusal(error, "create") is not None:
                topic._failed("hand over", error, "create")
            failure = error
            clock.sleep(_PAUSE_S)
    cause = "" if failure is None else delta_options.error_text(failure)
    raise OutcomeUnknownError(f"{uri} could not be handed over to cluster {to!r}; read before you retry: {cause}")


def _open(topic: TopicTable, options: StoreOptions) -> DeltaTable | None:
    check_log(topic.remote, topic.folder)
    try:
        with delta_options.panics():
            return DeltaTable(topic.uri, storage_options=delta_options.storage_options(topic.uri, options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        topic._failed("read", error)
