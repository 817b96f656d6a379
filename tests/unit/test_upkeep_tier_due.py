"""The list of due partitions on a whole cluster: the work of a run, and the information for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.driver.report import Report
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store import Store
from stratalog.tiering.schedule import Schedule
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.faulty_store import Faults
from tests.unit.tier_harness import RemoteFaults, refused, states

INTERVAL_MS = 30_000
BROKERS = 3
"""Brokers, each with a copy of the list."""


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteFaults:
    return RemoteFaults(tmp_path, monkeypatch)


def worked_on(report: Report) -> list[tuple[object, ...]]:
    return [(row["topic"], row["partition"]) for row in report.rows]


def lists(live: LiveCluster) -> list[tuple[Store, str]]:
    """Every version of the list, on every broker."""
    return [
        (store, stored.name)
        for store in live.cluster.stores.values()
        for stored in store.list("")
        if stored.name.endswith(".schedule")
    ]


def test_a_new_partition_is_due_at_once_and_then_after_the_interval(live: RemoteFaults) -> None:
    """KIP-405, "Thread Pools", 1."""
    live.tiered(partitions=2)
    live.fill("a")
    assert worked_on(live.cluster.tier(due=True)) == [("t", 0), ("t", 1)]
    live.fill("b")
    live.clock.advance_ms(INTERVAL_MS - 1)
    report = live.cluster.tier(due=True)
    assert (report.rows, report.totals["next_ms"]) == ([], 1)
    live.clock.advance_ms(1)
    assert rows_of(live.cluster.tier(due=True), "partition", "remote_end") == [(0, 2), (1, None)]


def test_a_run_over_all_partitions_asks_for_no_time(live: RemoteFaults) -> None:
    live.tiered()
    assert worked_on(live.cluster.tier()) == [("t", 0)]
    assert worked_on(live.cluster.tier()) == [("t", 0)]
    assert worked_on(live.cluster.tier(due=True)) == [], "it has put the next time off"


def test_a_run_with_nothing_due_asks_the_remote_for_nothing(live: RemoteFaults) -> None:
    live.tiered()
    live.cluster.tier()
    live.down = lambda: pytest.fail("the remote was asked")
    assert live.cluster.tier(due=True).ok


def test_if_leadership_moves_a_partition_is_due_at_once(live: RemoteFaults) -> None:
    live.tiered(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.elect("t", [1], leader=live.followers("t", 1)[0]).raise_for_failures()
    assert worked_on(live.cluster.tier(due=True)) == [("t", 1)]


@pytest.mark.slow
def test_a_failed_partition_is_due_at_growing_intervals_and_its_state_survives_the_driver(
    live: RemoteFaults,
) -> None:
    """ "A partition that failed keeps its state": the error, the attempts, and the time since when."""
    live.tiered()
    live.fill("a")
    live.cluster.topics.alter_configs(None, {"remote.log.manager.task.retry.jitter": "0"})
    live.cluster.tier().raise_for_failures()
    live.down = refused
    live.clock.advance_ms(INTERVAL_MS)
    waited = []
    for _ in range(9):
        report = live.driver().tier(due=True, check=False)
        assert worked_on(report) == [("t", 0)]
        waited.append(int(str(report.totals["next_ms"])))
        live.clock.advance_ms(waited[-1])
    assert waited == [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]
    attempts, failing_ms = states(live.driver().tier(due=True, check=False))["t", 0]
    assert (attempts, failing_ms) == (10, sum(waited))
    live.down = None
    assert states(live.driver().tier())["t", 0] == (0, 0)


def test_partitions_leave_the_list_with_their_topic_or_when_it_is_tiered_no_more(live: RemoteFaults) -> None:
    live.tiered("t")
    live.tiered("u")
    live.cluster.tier().raise_for_failures()

    def listed() -> list[str]:
        image = live.cluster.image
        entries = load_schedule(live.ports().storage, image).schedule.entries
        return sorted(image.topics[topic_id].name for topic_id, _ in entries if topic_id in image.topics)

    assert listed() == ["t", "u"]
    live.cluster.topics.alter_configs("t", {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"})
    live.cluster.tier().raise_for_failures()
    assert listed() == ["u"]
    live.cluster.topics.delete("u").raise_for_failures()
    report = live.cluster.tier(due=True)
    assert (report.rows, report.totals["next_ms"]) == ([], None)


@pytest.mark.parametrize("damage", ["lost", "torn", "of another version"])
def test_a_list_that_is_lost_or_torn_costs_only_extra_work(live: RemoteFaults, damage: str) -> None:
    live.tiered()
    live.fill("ab")
    live.cluster.tier().raise_for_failures()
    for store, name in lists(live):
        data = store.read(name)
        store.delete([name])
        if damage != "lost":
            store.create(name, data[:-5] if damage == "torn" else data.replace(b"[1,", b"[2,", 1))
    report = live.cluster.tier(due=True)
    assert rows_of(report, "uploaded_files", "remote_end") == [(0, 2)]
    assert live.cluster.tier(due=True).rows == []


def test_two_drivers_at_once_keep_what_both_did(live: RemoteFaults) -> None:
    """A driver that finds the version taken writes its own on top."""
    live.tiered("t")
    live.tiered("u")
    other = live.driver()
    ran: list[Report] = []

    def meanwhile(what: str, name: str, call: object) -> object:
        if what == "commit" and not ran:
            ran.append(other.tier("u"))
        return call()  # type: ignore[operator]

    live.fill("a")
    live.on_remote = meanwhile
    live.cluster.tier("t").raise_for_failures()
    assert worked_on(ran[0]) == [("u", 0)]
    assert live.cluster.tier(due=True).rows == []
    assert len(lists(live)) == 2 * BROKERS


def test_old_versions_of_the_list_go_and_a_vacuum_leaves_the_rest(live: RemoteFaults) -> None:
    live.tiered()
    for _ in range(5):
        live.cluster.tier().raise_for_failures()
    assert len(lists(live)) == 2 * BROKERS
    live.cluster.vacuum().raise_for_failures()
    assert len(lists(live)) == 2 * BROKERS
    assert live.cluster.tier(due=True).rows == []


def test_if_the_list_cannot_be_written_the_work_is_done_all_the_same(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered()
    live.fill("a")

    faults.refuse(StorageError("no space left"), "create", ending=".schedule")
    report = live.cluster.tier().raise_for_failures()
    assert report.totals["uploaded_files"] == 1
    assert report.notes == ["the list of due partitions could not be stored: no space left"]
    assert load_schedule(ports_of(live.cluster).storage, live.cluster.image).schedule == Schedule()


@pytest.mark.parametrize("copies", [1, 3])
def test_a_fenced_broker_takes_the_only_copy_of_the_list_with_it(live: RemoteFaults, copies: int) -> None:
    """Everything is due once more; if there are other copies, only partitions with a new leader are due."""
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": str(copies)})
    live.tiered(partitions=3)
    led = [("t", partition) for partition in range(3) if live.leader("t", partition) == 1]
    live.cluster.tier().raise_for_failures()
    assert len({store.uri for store, _ in lists(live)}) == copies
    live.cluster.brokers.fence(1, force=True).raise_for_failures()
    assert worked_on(live.cluster.tier(due=True)) == ([("t", 0), ("t", 1), ("t", 2)] if copies == 1 else led)
    assert live.cluster.tier(due=True).rows == []


def test_the_next_time_is_that_of_the_named_topics_however_late_others_are(live: RemoteFaults) -> None:
    """A driver that needs only these topics waits for them alone."""
    live.tiered("t")
    live.tiered("u")
    live.cluster.tier().raise_for_failures()
    live.clock.advance_ms(2 * INTERVAL_MS)
    assert live.cluster.tier("t", due=True).totals["next_ms"] == INTERVAL_MS
    assert live.cluster.tier("t", due=True).rows == []


@pytest.mark.parametrize("configs", [{}, {"remote_storage_enable": "true", "remote_log_copy_disable": "true"}])
def test_a_named_topic_that_is_not_copied_is_noted(live: RemoteFaults, configs: dict[str, str]) -> None:
    live.topic(**configs)
    report = live.cluster.tier("t").raise_for_failures()
    assert (report.rows, report.totals["next_ms"]) == ([], None)
    assert report.notes == [
        "t is not copied to the remote tier, because of remote.storage.enable or remote.log.copy.disable"
    ]
    assert live.cluster.tier().raise_for_failures().notes == []


def test_a_plan_changes_nothing_not_even_the_list(live: RemoteFaults) -> None:
    live.tiered()
    live.fill("ab")
    with live.unchanged():
        report = live.cluster.tier(dry_run=True).raise_for_failures()
    assert lists(live) == []
    assert report.totals["backlog_bytes"] == sum(map(len, live.data(1).values()))
    assert worked_on(live.cluster.tier(due=True)) == [("t", 0)]
