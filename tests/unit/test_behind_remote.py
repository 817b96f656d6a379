"""Brokers that are behind their remote tier: their storage was restored from an older copy, or emptied, and the
remote tier is intact. Nothing is appended before the leader continues from the end of the remote log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster
from stratalog.engine.replicas import damaged, remote_records
from stratalog.partitions.errors import RetriableError, StorageError
from stratalog.tiering import same_records
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.cluster_harness import TIERED, LiveCluster, codes, rows_of

KEPT = {**TIERED, "local.retention.bytes": "-2"}
"""Tiered, and also kept on the brokers."""


class PutBack(LiveCluster):
    """A cluster on folders of which copies are kept, and restored below the brokers' ``broker.json``."""

    def __init__(self, folder: Path, replicas: int) -> None:
        super().__init__(folder, 3, on_disk=True, voters=(1, 2, 3))
        self.cluster.topics.create("t", partitions=1, replication_factor=replicas, configs=KEPT)
        self.copies = folder / "copies"

    def add(self, *numbers: int) -> None:
        """Append each number, with the earlier driver."""
        for number in numbers:
            self.append([f"v{number}"]).raise_for_failures()

    def copy(self) -> None:
        """Copy the brokers' folders away."""
        for broker in (1, 2, 3):
            shutil.copytree(self.root(broker), self.copies / str(broker))

    def put_back(self) -> Cluster:
        """Restore the copies; returns a driver without any cache."""
        for broker in (1, 2, 3):
            self._empty(self.root(broker))
            for entry in (self.copies / str(broker)).iterdir():
                if entry.is_dir():
                    shutil.copytree(entry, self.root(broker) / entry.name)
        return self.fresh()

    def put_records_back(self, *brokers: int) -> Cluster:
        """Restore the topic's folders alone, on these brokers or on all: the metadata stays."""
        for broker in brokers or (1, 2, 3):
            copied = self.copies / str(broker)
            for old in copied.glob("*/t-*"):
                new = self.root(broker) / old.relative_to(copied)
                shutil.rmtree(new)
                shutil.copytree(old, new)
        return self.fresh()

    def lose_records(self) -> Cluster:
        """Delete the topic's folders."""
        for broker in (1, 2, 3):
            for folder in self.root(broker).glob("*/t-*"):
                shutil.rmtree(folder)
        return self.fresh()

    def merge(self) -> None:
        """Merge everything on the brokers, whether the remote tier answers or not."""
        many = {"segment.bytes": "1000000", "segment.merge.min.files": "2"}
        self.cluster.topics.alter_configs("t", many)
        self.cluster.merge("t", check=False)
        self.cluster.topics.alter_configs("t", {"segment.bytes": "1"})
        log = self.log(self.leader())
        assert len(log.chain) == 1, log

    def fresh(self) -> Cluster:
        """Another driver, which makes the appends from now on."""
        self.cluster = self.driver()
        return self.cluster

    def _empty(self, root: Path) -> None:
        for entry in root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)


