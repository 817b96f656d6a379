"""Runs a job repeatedly (``--every``), so that no service is necessary."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from stratalog import Failure, OperationFailedError, Report
from stratalog.jobs.ending import after_the_work
from stratalog.partitions.errors import InvalidCallError, StratalogError


def once_or_every(
    operation: str, once: Callable[[], Report], show: Callable[[Report], None], every_s: float | None
) -> Report:
    """Return the report of one run. If ``every_s`` is given, return the report of ``repeat``, with that many
    seconds between runs."""
    return once() if every_s is None else repeat(operation, once, show, lambda _: every_s)


def repeat(
    operation: str,
    once: Callable[[], Report],
    show: Callable[[Report], None],
    pause_s: Callable[[Report], float],
    sleep: Callable[[float], None] | None = None,
) -> Report:
    """Run, show the report, and sleep ``pause_s(report)`` seconds, until SIGTERM or SIGINT; the current run is
    finished first. A failed run is shown as a report of ``operation``, and the next run tries again; finished work
    is kept. An unexpected error is handled in the same way, and its traceback is printed. ``sleep`` replaces the
    default pause; a signal interrupts the default pause. Returns a report with the number of runs.

    Raises: InvalidCallError, which every later run would also raise; KeyboardInterrupt at a second signal.
    """
    runs = 0
    with after_the_work() as ending:
        while not ending.requested:
            ending.listen()
            try:
                report = once()
            except InvalidCallError:
                raise
            except OperationFailedError as error:
                report = error.report
            except StratalogError as error:
                report = Report(operation, (), [Failure.of(operation, error)])
            except Exception as error:
                traceback.print_exc()
                report = Report(operation, (), [Failure(operation, type(error).__name__, str(error))])
            runs += 1
            show(report)
            ending.listen()
            (sleep or ending.pause)(pause_s(report))
    return Report(operation, (), totals={"runs": runs})
