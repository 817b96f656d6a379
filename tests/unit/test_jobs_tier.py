"""The command line of jobs/tier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import Report
from jobs.arguments import duration
from jobs.tier import SHORTEST_PAUSE_S, as_it_comes_due
from jobs.tier import main as tier
from partitions.clock import ManualClock
from partitions.errors import InvalidCallError, NoMajorityError
from tests.unit.cluster_harness import LiveCluster


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered()
    live.fill("ab")
    return live


def at(live: LiveCluster, *argv: str) -> list[str]:
    return ["--cluster", str(live.file), "--json", *argv]


def last_report(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_plan_then_once_then_what_is_due(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with live.unchanged():
        assert tier(at(live, "--dry-run")) == 0
    assert last_report(capsys)["totals"]["uploaded_files"] == 0
    assert tier(at(live, "--once")) == 0
    assert last_report(capsys)["totals"]["uploaded_files"] == 2
    with live.unchanged():
        assert tier(at(live, "--due")) == 0
    report = last_report(capsys)
    assert report["rows"] == []
    assert 0 < report["totals"]["next_ms"] <= 30_000


def test_a_wrong_call_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        assert tier(at(live, "--topics", "nix")) == 2
        assert tier(at(live, "--every", "0")) == 2
        assert tier(at(live, "--every", "soon")) == 2
        assert tier(at(live, "--every", "5s", "--due")) == 2
        assert tier(at(live, "--once", "--due")) == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("30", 30), ("500ms", 0.5), ("5m", 300), ("1h", 3600), ("1.5s", 1.5)]
)
def test_how_often_is_said_as_a_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


class Interrupted(ManualClock):
    """Somebody presses Ctrl-C in the last pause."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left = pauses
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        self.pauses.append(seconds)
        if len(self.pauses) == self.left:
            raise KeyboardInterrupt


def test_the_loop_sleeps_until_the_next_partition_is_due_and_never_longer_than_asked() -> None:
    """New partitions, and moved leaders, are due at once: they are looked for so often."""
    next_times: list[int | None] = [12_000, 500, 3_600_000, 0, None]
    clock, shown = Interrupted(len(next_times)), list[Report]()
    outcomes = iter([Report("tier", (), totals={"next_ms": next_ms}) for next_ms in next_times])
    with pytest.raises(KeyboardInterrupt):
        as_it_comes_due(lambda: next(outcomes), 30, shown.append, clock)
    assert clock.pauses == [12, 0.5, 30, SHORTEST_PAUSE_S, 30]
    assert len(shown) == len(next_times)


def test_a_run_that_fails_is_shown_and_the_next_one_tries_again() -> None:
    clock, shown = Interrupted(2), list[Report]()
    outcomes = iter([NoMajorityError("two voters are away"), Report("tier", ())])

    def once() -> Report:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(KeyboardInterrupt):
        as_it_comes_due(once, 30, shown.append, clock)
    assert [report.ok for report in shown] == [False, True]
    assert shown[0].failures[0].code == "NO_MAJORITY"


def test_a_wrong_call_is_not_tried_again() -> None:
    def once() -> Report:
        raise InvalidCallError("no such topic")

    with pytest.raises(InvalidCallError):
        as_it_comes_due(once, 30, lambda _: None, Interrupted(1))