LOST: dict[str, Callable[[PutBack], Cluster]] = {
    "brokers with their metadata": PutBack.put_back,
    "the topic's folders": PutBack.put_records_back,
    "no folders": PutBack.lose_records,
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("lost", LOST)
def test_a_partition_behind_its_remote_log_takes_nothing_and_continues_from_its_end(
    tmp_path: Path, lost: str, replicas: int
) -> None:
    live = PutBack(tmp_path, replicas)
    live.add(*range(12))
    live.copy()
    live.add(*range(12, 30))
    live.cluster.tier().raise_for_failures()
    driver = LOST[lost](live)
    assert codes(live.append(["too early"])) == {"LOG_BEHIND_REMOTE": 1}
    assert "LOG_BEHIND_REMOTE" in codes(driver.verify())
    assert "LOG_BEHIND_REMOTE" in codes(driver.verify(deep=True))
    assert "LOG_BEHIND_REMOTE" in codes(driver.describe())
    assert "behind-remote" in [row["finding"] for row in driver.health().rows]
    assert "LOG_BEHIND_REMOTE" in codes(driver.tier(check=False))
    report = driver.replicate()
    assert codes(report) == {}
    assert any("continues from the end" in note for note in report.notes)
    live.add(30, 31)
    assert live.read() == {0: [f"v{number}" for number in range(32)]}
    driver.tier().raise_for_failures()
    driver.verify(deep=True).raise_for_failures()
    assert codes(driver.health()) == {}


@pytest.mark.slow
def test_a_whole_member_that_nobody_saw_before_is_no_damage_and_leads_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = PutBack(tmp_path, 3)
    live.add(*range(12))
    live.copy()
    live.add(*range(12, 20))
    live.cluster.tier().raise_for_failures()
    live.add(20)
    driver = live.put_records_back(live.leader())
    with monkeypatch.context() as patched:
        patched.setattr(damaged, "_whole_member", lambda *_: None)  # the member did not answer in time
        report = driver.replicate(check=False)
        assert {"LOG_BEHIND_REMOTE", RetriableError.code} == codes(report).keys(), report
        assert any("run replicate again to make it the leader" in failure.message for failure in report.failures)
    assert codes(live.fresh().replicate()) == {}
    live.add(21)
    assert live.read() == {0: [f"v{number}" for number in range(22)]}


class Unasked(PutBack):
    """A cluster whose drivers append without an answer of the remote tier, as they may."""

    def append_unasked(self, *values: str, merged: bool = False) -> None:
        """Append while the remote tier is away; ``merged``: the brokers then have everything in one file."""
        away = self.folder / "away"
        self.remote.rename(away)
        self.remote.write_text("no folder")
        for value in values:
            report = self.append([value])
            report.raise_for_failures()
        assert any("it is unknown whether" in note for note in report.notes)
        if merged:
            self.merge()
        self.remote.unlink()
        away.rename(self.remote)


def half_copied(folder: Path) -> Unasked:
    """The brokers have v0 to v9, and were copied when they had v0 to v4."""
    live = Unasked(folder, 3)
    live.add(*range(5))
    live.copy()
    live.add(*range(5, 10))
    return live


@pytest.fixture
def parted(tmp_path: Path) -> Unasked:
    """The remote log has v0 to v9, the brokers v0 to v4 and then others, under a later epoch: they were restored,
    and appended to while the remote tier did not answer."""
    live = half_copied(tmp_path)
    live.cluster.tier().raise_for_failures()
    driver = live.put_records_back()
    driver.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.append_unasked("a", "b")
    live.fresh()
    return live


@pytest.mark.slow
def test_two_histories_are_named_and_nothing_is_appended_nor_taken_from_either(parted: Unasked) -> None:
    driver, before = parted.cluster, parted.in_remote()
    for report in (
        parted.append(["c"]),
        driver.tier(check=False),
        driver.verify(),
        driver.describe(),
        driver.replicate(check=False),
    ):
        assert "DIVERGENT_REMOTE_LOG" in codes(report), report
    assert "behind-remote" in [row["finding"] for row in driver.health().rows]
    driver.heal(check=False)
    driver.maintain(check=False)
    segments = {name for name in before if name.endswith(".parquet")}
    assert {name: data for name, data in parted.in_remote().items() if name in segments} == {
        name: before[name] for name in segments
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "gives_up", "left"),
    [
        ("remote", 2, [f"v{number}" for number in range(10)]),
        ("brokers", 5, [*["v0", "v1", "v2", "v3", "v4", "a", "b"]]),
    ],
)
def test_a_person_says_which_history_counts(parted: Unasked, keep: str, gives_up: int, left: list[str]) -> None:
    driver = parted.cluster
    with parted.unchanged():
        plan = driver.recover("t", keep=keep, dry_run=True)
    shown = ("same_until", "brokers_end", "remote_end", "keeps", "gives_up")
    assert rows_of(plan, *shown) == [(5, 7, 10, keep, gives_up)]
    assert rows_of(driver.recover("t", keep=keep), "outcome") == [("kept",)]
    parted.append(["z"]).raise_for_failures()
    driver.tier().raise_for_failures()
    driver.replicate().raise_for_failures()
    assert parted.read() == {0: [*left, "z"]}
    driver.verify(deep=True).raise_for_failures()
    assert driver.recover("t", keep=keep).rows == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "gives_up", "left"),
    [
        ("remote", 2, [f"v{number}" for number in range(10)]),
        ("brokers", 5, [*["v0", "v1", "v2", "v3", "v4", "a", "b"]]),
    ],
)
def test_records_under_the_same_leader_epochs_are_not_given_up_without_a_person(
    tmp_path: Path, keep: str, gives_up: int, left: list[str]
) -> None:
    """The metadata was restored, too, so both have one leader epoch. The brokers hold less than the remote log."""
    live = half_copied(tmp_path)
    live.cluster.tier().raise_for_failures()
    live.put_back()
    live.append_unasked("a", "b")
    driver = live.fresh()
    assert codes(live.append(["c"])) == {"LOG_BEHIND_REMOTE": 1}
    report = driver.replicate(check=False)
    assert "DIVERGENT_REMOTE_LOG" in codes(report)
    assert any(
        "from offset 5 on the two logs have different records" in failure.message for failure in report.failures
    )
    with live.unchanged():
        plan = driver.recover("t", keep=keep, dry_run=True)
    assert rows_of(plan, "same_until", "brokers_end", "remote_end", "gives_up") == [(5, 7, 10, gives_up)]
    assert rows_of(driver.recover("t", keep=keep), "outcome") == [("kept",)]
    live.append(["z"]).raise_for_failures()
    assert live.read() == {0: [*left, "z"]}
    driver.tier().raise_for_failures()
    driver.replicate().raise_for_failures()
    driver.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_a_sound_remote_object_is_never_outvoted(tmp_path: Path) -> None:
    """The brokers hold other records at the same offsets, in files of the same names: three replicas agree, but
    the remote log is intact, too.
    """
    live = half_copied(tmp_path)
    live.cluster.tier().raise_for_failures()
    before = live.in_remote()
    driver = live.put_back()
    live.append_unasked(*"abcdefg")
    driver = live.fresh()
    for report in (driver.verify(deep=True), driver.heal("t", check=False)):
        assert "CORRUPT_SEGMENT" in codes(report)
    driver.maintain(check=False)
    after = live.in_remote()
    assert {name for name in before if name.endswith(".parquet")} <= after.keys()
    assert all(after[name] == before[name] for name in before if name.endswith(".parquet"))


