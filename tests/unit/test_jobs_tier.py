"""The command line of jobs/tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Report
from stratalog.jobs.arguments import duration
from stratalog.jobs.tier import SHORTEST_PAUSE_S, until_due_s
from stratalog.jobs.tier import main as tier
from tests.unit.cluster_harness import LiveCluster
from tests.unit.jobs_harness import report


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    live = LiveCluster(tmp_path, on_disk=True)
    live.tiered()
    live.fill("ab")
    return live


def at(live: LiveCluster, *argv: str) -> list[str]:
    return ["--cluster", str(live.file), "--json", *argv]


def test_a_dry_run_uploads_nothing_and_after_a_run_nothing_is_due(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with live.unchanged():
        assert tier(at(live, "--dry-run")) == 0
    assert report(capsys)["totals"]["uploaded_files"] == 0
    assert tier(at(live, "--once")) == 0
    assert report(capsys)["totals"]["uploaded_files"] == 2
    with live.unchanged():
        assert tier(at(live, "--due")) == 0
    found = report(capsys)
    assert found["rows"] == []
    assert 0 < found["totals"]["next_ms"] <= 30_000


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
def test_a_duration_has_an_optional_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("next_ms", "pause_s"), [(12_000, 12), (500, 0.5), (3_600_000, 30), (0, SHORTEST_PAUSE_S), (None, 30)]
)
def test_the_loop_sleeps_until_the_next_partition_is_due_and_never_longer_than_asked(
    next_ms: int | None, pause_s: float
) -> None:
    """New partitions and moved leaders are due immediately, so the job looks for them at least this often."""
    assert until_due_s(Report("tier", (), totals={"next_ms": next_ms}), 30) == pause_s


def test_after_a_run_that_failed_the_loop_sleeps_as_long_as_asked() -> None:
    assert until_due_s(Report("tier", ()), 30) == 30
