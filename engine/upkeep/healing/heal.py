"""Heal: replaces damaged and missing files, which a deep verify finds, with good copies, on brokers and in the
remote tier.

    1. probe the brokers, as every run does; verify every byte
    2. plan the repairs (``plan``); if some offsets of a partition have no good copy, the partition is not changed
    3. make two commits for all partitions. In the first commit, damaged leaders resign. In the second commit,
       damaged followers leave the ISR; if the leader is repaired in place, replicas that are being added are
       dropped. If a new leader has meanwhile received records that were about to be truncated, the files of the
       partition are not changed
    4. repair each damaged or missing file on the driver: stage, check again, name, delete, check again
       (``files``). Only the driver can check, immediately before the change, that the replica is still outside the
       ISR
    5. replicate: repaired replicas catch up and rejoin the ISR
    6. copy an intact snapshot to replicas whose snapshot is damaged or missing; such replicas stay in the ISR
    7. rebuild objects of the remote tier from replicas that have their records, and commit them (``rebuild``)
    8. revert rewrites of tables by other programs (``tables``)
    9. verify every byte of the damaged partitions again; report remaining damage as a failure
    10. store the remaining and the repaired damage, for ``health``

Running heal twice, concurrently or after a crash, is harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.driver.estimate import Estimate
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import chosen_topics
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.partition_commands import AlterPartition, PartitionAnswer, RefusedPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.damaged import check_aside
from stratalog.engine.replicas.in_sync import without
from stratalog.engine.replicas.repair import BadEpoch, BadFile, BadLocalStart, Missing, Repair
from stratalog.engine.replicas.repairing import apply_repair
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.snapshots import repair_snapshot
from stratalog.engine.upkeep.healing.estimate import send_heal
from stratalog.engine.upkeep.healing.plan import HealPlan, HealRow, plan_heal
from stratalog.engine.upkeep.healing.rebuild import RebuildJob, rebuild_remote
from stratalog.engine.upkeep.healing.rebuild_plan import plan_rebuilds
from stratalog.engine.upkeep.healing.tables import put_right, table_row
from stratalog.engine.upkeep.memory.kept_times import remember_look
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.verification.audit import (
    Audited,
    audit,
    failures_of,
    found_in,
    notes_of,
    rewrites_of,
    unseen_in,
)
from stratalog.engine.upkeep.verification.findings import offsets
from stratalog.partitions.errors import SourceChangedError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.runner import Failed


@dataclass(frozen=True, slots=True)
class _Job:
    """The repairs of one replica, in order."""

    replicas: PartitionReplicas
    plan: HealPlan
    repairs: tuple[Repair, ...]

    def __str__(self) -> str:
        return str(self.replicas.replica(self.repairs[0].broker_id))


def heal(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None = None,
    *,
    only: Collection[TopicIdPartition] | None = None,
    dry_run: bool = False,
) -> Report:
    """Verify and repair the topics (None: all; only the partitions in ``only``, if given). The report has one row
    per damaged or missing file, and remaining damage is a failure. ``dry_run`` reads everything and changes
    nothing.

    Raises: UnknownTopicOrPartitionError.
    """
    with execution.run("heal", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        chosen_topics(image, topics)
        image = probe_first(metadata, storage, run, image)
        chosen = chosen_topics(image, topics)
        if only is not None:
            topic_ids = {key.topic_id for key in only}
            chosen = [topic for topic in chosen if topic.topic_id in topic_ids]
        before = storage.billed_counts()
        audits = audit(metadata, storage, image, chosen, run, deep=True, only=only)
        audited = Estimate.of(storage.billed_counts() - before)
        plans: dict[TopicIdPartition, tuple[Audited, HealPlan]] = {}
        jobs: list[RebuildJob] = []
        rewritten = rewrites_of(audits)
        run.notes += [f"{image.topics[topic_id].name}: {note}" for topic_id, note in rewritten.items()]
        lacking_snapshots: dict[TopicIdPartition, list[int]] = {}
        touched: set[TopicIdPartition] = set()
        for each in audits:
            key = each.replicas.view.key
            rebuilds, lacking = plan_rebuilds(each)
            jobs += [RebuildJob(each, plan) for plan in rebuilds]
            run.notes += [*notes_of([each]), *(f"{each.replicas}: {one.remedy}" for one in lacking)]
            try:
                plan = plan_heal(each)
            except StratalogError as error:
                run.fail(each.replicas, error)
            else:
                if plan is not None:
                    plans[key] = each, plan
                    run.notes += [*plan.notes, *map(str, plan.unrepaired)]
            if snapshots := sorted(
                {f.broker_id for f in each.findings if f.of_snapshot and f.broker_id is not None}
            ):
                lacking_snapshots[key] = snapshots
            if key in plans or rebuilds or snapshots:
                touched.add(key)
            if key not in touched or dry_run:
                unrepaired = (f for f in each.findings if f.damage is None and not f.unused)
                run.failures += [Failure.of(f.where, f.error) for f in unrepaired]
                run.failures += [Failure.of(one.finding.where, one.finding.error) for one in lacking]
        if dry_run:
            run.add(_row(each, repair, "planned") for each, plan in plans.values() for repair in plan.repairs)
            run.add(job.row("planned") for job in jobs)
            run.add(table_row(image.topics[topic_id], "planned") for topic_id in rewritten)
            send_heal(sends, image, audits, audited, [*plans.values()], jobs, touched)
            run.estimate = sends.estimate()
        else:
            steps = _HealRun(metadata, storage, execution, memory, plans, run)
            again: Sequence[Audited] = ()
            with run.still_reporting():
                steps.heal_replicas()
                steps.repair_snapshots(lacking_snapshots)
                if jobs:
                    run.add(rebuild_remote(metadata, storage, jobs, image.topics, run))
                put_right(storage, rewritten, image.topics, run)
                again = steps.verify_again(touched)
            last = {each.replicas.view.key: each for each in (*audits, *again)}.values()
            run.notes += remember_look(
                storage, execution.clock, image, found_in(last), deep=True, unseen=unseen_in(last)
            )
    run.sort("topic", "partition", "broker", "start")
    run.failures = list(dict.fromkeys(run.failures))
    run.totals["repaired"] = sum(row["outcome"] == "repaired" for row in run.rows)
    return run.report()


@dataclass(frozen=True, slots=True)
class _HealRun:
    """The steps of one run, with the plans for its damaged partitions."""

    metadata: MetadataClient
    storage: Storage
    execution: Execution
    memory: Memory
    plans: Mapping[TopicIdPartition, tuple[Audited, HealPlan]]
    run: OperationRun

    def heal_replicas(self) -> None:
        """Steps 3 to 5."""
        if self.plans:
            self._repair_replicas(self._step_aside())
            self._rejoin()

    def _step_aside(self) -> dict[TopicIdPartition, PartitionReplicas]:
        """Step 3. Returns the partitions under their new views; partitions that have changed meanwhile are left
        out.
        """
        views = {key: each.replicas.view for key, (each, _) in self.plans.items()}
        resigning = [key for key, (_, plan) in self.plans.items() if plan.resigns]
        if resigning:
            elections = tuple(
                Election(
                    *key, leader=self.plans[key][1].leader, resign=True, partition_epoch=views[key].partition_epoch
                )
                for key in resigning
            )
            self._take(views, self.metadata.submit(ElectLeaders(elections)))
        leaving = [key for key, (_, plan) in self.plans.items() if plan.leaving and key in views]
        if leaving:
            proposals = tuple(without(views[key], self.plans[key][1].leaving) for key in leaving)
            self._take(views, self.metadata.submit(AlterPartition(proposals)))
        for key in list(views):
            _, plan = self.plans[key]
            if plan.resigns:
                self.run.notes.append(
                    f"{views[key]}: its damaged leader left the ISR, and broker {plan.leader} now leads"
                )
            try:
                _check_forgotten(self.storage.replicas(views[key]), plan.forgotten)
            except StratalogError as error:
                self.run.notes.append(f"{views.pop(key)} was not changed: {error.code}: {error}")
                continue
            self.run.notes += [
                f"{views[key]}: {offsets(*gone)} had no good copy; they were never committed, and are truncated"
                for gone in plan.forgotten
            ]
            damaged = {repair.broker_id for repair in plan.repairs}
            for broker in plan.leaving:
                why = (
                    "left the ISR to be healed"
                    if broker in damaged
                    else "is no longer being added, because the leader is being healed"
                )
                self.run.notes.append(f"{views[key]}: broker {broker} {why}")
        return {key: self.storage.replicas(view) for key, view in views.items()}

    def _take(self, views: dict[TopicIdPartition, PartitionView], answers: Sequence[PartitionAnswer]) -> None:
        """Update the views after the commit."""
        image = self.metadata.image()
        for answer in answers:
            key = answer.key
            old = views.pop(key)
            if isinstance(answer, RefusedPartition):
                self.run.notes.append(f"{old} was not changed: {answer.error}")
            elif key[0] not in image.topics:
                self.run.notes.append(f"{old} was not changed: the topic was deleted during the operation")
            elif (view := image.view(*key)).partition_epoch != answer.partition_epoch:
                self.run.notes.append(
                    f"{old} was not changed by this run: another driver changed the partition in the meantime"
                )
            else:
                views[key] = view

    def _repair_replicas(self, replicas_of: Mapping[TopicIdPartition, PartitionReplicas]) -> None:
        """Step 4, for all replicas in parallel. Leaders that are repaired in place come first, because their
        followers copy their registers. A failed repair only gets a note, because step 9 finds the damage again.
        """
        jobs = [
            _Job(replicas_of[key], plan, tuple(repair for repair in plan.repairs if repair.broker_id == broker))
            for key, (_, plan) in self.plans.items()
            if key in replicas_of
            for broker in sorted({repair.broker_id for repair in plan.repairs})
        ]
        leading = [job for job in jobs if job.repairs[0].broker_id == job.plan.leader]
        following = [job for job in jobs if job.repairs[0].broker_id != job.plan.leader]
        done: set[Repair] = set()

        def repair_replica(job: _Job) -> None:
            for repair in job.repairs:
                source = job.plan.leader if repair.register_of is None else repair.register_of
                leader = job.replicas.replica(source)
                apply_repair(
                    job.replicas.replica(repair.broker_id), leader, repair, lambda: self._check_aside(job)
                )
                done.add(repair)

        outcomes = (
            outcome for turn in (leading, following) for outcome in self.storage.threads.run(repair_replica, turn)
        )
        for outcome in self.run.watched(outcomes, len(jobs), "replicas"):
            if isinstance(outcome, Failed):
                self.run.notes.append(f"{outcome.item} could not be healed: {outcome.error.code}: {outcome.error}")
        self.run.add(
            _row(each, repair, "repaired" if repair in done else "left alone")
            for each, plan in self.plans.values()
            for repair in plan.repairs
        )

    def _check_aside(self, job: _Job) -> None:
        """Check that the replica may be changed. Raises: InvalidUpdateVersionError."""
        check_aside(self.metadata, job.replicas.view, job.repairs[0].broker_id, in_place=job.plan.in_place)

    def _rejoin(self) -> None:
        """Step 5."""
        topics = sorted({each.replicas.view.topic for each, _ in self.plans.values()})
        brokers = sorted({repair.broker_id for _, plan in self.plans.values() for repair in plan.repairs})
        try:
            report = replicate(self.metadata, self.storage, self.execution, self.memory, topics, brokers=brokers)
        except StratalogError as error:
            self.run.fail("replicate", error)
        else:
            self.run.absorb(report)

    def repair_snapshots(self, lacking: Mapping[TopicIdPartition, list[int]]) -> None:
        """Step 6."""
        image = self.metadata.image() if lacking else None
        for key, brokers in lacking.items():
            if image is None or key[0] not in image.topics:
                continue
            replicas = self.storage.replicas(image.view(*key))
            for broker in brokers:
                repaired = None
                try:
                    replica = replicas.replica(broker)
                    repaired = while_it_changes(lambda: repair_snapshot(replicas, replica, replica.log()))  # noqa: B023
                except StratalogError as error:
                    self.run.notes.append(f"{replicas} on broker {broker}: {error.code}: {error}")
                row = HealRow(
                    topic=replicas.view.topic,
                    partition=replicas.view.partition,
                    broker=broker,
                    damage="snapshot" if repaired is None else str(repaired.name),
                    source=None if repaired is None else "another replica",
                    outcome="left alone" if repaired is None else "repaired",
                )
                self.run.add([row])

    def verify_again(self, touched: Collection[TopicIdPartition]) -> Sequence[Audited]:
        """Step 9."""
        if not touched:
            return ()
        image = self.metadata.image()
        topics = [
            image.topics[topic_id] for topic_id in sorted({k[0] for k in touched}) if topic_id in image.topics
        ]
        audits = audit(self.metadata, self.storage, image, topics, self.run, deep=True, only=touched)
        self.run.failures += failures_of(audits)
        return audits


def _check_forgotten(replicas: PartitionReplicas, forgotten: Sequence[tuple[int, int]]) -> None:
    """Check that the new leader still lacks these offsets. This check lists the leader after the commit, because
    records that it received before its election may have been acknowledged. Raises: SourceChangedError if the
    leader has some of these offsets; errors from listing the leader.
    """
    if any(replicas.leader.log().log_end > start for start, _ in forgotten):
        raise SourceChangedError(
            f"{replicas.leader} has since received records that other replicas were about to truncate; run heal "
            "again"
        )


def _row(each: Audited, repair: Repair, outcome: str) -> HealRow:
    start: int | None = None
    end: int | None = None
    match repair.damage:
        case BadFile(file, start, end):
            what = str(file.name)
        case Missing(start, end):
            what = "missing"
        case BadEpoch(epoch):
            what = str(EpochName(epoch))
        case BadLocalStart(offset):
            what = str(LocalStartName(offset))
    return HealRow(
        topic=each.replicas.view.topic,
        partition=each.replicas.view.partition,
        broker=repair.broker_id,
        damage=what,
        start=start,
        end=end,
        source=repair.sources,
        outcome=outcome,
    )
