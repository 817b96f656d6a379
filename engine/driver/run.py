"""The frame of an operation. ``stratalog.engine.upkeep`` says how an operation is built on it.

context.run      measures a block, and yields the run: what the block has done so far
each, in_turns   tasks, with progress; in turns where a budget may end them. Those that fail are failures
commit           one command for many partitions. Those that it refuses are failures
add, fill        rows, of a ``Row`` class per operation whose fields are the columns
settle           partitions that need no further run for now
report           all of it, for the caller
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

import msgspec

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

NOT_DONE = "not done: a failure says why"
"""``why`` of a partition that an operation has not carried out."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a report. The fields are the columns, in their order, with values as in ``Value``; a field that is
    ``UNSET`` is no column of this row."""

    def columns(self) -> dict[str, Value]:
        """The values by column."""
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
        """Whether, or how much, work is left: 0 or False at the end."""
        ...

    @property
    def moved_bytes(self) -> int:
        """Bytes, as progress shows them."""
        ...

    def after(self, before: Self) -> Self:
        """The result of this part and of those before it."""
        ...


Item = TypeVar("Item")
B = TypeVar("B", bound=BoundedWork)
P = TypeVar("P", bound=PartDone)


@dataclass(slots=True)
class Measure:
    """The time and the storage calls of a stretch of work."""

    seconds: float = 0.0
    counts: StoreCounts = field(default_factory=StoreCounts)


@dataclass(slots=True)
class OperationRun:
    """One run of an operation, from ``Context.run``: a block that is measured. Functions that do part of the work
    take the run, and add to it. ``report`` is called after the block: until then nothing is measured.

    An error that is raised in the block ends the run, and there is no report. The threads of the driver may add
    to one run.
    """

    operation: str
    dry_run: bool = False
    rows: list[dict[str, Value]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    totals: dict[str, Value] = field(default_factory=dict)
    settled: dict[TopicIdPartition, int] = field(default_factory=dict)
    """As in ``Report``."""
    parts: list[Report] = field(default_factory=list)
    """As in ``Report``."""
    tasks: TaskRunner = field(default_factory=lambda: LocalTasks(1))
    progress: Progress = field(default_factory=Silent)
    measure: Measure = field(default_factory=Measure)

    # ------------------------------------------------------------------------------------ tasks

    def each(
        self,
        task: Callable[[W], R],
        works: Sequence[W],
        *,
        unit: str = "partitions",
        size: Callable[[R], int] = lambda _: 0,
    ) -> Iterator[tuple[W, R]]:
        """The works that a task has done, as they come, with the results. ``size`` gives the bytes of a result,
        for progress."""
        return self.done(self.watched(self.tasks.run(task, works), len(works), unit, size))

    def in_turns(
        self, task: Callable[[B], P], works: Sequence[B], over: Over | None, *, unit: str = "partitions"
    ) -> tuple[list[tuple[B, P]], list[Failed[B]]]:
        """Do the works, a little of each in a turn, until ``over``. Returns the results, also of what a work that
        failed has done before that; and what failed, which is no failure of the run yet. ``totals["cut_off"]``
        counts works that did not reach their end.
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
        """The items that were done, as they come, with their results. Those that were not are failures of what
        ``name`` makes of them.
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
        """Submit the command, which has a request for each of the items (a dry run only asks for the answers);
        nothing without items. Returns the items whose request was carried out. The others are failures, with a
        ``hint`` behind the message.

        Raises: as ``MetadataClient.submit``.
        """
        carried_out = dict(items)
        for answer in metadata.submit(command, dry_run=self.dry_run) if items else ():
            if isinstance(answer, RefusedPartition):
                item = carried_out.pop(answer.key)
                self.failures.append(Failure(str(item), answer.error.code, f"{answer.error}{hint(item)}"))
        return carried_out

    # ------------------------------------------------------------------------------------ what was done

    def fail(self, item: object, error: StratalogError) -> None:
        """``item`` has failed; the others go on."""
        self.failures.append(Failure.of(item, error))

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        self.rows += [row.columns() for row in rows]

    def fill(self, asked: Iterable[PartitionView], blank: Callable[[PartitionView], PartitionRow]) -> None:
        """Sort the rows by partition, after adding ``blank`` of each partition that was asked for and has none: a
        failure says why.
        """
        there = {(row["topic"], row["partition"]) for row in self.rows}
        self.add(blank(view) for view in asked if (view.topic, view.partition) not in there)
        self.sort("topic", "partition")

    def sort(self, *columns: str) -> None:
        """Sort the rows by these columns; None counts as 0."""
        self.rows.sort(key=lambda row: [0 if row[name] is None else row[name] for name in columns])

    def sum(self, column: str) -> int:
        """The sum of a column; None, and a row without the column, count as 0."""
        return sum(int(row.get(column) or 0) for row in self.rows)

    def total(self, *columns: str) -> None:
        """Let the totals have the sums of these columns."""
        self.totals |= {column: self.sum(column) for column in columns}

    def settle(self, until_ms: Iterable[tuple[PartitionView, int]]) -> None:
        """Partitions with which nothing is to do before a time (ms since the epoch), but for those that have
        failed, or whose topic has."""
        failed = {failure.item for failure in self.failures}
        self.settled |= {view.key: at for view, at in until_ms if not {view.topic, str(view)} & failed}

    def absorb(self, report: Report) -> None:
        """Take over the failures and the notes of an operation that this one has called."""
        self.failures += report.failures
        self.notes += [note for note in report.notes if note not in self.notes]

    def aside(self) -> OperationRun:
        """A run of the same operation with failures, notes and rows of its own."""
        return OperationRun(self.operation, self.dry_run, tasks=self.tasks, progress=self.progress)

    def report(self) -> Report:
        """The report of all that was collected."""
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
        )
