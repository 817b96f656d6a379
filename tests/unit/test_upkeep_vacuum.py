"""Litter in the remote tier: found by listing and table, deleted in bulk, never files that a commit may need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.jobs.vacuum import main as vacuum_job
from stratalog.partitions.errors import StorageError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present
from tests.clocks import WrongClock
from tests.unit.cluster_harness import Dying, LiveCluster, codes, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.harness import SCHEMA
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed, lying, topic_folders
from tests.unit.tiering_harness import segment, table_in, uploaded

DAY_S = 24 * 60 * 60


def remote_folder(live: LiveCluster, topic: str = "t") -> Path:
    return live.remote / f"{topic}-{live.cluster.image.topic(topic).topic_id}"


def put(live: LiveCluster, *names: DataName | str, days_old: float = 2) -> None:
    """Abandoned objects of partition 0 in the topic's folder."""
    for name in names:
        path = remote_folder(live) / "0" / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
        age(path, days_old)


def age(path: Path, days: float) -> None:
    when = path.stat().st_mtime - days * DAY_S
    os.utime(path, (when, when))


def deleted(report: Report) -> dict[str, int]:
    """The number of deleted files, by the reason."""
    report.raise_for_failures()
    return {str(row["why"]): int(str(row["files"])) for row in report.rows}


def filled(live: LiveCluster, values: str = "abc") -> None:
    live.tiered()
    live.fill(values)
    live.cluster.tier().raise_for_failures()


# -------------------------------------------------------------------------- what goes, and what stays


def test_a_tier_with_nothing_to_clean_stays_as_it_is(live: LiveCluster) -> None:
    filled(live)
    with live.unchanged():
        assert deleted(live.cluster.vacuum()) == {}
    assert_tables_and_folders_agree(live)


def test_uploads_that_other_files_have_superseded_go(live: LiveCluster) -> None:
    filled(live)
    put(live, DataName(0, 3, 1), DataName(1, 3, 1))
    assert deleted(live.cluster.vacuum()) == {"superseded": 2}
    assert_tables_and_folders_agree(live)
    assert live.read() == {0: list("abc")}


def test_a_dry_run_tells_and_changes_nothing(live: LiveCluster) -> None:
    filled(live)
    put(live, DataName(0, 3, 1))
    with live.unchanged():
        report = live.cluster.vacuum(dry_run=True)
    assert (deleted(report), report.totals) == ({"superseded": 1}, {"deleted_files": 1, "deleted_bytes": 10})


def test_vacuum_keeps_objects_that_were_uploaded_today(live: LiveCluster) -> None:
    filled(live)
    put(live, DataName(0, 3, 1), days_old=0.9)
    assert deleted(live.cluster.vacuum()) == {}
    assert deleted(live.cluster.vacuum(older_than_ms=DAY_S * 500)) == {"superseded": 1}


@pytest.mark.parametrize("ahead_days", [10, -10])
def test_a_machine_with_a_wrong_clock_deletes_nothing(live: LiveCluster, ahead_days: int) -> None:
    filled(live)
    put(live, DataName(0, 3, 1))
    wrong = live.driver(clock=WrongClock(live.clock, ahead_days * DAY_S * 1000))
    report = wrong.vacuum()
    assert deleted(report) == {}
    assert (
        "remote tier: it reports no time, or its time differs from this machine's clock, "
        "so nothing is deleted there" in report.notes
    )
    assert deleted(live.cluster.vacuum()) == {"superseded": 1}


def test_a_new_remote_folder_without_any_object_needs_no_note(tmp_path: Path) -> None:
    """Such a folder reports no time, because it has no staging folder yet."""
    live = LiveCluster(tmp_path, on_disk=True)
    assert [*live.remote.iterdir()] == []
    report = Cluster.open(live.file).vacuum()
    assert (deleted(report), report.notes) == ({}, [])


def test_an_upload_whose_turn_will_come_stays_however_old_it_is(live: LiveCluster) -> None:
    """A driver died before its commit, and the next run comes days later: it uses the existing files."""
    live.tiered()
    live.fill("abc")
    with pytest.raises(KeyboardInterrupt):
        live.driver(progress=Dying()).tier()
    for path in remote_folder(live).glob("0/*"):
        age(path, 5)
    assert deleted(live.cluster.vacuum()) == {}
    report = live.cluster.tier().raise_for_failures()
    assert (report.totals["uploaded_files"], report.totals["uploaded_bytes"]) == (3, 0)
    assert_tables_and_folders_agree(live)


def test_uploads_of_a_lost_history_go(live: LiveCluster) -> None:
    """Objects beyond the end of the remote log, of a leader epoch that the leader's lineage does not have."""
    filled(live)
    put(live, DataName(3, 9, 77))
    assert deleted(live.cluster.vacuum()) == {"lost history": 1}
    assert_tables_and_folders_agree(live)


