"""The frame of an operation: one run, which measures, collects, and makes the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from stratalog.engine.driver.report import Failure, Report, Value
from stratalog.engine.metadata.image import PartitionView
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Failed, Outcome, R, T
from stratalog.partitions.store import StoreCounts

NOT_DONE = "not done: a failure says why"
"""``why`` of a partition that an operation has not carried out."""


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
    measure: Measure = field(default_factory=Measure)

    def fill(self, asked: Iterable[PartitionView], blank: Callable[[PartitionView], dict[str, Value]]) -> None:
        """Sort the rows by partition, after adding ``blank`` of each partition that was asked for and has none: a
        failure says why.
        """
        there = {(row["topic"], row["partition"]) for row in self.rows}
        self.rows += [blank(view) for view in asked if (view.topic, view.partition) not in there]
        self.rows.sort(key=lambda row: (str(row["topic"]), row["partition"]))

    def fail(self, item: object, error: StratalogError) -> None:
        """``item`` has failed; the others go on."""
        self.failures.append(Failure.of(item, error))

    def done(self, outcomes: Iterable[Outcome[T, R]], name: Callable[[T], object] = str) -> Iterator[tuple[T, R]]:
        """The items that were done, as they come, with their results. Those that were not are failures of what
        ``name`` makes of them.
        """
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                self.fail(name(outcome.item), outcome.error)
            else:
                yield outcome.item, outcome.value

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
