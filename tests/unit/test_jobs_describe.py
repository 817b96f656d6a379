"""describe on a terminal: one row per partition, words for problems, the cluster's own topics in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.jobs.colours import coloured
from stratalog.jobs.describe import main as describe
from stratalog.jobs.topics import main as topics
from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.jobs_harness import calls, report, rows

run = calls(describe)
LONG = "flights-of-the-northern-hemisphere-by-day"


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t`` of two partitions, tiered; a group with offsets in it."""
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic("t", partitions=2, **TIERED)
    made.append({0: ["a", "b"], 1: ["c"]}).raise_for_failures()
    made.cluster.replicate().raise_for_failures()
    made.cluster.tier().raise_for_failures()
    made.append({0: ["d"]}).raise_for_failures()
    made.cluster.groups.commit("g", {("t", 0): 1})
    return made


def table(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("FAILED", "note"))]
    assert max(map(len, lines)) <= 100
    return [line.split() for line in lines[3:]]


@pytest.mark.slow
def test_a_partition_is_a_row_of_at_most_100_columns(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    live.topic(LONG)
    capsys.readouterr()
    assert run(live) == 0
    first, *others, own = table(capsys)
    assert own[0] == OFFSETS_TOPIC
    assert first[0] == LONG
    leaders = {partition: live.leader("t", partition) for partition in (0, 1)}
    isr = ",".join(map(str, live.cluster.image.topic("t").partitions[0].isr))
    assert others[0] == ["t", "0", str(leaders[0]), isr, "3", "0", "2", "ok"]
    assert others[1][:3] == ["t", "1", str(leaders[1])]


@pytest.mark.slow
def test_the_clusters_own_topics_are_shown_whole_where_they_are_asked_for(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(live, "--topics", OFFSETS_TOPIC) == 0
    shown = table(capsys)
    assert {row[0] for row in shown} == {OFFSETS_TOPIC}
    assert len(shown) > 10


@pytest.mark.slow
def test_wide_and_json_have_every_replica(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "--topics", "t", "--json") == 0
    assert len(rows(capsys)) == 6
    assert run(live, "--topics", "t", "--wide") == 0
    assert "copy_lag_records" in capsys.readouterr().out
    assert run(live, "--brokers", "--wide") == 2


@pytest.mark.slow
def test_a_replica_that_does_not_answer_or_lags_is_described_in_words(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = live.followers("t", 0)[0]
    away = live.root(follower).rename(live.folder / "away")
    assert run(live, "--topics", "t") == 1
    first, second = table(capsys)[:2]
    assert first[-2:] == ["replica", "unreachable"]
    assert second[-2] == ("leader," if live.leader("t", 1) == follower else "replica")
    live.append({0: ["e"]}, acks="leader").raise_for_failures()
    away.rename(live.root(follower))
    assert run(live, "--topics", "t") == 0
    first = table(capsys)[0]
    assert first[4:6] == ["3", "1"]  # the high watermark, and the lag
    live.cluster.brokers.fence([follower]).raise_for_failures()
    assert run(live, "--topics", "t") == 0
    assert table(capsys)[0][-1] == "under-replicated"


def test_only_text_that_needs_an_operator_is_red() -> None:
    text = "describe: 1 FAILED, partitions 2\ntopic  state\n-----  -----\nt      unavailable\nFAILED t-0: X: y"
    shown = coloured(text)
    assert "\x1b[31munavailable\x1b[0m" in shown
    assert "\x1b[31m1 FAILED\x1b[0m" in shown
    assert "\x1b[31mFAILED t-0: X: y\x1b[0m" in shown
    assert coloured("health: 3 errors, 1 s\n\nERROR    kind  t").count("\x1b[31m") == 2
    assert coloured("x: done, 0.1 s").replace("\x1b[1m", "").replace("\x1b[0m", "") == "x: done, 0.1 s"
    assert "\x1b[3" not in coloured("x: done\nunavailable-flights  0  ok")


# ------------------------------------------------------------------------------- topics describe


def test_a_topic_is_described_with_where_each_config_comes_from(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--cluster", str(live.file)]
    created = ["create", "typed", "--key", "STRING", "--value", "year INT NOT NULL, `air time` DOUBLE"]
    assert topics([*created, "--config", "segment.ms=5000", "--replication-factor", "2", *at]) == 0
    assert topics(["alter-configs", "--cluster-wide", "--set", "min.insync.replicas=2", *at]) == 0
    capsys.readouterr()
    assert topics(["describe", "typed", "--json", *at]) == 0
    found = {row["name"]: (row["value"], row["from"]) for row in report(capsys)["rows"]}
    assert found["partitions"] == (1, "topic")
    assert found["replication_factor"] == (2, "topic")
    assert found["key"] == ("STRING", "topic")
    assert found["value.year"] == ("INT NOT NULL", "topic")
    assert found["value.`air time`"] == ("DOUBLE", "topic")
    assert found["segment.ms"] == ("5000", "topic")
    assert found["min.insync.replicas"] == ("2", "cluster")
    assert found["retention.ms"] == ("604800000", "default")
    assert topics(["describe", "nix", *at]) == 2


@pytest.mark.slow
def test_partitions_in_trouble_are_listed_by_the_metadata_alone(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--cluster", str(live.file), "--json"]
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "2"})
    assert topics(["list", "--under-replicated", *at]) == 0
    assert rows(capsys) == []
    brokers = [1, 2, 3]
    brokers.remove(live.leader("t", 0))
    live.cluster.brokers.fence(brokers[:1]).raise_for_failures()
    assert topics(["list", "--under-replicated", *at]) == 0
    found = rows(capsys)
    assert {(row["topic"], row["state"]) for row in found if row["topic"] == "t"} == {("t", "under-replicated")}
    assert all(str(brokers[0]) not in row["isr"].split(",") for row in found)
    assert topics(["list", "--under-min-isr", *at]) == 0
    assert rows(capsys) == []
    live.cluster.brokers.fence(brokers[1:], force=True).raise_for_failures()
    assert topics(["list", "--under-min-isr", *at]) == 0
    assert "under-min-isr" in {row["state"] for row in rows(capsys) if row["topic"] == "t"}
    assert topics(["list", "--unavailable", *at]) == 0
    assert {row["state"] for row in rows(capsys)} <= {"unavailable"}