def test_they_stay_while_no_leader_can_answer(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    filled(live)
    live.cluster.elect(["t"], leader=2).raise_for_failures()
    put(live, DataName(3, 9, 77))
    with live.unreachable(2):
        live.cluster.vacuum(["t"]).raise_for_failures()
    assert len(lying(live)) == len(listed(live)) + 1


@pytest.mark.slow
def test_vacuum_deletes_objects_that_retention_removed_after_their_delay(live: LiveCluster) -> None:
    live.tiered(file_delete_delay_ms="60000")
    live.fill("abcde")
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "0", "retention.bytes": "1"})
    live.cluster.retain().raise_for_failures()
    assert len(lying(live)) > len(listed(live))
    assert deleted(live.cluster.vacuum()) == {}, "a reader may have planned it"
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "0"})
    assert set(deleted(live.cluster.vacuum())) == {"removed"}
    assert_tables_and_folders_agree(live)


@pytest.mark.slow
def test_removals_that_the_table_has_forgotten_are_found_by_listing(live: LiveCluster) -> None:
    """Delta forgets a removed file after delta.deletedFileRetentionDuration; its object may still exist."""
    filled(live, "abcdef")
    live.cluster.topics.alter_configs("t", {"retention.bytes": "1"})
    live.cluster.retain().raise_for_failures()
    put(live, DataName(0, None, 1), DataName(1, None, 1))  # as if they had not been deleted
    (log,) = remote_folder(live).glob("_delta_log")
    table = DeltaTable(str(remote_folder(live)))
    table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    DeltaTable(str(remote_folder(live))).create_checkpoint()
    for entry in log.glob("*.json"):
        entry.unlink()
    assert deleted(live.cluster.vacuum()) == {"below the log start": 2}
    assert_tables_and_folders_agree(live)


def test_strangers_stay(live: LiveCluster) -> None:
    filled(live)
    put(live, "part-0.snappy.parquet", "README")
    with live.unchanged():
        assert deleted(live.cluster.vacuum()) == {}


def test_topics_may_be_named(live: LiveCluster) -> None:
    filled(live)
    live.tiered("other")
    put(live, DataName(0, 3, 1))
    assert deleted(live.cluster.vacuum(["other"])) == {}
    assert deleted(live.cluster.vacuum(["t"])) == {"superseded": 1}


# ------------------------------------------------------------------------------- two drivers at once


class Meanwhile:
    """Something happens just before another driver deletes."""

    def __init__(self, live: LiveCluster, faults: Faults) -> None:
        self.live = live
        self.faults = faults

    def before_delete(self, action: Callable[[], Any]) -> None:
        self.faults.once(action, "delete", of=".parquet")


