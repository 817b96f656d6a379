"""Execution: where tasks run, the listener to their progress, and the cost of a block of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from stratalog.engine.driver.run import Measure, OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.tasks import Progress, Silent, TaskRunner
from stratalog.partitions.clock import Clock
from stratalog.partitions.store import StoreCounts


@contextmanager
def measured(clock: Clock, counts: Callable[[], StoreCounts]) -> Iterator[Measure]:
    """Measures the time and storage requests of the block; ``counts`` returns the requests so far."""
    measure = Measure()
    began = clock.monotonic_s()
    before = counts()
    yield measure
    measure.seconds = clock.monotonic_s() - began
    measure.counts = counts() - before


@dataclass(slots=True)
class Execution:
    """How one driver runs the tasks of its operations."""

    tasks: TaskRunner
    """Runs work keyed by partition, on executors if there are any."""
    clock: Clock
    counts: Callable[[], StoreCounts]
    """The storage requests so far, here and on executors."""
    progress: Progress = field(default_factory=Silent)
    driver_only: bool = False
    """Whether executors cannot reach the storage, so that this process runs the tasks, and appends rows itself."""

    @contextmanager
    def run(self, operation: str, *, dry_run: bool = False) -> Iterator[OperationRun]:
        """Measures one run of an operation."""
        with measured(self.clock, self.counts) as measure:
            yield OperationRun(operation, dry_run, tasks=self.tasks, progress=self.progress, measure=measure)


def execution_on(
    storage: Storage,
    tasks: TaskRunner,
    clock: Clock,
    progress: Progress,
    *,
    driver_only: bool = False,
) -> tuple[Storage, Execution]:
    """Return the storage, and an execution with ``tasks``. The counts of both include the requests that tasks make
    on executors.
    """
    counted = replace(storage, elsewhere=lambda: execution.tasks.counts)
    execution = Execution(tasks, clock, counted.counts, progress, driver_only)
    return counted, execution
