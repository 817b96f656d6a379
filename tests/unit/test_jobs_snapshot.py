"""The command line of jobs/snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.jobs.snapshot import main as snapshot
from stratalog.jobs.snapshot import main as snapshot_job
from tests.unit.jobs_harness import report
from tests.unit.snapshot_harness import Keyed


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    live = Keyed(tmp_path, on_disk=True).begin()
    live.put([("a", "1"), ("a", "2")])
    return live


def at(live: Keyed, *argv: str) -> list[str]:
    return ["--cluster", str(live.file), "--json", *argv]


def test_a_dry_run_plans_the_snapshots_that_the_job_makes(live: Keyed, capsys: pytest.CaptureFixture[str]) -> None:
    with live.unchanged():
        assert snapshot(at(live, "--dry-run", "--by-hand")) == 0
    assert report(capsys)["dry_run"] is True
    with live.unchanged():
        assert snapshot(at(live, "--once")) == 0  # the policy does not want one yet
    assert snapshot(at(live, "--topics", "t", "--by-hand")) == 0
    assert report(capsys)["totals"] == {"partitions": 1, "made": 1}
    assert live.ids(1) == ["2-1"]


def test_a_wrong_call_changes_nothing(live: Keyed, capsys: pytest.CaptureFixture[str]) -> None:
    live.topic("other")
    with live.unchanged():
        assert snapshot(at(live, "--topics", "nix")) == 2
        assert snapshot(at(live, "--topics", "other")) == 2
        assert snapshot(at(live, "--every", "0")) == 2
        assert snapshot(at(live, "--every", "soon")) == 2
        assert snapshot(at(live, "--every", "5", "--once")) == 2
    assert "set its cleanup.policy to snapshot first" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("30s", 30), ("600", 600)])
def test_a_duration_has_an_optional_unit(text: str, seconds: float) -> None:
    assert snapshot_job.parser().parse_args(["--every", text]).every == seconds
