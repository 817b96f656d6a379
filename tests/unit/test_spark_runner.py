"""The jobs of Spark's runner, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog.engine.spark.runner import SparkRunner
from stratalog.partitions.runner import Done
from stratalog.partitions.store import StoreCounts


class InProcess(SparkRunner):
    """Runs four jobs in this process, two at a time. The first ends immediately, with ``bug`` if given."""

    processes = 1  # type: ignore[assignment]

    def __init__(self, bug: Exception | None = None) -> None:
        super().__init__(SimpleNamespace(range=lambda _: SimpleNamespace(schema=None)))  # type: ignore[arg-type]
        self.jobs = 0
        self._bug = bug

    def _run_job(self, function: Any, slices: list[list[Any]], operation: str | None) -> Any:
        self.jobs += 1
        if self.jobs > 1:
            threading.Event().wait(0.2)
        elif self._bug is not None:
            raise self._bug
        return [([Done(item, function(item)) for items in slices for item in items], StoreCounts())]


def test_all_jobs_run_if_nothing_stops_them() -> None:
    runner = InProcess()
    assert len(list(runner.run(abs, range(100)))) == 100
    assert runner.jobs == 4


def test_a_caller_that_stops_iterating_starts_no_more_jobs() -> None:
    """Jobs that have started are finished, as with threads."""
    runner = InProcess()
    outcomes = runner.run(abs, range(100))
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert runner.jobs < 4


def test_a_bug_starts_no_more_jobs() -> None:
    runner = InProcess(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        list(runner.run(abs, range(100)))
    assert runner.jobs < 4
