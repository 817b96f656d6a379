"""Maintain: what is due, in this order, within a budget.

    replicate   every run: probes, fences and brings back brokers, elects where nobody leads, replicates, finishes
                abandoned transactions
    elect       auto.leader.rebalance.enable: preferred leaders, every leader.imbalance.check.interval.seconds
    merge       every log.retention.check.interval.ms
    tier        every run: the partitions whose time has come (remote.log.manager.task.interval.ms)
    retain      every log.retention.check.interval.ms
    snapshot    every log.retention.check.interval.ms: where the policy of a topic wants one; expires groups,
                producers and transactional ids
    vacuum      every vacuum.interval.ms
    scrub       every byte once in scrub.interval.ms, at most scrub.max.bytes a run; heals

1. replicate comes first in every run: it alone stands between acknowledged records and a lost disk
2. the other steps that are due follow, the longest not done first; when all are, in the order above
3. before each further step, and between two pieces of a scrub, the budget is asked; steps that are not reached are
   the first of the next run
4. after each step its time is kept, whether or not it went well: a step that fails stops no other, and is tried
   again when it is due again

The times lie on the cluster's own storage, and are hints (``stratalog.engine.driver.stored_schedule``): two runs
at once, here or elsewhere, may do a step twice, and each step is harmless then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Failure, Report, Value
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.stored_schedule import load_stored, save_stored
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.maintenance.scrub import due_partitions, scrub
from stratalog.engine.upkeep.maintenance.times import Times, decode, encode, wait_ms
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.merge import merge
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.retain import retain
from stratalog.engine.upkeep.retention.vacuum import vacuum
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.partitions.errors import InvalidCallError, PreferredLeaderNotAvailableError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import MAINTENANCE, METADATA_TOPIC

STEPS = ("replicate", "elect", "merge", "tier", "retain", "snapshot", "vacuum", "scrub")


def maintain(
    context: Context,
    make_snapshots: Callable[[bool], Report],
    *,
    only: Collection[str] = (),
    leave_out: Collection[str] = (),
    budget_s: float | None = None,
    dry_run: bool = False,
) -> Report:
    """Do the steps of ``only`` (all when empty) but those to ``leave_out``, where they are due. When ``budget_s``
    seconds are over, begin none but ``replicate`` and one other. ``make_snapshots`` is the step snapshot; it is
    told whether it is a dry run. A row a step: its outcome, its ``items`` (rows of its own report), its cost, and
    in how many seconds it is due again. Failures and notes are those of the steps.

    ``dry_run`` changes nothing: a step that is due is planned by its own dry run (the scrub reads nothing).

    Raises: InvalidCallError for a step that is not there; errors of reading the metadata.
    """
    for name in (*only, *leave_out):
        if name not in STEPS:
            raise InvalidCallError(f"{name!r} is no step of maintain; the steps are {', '.join(STEPS)}")
    if budget_s is not None and budget_s <= 0:
        raise InvalidCallError(f"a budget takes more than 0 s, not {budget_s:g}")
    chosen = [name for name in STEPS if (not only or name in only) and name not in leave_out]
    with context.run("maintain", dry_run=dry_run) as run:
        work = _Maintenance(context, make_snapshots, budget_s, run)
        rows = {name: work.step(name) for name in work.in_turn(chosen)}
    run.rows += [rows[name] for name in chosen]
    did = [str(row["step"]) for row in run.rows if row["outcome"] in {"done", "failed", "due"}]
    run.totals["steps"] = " ".join(did) or "none"
    return run.report()


class _Maintenance:
    """One run."""

    def __init__(
        self,
        context: Context,
        make_snapshots: Callable[[bool], Report],
        budget_s: float | None,
        run: OperationRun,
    ) -> None:
        self._context = context
        self._run = run
        self._image: ClusterImage = context.metadata.image()
        self._config: ClusterConfig = context.cluster_config(self._image)
        self._end_s = None if budget_s is None else context.clock.monotonic_s() + budget_s
        self._times = decode(load_stored(context, self._image, MAINTENANCE).line)
        self._begun = False
        dry_run = run.dry_run
        self._steps: dict[str, Callable[[], Report]] = {
            "replicate": lambda: replicate(context, dry_run=dry_run),
            "elect": lambda: _without_unavailable(elect(context, dry_run=dry_run)),
            "merge": lambda: merge(context, dry_run=dry_run),
            "tier": lambda: tier(context, due=True, dry_run=dry_run),
            "retain": lambda: retain(context, dry_run=dry_run),
            "snapshot": lambda: make_snapshots(dry_run),
            "vacuum": lambda: vacuum(context, dry_run=dry_run),
            "scrub": self._scrub,
        }

    def in_turn(self, names: Sequence[str]) -> list[str]:
        """The steps in the order of this run."""
        last = self._times.steps
        return sorted(names, key=lambda name: (name != "replicate", last.get(name, 0)))

    def step(self, name: str) -> dict[str, Value]:
        """Do one step, if it is due and the budget lasts; its row."""
        if name == "elect" and not self._config.auto_leader_rebalance_enable:
            return _row(name, "switched off")
        now_ms = self._context.clock.now_ms()
        wait = self._wait_ms(name, now_ms)
        if wait:
            return _row(name, "not due", due_in_s=wait / 1000)
        if self._over():
            return _row(name, "not reached", due_in_s=0.0)
        self._begun = name != "replicate"
        try:
            report = self._steps[name]()
        except StratalogError as error:
            report = Report(name, (), [Failure.of(name, error)])
        self._run.failures += report.failures
        self._run.notes += [f"{name}: {note}" for note in report.notes]
        if not self._run.dry_run and name != "replicate":
            self._keep(Times({name: now_ms}))
        done = "due" if self._run.dry_run else "done"
        outcome = done if report.ok else "failed"
        return _row(name, outcome, report, due_in_s=self._wait_ms(name, self._context.clock.now_ms()) / 1000)

    def _wait_ms(self, name: str, now_ms: int) -> int:
        """Until a step is due."""
        config, last = self._config, self._times.steps
        if name == "scrub":
            every_ms = config.scrub_interval_ms
            waits = [wait_ms(ms, every_ms, now_ms) for ms in self._times.scrubbed.values()]
            return 0 if self._due() else min([*waits, wait_ms(last.get(METADATA_TOPIC), every_ms, now_ms)])
        intervals = {
            "elect": config.leader_imbalance_check_interval_seconds * 1000,
            "merge": config.log_retention_check_interval_ms,
            "retain": config.log_retention_check_interval_ms,
            "snapshot": config.log_retention_check_interval_ms,
            "vacuum": config.vacuum_interval_ms,
        }
        return wait_ms(last.get(name), intervals[name], now_ms) if name in intervals else 0

    def _over(self) -> bool:
        """Whether the budget is used up. One step beside ``replicate`` is always done: a slow ``replicate`` would
        keep all others from ever being done.
        """
        return self._begun and self._end_s is not None and self._context.clock.monotonic_s() >= self._end_s

    # ------------------------------------------------------------------------------ the scrub

    def _due(self) -> list[TopicIdPartition]:
        now_ms = self._context.clock.now_ms()
        return due_partitions(self._image, self._times, self._config.scrub_interval_ms, now_ms)

    def _scrub(self) -> Report:
        context, now_ms = self._context, self._context.clock.now_ms()
        last_ms = self._times.steps.get(METADATA_TOPIC)
        metadata = wait_ms(last_ms, self._config.scrub_interval_ms, now_ms) == 0
        due = self._due()
        with context.run("scrub", dry_run=self._run.dry_run) as run:
            if self._run.dry_run:
                run.rows += [
                    {"topic": self._image.topics[key.topic_id].name, "partition": key.partition} for key in due
                ]
            else:
                scrub(
                    context,
                    due,
                    run,
                    metadata=metadata,
                    max_bytes=self._config.scrub_max_bytes,
                    over=self._over,
                    read=lambda piece: self._keep(Times({}, dict.fromkeys(piece, now_ms))),
                )
                if metadata:
                    self._keep(Times({METADATA_TOPIC: now_ms}))
        return run.report()

    def _keep(self, later: Times) -> None:
        """Keep times for the next run; a note where they cannot be kept."""
        present = [view.key for topic in self._image.topics.values() for view in self._image.views(topic.name)]
        self._times = self._times.updated(later, present)
        why = save_stored(
            self._context,
            self._image,
            MAINTENANCE,
            load_stored(self._context, self._image, MAINTENANCE),
            lambda line: encode(decode(line).updated(later, present)),
        )
        if why is not None:
            note = f"what was done is not remembered, and will be done again: {why}"
            self._run.notes += [] if note in self._run.notes else [note]


def _without_unavailable(report: Report) -> Report:
    """A preferred leader outside the ISR is no failure here: it is elected when it is back."""
    failures = [one for one in report.failures if one.code != PreferredLeaderNotAvailableError.code]
    return replace(report, failures=failures)


def _row(
    name: str, outcome: str, report: Report | None = None, *, due_in_s: float | None = None
) -> dict[str, Value]:
    return {
        "step": name,
        "outcome": outcome,
        "items": None if report is None else len(report.rows),
        "requests": None if report is None else report.counts.requests,
        "read_bytes": None if report is None else report.counts.read_bytes,
        "written_bytes": None if report is None else report.counts.written_bytes,
        "seconds": None if report is None else round(report.seconds, 3),
        "due_in_s": None if due_in_s is None else round(due_in_s, 3),
    }
