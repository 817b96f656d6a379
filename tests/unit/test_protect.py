"""Protected topics: every operation that would delete records is refused, and leaves the log unchanged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.metadata.partition_commands import AddRules, WantedRule
from stratalog.jobs.protect import main as job
from stratalog.partitions.errors import InvalidCallError, PolicyViolationError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.snapshot_harness import Keyed

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """``t`` is tiered and ``u`` is not; both would expire immediately. ``c`` is compacted."""
    live = LiveCluster(tmp_path)
    live.tiered(retention_ms="1")
    live.topic("u", retention_ms="1", file_delete_delay_ms="0")
    live.topic("c", cleanup_policy="compact")
    live.fill("abc")
    live.fill("abc", "u")
    live.cluster.tier().raise_for_failures()
    return live


def add_rule(driver: Cluster) -> object:
    metadata = ports_of(driver).metadata
    view = metadata.image().views("c")[0]
    wanted = WantedRule(view.topic_id, 0, 1, 0, view.leader_epoch, 0, 0, 0, view.partition_epoch)
    return metadata.submit(AddRules((wanted,)))


DELETIONS: dict[str, Callable[[Cluster], object]] = {
    "delete_records": lambda driver: driver.topics.delete_records("u", {0: 2}),
    "delete_records of tiered ones": lambda driver: driver.topics.delete_records("t", {0: -1}),
    "delete_records, dry": lambda driver: driver.topics.delete_records("t", {0: 1}, dry_run=True),
    "topics.delete": lambda driver: driver.topics.delete("t"),
    "topics.delete, dry": lambda driver: driver.topics.delete("u", dry_run=True),
    "topics.delete, keep_remote": lambda driver: driver.topics.delete("t", keep_remote=True),
    "no tiering any more": lambda driver: driver.topics.alter_configs(
        "t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    ),
    "a removal rule": add_rule,
    "sooner": lambda driver: driver.topics.protect("t", days=1),
    "sooner, by config": lambda driver: driver.topics.alter_configs("u", {"protect.until.ms": 1}),
    "no more": lambda driver: driver.topics.alter_configs("u", {"protect.until.ms": None}),
}


def protect(live: LiveCluster, days: float = 2) -> None:
    for topic in ("t", "u", "c"):
        live.cluster.topics.protect(topic, days=days)


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.slow
def test_whatever_deletes_is_refused_and_changes_nothing(live: LiveCluster, name: str) -> None:
    protect(live)
    with live.unchanged(), pytest.raises(PolicyViolationError, match=r"topic '[tuc]' is protected until 20\d\d-"):
        DELETIONS[name](live.driver())


@pytest.mark.slow
def test_no_job_of_upkeep_deletes_records(live: LiveCluster) -> None:
    protect(live)
    live.clock.sleep(3600)
    for _ in range(2):
        for work in (live.cluster.retain, live.cluster.vacuum, live.cluster.maintain):
            work().raise_for_failures()
    assert live.read("t") == live.read("u") == {0: ["a", "b", "c"]}


@pytest.mark.slow
def test_afterwards_everything_goes_its_way(live: LiveCluster) -> None:
    protect(live)
    live.clock.sleep(2 * DAY_MS / 1000 + 1)
    assert live.read("u") == {0: ["a", "b", "c"]}
    live.cluster.retain().raise_for_failures()
    assert live.read("t") == live.read("u") == {}
    live.cluster.topics.alter_configs("u", {"protect.until.ms": None})
    live.cluster.topics.delete("t").raise_for_failures()


def test_a_log_with_snapshots_keeps_what_they_cover(tmp_path: Path) -> None:
    live = Keyed(tmp_path).begin(file_delete_delay_ms="0")
    live.cluster.topics.protect("t", days=1)
    live.put([("k", "1")])
    live.put([("k", "2")])
    live.take()
    assert live.cluster.image.views("t")[0].log_start_offset == 0
    assert live.read() == {0: ["1", "2"]}
    live.clock.sleep(DAY_MS / 1000 + 1)
    live.put([("k", "3")])
    live.take()
    assert live.cluster.image.views("t")[0].log_start_offset > 0


def test_a_protection_lasts_over_a_default_of_the_cluster_and_can_be_lengthened(live: LiveCluster) -> None:
    far = live.clock.now_ms() + 10 * DAY_MS
    live.cluster.topics.alter_configs(None, {"protect.until.ms": far})
    for changes in ({"protect.until.ms": None}, {"protect.until.ms": far - 1}):
        with live.unchanged(), pytest.raises(PolicyViolationError, match="not earlier"):
            live.cluster.topics.alter_configs(None, changes)
    with live.unchanged(), pytest.raises(PolicyViolationError, match="not earlier"):
        live.cluster.topics.protect("t", days=1)
    live.cluster.topics.protect("t", days=20)
    live.cluster.groups.commit("g", {("u", 0): 1})
    live.cluster.groups.delete("g").raise_for_failures()  # the engine's own topics are not protected


@pytest.mark.parametrize(
    "given",
    [{}, {"days": 1, "until": "2050-01-01"}, {"days": 0}, {"days": 1e9}, {"until": "2001-01-01"}, {"until": "x"}],
)
@pytest.mark.slow
def test_a_time_that_says_nothing_is_refused(live: LiveCluster, given: dict[str, str | float]) -> None:
    with live.unchanged(), pytest.raises(InvalidCallError, match="topic 'u'"):
        live.cluster.topics.protect("u", **given)  # type: ignore[arg-type]


def test_a_time_is_text_or_a_datetime(live: LiveCluster) -> None:
    wanted = datetime(2150, 1, 1, tzinfo=UTC)
    for until in ("2150-01-01", wanted):
        (row,) = live.cluster.topics.protect("u", until=until).rows
        assert datetime.fromisoformat(str(row["protected_until"])) == wanted
    assert live.cluster.image.topic("u").configs["protect.until.ms"] == str(int(wanted.timestamp() * 1000))


def test_the_job_protects_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    assert job(["--cluster", str(live.file), "t", "--until", "2150-01-01"]) == 2
    assert "give --yes" in capsys.readouterr().err
    assert job(["--cluster", str(live.file), "t", "--until", "2150-01-01", "--yes"]) == 0
    assert "2150-01-01T00:00:00" in capsys.readouterr().out
    assert job(["--cluster", str(live.file), "t", "--until", "2140-01-01", "--yes"]) == 2
    assert "protected until 2150-01-01 00:00:00Z" in capsys.readouterr().err
