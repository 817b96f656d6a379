"""The command line of jobs/transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.jobs.transactions import main as transactions
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.harness import batch
from tests.unit.jobs_harness import calls, rows


def built(folder: Path) -> LiveCluster:
    """The cluster has a transaction that has not ended."""
    live = LiveCluster(folder, on_disk=True)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.topic()
    live.cluster.transactions.begin("x").append_batches("t", {0: [batch(["a"])]})
    return live


live, shared = live_and_shared(built)
run = calls(transactions, "--json")


def test_looking_changes_nothing(shared: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.unchanged():
        assert run(shared, "list") == 0
        assert [(row["transactional_id"], row["state"]) for row in rows(capsys)] == [("x", "Ongoing")]
        assert run(shared, "describe", "x") == 0
        assert rows(capsys) == [{"topic": "t", "partition": 0, "first_offset": 0}]
        assert run(shared, "find-hanging", "--topics", "t") == 0
        assert rows(capsys) == []
        assert run(shared, "abort", "x", "--dry-run") == 0
        assert run(shared, "finish", "--dry-run") == 0


def test_a_transaction_is_aborted(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "abort", "x") == 0
    assert rows(capsys) == [{"topic": "t", "partition": 0, "marker": 1}]
    assert run(live, "finish") == 0
    assert rows(capsys) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("describe",), "required: TRANSACTIONAL_ID"),
        (("abort",), "required: TRANSACTIONAL_ID"),
        (("list", "--topics", "t"), "unrecognized arguments: --topics"),
        (("describe", "y"), "TRANSACTIONAL_ID_NOT_FOUND"),
    ],
)
def test_an_error_in_a_command_line_is_reported(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    with shared.unchanged():
        assert run(shared, *argv) != 0
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
