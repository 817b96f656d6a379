"""The loop of jobs that run again and again, in the place of a service."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NoReturn

from stratalog import Failure, OperationFailedError, Report
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, StratalogError


def repeat(
    operation: str,
    once: Callable[[], Report],
    show: Callable[[Report], None],
    pause_s: Callable[[Report], float],
    clock: Clock,
) -> NoReturn:
    """Run, show the report, sleep as long as it says, without end. A run that fails is shown like any other, as a
    report of ``operation``, and the next one tries again: finished work stays done. So it is with an error that
    nobody has foreseen, whose traceback is printed.

    Raises: InvalidCallError, which no later run would get past; KeyboardInterrupt.
    """
    while True:
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
        show(report)
        clock.sleep(pause_s(report))
