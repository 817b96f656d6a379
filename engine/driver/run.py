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
"""The reason for a partition that an operation has not processed."""


@dataclass(slots=True)
class Measure:
    """The time and storage calls of a block."""

    seconds: float = 0.0
    counts: StoreCounts = field(default_factory=StoreCounts)


@dataclass(slots=True)
class OperationRun:
    """One run of an operation, from ``Context.run``: a measured block. Functions that do part of the work receive
    the run, and add to it. Call ``report`` after the block, as the measurement ends there.

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
    measure: Measure = field(default_factory=Measure)

    def fill(self, asked: Iterable[PartitionView], blank: Callable[[PartitionView], dict[str, Value]]) -> None:
        """Sort the rows by partition, after adding a ``blank`` row for each requested partition without one; a
        failure has the reason.
        """
        there = {(row["topic"], row["partition"]) for row in self.rows}
        self.rows += [blank(view) for view in asked if (view.topic, view.partition) not in there]
        self.rows.sort(key=lambda row: (str(row["topic"]), row["partition"]))

    def fail(self, item: object, error: StratalogError) -> None:
        """Record the failure of ``item``."""
        self.failures.append(Failure.of(item, error))

    def done(self, outcomes: Iterable[Outcome[T, R]], name: Callable[[T], object] = str) -> Iterator[tuple[T, R]]:
        """The successful items in order of completion, with their results. Records the others as failures, named
        by ``name``.
        """
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                self.fail(name(outcome.item), outcome.error)
            else:
                yield outcome.item, outcome.value

    def report(self) -> Report:
        """The report of everything collected."""
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
