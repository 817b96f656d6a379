"""A driver with a wrong clock removes nothing, and its records do not make other drivers remove anything.

Each remover is run three times on its own cluster, whose storage has the right time: by a driver that is 40 days
ahead, by one that is as far behind, and, at the right time, by one that is right. Only the last removes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.engine.health.finding import HealthReport
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.partitions.errors import PolicyViolationError
from tests.clocks import WrongClock
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.remote_folder import lying
from tests.unit.retention_harness import filled
from tests.unit.snapshot_harness import Keyed
from tests.unit.transact_harness import rows

MINUTE_MS, DAY_MS = 60_000, 24 * 60 * 60 * 1000
AHEAD, BEHIND = 40 * DAY_MS, -40 * DAY_MS


@dataclass(frozen=True)
class Remover:
    """An operation that removes something by time."""

    arrange: Callable[[Keyed], object]
    remove: Callable[[Cluster], Report]
    held: Callable[[Keyed], object]
    """The content that remains; it does not change before the removal."""
    after_ms: int
    """The time after which the removal is due."""
    configs: dict[str, str] = field(default_factory=dict)
    """The configs of topic ``t``, if one is needed."""
    notes: bool = True
    """Whether the operation writes notes."""


def fill(live: Keyed) -> None:
    """Three current records."""
    for value in "abc":
        live.append([value], at_ms=live.clock.now_ms()).raise_for_failures()


def files(live: LiveCluster) -> set[str]:
    """The files of topic ``t`` on its leader."""
    replica = live.replica(live.leader())
    return {one.name for one in replica.store.list(replica.folder) if one.name.endswith(".parquet")}


def expire_below(live: Keyed) -> None:
    """Leave only files of the log."""
    fill(live)
    live.cluster.topics.delete_records("t", {0: -1}).raise_for_failures()
    live.cluster.retain().raise_for_failures()  # only local starts move; the files stay for a day


def merged(live: Keyed) -> None:
    fill(live)
    live.cluster.merge().raise_for_failures()
    assert len(files(live)) == 4


def begun(live: Keyed) -> None:
    """An open transaction, whose driver is away."""
    transaction = live.cluster.transactions.begin("x", timeout_ms=10 * MINUTE_MS)
    transaction.append_batches("t", {0: rows("a")})


def ended(live: Keyed) -> None:
    with live.cluster.transactions.begin("x") as transaction:
        transaction.append_batches("t", {0: rows("a")})


def states(live: Keyed) -> list[tuple[object, ...]]:
    return rows_of(live.driver().transactions.list(), "transactional_id", "state")


def two_snapshots(live: Keyed) -> None:
    for key in "ab":
        live.put([(key, "1")])
        live.take()


def remove_snapshots(driver: Cluster) -> Report:
    return driver.snapshot("t", by_hand=True)


def dead_uploads(live: Keyed) -> None:
    staged = live.root(1) / ".staging"
    staged.mkdir(exist_ok=True)
    (staged / "dead").write_bytes(b"")


def in_staging(live: Keyed) -> bool:
    return (live.root(1) / ".staging" / "dead").exists()


def probes(live: Keyed) -> None:
    (live.root(1) / f"{'a' * 32}.probe").write_bytes(b"")


def probed(live: Keyed) -> bool:
    return (live.root(1) / f"{'a' * 32}.probe").exists()


REMOVERS = {
    "retention.ms": Remover(
        fill, Cluster.retain, LiveCluster.read, 2 * DAY_MS, {"retention_ms": str(2 * DAY_MS - 1)}
    ),
    "retention.ms, in maintain": Remover(
        fill,
        lambda driver: driver.maintain(only=["retain"]),
        LiveCluster.read,
        2 * DAY_MS,
        {"retention_ms": str(2 * DAY_MS - 1)},
    ),
    "file.delete.delay.ms, of what has expired": Remover(
        expire_below, Cluster.retain, files, DAY_MS, {"file_delete_delay_ms": str(DAY_MS)}
    ),
    "file.delete.delay.ms, of what was merged": Remover(
        merged,
        Cluster.retain,
        files,
        DAY_MS,
        {"file_delete_delay_ms": str(DAY_MS), "segment_merge_min_files": "2"},
    ),
    "groups": Remover(
        lambda live: live.cluster.groups.commit("g", {("t", 0): 0}),
        lambda driver: driver.snapshot(OFFSETS_TOPIC),
        lambda live: live.driver().groups.committed("g"),
        7 * DAY_MS,
        {"retention_ms": "-1"},
    ),
    "time-outs of transactions": Remover(
        begun, lambda driver: driver.transactions.finish(), states, 10 * MINUTE_MS, {"retention_ms": "-1"}
    ),
    "transactional ids": Remover(
        ended, lambda driver: driver.transactions.finish(), states, 7 * DAY_MS, {"retention_ms": "-1"}
    ),
    "snapshots that have a successor": Remover(
        two_snapshots,
        remove_snapshots,
        lambda live: live.ids(live.leader()),
        DAY_MS,
        {"cleanup_policy": "snapshot", "file_delete_delay_ms": str(DAY_MS)},
        notes=False,
    ),
    "unfinished files": Remover(dead_uploads, Cluster.vacuum, in_staging, 2 * DAY_MS),
    "probes": Remover(probes, Cluster.vacuum, probed, 2 * DAY_MS),
}


def cluster_of(folder: Path, remover: Remover) -> Keyed:
    live = Keyed(folder, on_disk=True)
    few = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    live.cluster.topics.alter_configs(None, few)
    if remover.configs:
        live.topic(**remover.configs)
    return live


@pytest.mark.parametrize("name", REMOVERS)
def test_a_driver_with_a_wrong_clock_removes_nothing(tmp_path: Path, name: str) -> None:
    remover = REMOVERS[name]
    live = cluster_of(tmp_path, remover)
    remover.arrange(live)
    before = remover.held(live)
    for ahead_ms in (AHEAD, BEHIND):
        report = remover.remove(live.driver(clock=WrongClock(live.clock, ahead_ms))).raise_for_failures()
        assert remover.held(live) == before
        if remover.notes:
            assert [note for note in report.notes if "nothing is deleted by time until the two agree" in note]
    live.clock.advance_ms(remover.after_ms + MINUTE_MS)  # files have the times of the machine
    remover.remove(live.driver(clock=WrongClock(live.clock, BEHIND)))
    assert remover.held(live) == before
    remover.remove(live.cluster).raise_for_failures()
    assert remover.held(live) != before


@pytest.mark.parametrize("ahead_ms", [AHEAD, BEHIND])
def test_remote_objects_stay(tmp_path: Path, ahead_ms: int) -> None:
    """The objects leave the table, which is not a removal by time. They are deleted when the time is known, and
    when the time in the table has come.
    """
    live = LiveCluster(tmp_path)
    filled(live, "abc")
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    live.driver(clock=WrongClock(live.clock, ahead_ms)).retain().raise_for_failures()
    assert len(lying(live)) == 3
    live.cluster.retain().raise_for_failures()
    assert len(lying(live)) == (3 if ahead_ms > 0 else 1)


# ------------------------------------------------------------------------------------ producers


def outcome(report: Report) -> object:
    (row,) = report.raise_for_failures().rows
    return row["outcome"]


@pytest.mark.parametrize("ahead_ms", [AHEAD, BEHIND])
def test_producers_are_remembered_whichever_producer_appends(tmp_path: Path, ahead_ms: int) -> None:
    """A driver whose clock is ahead would drop them; appends of a driver whose clock is behind would look old to
    others.
    """
    live = LiveCluster(tmp_path)
    live.topic()
    wrong = live.driver(clock=WrongClock(live.clock, ahead_ms))
    live.append(["a"], producer="p").raise_for_failures()
    live.append(["b"], producer="q", driver=wrong).raise_for_failures()
    live.append(["c"], producer="r", driver=live.driver()).raise_for_failures()
    for value, producer in (("a", "p"), ("b", "q")):
        assert outcome(live.append([value], producer=producer, driver=live.driver())) == "duplicate"
    assert live.read() == {0: ["a", "b", "c"]}


def test_producers_expire_by_clocks_that_agree(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(producer_id_expiration_ms=str(DAY_MS))
    live.append(["a"], producer="p").raise_for_failures()
    live.clock.advance_ms(DAY_MS)
    live.append(["b"], driver=live.driver()).raise_for_failures()
    assert outcome(live.append(["a"], producer="p", driver=live.driver())) == "acknowledged"


# ------------------------------------------------------------------------------ what was written down


def test_a_commit_by_a_driver_that_is_behind_does_not_expire_at_once(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.cluster.groups.commit("other", {("t", 0): 0})  # this creates the topic of groups
    live.driver(clock=WrongClock(live.clock, BEHIND)).groups.commit("g", {("t", 0): 0})
    live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    assert live.driver().groups.committed("g")


def test_a_transaction_of_a_driver_that_is_behind_is_not_overdue_at_once(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    wrong = live.driver(clock=WrongClock(live.clock, BEHIND))
    with wrong.transactions.begin("x") as transaction:
        transaction.append_batches("t", {0: rows("a")})
        live.cluster.transactions.finish().raise_for_failures()
    assert live.cluster.transactions.describe("x").totals["state"] == "CompleteCommit"


def test_records_without_a_timestamp_do_not_expire_at_once(tmp_path: Path) -> None:
    """A driver whose clock is behind gives the records the storage's time (message.timestamp.type)."""
    live = LiveCluster(tmp_path)
    live.topic(message_timestamp_type="LogAppendTime", retention_ms=str(DAY_MS))
    live.append(["a"], driver=live.driver(clock=WrongClock(live.clock, BEHIND))).raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: ["a"]}


