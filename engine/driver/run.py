"""One run of an operation. ``stratalog.engine.upkeep`` describes how to build an operation with it.

execution.run    measures a block, and yields the run, which collects the results of the block
each, in_turns   run tasks, with progress; ``in_turns`` if a budget may end them. Failed tasks are failures of the
                 run
commit           one command for many partitions. Refused requests are failures of the run
still_reporting  steps after the work whose errors must not replace the report
add, fill        rows, of a ``Row`` class per operation whose fields are the columns
settle           partitions that need no further run for now
report           all of it, for the caller
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

import msgspec

from stratalog.engine.driver.estimate import Estimate
from stratalog.engine.driver.report import Failure, Report, Value
from stratalog.engine.driver.tasks import LocalTasks, Progress, Silent, TaskRunner, W
from stratalog.engine.driver.turns import Over, in_turns
from stratalog.engine.metadata.commands import Command
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.partition_commands import PartitionAnswer, RefusedPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.partition import BoundedWork
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed, Outcome, R, T
from stratalog.partitions.store import StoreCounts

NOT_DONE = "not done: see the failures for the reason"
"""The reason for a partition that an operation has not processed."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a report. The fields are the columns, in their order, with values as in ``Value``; a row has no
    column for a field that is ``UNSET``.
    """

    def columns(self) -> dict[str, Value]:
        found: dict[str, Value] = msgspec.to_builtins(self)
        return found


class PartitionRow(Row, frozen=True, kw_only=True):
    """The row of a partition."""

    topic: str
    partition: int


class PartDone(Protocol):
    """The result of a part of the work on a partition."""

    @property
    def left(self) -> int:
        """Whether work is left, or how much work is left; 0 or False at the end."""
        ...

    @property
    def moved_bytes(self) -> int:
        """The number of bytes that progress shows."""
        ...

    def after(self, before: Self) -> Self:
        """The result of this part combined with the results of the previous parts."""
        ...


Item = TypeVar("Item")
B = TypeVar("B", bound=BoundedWork)
P = TypeVar("P", bound=PartDone)


@dataclass(slots=True)
class Measure:
    """The time and storage calls of a block."""

    seconds: float = 0.0
    counts: StoreCounts = field(default_factory=StoreCounts)


@dataclass(slots=True)
class OperationRun:
    """One run of an operation: the measured block of ``Execution.run``. A function that does part of the work
    receives the run and adds its results. Call ``report`` after the block, because the measurement ends with the
    block.

    An exception in the block ends the run without a report. Several threads of the driver may add to one run.
    """

    operation: str
    dry_run: bool = False
    rows: list[dict[str, Value]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    totals: dict[str, Value] = field(default_factory=dict)
    settled: dict[TopicIdPartition, int] = field(default_factory=dict)
    """See ``Report``."""
    parts: list[Report] = field(default_factory=list)
    """See ``Report``."""
    tasks: TaskRunner = field(default_factory=lambda: LocalTasks(1))
    progress: Progress = field(default_factory=Silent)
    measure: Measure = field(default_factory=Measure)
    estimate: Estimate | None = None
    """See ``Report``."""

    # ------------------------------------------------------------------------------------ tasks

    def each(
        self,
        task: Callable[[W], R],
        works: Sequence[W],
        *,
        unit: str = "partitions",
        size: Callable[[R], int] = lambda _: 0,
    ) -> Iterator[tuple[W, R]]:
        """Run each of the tasks. Yields each item that succeeded with its result, in order of completion. ``size``
        gives the bytes of a result, for progress.
        """
        return self.done(self.watched(self.tasks.run(task, works), len(works), unit, size))

    def in_turns(
        self, task: Callable[[B], P], works: Sequence[B], over: Over | None, *, unit: str = "partitions"
    ) -> tuple[list[tuple[B, P]], list[Failed[B]]]:
        """Run the tasks in rounds, a part of each per round, until ``over``. Returns the results, including the
        results of tasks that failed in a later round, and the failed tasks, which the caller may still add to the
        run's failures. ``totals["cut_off"]`` counts unfinished tasks.
        """
        done: dict[TopicIdPartition, tuple[B, P]] = {}
        failed: list[Failed[B]] = []

        def turn(waiting: Sequence[B], most: int | None) -> list[B]:
            left: list[B] = []
            for outcome in self.tasks.run(task, [replace(work, most=most) for work in waiting]):
                size_bytes = 0
                match outcome:
                    case Done(work, part):
                        key, size_bytes = work.replicas.view.key, part.moved_bytes
                        done[key] = work, part.after(done[key][1]) if key in done else part
                        if part.left:
                            left.append(work)
                    case Failed():
                        failed.append(outcome)
                self.progress.advance(size_bytes)
            return left

        self.progress.start(self.operation, len(works), unit)
        if left := in_turns(works, over, turn):
            self.totals["cut_off"] = int(self.totals.get("cut_off") or 0) + len(left)
        self.progress.finish()
        return list(done.values()), failed

    def watched(
        self, outcomes: Iterable[Outcome[T, R]], items: int, unit: str, size: Callable[[R], int] = lambda _: 0
    ) -> Iterator[Outcome[T, R]]:
        """The outcomes, as they come, with progress."""
        self.progress.start(self.operation, items, unit)
        for outcome in outcomes:
            yield outcome
            self.progress.advance(size(outcome.value) if isinstance(outcome, Done) else 0)
        self.progress.finish()

    def done(self, outcomes: Iterable[Outcome[T, R]], name: Callable[[T], object] = str) -> Iterator[tuple[T, R]]:
        """The successful items in order of completion, with their results. Records each failed item as a failure;
        ``name`` gives its name.
        """
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                self.fail(name(outcome.item), outcome.error)
            else:
                yield outcome.item, outcome.value

    # ------------------------------------------------------------------------------------ commit

    def commit(
        self,
        metadata: MetadataClient,
        command: Command[tuple[PartitionAnswer, ...]],
        items: Mapping[TopicIdPartition, Item],
        hint: Callable[[Item], str] = lambda _: "",
    ) -> dict[TopicIdPartition, Item]:
        """Submit the command, which has one request per item. A dry run only asks for the answers. Without items
        nothing is sent. Returns the items whose request succeeded. The other items become failures, with ``hint``
        appended to the message.

        Raises: see ``MetadataClient.submit``.
        """
        return self.refuse(metadata.submit(command, dry_run=self.dry_run) if items else (), items, hint)

    def refuse(
        self,
        answers: Iterable[PartitionAnswer],
        items: Mapping[TopicIdPartition, Item],
        hint: Callable[[Item], str] = lambda _: "",
    ) -> dict[TopicIdPartition, Item]:
        """Record refused requests as failures, as ``commit`` does. Returns the other items."""
        carried_out = dict(items)
        for answer in answers:
            if isinstance(answer, RefusedPartition):
                item = carried_out.pop(answer.key)
                self.failures.append(Failure(str(item), answer.error.code, f"{answer.error}{hint(item)}"))
        return carried_out

    # ------------------------------------------------------------------------------------ results

    def fail(self, item: object, error: StratalogError) -> None:
        """Record the failure of ``item``."""
        self.failures.append(Failure.of(item, error))

    @contextmanager
    def still_reporting(self) -> Iterator[None]:
        """A context for steps that follow completed work. An error of the metadata ends the block and is a failure
        of the run, so that the caller still gets the report of the work.
        """
        try:
            yield
        except StratalogError as error:
            self.fail("metadata", error)

    def add(self, rows: Iterable[Row]) -> None:
        self.rows += [row.columns() for row in rows]

    def fill(self, asked: Iterable[PartitionView], blank: Callable[[PartitionView], PartitionRow]) -> None:
        """Add a ``blank`` row for each requested partition without a row, with its failure as the reason, and sort
        the rows by partition.
        """
        there = {(row["topic"], row["partition"]) for row in self.rows}
        self.add(blank(view) for view in asked if (view.topic, view.partition) not in there)
        self.sort("topic", "partition")

    def sort(self, *columns: str) -> None:
        """Sort the rows by these columns; None sorts as 0."""
        self.rows.sort(key=lambda row: [0 if row[name] is None else row[name] for name in columns])

    def sum(self, column: str) -> int:
        """The sum of a column; None counts as 0, and so does a row without the column."""
        return sum(int(row.get(column) or 0) for row in self.rows)

    def total(self, *columns: str) -> None:
        """Add the sums of these columns to the totals."""
        self.totals |= {column: self.sum(column) for column in columns}

    def settle(self, until_ms: Iterable[tuple[PartitionView, int]]) -> None:
        """Record the time (ms since the epoch) before which the partitions have nothing to do. Failed partitions,
        and those of failed topics, are left out.
        """
        failed = {failure.item for failure in self.failures}
        self.settled |= {view.key: at for view, at in until_ms if not {view.topic, str(view)} & failed}

    def absorb(self, report: Report, *, rows: bool = False) -> None:
        """Add the failures and notes (and the ``rows``) of another operation that this operation has called."""
        self.rows += [dict(row) for row in report.rows] if rows else []
        self.failures += report.failures
        self.notes += [note for note in report.notes if note not in self.notes]

    def aside(self) -> OperationRun:
        """Another run of the same operation, with its own failures, notes and rows."""
        return OperationRun(self.operation, self.dry_run, tasks=self.tasks, progress=self.progress)

    def report(self) -> Report:
        """The report of everything that the run has collected."""
        return Report(
            operation=self.operation,
            rows=self.rows,
            failures=self.failures,
            totals=self.totals,
            dry_run=self.dry_run,
            seconds=self.measure.seconds,
            counts=self.measure.counts,
            notes=self.notes,
            settled=self.settled,
            parts=self.parts,
            estimate=self.estimate,
        )
