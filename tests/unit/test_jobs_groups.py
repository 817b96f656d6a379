"""The command line of jobs/groups, with positions as kafka-consumer-groups.sh names them."""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

import pytest

from stratalog.jobs.arguments import iso_duration
from stratalog.jobs.groups import main as groups
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.jobs_harness import calls, report, rows


def built(folder: Path) -> LiveCluster:
    live = LiveCluster(folder, on_disk=True)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "2"})
    live.topic()
    live.append(["a", "b", "c"]).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 1})
    return live


live, shared = live_and_shared(built)
run = calls(groups, "--json")


def test_groups_are_listed_and_described(shared: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.unchanged():
        assert run(shared, "list") == 0
        assert [row["group"] for row in rows(capsys)] == ["g"]
        assert run(shared, "describe", "g") == 0
    (row,) = rows(capsys)
    assert list(row) == [
        *("topic", "partition", "committed", "log_end", "high_watermark", "lag", "beyond_end"),
        *("leader_epoch", "metadata", "expires"),
    ]
    assert (row["committed"], row["log_end"], row["lag"]) == (1, 3, 2)


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 3),
        (("--to-offset", "0"), 0),
        (("--to-offset", "2"), 2),
        (("--to-datetime", "1970-01-01T00:00:00.001001"), 1),
        (("--shift-by", "1"), 2),
        (("--shift-by=-1",), 0),
        (("--by-duration", "P30000D"), 0),  # the records have times of 1970
        (("--by-duration", "PT0S"), 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.slow
def test_a_reset_commits_the_offsets_that_its_dry_run_prints(
    live: LiveCluster, place: tuple[str, ...], offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run prints the plan that the run carries out."""
    with live.unchanged():
        assert run(live, "reset-offsets", "g", "--topics", "t", *place, "--dry-run") == 0
    (planned,) = rows(capsys)
    assert (planned["old_offset"], planned["new_offset"]) == (1, offset)
    assert run(live, "reset-offsets", "g", "--topics", "t", *place) == 0
    assert rows(capsys) == [planned]
    assert live.driver().groups.committed("g")["t", 0].offset == offset


def test_offsets_and_groups_are_deleted(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.topic("u")
    live.cluster.groups.commit("g", {("u", 0): 0})
    with live.unchanged():
        assert run(live, "delete-offsets", "g", "u", "--dry-run") == 0
        assert run(live, "delete", "g", "--dry-run") == 0
    assert run(live, "delete-offsets", "g", "u", "--yes") == 0
    assert set(live.driver().groups.committed("g")) == {("t", 0)}
    assert run(live, "delete", "g", "--yes") == 0
    assert live.driver().groups.list().rows == []
    with live.unchanged():
        assert run(live, "delete", "g", "--yes") == 2
    assert "ERROR GROUP_ID_NOT_FOUND: group 'g' does not exist" in capsys.readouterr().err
    with live.unchanged():
        assert run(live, "delete", "g", "--yes", "--if-exists") == 0
    assert "there is no group 'g'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("forget", "g"), "invalid choice: 'forget'"),
        (("list", "g"), "unrecognized arguments: g"),
        (("describe",), "required: GROUP"),
        (("describe", "g", "--topics", "t"), "unrecognized arguments: --topics"),
        (("delete", "g", "--to-offset", "0"), "unrecognized arguments: --to-offset"),
        (("delete-offsets", "g"), "required: TOPICS"),
        (("reset-offsets", "g", "--to-latest"), "required: --topics"),
        (("reset-offsets", "g", "--topics", "t"), "one of the arguments --to-earliest --to-latest"),
        (("reset-offsets", "g", "--topics", "t", "--to-offset", "-1"), "a number of 0 or more"),
        (("reset-offsets", "g", "--topics", "t", "--to-latest", "--to-earliest"), "not allowed with"),
        (("reset-offsets", "g", "--topics", "t", "--shift-by", "one"), "give a whole number"),
        (("reset-offsets", "g", "--topics", "t", "--by-duration", "7d"), "write durations as P7D"),
        (("reset-offsets", "g", "--topics", "nix", "--to-latest"), "topic 'nix' does not exist"),
        (("reset-offsets", "nix", "--topics", "t", "--to-latest"), "group 'nix' does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_changes_nothing(
    shared: LiveCluster, argv: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.unchanged():
        assert run(shared, *argv) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("P7D", timedelta(days=7)),
        ("PT1H30M", timedelta(minutes=90)),
        ("P1DT12H", timedelta(hours=36)),
        ("PT45S", timedelta(seconds=45)),
        ("P0D", timedelta(0)),
    ],
)
def test_iso_durations_are_parsed(text: str, span: timedelta) -> None:
    assert iso_duration(text) == span


@pytest.mark.parametrize("text", ["", "P", "PT", "7D", "P1W", "P-1D", "P1.5D", "P1DT", "P99999999999D"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        iso_duration(text)


def test_offsets_are_committed(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--cluster", str(live.file), "--json"]
    assert groups(["commit", "new", "--offsets", "t:0:2", *at]) == 0
    found = report(capsys)
    assert (found["operation"], found["rows"][0]["offset"]) == ("groups commit", 2)
    for wrong, why in (("t:0", "is not TOPIC:PARTITION:OFFSET"), ("t:0:1,t:0:2", "is given twice")):
        assert groups(["commit", "new", "--offsets", wrong, *at]) == 2
        assert why in capsys.readouterr().err
    assert live.cluster.groups.committed("new")["t", 0].offset == 2