def test_tombstones_stay_in_snapshots(tmp_path: Path) -> None:
    """An append by a driver whose clock is ahead makes them no older (delete.retention.ms)."""
    live = Keyed(tmp_path).begin()
    live.put([("a", "1")])
    live.put([("a", None)])
    live.put([("b", "1")], driver=live.driver(clock=WrongClock(live.clock, AHEAD)))
    live.take()
    assert live.held(live.leader()) == {"a": None, "b": "1"}


# ------------------------------------------------------------------------------------ protection


@pytest.mark.parametrize("ahead_ms", [AHEAD, BEHIND])
def test_a_protected_topic_stays_protected(tmp_path: Path, ahead_ms: int) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"]).raise_for_failures()
    live.cluster.topics.protect("t", days=30)
    wrong = live.driver(clock=WrongClock(live.clock, ahead_ms))
    deletions: list[Callable[[], object]] = [
        lambda: wrong.topics.delete("t"),
        lambda: wrong.topics.delete_records("t", {0: 1}),
        lambda: wrong.topics.alter_configs("t", {"protect.until.ms": None}),
    ]
    for delete in deletions:
        with pytest.raises(
            PolicyViolationError,
            match=r"is protected until .*the clocks of this machine and of the storage disagree",
        ):
            delete()
    live.clock.advance_ms(30 * DAY_MS)
    live.cluster.topics.delete("t").raise_for_failures()


