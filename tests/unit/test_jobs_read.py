"""The command line of jobs/read, as far as it needs no session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.jobs.read import main as read
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.jobs_harness import nobody_reads, report


def built(folder: Path) -> LiveCluster:
    """``t`` and ``trips``, with a..d in each; the group ``g`` has read two records of ``t``."""
    live = LiveCluster(folder, on_disk=True)
    for name in ("t", "trips"):
        live.topic(name)
        live.fill("abcd", name)
    live.cluster.groups.commit("g", {("t", 0): 2}).raise_for_failures()
    return live


live, shared = live_and_shared(built)


def planned(live: LiveCluster, capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert read(["--cluster", str(live.file), "--json", "--dry-run", *argv]) == 0
    return report(capsys)


@pytest.mark.parametrize(
    ("argv", "starts"),
    [
        (("t", "--group", "g"), [2, 3]),
        (("t", "--last", "1"), [3]),
        (("t,trips", "--last", "1"), [3, 3]),
        (("--pattern", "t.*", "--start", "3"), [3, 3]),
        (("t", "--start", "0:1", "--end", "2"), [1]),
    ],
)
def test_a_read_can_be_described_in_words(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], starts: list[int]
) -> None:
    """A group, the last records, several topics, a pattern; ``--dry-run`` lists the files."""
    assert [row["start"] for row in planned(shared, capsys, *argv)["rows"]] == starts


def test_explain_shows_the_plan_and_reads_nothing(shared: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.unchanged():
        assert read(["--cluster", str(shared.file), "t", "--last", "2", "--explain", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(shared.cluster.plan_read("t", last=2).explain() + "\n")
    found = json.loads(out.splitlines()[-1])
    assert found["totals"]["files"] == 2
    assert found["storage"]["lists"] > 0, "planning is counted"


def test_a_reader_that_stops_reading_the_explanation_is_no_error(shared: LiveCluster, tmp_path: Path) -> None:
    with nobody_reads(tmp_path):
        assert read(["--cluster", str(shared.file), "t", "--explain"]) == 0


def test_bytes_that_cross_racks_are_reported_if_the_readers_rack_is_known(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = planned(shared, capsys, "t", "--client-rack", "far away")["totals"]
    assert totals["cross_rack_bytes"] == totals["bytes"] > 0
    assert "cross_rack_bytes" not in planned(shared, capsys, "t")["totals"]


def test_deleted_offsets_may_be_skipped_with_a_note(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    argv = ("t", "--start", "1")
    assert read(["--cluster", str(live.file), "--dry-run", *argv]) == 2
    assert "t-0: start 1 is below the log start" in capsys.readouterr().err
    found = planned(live, capsys, *argv, "--no-fail-on-data-loss")
    assert found["notes"] == ["t-0: offsets [1, 3) were deleted, and are skipped"]
    assert [row["start"] for row in found["rows"]] == [3]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "one of the arguments TOPICS --pattern is required"),
        (("t", "--pattern", "t"), "--pattern: not allowed with argument TOPICS"),
        (("t", "--last", "2", "--start", "1"), "not allowed with argument"),
        (("t", "--last", "0"), "give a number of 1 or more"),
        (("t", "--isolation", "read_comitted"), "invalid choice: 'read_comitted'"),
        (("trps",), "did you mean 'trips'?"),
        (("t", "--group", "h"), "group 'h' does not exist"),
        (("t", "--format", "csv"), "--format needs --output"),
        (("t", "--option", "a=b"), "--option needs --output"),
        (("t", "--mode", "error", "--count"), "--mode needs --output"),
        (("t", "--count", "--dry-run"), "--count and --dry-run cannot be used together"),
        (("t", "--count", "--explain"), "--count and --explain cannot be used together"),
    ],
)
def test_a_wrong_call_is_one_line(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    with shared.unchanged():
        assert read(["--cluster", str(shared.file), *argv]) == 2
    assert message in capsys.readouterr().err
