"""Erase: permanently removes every record of given keys. All other records keep their offsets.

    1. refuse by name what cannot be erased everywhere (``plan``); fence the brokers that do not answer
    2. continue erasures that an earlier run has committed
    3. tasks find the records of the keys in the log, also in the remote part; commits name their offsets; the
       remote log loses them first (``remote``); each leader rewrites the files that have them, and the ISR copies
       these. A member that is not reached leaves the ISR. In topics with snapshots, the log starts at a snapshot
       without the keys instead (``snapshot_run``), which then replaces the file of the table in which the topic
       publishes its snapshots (``published``)
    4. on each replica, files with erased records that have left the log are deleted after ``file.delete.delay.ms``
    5. search all roots for remaining bytes: of former replicas, and of writers that have not ended. In the remote
       tier, delete objects with erased records, and the history of the tables (``remote_clean``)
    6. forget the offsets of partitions that have no remaining bytes
    7. write the certificate

If a run ends early, the next run does the rest. Partition epochs keep two concurrent runs consistent.

An upload or a merge that began before the erasure, and ends after it, may bring a file with erased records back.
Such a file is ignored, because files of a greater generation take precedence; it is deleted like every replaced
file. Step 5 finds unfinished uploads, but not a single PUT in flight: ``verify --erased`` finds its object later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.driver.compared_clocks import compared_clocks
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.erasure_commands import ErasedEverywhere, ForgetErasures
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.partition_commands import AlterPartition, RefusedPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.in_sync import without
from stratalog.engine.upkeep.erasing.certificate import Certificate, ErasedTopic, NotErased, described
from stratalog.engine.upkeep.erasing.commits import commit_erasures
from stratalog.engine.upkeep.erasing.copies import copies_of
from stratalog.engine.upkeep.erasing.look import look_at
from stratalog.engine.upkeep.erasing.partition import ErasingPartition
from stratalog.engine.upkeep.erasing.plan import WantedRecords, check_topics, work_of
from stratalog.engine.upkeep.erasing.published import PublishedErasing
from stratalog.engine.upkeep.erasing.remote import RemoteErasing
from stratalog.engine.upkeep.erasing.remote_clean import clean_remotely
from stratalog.engine.upkeep.erasing.report import BAD_RECORDS, EraseRow, ErasureReport, report_with
from stratalog.engine.upkeep.erasing.snapshot_run import ReduceLarge, SnapshotErasing
from stratalog.engine.upkeep.erasing.steps import clean, erase_partition, plan_partition
from stratalog.engine.upkeep.erasing.tasks import EraseWork, FoundRecords, find_records, offsets_of
from stratalog.engine.upkeep.snapshots.snapshot import needs_spark
from stratalog.partitions.clock import time_text
from stratalog.partitions.errors import (
    InvalidUpdateVersionError,
    LogGapError,
    StaleMetadataError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.rewrites.wanted_where import RecordFinder
from stratalog.partitions.runner import Done, Failed

_ATTEMPTS = 5
R = TypeVar("R")
_SALT_BYTES = 32
_TABLE_COMMITS = 4
"""The requests of an erasure's versions of a table, and of the checkpoint."""
NOT_WHOLE = "NOT_ERASED"
"""The code of the failure of a partition with bytes that are left."""