def test_days_of_protection_begin_now_also_by_a_driver_that_is_behind(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    report = live.driver(clock=WrongClock(live.clock, BEHIND)).topics.protect("t", days=30)
    until = datetime.fromisoformat(str(report.rows[0]["protected_until"]))
    assert until.timestamp() * 1000 == live.clock.now_ms() + 30 * DAY_MS


# --------------------------------------------------------------------------- what is said, what goes on


@pytest.mark.parametrize(("ahead_ms", "message"), [(AHEAD, "40 days ahead of"), (BEHIND, "40 days behind")])
def test_health_names_the_machine(tmp_path: Path, ahead_ms: int, message: str) -> None:
    live = LiveCluster(tmp_path)
    found = skews(live.driver(clock=WrongClock(live.clock, ahead_ms)).health())
    assert [subject for subject, _ in found] == ["this driver"]
    assert message in found[0][1]
    assert skews(live.cluster.health()) == []


def skews(report: HealthReport) -> list[tuple[str, str]]:
    rows = [row for row in report.rows if row["finding"] == "clock-skew"]
    return [(str(row["subjects"]), str(row["what"])) for row in rows]


def test_everything_else_continues(tmp_path: Path) -> None:
    """Appends, reads, tiering, retention by size."""
    live = LiveCluster(tmp_path)
    live.topic(retention_bytes="1", retention_ms="1", segment_ms=str(100 * DAY_MS))
    live.tiered("u")
    wrong = live.driver(clock=WrongClock(live.clock, AHEAD))
    for topic in "tu":
        for value in "abc":
            live.append([value], topic, driver=wrong).raise_for_failures()
    wrong.maintain().raise_for_failures()
    assert live.read("u") == {0: ["a", "b", "c"]}
    assert ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("u")).load().of_partition(0)
    assert live.read("t") == {0: ["c"]}


def test_a_clock_some_minutes_off_uses_the_earlier_time(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(retention_ms=str(DAY_MS))
    live.append(["a"], at_ms=live.clock.now_ms()).raise_for_failures()
    live.clock.advance_ms(DAY_MS - MINUTE_MS)
    live.driver(clock=WrongClock(live.clock, 4 * MINUTE_MS)).retain().raise_for_failures()
    assert live.read() == {0: ["a"]}
    live.clock.advance_ms(2 * MINUTE_MS)
    live.driver(clock=WrongClock(live.clock, 4 * MINUTE_MS)).retain().raise_for_failures()
    assert live.read() == {}


@pytest.mark.parametrize("ahead_ms", [AHEAD, BEHIND])
def test_a_broker_whose_storage_has_a_wrong_clock_stops_no_other(tmp_path: Path, ahead_ms: int) -> None:
    """Records expire by the clocks that agree; only the driver's own files stay."""
    live = LiveCluster(tmp_path)
    live.topic(retention_ms=str(DAY_MS), file_delete_delay_ms="0")
    live.append(["a"], at_ms=live.clock.now_ms()).raise_for_failures()
    broker = live.followers()[0]
    live.store(broker)._clock = WrongClock(live.clock, ahead_ms)  # type: ignore[attr-defined]
    live.clock.advance_ms(DAY_MS + 1)
    notes = [note for _ in range(2) for note in live.cluster.retain().raise_for_failures().notes]
    assert any(note.startswith(f"broker {broker}: its storage's clock is 40 days") for note in notes)
    assert live.read() == {}
    held = {b: len(live.replica(b).list().data) for b in live.cluster.stores}
    assert held == {b: int(b == broker) for b in live.cluster.stores}
    assert [subject for subject, _ in skews(live.cluster.health())] == [f"broker {broker}"]
