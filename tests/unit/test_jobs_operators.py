"""The command lines for leaders and replicas: elect, reassign."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.jobs.arguments import rate
from stratalog.jobs.elect import main as elect
from stratalog.jobs.reassign import main as reassign
from stratalog.jobs.reassign import moves
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.jobs_harness import report


def built(folder: Path) -> LiveCluster:
    live = LiveCluster(folder, brokers=4, on_disk=True)
    live.topic(partitions=2, copies=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    return live


live, shared = live_and_shared(built)


def replicas(live: LiveCluster) -> list[tuple[int, ...]]:
    return [live.replicas(partition=p).view.replicas for p in (0, 1)]


def at(live: LiveCluster, *argv: str) -> list[str]:
    return ["--cluster", str(live.file), *argv]


# ------------------------------------------------------------------------------------- words


def test_moves_and_rates_are_parsed() -> None:
    assert moves("1:2, 3:4") == {1: 2, 3: 4}
    assert rate("50MiB") == rate("50MiB/s") == 50 * 2**20


@pytest.mark.parametrize(
    "argv",
    [
        ("--move", "1"),
        ("--move", "1:1"),
        ("--move", "1:2,1:3"),
        ("--drain", "one"),
        ("--drain", "1", "--throttle", "fast"),
        ("--drain", "1", "--throttle", "0"),
        ("--replication-factor", "0"),
    ],
    ids=" ".join,
)
def test_malformed_arguments_are_refused(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert reassign(argv) == 2
    assert "stratalog reassign: error: argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "name the action: --plan, --status, --cancel, or a change such as"),
        (("--plan", "p.json", "--drain", "1"), "--plan and --drain cannot be used together"),
        (("--status", "--cancel"), "--status and --cancel cannot be used together"),
        (("--plan", "p.json", "--topics", "t"), "--plan and --topics cannot be used together"),
        (("--cancel", "--throttle", "1MB"), "--cancel and --throttle cannot be used together"),
        (("--status", "--force"), "--status and --force cannot be used together"),
    ],
)
def test_options_that_contradict_each_other_are_a_bad_call(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reassign(argv) == 2
    assert capsys.readouterr().err.startswith(f"ERROR INVALID_REQUEST: {message}")


# ------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is not a reassignment plan"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}', "missing required field `replicas`"),
        (
            '{"version": 1, "partitions": [{"topic": "t", "partition": 5, "replicas": [1]},'
            ' {"topic": "u", "partition": 0, "replicas": [1]}]}',
            "partitions that do not exist: t-5, u-0",
        ),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 9]}]}', "broker 9"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "broker 1 twice"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_changes_nothing(
    shared: LiveCluster, tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with shared.unchanged():
        assert reassign(at(shared, "--plan", str(path))) == 2
    err = capsys.readouterr().err
    assert err.startswith("ERROR ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_plan_is_worked_out_written_down_and_carried_out(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(live.folder / "plan.json")
    with live.unchanged():
        assert reassign(at(live, "--drain", "1", "--dry-run", "--write-plan", path, "--json")) == 0
    assert report(capsys)["dry_run"] is True
    assert any(1 in held for held in replicas(live))
    assert reassign(at(live, "--plan", path, "--throttle", "1GiB", "--json")) == 0
    done = report(capsys)
    assert {row["state"] for row in done["rows"]} == {"done"}
    assert not any(1 in held for held in replicas(live))
    assert live.read() == {0: ["a"], 1: ["b"]}


def test_a_plan_that_cannot_be_written_down_is_not_carried_out(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.unchanged():
        assert reassign(at(shared, "--drain", "1", "--write-plan", str(shared.folder / "no" / "plan.json"))) == 2
    assert "cannot be written: No such file or directory; nothing was changed" in capsys.readouterr().err


def test_a_reassignment_in_progress_is_shown_and_cancelled(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = replicas(live)
    new = ({1, 2, 3, 4} - {*before[0]}).pop()
    wanted = Reassignment(live.replicas().view.topic_id, 0, (before[0][0], new))
    # The driver died before it did more.
    ports_of(live.cluster).metadata.submit(AlterPartitionReassignments((wanted,)))
    assert reassign(at(live, "--status", "--json")) == 0
    (row,) = report(capsys)["rows"]
    assert (row["newcomer"], row["state"], row["records_behind"]) == (new, "joining", 1)
    assert reassign(at(live, "--cancel", "--topics", "t", "--json")) == 0
    assert report(capsys)["totals"] == {"cancelled": 1}
    assert replicas(live) == before


def test_an_unfinished_reassignment_is_no_success(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    last = live.leader()
    (other,) = live.followers()
    Cluster.open(live.file).brokers.fence([other])
    capsys.readouterr()
    assert reassign(at(live, "--topics", "t", "--remove", str(last), "--json")) == 1
    text = capsys.readouterr()
    assert "INVALID_REPLICA_ASSIGNMENT" in text.err


# ------------------------------------------------------------------------------------- elect


def test_leaders_are_elected_by_preference_and_by_hand(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (other,) = live.followers()
    assert elect(at(live, "--topics", "t", "--partitions", "0", "--leader", str(other), "--json")) == 0
    (row,) = report(capsys)["rows"]
    assert (row["leader_before"], row["leader"]) == (replicas(live)[0][0], other)
    with live.unchanged():
        assert elect(at(live, "--dry-run", "--json")) == 0
    assert report(capsys)["totals"] == {"elected": 1}
    assert elect(at(live)) == 0
    assert live.leader() == replicas(live)[0][0]


def test_an_error_in_an_election_is_reported(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with live.unchanged():
        assert elect(at(live, "--partitions", "0")) == 2
        assert elect(at(live, "--topics", "u")) == 2
        assert elect(at(live, "--leader", "9")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("ERROR ") for line in lines)
    assert elect(at(live, "--unclean", "--json", "--yes")) == 0
    assert report(capsys)["totals"] == {"elected": 0, "lost_records_at_least": 0}
