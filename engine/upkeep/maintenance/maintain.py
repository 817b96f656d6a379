"""Maintain: runs the due steps, with one listing of each broker, within a budget.

probe       every run: fences missing roots, unfences roots that have returned
replicate   every run: elects missing leaders, replicates, finishes abandoned transactions
elect       auto.leader.rebalance.enable: preferred leaders, every leader.imbalance.check.interval.seconds
merge       every log.retention.check.interval.ms
compact     every log.retention.check.interval.ms: topics with cleanup.policy=compact, if enough of the log is
            dirty
tier        every run: the partitions that are due (remote.log.manager.task.interval.ms); the cluster's
            description in the remote tier; reverts rewrites of tables by other programs
retain      every log.retention.check.interval.ms
snapshot    every log.retention.check.interval.ms: if the policy of a topic requires one; expires groups,
            producers and transactional ids
vacuum      every vacuum.interval.ms
scrub       reads every byte once in scrub.interval.ms, at most scrub.max.bytes per run; heals damage

1. One sweep (``sweep``) finds, for each step, the partitions that have changed since the step found nothing to do
   for them. Each step receives only these partitions, and lists them itself. If no partition has changed, a step
   costs nothing.
2. replicate comes first in every run, because only replicate protects acknowledged records from the loss of a
   disk. Partitions below min.insync.replicas come first, then partitions with a replica outside the ISR.
3. The other due steps follow. The step that began longest ago comes first; if all steps run, they run in the order
   above. Within a step, the partitions that have waited longest to be tiered, or have the most files, come first.
   Equal partitions are shuffled in each run, so that two concurrent runs share the work.
4. A step works in pieces. The budget is checked between the pieces of every step. Replicate, merge, compact, tier
   and retain also check the budget within a piece, after every few files of a partition. The next run continues
   with the rest.
5. After each step, maintain stores the step's start time, its failures, whether it finished, and the partitions
   that need no more work. After a failed step, the next steps run. A failed step is retried when it is due again,
   and so are partitions for which a run by hand failed.

This state is stored on the cluster's own storage, and is only a hint
(``stratalog.engine.driver.stored_schedule``). Two concurrent runs, here or elsewhere, may do a step twice, which
is harmless. If one run deletes a file that the other run is reading (SOURCE_CHANGED), the report has a note, not a
failure, and the next run tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from stratalog.engine.brokers.probe import plan_probe, probe_brokers
from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.driver.execution import Execution, execution_on, measured
from stratalog.engine.driver.figures import has_changed
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.opening import local_tasks
from stratalog.engine.driver.origin import OperationsLog
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.healing.heal import heal
from stratalog.engine.upkeep.healing.tables import take_rewrites_back
from stratalog.engine.upkeep.maintenance.budget import Budget, Spending
from stratalog.engine.upkeep.maintenance.due import DueWork
from stratalog.engine.upkeep.maintenance.sweep import log_ends
from stratalog.engine.upkeep.memory.kept_times import KeptTimes
from stratalog.engine.upkeep.memory.runs import ran
from stratalog.engine.upkeep.memory.times import LONGEST_MS, Settled, Times
from stratalog.engine.upkeep.replication.compact import compact
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.merge import merge
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.retain import retain
from stratalog.engine.upkeep.retention.vacuum import vacuum
from stratalog.engine.upkeep.tiering.point import describe_first
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.engine.upkeep.verification.verify import verify
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    ClusterKeyError,
    InvalidCallError,
    PreferredLeaderNotAvailableError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import METADATA_TOPIC

STEPS = ("replicate", "elect", "merge", "compact", "tier", "retain", "snapshot", "vacuum", "scrub")
_FEW, _SMALL_BYTES = 32, 256 * 1024 * 1024
"""The limits of a small piece, in partitions and bytes. Threads of this process finish a small piece faster than
executors.
"""

_SCRUBBED_AT_ONCE = 256
"""The maximum number of partitions in a piece of the scrub."""

_THROTTLED_S = 10.0
"""The maximum time that replicate waits for the throttle of a reassignment, so that other steps are not delayed.
"""

MakeSnapshots = Callable[[Storage, Execution, Collection[TopicIdPartition], bool], Report]
"""Makes the snapshots of these partitions and of the metadata log. The last argument is True for a dry run."""


class StepRow(Row, frozen=True, kw_only=True):
    step: str
    outcome: str
    items: int | None = None
    """For a step over partitions, the number of partitions for which it was due; otherwise the number of rows in
    its report.
    """
    requests: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    seconds: float | None = None
    due_in_s: float | None = None


def maintain(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    events: OperationsLog | None,
    make_snapshots: MakeSnapshots,
    *,
    only: Collection[str] = (),
    exclude: Collection[str] = (),
    due: bool = False,
    budget: Budget = Budget(),  # noqa: B008 - immutable
    dry_run: bool = False,
) -> Report:
    """Run the steps in ``only`` (empty: all) that are not in ``exclude``. Steps named in ``only`` run now, for all
    partitions. Without ``only``, or with ``due``, only due steps run. When ``budget`` is used up, nothing begins
    except one piece of ``replicate`` and one piece of another step. The report has one row per step, with its
    outcome, its ``items``, its cost, and the seconds until it is due again. The report also has the failures and
    notes of all steps.

    ``dry_run`` writes nothing. It reads only enough to show which steps are due, and for how many partitions. A
    dry run reports as failures the brokers that are out of service, and the steps that certainly need a key that
    this process lacks.

    Raises: InvalidCallError for an unknown step; errors from reading the metadata.
    """
    for name in (*only, *exclude):
        if name not in STEPS:
            raise InvalidCallError(f"{name!r} is not a step of maintain; the steps are {', '.join(STEPS)}")
    chosen = [name for name in STEPS if (not only or name in only) and name not in exclude]
    with execution.run("maintain", dry_run=dry_run) as run:
        work = _Maintenance(
            metadata,
            storage,
            execution,
            memory,
            make_snapshots,
            budget,
            run,
            now=frozenset() if due else frozenset(only),
        )
        rows = {name: work.step(name) for name in work.in_turn(chosen)}
        work.keep()
        if events is not None and any(map(has_changed, run.parts)):
            run.parts.append(work.log_ends())
    run.notes = list(dict.fromkeys(run.notes))
    run.add(rows[name] for name in chosen)
    did = [name for name in chosen if rows[name].outcome in {"done", "cut off", "failed", "due"}]
    run.totals["steps"] = " ".join(did) or "none"
    return run.report()


def _seconds(ms: int) -> float:
    return round(ms / 1000, 3)


class _Maintenance:
    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        memory: Memory,
        make_snapshots: MakeSnapshots,
        budget: Budget,
        run: OperationRun,
        *,
        now: Collection[str],
    ) -> None:
        self._metadata = metadata
        self._storage = storage
        self._execution = execution
        self._memory = memory
        self._make_snapshots = make_snapshots
        self._run = run
        self._spending = Spending(storage, execution.clock, budget)
        self._image: ClusterImage = metadata.image()
        if run.dry_run:
            self._image = plan_probe(metadata, storage, run, self._image)
        else:
            probed = probe_brokers(metadata, storage, self._image)
            self._image = probed.image
            run.notes += [f"replicate: {note}" for note in probed.notes]
        run.failures += _out_of_service(self._image)
        self._config: ClusterConfig = cluster_config_of(self._image)
        self._kept = KeptTimes(storage, self._image)
        self._due = DueWork(storage, execution.clock, self._image, self._kept, now)
        self._begun = False

    def in_turn(self, names: Sequence[str]) -> list[str]:
        last = self._kept.present.steps
        return sorted(names, key=lambda name: (name != "replicate", last.get(name, 0)))

    def step(self, name: str) -> StepRow:
        """Run one step, if it is due and within the budget. Returns its row."""
        if name == "elect" and not self._config.auto_leader_rebalance_enable:
            return StepRow(step=name, outcome="switched off")
        now_ms = self._execution.clock.now_ms()
        wait = self._due.wait_ms(name)
        if wait:
            return StepRow(step=name, outcome="not due", due_in_s=_seconds(wait))
        if self._run.dry_run:
            return self._planned(name, now_ms)
        if self._over():
            return StepRow(step=name, outcome="not reached", due_in_s=0.0)
        with measured(self._execution.clock, self._storage.counts) as measure:
            items, every, reached = self._do(name)
        ended = reached is None
        run = ran(self._image, name, every, reached, now_ms)
        failures = run.failures
        self._run.failures += failures
        self._begun = self._begun or (name != "replicate" and measure.counts.requests > 0)
        begun = Times({name: now_ms}, cut_off=frozenset() if ended else frozenset({name}))
        if name != "replicate":
            self._kept.remember(begun)
            self._kept.change(lambda times: times.ran(run))
        outcome = "failed" if failures else "done" if ended else "cut off"
        due_in_ms = self._due.wait_ms(name) if ended else 0
        counts = measure.counts
        # otherwise the state is stored after the next step that does work, or at the end of the run
        if counts.requests:
            self.keep(once=True)
        if name == "replicate":  # this step is part of every run, so its start can be stored after the next step
            self._kept.remember(replace(begun, cut_off=frozenset()))
            self._kept.change(lambda times: times.ran(run))
        return StepRow(
            step=name,
            outcome=outcome,
            items=items,
            requests=counts.requests,
            read_bytes=counts.read_bytes,
            written_bytes=counts.written_bytes,
            seconds=round(measure.seconds, 3),
            due_in_s=_seconds(due_in_ms),
        )

    def _planned(self, name: str, now_ms: int) -> StepRow:
        items = self._items(name)
        try:
            if self._due.needs_key(name):
                self._metadata.check_may_commit()
        except ClusterKeyError as error:
            self._run.fail(name, error)
        if items != 0:
            return StepRow(step=name, outcome="due", items=items, due_in_s=0.0)
        settled = (one.until_ms[name] for one in self._kept.present.settled.values() if name in one.until_ms)
        next_ms = min((at_ms for at_ms in settled if at_ms > now_ms), default=None)
        due_in_s = None if next_ms is None else _seconds(next_ms - now_ms)
        return StepRow(step=name, outcome="not due", items=0, due_in_s=due_in_s)

    def _items(self, name: str) -> int | None:
        match name:
            case "elect":
                return self._due.elected_topics()
            case "vacuum" | "snapshot":  # they also process folders without an owner, or the metadata log
                return None
            case "scrub":
                return len(self._due.to_scrub())
            case _:
                return len(self._due.partitions(name))

    # ------------------------------------------------------------------------------ the steps

    def _do(self, name: str) -> tuple[int | None, list[Failure], Collection[str] | None]:
        """Run a step. Returns the number of items, the failures (SOURCE_CHANGED is none, see ``ran``), and the
        names of the finished partitions (None: all, because the step reached its end).
        """
        failures: list[Failure] = []

        def done(call: Callable[[], Report]) -> Report:
            try:
                report = call()
            except StratalogError as error:
                report = Report(name, (), [Failure.of(name, error)])
            failures.extend(report.failures)
            self._note(name, report)
            self._run.parts.append(report)
            return report

        ports = self._metadata, self._storage, self._execution
        match name:
            case "elect":
                if not self._due.elected_topics():
                    return 0, [], None
                return len(done(lambda: _without_unavailable(elect(*ports))).rows), failures, None
            case "vacuum":
                return len(done(lambda: vacuum(*ports)).rows), failures, None
            case "scrub":
                return len(done(self._scrub).rows), failures, None
        if name == "tier" and self._due.any_copies_to_remote:  # also if nothing is due
            done(lambda: Report(name, (), describe_first(self._metadata, self._storage, self._image)))
        due = self._due.partitions(name)
        reached, cut_off, opened = list[TopicIdPartition](), False, set[object]()
        for piece in self._spending.pieces(due):
            report = done(partial(self._call, name, frozenset(piece), *self._for(piece)))
            self._settle(name, piece, report)
            opened |= {row.get("topic") for row in report.rows}  # a row may be about the metadata log
            if "cut_off" in report.totals:
                cut_off = True
            else:
                reached += piece
        if name == "tier" and self._due.any_copies_to_remote:
            done(lambda: self._take_rewrites_back(opened))
        if name == "snapshot" and not due:  # a snapshot of the metadata log may be due in any case
            done(lambda: self._make_snapshots(self._storage, self._execution, (), False))
        ended = len(reached) == len(due) and not cut_off
        return len(due), failures, None if ended else {self._due.name_of(key) for key in reached}

    def _call(
        self, name: str, piece: Collection[TopicIdPartition], storage: Storage, execution: Execution
    ) -> Report:
        ports = self._metadata, storage, execution
        over = self._spending.over if self._spending.limited else None
        # An earlier step may have listed a partition since the sweep. This step may use that listing to find that
        # it has nothing to do.
        since = None if self._due.is_now(name) else self._due.swept
        match name:
            case "replicate":
                return replicate(*ports, self._memory, only=piece, over=over, throttled_s=_THROTTLED_S)
            case "merge":
                return merge(*ports, only=piece, over=over, since=since)
            case "compact":
                return compact(*ports, only=piece, over=over)
            case "tier":
                return tier(*ports, only=piece, due=not self._due.is_now(name), over=over)
            case "retain":
                return retain(*ports, only=piece, over=over, since=since)
            case _:
                return self._make_snapshots(storage, execution, piece, False)

    def _for(self, piece: Sequence[TopicIdPartition]) -> tuple[Storage, Execution]:
        """The storage and the execution for a piece; executors run it only if it is large enough."""
        small = sum(self._due.looks[key].size_bytes for key in piece) <= _SMALL_BYTES
        if len(piece) <= _FEW and small and self._execution.tasks.processes > 1:
            now = self._execution
            return execution_on(self._storage, local_tasks(), now.clock, now.progress, driver_only=now.driver_only)
        return self._storage, self._execution

    def _note(self, name: str, report: Report) -> None:
        """Add the notes of a step. If another run has changed a file, the failure becomes a note."""
        changed = [failure for failure in report.failures if failure.code == SourceChangedError.code]
        notes = [*report.notes, *(f"{one.item}: {one.message}; the next run tries again" for one in changed)]
        self._run.notes += [f"{name}: {note}" for note in notes]

    def _over(self) -> bool:
        """Whether the budget is used up. One step other than ``replicate`` always begins, because otherwise a slow
        ``replicate`` would starve all other steps.
        """
        return self._begun and self._spending.over()

    def log_ends(self) -> Report:
        return log_ends(self._image, self._due.looks, self._due.entries)

    def keep(self, *, once: bool = False) -> None:
        """Store the state for the next run; add a note if that fails. ``once``: one copy is enough, because this
        run continues.
        """
        why = self._kept.keep(once=once)
        if why is not None:
            self._run.notes.append(
                f"the state of this run could not be stored, so the next run repeats work: {why}"
            )

    def _take_rewrites_back(self, opened: Collection[object]) -> Report:
        """Revert rewrites of tables, except the tables of the topics that the step itself has ``opened``."""
        topics = [topic for topic in self._due.copied_topics if topic.name not in opened]
        known = self._kept.present.tables
        with self._execution.run("tier") as run:
            versions = take_rewrites_back(self._storage, topics, known, run)
        new = {topic_id: version for topic_id, version in versions.items() if known.get(topic_id) != version}
        if new:
            self._kept.remember(Times(tables=new))
        return run.report()

    # ------------------------------------------------------------------------------ the scrub

    def _scrub(self) -> Report:
        """A deep verify in pieces, at least one. The partitions whose last read was longest ago come first. A
        piece has as many partitions as will probably fit into ``scrub.max.bytes``. Damage in a piece is healed
        immediately. The metadata log is read with the first piece, but not healed: ``stratalog quorum`` replaces a
        voter. The report has one row per damaged or missing file.
        """
        ports, now_ms = (self._metadata, self._storage, self._execution), self._execution.clock.now_ms()
        budget = Budget(bytes=self._config.scrub_max_bytes)
        spending = Spending(self._storage, self._execution.clock, budget, self._spending)
        due, reached = self._due.to_scrub(), 0
        metadata_log = self._due.is_now("scrub") or self._due.metadata_wait_ms() == 0
        with self._execution.run("scrub") as run:
            if metadata_log:
                run.absorb(verify(*ports, [METADATA_TOPIC], deep=True))
            for piece in spending.pieces(due, _SCRUBBED_AT_ONCE):
                try:
                    run.absorb(heal(*ports, self._memory, only=frozenset(piece)), rows=True)
                except StratalogError as error:  # the report keeps the results of the earlier pieces
                    run.fail("scrub", error)
                    break
                self._kept.remember(Times({}, dict.fromkeys(piece, now_ms)))
                self.keep(once=True)
                reached += len(piece)
            if metadata_log:
                self._kept.remember(Times({METADATA_TOPIC: now_ms}))
        run.totals |= {"partitions": reached, "partitions_due": len(due) - reached}
        return run.report()

    def _settle(self, name: str, piece: Sequence[TopicIdPartition], report: Report) -> None:
        longest_ms = self._execution.clock.now_ms() + LONGEST_MS
        settled = {
            key: Settled(self._due.looks[key].digest, {name: min(report.settled[key], longest_ms)})
            for key in piece
            if key in report.settled and self._due.looks[key].digest
        }
        if settled:
            self._kept.remember(Times(settled=settled))


def _out_of_service(image: ClusterImage) -> list[Failure]:
    """A failure for each fenced broker, except those fenced by hand, because no step can update its replicas."""
    why = "the broker is out of service (see the notes), so its replicas are not updated: health names the remedy"
    return [
        Failure(f"broker {broker_id}", BrokerUnreachableError.code, why)
        for broker_id, broker in sorted(image.brokers.items())
        if broker.fenced and not broker.fenced_by_hand
    ]


def _without_unavailable(report: Report) -> Report:
    """The report without failures about preferred leaders outside the ISR, because such a leader is elected when
    it is back in the ISR.
    """
    failures = [one for one in report.failures if one.code != PreferredLeaderNotAvailableError.code]
    return replace(report, failures=failures)
