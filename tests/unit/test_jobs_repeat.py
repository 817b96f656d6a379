"""The loop of repeated jobs."""

from __future__ import annotations

import pytest

from stratalog import Failure, Report
from stratalog.jobs.repeat import repeat
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, NoMajorityError


class Interrupted(ManualClock):
    """Ctrl-C is pressed in the third pause."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            raise KeyboardInterrupt


def test_a_run_that_fails_is_shown_and_the_next_one_tries_again() -> None:
    clock, shown = Interrupted(), list[Report]()
    outcomes = iter([Report("tier", ()), NoMajorityError("two voters are away"), Report("tier", ())])

    def once() -> Report:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(KeyboardInterrupt):
        repeat("tier", once, shown.append, lambda _: 60, clock.sleep)
    assert clock.pauses == [60, 60, 60]
    assert [report.ok for report in shown] == [True, False, True]
    assert {report.operation for report in shown} == {"tier"}
    assert shown[1].failures[0].code == "NO_MAJORITY"


def test_an_error_that_nobody_has_foreseen_does_not_end_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Report] = []

    def once() -> Report:
        raise ZeroDivisionError("of what is not there")

    with pytest.raises(KeyboardInterrupt):
        repeat("maintain", once, shown.append, lambda _: 30, Interrupted().sleep)
    assert [report.failures[0].code for report in shown] == ["ZeroDivisionError"] * 3
    assert "test_jobs_repeat.py" in capsys.readouterr().err


def test_the_report_says_how_long_the_pause_is() -> None:
    clock = Interrupted()
    outcomes = iter([Report("tier", (), totals={"next_ms": next_ms}) for next_ms in (2000, 7000, 1000)])
    with pytest.raises(KeyboardInterrupt):
        repeat(
            "tier",
            lambda: next(outcomes),
            lambda _: None,
            lambda report: report.totals["next_ms"] / 1000,
            clock.sleep,
        )
    assert clock.pauses == [2, 7, 1]


def test_a_wrong_call_is_not_retried() -> None:
    def once() -> Report:
        raise InvalidCallError("no such topic")

    with pytest.raises(InvalidCallError):
        repeat("tier", once, lambda _: None, lambda _: 60, Interrupted().sleep)


def test_a_run_of_which_a_part_failed_keeps_its_report() -> None:
    half = Report("tier", [{"partition": 1}], [Failure("t-0", "LOG_GAP", "offsets are missing")])
    shown: list[Report] = []

    def once() -> Report:
        return half.raise_for_failures()

    with pytest.raises(KeyboardInterrupt):
        repeat("tier", once, shown.append, lambda _: 60, Interrupted().sleep)
    assert shown == [half] * 3