def erase(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str],
    wanted: WantedRecords,
    *,
    reduce_large: ReduceLarge = needs_spark,
    now: bool = False,
    dry_run: bool = False,
) -> ErasureReport:
    """Erase the records of these topics. ``now``: delete replaced files without their delay; readers that use them
    then fail. ``reduce_large`` makes the snapshots that exceed a task's memory. Remaining bytes are failures,
    except those that the next run deletes after the delay.

    Raises: see ``check_topics``; if it raises any of these, nothing was changed. Also errors of reading and
        writing the metadata. Everything else is a failure of its partition in the report.
    """
    with execution.run("erase", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        now_ms = cache(lambda: compared_clocks(storage, execution.clock, image).agreed_ms)
        keys = check_topics(storage, image, topics, wanted, now_ms)
        probed = probe_first(metadata, storage, run, image)
        if probed is not image:
            image, keys = probed, check_topics(storage, probed, topics, wanted, now_ms)
        remote = RemoteErasing(storage, run)
        published = PublishedErasing(storage, run)
        for tables in (remote, published):
            tables.open(image, [image.topics[topic_id] for topic_id in keys])
        erasing = _Erasing(metadata, storage, execution, run, now, keys, image, remote, published, reduce_large)
        if wanted.any:
            erasing.search_tables()
        if dry_run:
            erasing.plan(sends)
        else:
            erasing.carry_on()
            if wanted.any:
                erasing.remove()
            erasing.publish()
            erasing.clean()
            erasing.look_everywhere()
            erasing.clean_remotely()
            erasing.forget()
        erasing.report()
        run.notes.append(BAD_RECORDS)
        run.total("records", "files", "remote_files", "deleted_files", "not_erased")
        run.totals |= {name: None for name in run.totals if any(row.get(name, 0) is None for row in run.rows)}
        if dry_run:
            run.estimate = sends.estimate()
            return report_with(run.report(), None)
        certificate = erasing.certify(wanted, execution.clock.now_ms())
        run.notes.append(f"certificate: sha256 {certificate.sha256}")
        if not wanted.any:
            run.notes.append(
                "without keys or a condition, this run did not search for records that earlier runs missed; to "
                "find them, and to get a certificate that names the keys, give the keys or the condition again"
            )
        run.totals["whole"] = certificate.whole
    return report_with(run.report(), certificate)


class _Erasing:
    """One run."""

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        run: OperationRun,
        now: bool,
        keys: dict[str, RecordFinder | None],
        image: ClusterImage,
        remote: RemoteErasing,
        published: PublishedErasing,
        reduce_large: ReduceLarge,
    ) -> None:
        self._remote, self._published, self._reduce_large = remote, published, reduce_large
        self._execution = execution
        self._metadata, self._storage, self._clock = metadata, storage, execution.clock
        self._run, self._now, self._keys, self._image = run, now, keys, image
        self._carried_out: dict[TopicIdPartition, int] = {}  # generations
        views = [view for topic_id in keys for view in image.views(image.topics[topic_id].name)]
        self._parts = {view.key: ErasingPartition(view, keys[view.topic_id]) for view in views}
        self._with_snapshots = {
            topic_id for topic_id in keys if topic_config_of(image, image.topics[topic_id]).snapshots
        }

    # ------------------------------------------------------------------------------------ steps

    def search_tables(self) -> None:
        """Find the partitions whose published snapshots have the keys. Raises: errors from the remote store."""
        self._published.search(self._parts)

    def plan(self, sends: Planned) -> None:
        """Count the work of a run, from the replicas that can be read, and find what the run cannot erase.

        Raises: ClusterKeyError if the run could not commit the erasure.
        """
        for work, planned in self.each(plan_partition, self._parts):
            part = self._parts[work.replicas.view.key]
            part.plan(planned)
            if planned.large and self._reduce_large is needs_spark:
                assert work.snapshots is not None
                try:
                    self._reduce_large(work.snapshots)
                except StratalogError as error:
                    self.fail(work.replicas.view.key, error)
            if part.view.topic_id in self._remote.tables:
                puts, gets = 3 * planned.remote_files + _TABLE_COMMITS, 2 * planned.remote_files
                sends.send(self._storage.remote, puts=puts, gets=gets)
            if planned.files and part.view.topic_id in self._published.tables:
                sends.send(self._storage.remote, puts=1 + _TABLE_COMMITS)
            for broker in part.view.replicas:
                sends.send(self._storage.stores.get(broker), puts=3 * planned.files, gets=planned.files)
            if planned.offsets:
                self._metadata.check_may_commit()
                sends.send_commit(self._image)
            if self._now or work.delay_ms == 0:
                part.deleted += planned.remote_files
        self.look_everywhere()
        self.clean_remotely()

    def carry_on(self) -> None:
        """Step 2."""
        begun = [key for key, part in self._parts.items() if part.view.erasures]
        for key in begun:
            self._parts[key].offsets += offsets_of(self._parts[key].view.erasures)
        self.carry_out(begun)

    def remove(self) -> None:
        """Step 3, in rounds: a partition with very many ranges of offsets gets several erasures."""
        waiting = {key: 0 for key, part in self._parts.items() if not part.failed}
        of_snapshots = [key for key in waiting if key.topic_id in self._with_snapshots]
        erasing = SnapshotErasing(self, self._metadata, self._reduce_large, self._parts, self._published)
        erasing.remove(of_snapshots)
        for key in of_snapshots:
            del waiting[key]
        while waiting:
            self.refresh()
            found: dict[TopicIdPartition, FoundRecords] = {}
            for work, one in self.each(find_records, waiting):
                found[work.replicas.view.key] = one
            committed, stale = self._commit({key: one for key, one in found.items() if one.offsets})
            stale |= {key: one.before for key, one in found.items() if one.before is not None}
            for key, one in found.items():
                part = self._parts[key]
                if key in committed:
                    part.offsets += one.offsets
                if key not in stale and not part.failed:
                    part.looked_to, part.above = one.looked_to, one.above
                    part.searched = one.ends and not one.above
            self.refresh()
            self.carry_out([*committed, *(key for key in stale if found[key].before is not None)])
            again = {key for key in committed if not found[key].ends and not self._parts[key].failed}
            waiting = dict.fromkeys(again, 0) | {
                key: waiting[key] + 1
                for key in stale
                if not self._parts[key].failed and self._may_try(key, waiting[key], stale[key])
            }

    def publish(self) -> None:
        """The end of step 3 for topics that publish their snapshots: the tables list snapshots without the keys
        before anything is deleted."""
        self.refresh()
        of_tables = [key for key in self._parts if key.topic_id in self._published.tables]
        works = [self.work_of(key).snapshots for key in of_tables if self.is_present(key)]
        given = [work for work in works if work is not None]
        for key in self._published.publish(self._metadata, self._execution, given):
            self._parts[key].remote_files += 1

    def _may_try(self, key: TopicIdPartition, attempts: int, error: StratalogError) -> bool:
        if attempts + 1 < _ATTEMPTS:
            return True
        self.fail(key, error)
        return False

    def clean(self) -> None:
        """Step 4. A partition that changes meanwhile is checked again: its new members may lack a segment."""
        waiting = [key for key, part in self._parts.items() if part.view.key.topic_id in self._image.topics]
        for _ in range(_ATTEMPTS):
            self.refresh()
            self.carry_out([key for key in waiting if self._is_behind(key)])
            for work, cleaned in self.each(clean, waiting):
                part = self._parts[work.replicas.view.key]
                part.cleaned, part.cleaned_under = cleaned, work.replicas.view.partition_epoch
                part.deleted += cleaned.deleted
            self.refresh()
            waiting = [
                key
                for key in waiting
                if not self._parts[key].failed
                and self._parts[key].cleaned_under != self._parts[key].view.partition_epoch
            ]
            if not waiting:
                break
        for key in waiting:
            self._parts[key].left.append(
                NotErased(str(self._parts[key]), "its replicas keep changing: erase again")
            )
        for key, part in self._parts.items():
            if part.cleaned is not None:
                part.left += part.cleaned.not_erased
            elif not part.failed:
                self.fail(key, UnknownTopicOrPartitionError(f"{part}: the topic was deleted in the meantime"))
            part.leave_above()

    def look_everywhere(self) -> None:
        """Step 5."""
        for copies in copies_of(self._storage, self._image, self._keys.keys(), self._clock):
            look_at(copies, self._parts, self._with_snapshots, self._image.brokers)

    def clean_remotely(self) -> None:
        """Step 5 in the remote tier."""
        cleaned = clean_remotely(self._remote, self._image, self._parts, self._clock, now=self._now)
        for key, one in cleaned.items():
            part = self._parts[key]
            part.deleted += one.deleted
            part.left += [left for left in one.left if not (self._run.dry_run and left.waits)]
            if not self._run.dry_run:
                part.remote = one.certified(self._remote.figures.get(key))
        self._published.clean(self._image, self._parts, self._clock, now=self._now)

    def forget(self) -> None:
        """Step 6. A partition that has changed keeps its offsets until the next run."""
        done = tuple(
            ErasedEverywhere(*key, part.view.erasures[-1].generation, part.cleaned_under)
            for key, part in self._parts.items()
            if not part.left and not part.failed and any(one.offsets for one in part.view.erasures)
        )
        if done:
            self._metadata.submit(ForgetErasures(done))

    def report(self) -> None:
        """Add the rows. Copies that stay unerased for a reason other than the delay are failures."""
        for part in self._parts.values():
            left = part.not_erased
            first = next((one for one in left if not one.waits), left[0] if left else None)
            why = None if first is None else f"{first.where}: {first.why}"
            unknown = self._run.dry_run and not part.planned
            self._run.add(
                [
                    EraseRow(
                        topic=part.view.topic,
                        partition=part.view.partition,
                        records=None if unknown else part.erased_records,
                        files=None if unknown else part.files,
                        remote_files=None if unknown else part.remote_files,
                        read_bytes=None if unknown else part.read_bytes,
                        written_bytes=None if unknown else part.written_bytes,
                        deleted_files=None if unknown else part.deleted,
                        not_erased=len(left),
                        why=why,
                    )
                ]
            )
            lasting = [one for one in part.left if not one.waits]
            self._run.failures += [Failure(str(part), NOT_WHOLE, f"{one.where}: {one.why}") for one in lasting]
            if waiting := len(part.left) - len(lasting):
                files = f"{waiting} replaced files are deleted by the next run, after file.delete.delay.ms"
                self._run.notes.append(f"{part}: {files}; with snapshots, by a run with the same keys")

    def certify(self, wanted: WantedRecords, now_ms: int) -> Certificate:
        """Step 7."""
        salt = secrets.token_bytes(_SALT_BYTES)
        topics = []
        for topic_id, keys in self._keys.items():
            parts = [part for key, part in self._parts.items() if key.topic_id == topic_id]
            key_digests, where = described(keys, salt)
            topics.append(
                ErasedTopic(
                    topic=self._image.topics[topic_id].name
                    if topic_id in self._image.topics
                    else parts[0].view.topic,
                    topic_id=topic_id,
                    key_digests=key_digests,
                    where=where,
                    before_us=wanted.before_us,
                    partitions=tuple(part.certified() for part in parts),
                )
            )
        whole = all(not part.not_erased for part in self._parts.values())
        return Certificate(self._storage.file.cluster_id, time_text(now_ms), salt.hex(), whole, tuple(topics))

    # ----------------------------------------------------------------------------------- helpers

    def refresh(self) -> None:
        self._image = self._metadata.image()
        for key, part in self._parts.items():
            if key.topic_id in self._image.topics:
                part.view = self._image.view(*key)

    def each(
        self, task: Callable[[EraseWork], R], keys: Iterable[TopicIdPartition]
    ) -> Iterator[tuple[EraseWork, R]]:
        """Run the task on partitions that have not failed; those that fail now are failures of the run. A task
        whose view is outdated, because of an election or a moved log start, runs again with the current view."""
        waiting = [*keys]
        for attempt in range(_ATTEMPTS):
            works = [self.work_of(key) for key in waiting if self.is_present(key)]
            waiting = []
            for outcome in self._run.watched(self._run.tasks.run(task, works), len(works), "partitions"):
                match outcome:
                    case Done(work, result):
                        yield work, result
                    case Failed(work, StaleMetadataError() | LogGapError()) if attempt + 1 < _ATTEMPTS:
                        waiting.append(work.replicas.view.key)
                    case Failed(work, error):
                        self.fail(work.replicas.view.key, error)
            if not waiting:
                return
            self.refresh()
            if task is erase_partition:
                self._carry_out_remotely(waiting)

    def is_present(self, key: TopicIdPartition) -> bool:
        return not self._parts[key].failed and key.topic_id in self._image.topics

    def work_of(self, key: TopicIdPartition) -> EraseWork:
        part = self._parts[key]
        work = work_of(self._storage, self._clock, self._image, part.view, part.keys)
        remote = self._remote.copy_of(part.view)
        work = replace(work, dry_run=self._run.dry_run, now=self._now, remote=remote)
        return replace(
            work, start=part.looked_to, epoch=part.leader_epoch, published=key in self._published.holders
        )

    def fail(self, key: TopicIdPartition, error: StratalogError) -> None:
        part = self._parts[key]
        self._run.fail(part, error)
        failure = self._run.failures[-1]
        part.error = NotErased(str(part), f"{failure.code}: {failure.message}")

    def _commit(
        self, found: dict[TopicIdPartition, FoundRecords]
    ) -> tuple[list[TopicIdPartition], dict[TopicIdPartition, StratalogError]]:
        """The partitions that got their erasure, and those that have changed since they were looked at."""
        committed: list[TopicIdPartition] = []
        stale: dict[TopicIdPartition, StratalogError] = {}
        for answer in commit_erasures(
            self._metadata,
            [(self._parts[key].view, one) for key, one in found.items()],
            self._remote.tables,
        ):
            if not isinstance(answer, RefusedPartition):
                committed.append(answer.key)
            elif isinstance(answer.error, StaleMetadataError):
                stale[answer.key] = answer.error
            else:
                self.fail(answer.key, answer.error)
        return committed, stale

    def carry_out(self, keys: Iterable[TopicIdPartition]) -> None:
        """Carry out the erasures of these partitions, and take members that were not reached out of the ISR. This
        counts only if the partition has not changed meanwhile: a leader elected since, or a member that has joined
        since, may have the records. A partition that has changed is carried out again.
        """
        waiting: dict[TopicIdPartition, StratalogError] = {}
        keys = [*keys]
        for attempt in range(_ATTEMPTS):
            self._carry_out_remotely(waiting if attempt else keys)
            erased_under: dict[TopicIdPartition, int] = {}
            missed: dict[TopicIdPartition, dict[int, StratalogError]] = {}
            for work, erased in self.each(erase_partition, waiting if attempt else keys):
                view = work.replicas.view
                part, done = self._parts[view.key], erased.done
                part.replaced += [file for file in erased.replaced if file not in part.replaced]
                part.files += done.erased.files
                part.read_bytes += done.erased.read_bytes
                part.written_bytes += done.erased.written_bytes
                erased_under[view.key], self._carried_out[view.key] = view.partition_epoch, view.generation
                if done.missed:
                    missed[view.key] = done.missed
            refused = self.shrink(missed, erased_under)
            self.refresh()
            waiting = {}
            for key, epoch in erased_under.items():
                if key in refused and not isinstance(refused[key], StaleMetadataError):
                    self.fail(key, refused[key])
                elif key in refused or self._parts[key].view.partition_epoch != epoch:
                    waiting[key] = refused.get(key) or InvalidUpdateVersionError(
                        f"{self._parts[key]} keeps changing, so its ISR may have the records: erase again"
                    )
            if not waiting:
                return
        for key, error in waiting.items():
            self.fail(key, error)

    def _carry_out_remotely(self, keys: Iterable[TopicIdPartition]) -> None:
        """Carry out the erasures in the remote logs of these partitions, before their replicas. A partition whose
        remote log does not follow has failed."""
        views = [self._parts[key].view for key in keys if self.is_present(key)]
        for key, error in self._remote.carry_out(self._image, views).items():
            self.fail(key, error)
        for key, figures in self._remote.figures.items():
            self._parts[key].take(figures)

    def _is_behind(self, key: TopicIdPartition) -> bool:
        """Whether another run has committed an erasure after this run carried out the earlier ones."""
        view = self._parts[key].view
        return any(one.offsets and one.generation > self._carried_out.get(key, 0) for one in view.erasures)

    def shrink(
        self,
        missed: dict[TopicIdPartition, dict[int, StratalogError]],
        erased_under: dict[TopicIdPartition, int],
    ) -> dict[TopicIdPartition, StratalogError]:
        """Take ``missed`` members out of the ISR; ``erased_under`` gets the new epochs. Returns the refusals."""
        refused: dict[TopicIdPartition, StratalogError] = {}
        shrinks = tuple(without(self._parts[key].view, [*members]) for key, members in missed.items())
        for answer in self._metadata.submit(AlterPartition(shrinks)) if shrinks else ():
            part = self._parts[answer.key]
            if isinstance(answer, RefusedPartition):
                refused[answer.key] = answer.error
                continue
            erased_under[answer.key] = answer.partition_epoch
            for broker, error in missed[answer.key].items():
                self._run.fail(f"{part} on broker {broker}", error)
                self._run.notes.append(f"{part}: broker {broker} leaves the ISR: it lacks the segments")
        return refused