@pytest.mark.slow
def test_a_commit_that_lands_while_vacuum_deletes_finds_all_its_files(tmp_path: Path) -> None:
    """A driver has uploaded files, and commits them while another driver deletes: none of its files was old or
    useless enough to be deleted.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    filled(live)
    put(live, DataName(0, 3, 1))
    live.fill("de")
    vacuuming, tiering = live.driver(), live.driver()
    with pytest.raises(KeyboardInterrupt):
        live.driver(progress=Dying()).tier()
    for path in sorted(remote_folder(live).glob("0/*"))[-2:]:
        age(path, 3)  # these files are from a run that died days ago
    Meanwhile(live, faults).before_delete(lambda: tiering.tier().raise_for_failures())
    assert deleted(vacuuming.vacuum()) == {"superseded": 1}
    assert len(listed(live)) == 5
    assert_tables_and_folders_agree(live)
    live.cluster.verify(deep=True).raise_for_failures()


def test_vacuums_at_once_are_one(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    filled(live)
    put(live, DataName(0, 3, 1), DataName(0, 2, 1))
    other = live.driver()
    Meanwhile(live, faults).before_delete(lambda: other.vacuum().raise_for_failures())
    live.driver().vacuum().raise_for_failures()
    assert_tables_and_folders_agree(live)


# --------------------------------------------------------------------------- topics, temporary files


def test_vacuum_deletes_the_rest_of_a_deletion_that_crashed(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    filled(live)

    faults.refuse(StorageError("AccessDenied"), "delete", at="/remote")
    assert "AccessDenied" in the_failure(live.driver().topics.delete("t", check=False))
    faults.none()
    assert topic_folders(live) != []
    assert set(deleted(live.cluster.vacuum())) == {"deleted topic"}
    assert topic_folders(live) == []


def test_a_topic_that_is_deleted_meanwhile_is_left_to_the_next_run(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(live)
    load = DeltaTopicTable.load_with_removed

    def loaded(table: DeltaTopicTable, delay_ms: int) -> Any:
        found = load(table, delay_ms)
        live.driver().topics.delete("t")
        return found

    monkeypatch.setattr(DeltaTopicTable, "load_with_removed", loaded)
    live.cluster.vacuum().raise_for_failures()
    monkeypatch.undo()
    live.cluster.vacuum().raise_for_failures()
    assert topic_folders(live) == []


def test_a_table_that_was_kept_stays_and_is_named(live: LiveCluster) -> None:
    filled(live)
    before = live.in_remote()
    live.cluster.topics.delete("t", keep_remote=True).raise_for_failures()
    report = live.cluster.vacuum()
    assert deleted(report) == {}
    assert "its remote table was kept" in report.notes[0]
    assert live.in_remote() == before


def test_a_topic_stays_as_it_is_if_its_remote_cannot_record_the_deletion(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    filled(live)
    (log,) = live.remote.glob("t-*/_delta_log")
    entry = log / "00000000000000000001.json"
    content = entry.read_bytes()
    entry.write_bytes(b"{")
    with pytest.raises(StorageError, match="cannot read the table"):
        live.cluster.topics.delete("t")
    entry.write_bytes(content)
    assert live.read() == {0: list("abc")}


def test_uploads_of_a_topic_that_never_got_a_table_go_after_a_day(live: LiveCluster) -> None:
    """A driver with an old view of the metadata, after the topic was deleted."""
    filled(live)
    folder = remote_folder(live)
    live.cluster.topics.delete("t").raise_for_failures()
    (folder / "0").mkdir(parents=True, exist_ok=True)
    late = folder / "0" / str(DataName(0, 3, 1))
    late.write_bytes(b"x")
    assert deleted(live.cluster.vacuum()) == {}
    age(late, 2)
    assert deleted(live.cluster.vacuum()) == {"deleted topic": 1}
    assert topic_folders(live) == []


def test_tables_of_another_cluster_in_the_same_remote_are_left_alone(live: LiveCluster) -> None:
    foreign = table_in(LocalStore(str(live.remote)), cluster_id="other")
    foreign.ensure(SCHEMA)
    foreign.mark_deleted(True)
    before = live.in_remote()
    report = live.cluster.vacuum(check=False)
    assert codes(report) == {"INCONSISTENT_CLUSTER_ID": 1}
    assert live.in_remote() == before


def test_temporary_files_of_every_store_go_after_a_day(tmp_path: Path) -> None:
    """KIP-405, RLM task, step 1: "Failed RSM operations may leave some temporary files in remote storage"."""
    live = LiveCluster(tmp_path, on_disk=True)
    filled(live)
    for root in (live.root(1), live.root(2), live.remote):
        for number, days in enumerate((3, 0)):
            left = root / ".staging" / f"{number}"
            left.parent.mkdir(exist_ok=True)
            left.write_bytes(b"x")
            age(left, days)
    assert deleted(live.cluster.vacuum(dry_run=True)) == {"unfinished": 1}
    report = live.cluster.vacuum().raise_for_failures()
    assert [row["where"] for row in report.rows] == ["remote tier", "broker 1", "broker 2"]
    assert all((root / ".staging" / "1").exists() for root in (live.root(1), live.root(2), live.remote))
    assert not (live.remote / ".staging" / "0").exists()


def test_vacuum_deletes_probes_of_a_crashed_vacuum_after_a_day(live: LiveCluster) -> None:
    old, new = (live.remote / f"{name * 32}.probe" for name in "ab")
    for path, days in ((old, 2.0), (new, 0.5)):
        path.touch()
        age(path, days)
    assert deleted(live.cluster.vacuum(dry_run=True)) == deleted(live.cluster.vacuum()) == {"unfinished": 1}
    assert not old.exists()
    assert new.exists()


def test_without_permission_to_delete_one_error_says_so(tmp_path: Path) -> None:
    """Bad input: no permission to delete."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    filled(live)
    put(live, DataName(0, 3, 1))

    faults.refuse(StorageError("cannot delete: AccessDenied"), "delete", of=".parquet")
    assert "AccessDenied" in the_failure(live.driver().vacuum(check=False))
    assert live.read() == {0: list("abc")}


def test_the_job_says_what_it_would_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    disks = LiveCluster(tmp_path, on_disk=True)
    filled(disks)
    put(disks, DataName(0, 3, 1))
    at = ["--cluster", str(disks.file), "--json"]
    with disks.unchanged():
        assert vacuum_job([*at, "--dry-run", "--topics", "t"]) == 0
    text = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (text["rows"][0]["why"], text["dry_run"]) == ("superseded", True)
    assert vacuum_job(at) == 0
    assert_tables_and_folders_agree(disks)


# --------------------------------------------------------------------------------------- in bulk


@pytest.mark.slow
def test_ten_thousand_expired_segments_are_deleted_by_one_call(tmp_path: Path) -> None:
    """``Store.delete`` takes them all; on S3 it is a request for each thousand of them."""
    calls: list[int] = []

    class Counting(LocalStore):
        def delete(self, names: Any) -> None:
            doomed = list(names)
            calls.append(len(doomed))
            super().delete(doomed)

    store = Counting(str(tmp_path))
    table: DeltaTopicTable = table_in(store)
    table.ensure(SCHEMA)
    segments = [segment(n * 10, n * 10 + 10) for n in range(10_001)]
    table.commit(
        [uploaded(each) for each in segments], (), Histories({0: Lineage([(1, 0)])}, lambda: {0: Present(1)})
    )
    folder = tmp_path / table.folder / "0"
    folder.mkdir()
    for each in segments:
        (folder / str(each.name)).touch()
    table.commit((), segments[:-1])
    assert len(table.vacuum(0)) == 10_000
    assert calls == [10_000]
    assert [path.name for path in folder.iterdir()] == [str(segments[-1].name)]