MERGED = {"the remote log": (True, False), "the brokers": (False, True), "both": (True, True)}
"""The place where the records were merged: the remote log, or the brokers."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The results of comparing records."""
    found: list[int | None] = []

    def first_difference(*given: Any) -> int | None:
        found.append(same_records.first_difference(*given))
        return found[-1]

    monkeypatch.setattr(remote_records, "first_difference", first_difference)
    return found


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("merged", MERGED)
def test_other_records_are_found_in_whatever_files_they_are(
    tmp_path: Path, merged: str, compared: list[int | None]
) -> None:
    in_remote, on_brokers = MERGED[merged]
    live = half_copied(tmp_path)
    if in_remote:
        live.merge()
    live.cluster.tier().raise_for_failures()
    before = live.in_remote()
    live.put_back()
    live.append_unasked("v5", *"bcdefg", merged=on_brokers)
    driver = live.fresh()
    for report in (driver.verify(deep=True), driver.heal("t", check=False)):
        assert "CORRUPT_SEGMENT" in codes(report)
        assert any("from offset 6 on, the partition's leader" in failure.message for failure in report.failures), (
            report
        )
    driver.maintain(check=False)
    assert 6 in compared
    segments = [name for name in before if name.endswith(".parquet")]
    assert {name: live.in_remote()[name] for name in segments} == {name: before[name] for name in segments}


@pytest.mark.slow
@pytest.mark.parametrize("merged", MERGED)
def test_the_same_records_in_other_files_are_no_finding(
    tmp_path: Path, merged: str, compared: list[int | None]
) -> None:
    in_remote, on_brokers = MERGED[merged]
    live = Unasked(tmp_path, 3)
    live.add(*range(6))
    live.copy()
    if in_remote:
        live.merge()
    live.cluster.tier().raise_for_failures()
    live.put_back()
    if on_brokers:
        live.append_unasked("v6", merged=True)
    live.fresh().verify(deep=True).raise_for_failures()
    assert set(compared) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["load", "commit"])
@pytest.mark.parametrize("broken", ["t", "u"])
def test_a_table_that_does_not_answer_keeps_no_other_topic_from_being_kept(
    parted: Unasked, monkeypatch: pytest.MonkeyPatch, method: str, broken: str
) -> None:
    driver = parted.cluster
    parted.tiered("u", copies=1)
    real = getattr(DeltaTopicTable, method)

    def no_answer(table: DeltaTopicTable, *args: object) -> object:
        if table.topic == broken:
            raise StorageError("no answer")
        return real(table, *args)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTopicTable, method, no_answer)
        report = driver.recover(["t", "u"], keep="brokers", check=False)
    failed = {("t", "load"): ["t"], ("u", "load"): ["u"], ("t", "commit"): ["t-0"], ("u", "commit"): []}
    assert [one.item for one in report.failures] == failed[broken, method]
    assert [row["topic"] for row in report.rows] == (["t"] if broken == "u" else [])
