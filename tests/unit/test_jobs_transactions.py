"""The command line of jobs/transactions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.transactions import main as transactions
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch


def built(folder: Path) -> LiveCluster:
    """With a transaction that nobody has ended."""
    live = LiveCluster(folder, on_disk=True)
    live.cluster.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.topic()
    live.cluster.transaction("x").append_batches("t", {0: [batch(["a"])]})
    return live


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return built(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, for those who change nothing."""
    return built(tmp_path_factory.mktemp("shared"))


def run(live: LiveCluster, *argv: str) -> int:
    return transactions(["--cluster", str(live.file), "--json", *argv])


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Those of the object on the last line of standard output."""
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    return found


def test_looking_changes_nothing(shared: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.unchanged():
        assert run(shared, "--list") == 0
        assert [(row["transactional_id"], row["state"]) for row in rows(capsys)] == [("x", "Ongoing")]
        assert run(shared, "--describe", "--transactional-id", "x") == 0
        assert rows(capsys) == [{"topic": "t", "partition": 0, "first_offset": 0}]
        assert run(shared, "--find-hanging", "--topics", "t") == 0
        assert rows(capsys) == []
        assert run(shared, "--abort", "--transactional-id", "x", "--dry-run") == 0
        assert run(shared, "--finish", "--dry-run") == 0


def test_abort(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "--abort", "--transactional-id", "x") == 0
    assert rows(capsys) == [{"topic": "t", "partition": 0, "marker": 1}]
    assert run(live, "--finish") == 0
    assert rows(capsys) == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--describe",), "--describe needs --transactional-id"),
        (("--abort",), "--abort needs --transactional-id"),
        (("--list", "--transactional-id", "x"), "--transactional-id means nothing here"),
        (("--list", "--topics", "t"), "--topics means nothing here"),
        (("--describe", "--transactional-id", "y"), "TRANSACTIONAL_ID_NOT_FOUND"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], said: str
) -> None:
    with shared.unchanged():
        assert run(shared, *argv) != 0
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
