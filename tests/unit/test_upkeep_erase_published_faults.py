"""Erasures from published snapshots while other programs rewrite the table, jobs are slow, the remote tier fails,
or the table is the only copy: no record of other keys is lost, and no trace of the key is certified as erased.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from stratalog.engine.upkeep.erasing import copies, snapshot_run
from stratalog.engine.upkeep.erasing import published as publishing
from stratalog.engine.upkeep.snapshots import publish as publish_module
from stratalog.partitions.errors import StorageError, StratalogError
from stratalog.partitions.paths import CheckpointName, published_path
from stratalog.tiering import snapshot_table as tables
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.unit.at_calls import during
from tests.unit.erase_harness import KEY, OTHER, SECRET, stop_at
from tests.unit.erase_snapshots_harness import (
    ALL,
    LATER,
    NO_ANSWER,
    STATE,
    Erasable,
    Published,
    add_the_key,
    published_topic,
)
from tests.unit.faulty_store import Faults
from tests.unit.snapshot_harness import Keyed
from tests.unit.snapshot_table_harness import data_files, folder, state, table

live = published_topic


def rewrite(live: Keyed) -> None:
    """Another program rewrites the file of the table, as OPTIMIZE does."""
    write_deltalake(str(folder(live)), table(live).to_pyarrow_table(), mode="overwrite")


def check_listed_files_exist(live: Keyed) -> None:
    for uri in table(live).file_uris():
        assert Path(uri).exists(), f"the table lists {uri}, which is gone"


# ------------------------------------------------------------------------------- other programs


def test_rewritten_rows_stay_if_the_publication_fails(live: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(live)
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "write_latest", NO_ANSWER)
        report = live.erase(KEY)
    assert not report.whole
    assert state(live) == ALL
    assert live.erase(KEY).whole
    live.check_gone()


def test_rewritten_rows_stay_if_one_partition_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Published(tmp_path)
    before = live.start_in_two_partitions()
    table(live).optimize.compact()
    write = publish_module.write_latest

    def fail(work: Any) -> Any:
        return NO_ANSWER() if work.replicas.view.partition == 1 else write(work)

    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "write_latest", fail)
        report = live.erase(KEY)
    assert not report.whole
    assert "another program has rewritten the table" in str(report.failures)
    assert state(live) == before
    assert live.erase(KEY).whole
    assert state(live) == {key: value for key, value in before.items() if key != KEY}


@pytest.mark.parametrize(
    ("owner", "step", "after"),
    [
        (publishing, "unfinished_uploads", True),
        (publishing._Cleaning, "look", True),
        (SnapshotTable, "delete_history", False),
        (SnapshotTable, "_delete_older", False),
        (SnapshotTable, "_delete_older", True),
    ],
)
def test_a_rewrite_while_the_table_is_cleaned_loses_no_row(
    live: Published, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, after: bool
) -> None:
    with monkeypatch.context() as patch:
        during(patch, owner, step, lambda: rewrite(live), after=after)
        live.erase(KEY)
    assert state(live) == STATE
    check_listed_files_exist(live)
    assert live.erase(KEY).whole
    live.check_gone()


@pytest.mark.parametrize("step", ["load_with_removed", "delete_history"])
def test_rows_of_the_key_that_are_added_before_the_history_goes_are_reported(
    live: Published, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patch:
        during(patch, SnapshotTable, step, lambda: add_the_key(live))
        report = live.erase(KEY)
    assert not report.whole
    assert live.remote_traces(KEY)
    assert live.erase(KEY).whole
    live.check_gone()


@pytest.mark.parametrize(
    "name", [".tmp/00000000000000000009.json.0e0e0e", "00000000000000000009.json.tmp", "notes"]
)
def test_an_object_in_the_log_that_is_not_deltas_is_reported(live: Published, name: str) -> None:
    path = folder(live) / "_delta_log" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(KEY)
    report = live.erase(KEY)
    assert not report.whole
    assert "it is not a file of the table's log" in str(report.failures)
    path.unlink()
    assert live.erase(KEY).whole
    live.check_gone()


def test_checksums_that_spark_writes_on_folders_leave_with_their_versions(live: Published) -> None:
    log = folder(live) / "_delta_log"
    (log / ".00000000000000000000.json.crc").write_text("old")
    newest = table(live).version()
    (log / f".{newest + 1:020d}.json.crc").write_text("new")
    assert live.erase(KEY).whole
    assert not (log / ".00000000000000000000.json.crc").exists()


def test_an_object_of_a_partition_that_the_topic_does_not_have_is_reported(live: Published) -> None:
    [name] = data_files(live)
    path = folder(live) / "1" / Path(name).name
    path.parent.mkdir()
    path.write_bytes((folder(live) / name).read_bytes())
    report = live.erase(KEY)
    assert not report.whole
    assert "it is not an object of the table" in str(report.failures)


# ------------------------------------------------------------------------------------ slow jobs


def test_a_file_that_a_later_leader_is_about_to_list_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs publish the same snapshot, under two leader epochs. An erasure comes between their commits."""
    live = Published(tmp_path)
    live.begin(copies=3, file_delete_delay_ms="0", segment_bytes="1")
    live.put([(OTHER, "3"), (LATER, "x")])
    early, late, eraser = live.driver(), live.driver(), live.driver()
    commit = SnapshotTable.commit
    calls: list[Any] = []

    def held(self: SnapshotTable, *planned: Any) -> Any:
        calls.append((self, *planned))
        if len(calls) == 1:
            live.driver().elect("t", leader=live.followers()[0]).raise_for_failures()
            late.snapshot("t", by_hand=True)
        elif len(calls) == 2:
            monkeypatch.setattr(SnapshotTable, "commit", commit)
            commit(*calls[0])
            assert eraser.erase("t", ["nobody"], check=False).whole
        return commit(self, *planned)

    monkeypatch.setattr(SnapshotTable, "commit", held)
    early.snapshot("t", by_hand=True)
    check_listed_files_exist(live)
    assert state(live) == STATE


def test_a_late_object_of_the_present_generation_is_found_by_its_rows(live: Published) -> None:
    [name] = data_files(live)
    held = (folder(live) / name).read_bytes()
    assert live.erase(KEY).whole
    path = published_path(0, CheckpointName(7, 1, live.generation()), "0" * 31 + "f")
    (folder(live) / path).write_bytes(held)
    assert live.erase(KEY).whole, "the keys in it give the partition another erasure"
    live.check_gone()


def test_a_job_that_publishes_after_publishing_was_switched_off_is_reported(
    live: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It gives its file a name after the run has found the folder empty."""
    live.put([(LATER, "y")])
    reached, go = threading.Event(), threading.Event()
    check = publish_module.check_still_there

    def held(*given: Any) -> None:
        check(*given)
        reached.set()
        assert go.wait(60)

    monkeypatch.setattr(publish_module, "check_still_there", held)
    job = live.driver()
    thread = threading.Thread(target=lambda: job.snapshot("t", by_hand=True, check=False))
    thread.start()
    assert reached.wait(60)
    live.disable()

    def release() -> None:
        go.set()
        thread.join(60)

    during(monkeypatch, snapshot_run, "find_keys", release)
    report = live.erase(KEY, certificate=tmp_path / "erased.json")
    assert live.remote_traces(KEY)
    assert not report.whole
    assert "before the topic stopped publishing its snapshots" in str(report.failures)
    assert not live.cluster.verify_erased(tmp_path / "erased.json").ok


def test_an_upload_that_is_unfinished_when_publishing_is_switched_off_is_reported(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.put([(LATER, "y")])
    monkeypatch.setattr(copies, "_PAUSE_S", 0.01)
    reports: list[Any] = []

    def erase() -> None:
        live.disable()
        reports.append(live.erase(KEY))

    during(monkeypatch, publish_module, "check_still_there", erase, after=True)
    live.driver().snapshot("t", by_hand=True, check=False)
    assert live.remote_traces(KEY)
    assert not reports[0].whole
    assert "unfinished uploads" in str(reports[0].failures)


def test_a_table_that_is_switched_on_and_off_meanwhile_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Erasable(tmp_path).start(remote_snapshot_table_enable="false")

    def flip() -> None:
        other = live.driver()
        other.topics.alter_configs("t", {"remote.snapshot.table.enable": "true"})
        other.snapshot("t", by_hand=True).raise_for_failures()
        other.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})

    during(monkeypatch, snapshot_run, "find_keys", flip)
    report = live.erase(KEY)
    assert live.remote_traces(KEY)
    assert not report.whole


def test_a_job_whose_snapshot_is_gone_names_no_file(live: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an erasure that found no key on the brokers would end before the file has a name."""
    live.put([(LATER, "y")])
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    live.put([(LATER, "z")])
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    before = data_files(live)
    table(live).delete()
    calls = []
    check = publish_module.check_still_there

    def gone(leader: Any, listing: Any, stored: Any) -> None:
        calls.append(stored.name)
        if len(calls) == 1:
            leader.store.delete([stored.name])
            listing = leader.log(fresh=True).listing
        check(leader, listing, stored)

    monkeypatch.setattr(publish_module, "check_still_there", gone)
    live.cluster.snapshot("t", check=False)
    assert calls[0] not in calls[1:], "the job reads another snapshot"
    assert len(data_files(live) - before) <= 1


def test_a_file_that_an_erasure_deletes_before_its_job_lists_it_is_written_again(tmp_path: Path) -> None:
    faults = Faults()
    live = Published(tmp_path, through=faults.wrap).start()
    live.put([(LATER, "y")])
    job, eraser, done = live.driver(), live.driver(), []

    def before(uri: str, what: str, name: str) -> None:
        if what == "stat" and "_snapshots" in name and not done:
            done.append(name)
            assert eraser.erase("t", [KEY], check=False).whole

    faults.before = before
    job.snapshot("t", by_hand=True).raise_for_failures()
    faults.none()
    assert done
    assert state(live) == {**STATE, LATER: "y"}
    assert live.remote_traces(KEY, SECRET) == []


def test_a_job_whose_version_an_erasure_deletes_while_it_reads_it_fails_the_topic_alone(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs reads the log again for the leader epochs."""
    live.put([(LATER, "y")])
    job, eraser = live.driver(), live.driver()
    with monkeypatch.context() as patch:
        during(patch, tables, "whatever_is_listed", lambda: eraser.erase("t", [KEY], check=False), after=True)
        report = job.snapshot("t", by_hand=True, check=False)
    assert {failure.code for failure in report.failures} == {StorageError.code}
    live.driver().snapshot("t", by_hand=True).raise_for_failures()
    assert state(live) == {**STATE, LATER: "y"}


# ----------------------------------------------------------------------- failures, and two runs


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(1, 62, 6))
@pytest.mark.slow  # a cluster for each number, and three runs
def test_a_remote_tier_that_stops_at_any_call_loses_nothing(tmp_path: Path, number: int) -> None:
    faults = Faults()
    live = Published(tmp_path, through=faults.wrap).start()
    left = number

    def count(uri: str, what: str, name: str) -> None:
        nonlocal left
        if "remote" in uri:
            left -= 1
            if left <= 0:
                raise StorageError("no answer")

    faults.before = count
    report = None
    with suppress(StratalogError):
        report = live.erase(KEY)
    faults.none()
    if report is not None and report.whole:
        assert live.remote_traces(KEY, SECRET) == []
    for run in (
        lambda: None,
        lambda: live.driver().snapshot("t", by_hand=True),
        lambda: live.driver().vacuum("t"),
    ):
        run()
        check_listed_files_exist(live)
        assert STATE.items() <= state(live).items()
    assert live.driver().erase("t", [KEY], check=False).whole
    live.check_gone()


def test_two_runs_delete_the_history_at_once(tmp_path: Path) -> None:
    faults = Faults()
    live = Published(tmp_path, through=faults.wrap).start()
    other, done = live.driver(), []

    def before(uri: str, what: str, name: str) -> None:
        if what == "stat" and name.endswith("checkpoint.parquet") and not done:
            done.append(name)
            live.put([("new", "1")], driver=other)
            other.erase("t", [OTHER], check=False)

    faults.before = before
    live.erase(KEY)
    faults.none()
    assert done
    assert live.driver().erase("t", [KEY, OTHER], check=False).whole
    assert state(live) == {LATER: "x", "new": "1"}
    assert live.remote_traces(KEY, SECRET, OTHER) == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("step", ["publish", "clean", "clean_remotely", "forget"])
@pytest.mark.slow  # five runs each
def test_a_table_that_is_switched_off_and_on_after_a_crash_is_erased(live: Published, step: str) -> None:
    stop_at(live, step)
    other = live.driver()
    for enabled in ("false", "true"):
        other.topics.alter_configs("t", {"remote.snapshot.table.enable": enabled})
        with suppress(StratalogError):
            other.erase("t", None, check=False)
    other.snapshot("t", by_hand=True)
    check_listed_files_exist(live)
    assert live.erase(KEY).whole
    live.check_gone()


# --------------------------------------------------------------------------------- the only copy


@pytest.mark.parametrize("keys", [[KEY], ["nobody"], []])
def test_the_only_copy_that_another_program_has_rewritten_is_kept(live: Published, keys: list[str]) -> None:
    rewrite(live)
    live.restore()
    report = live.erase(*keys)
    assert not report.whole
    assert state(live) == ALL


def test_a_dry_run_says_that_the_only_copy_cannot_be_replaced(live: Published) -> None:
    live.restore()
    with live.unchanged():
        report = live.erase(KEY, dry_run=True)
    assert "no record from which one could be made" in str(report.failures)


def test_a_snapshot_job_keeps_the_only_copy_that_another_program_has_rewritten(live: Published) -> None:
    rewrite(live)
    live.restore()
    report = live.cluster.snapshot("t", by_hand=True, check=False)
    assert "another program has rewritten the table" in str(report.failures)
    live.cluster.vacuum("t")
    assert state(live) == ALL


@pytest.mark.parametrize("job", ["erase", "snapshot"])
def test_an_unreadable_log_is_kept_while_its_files_may_be_the_only_copy(live: Published, job: str) -> None:
    live.restore()
    newest = sorted((folder(live) / "_delta_log").glob("*.json"))[-1]
    held = newest.read_text()
    newest.write_text("[" * 2000)
    with suppress(StratalogError):
        if job == "erase":
            live.erase()
        else:
            live.cluster.snapshot("t", by_hand=True, check=False)
    newest.write_text(held)
    assert state(live) == ALL


@pytest.mark.parametrize("text", ["{", "[" * 2000])
def test_an_erasure_is_refused_while_the_log_is_unreadable(live: Published, text: str) -> None:
    sorted((folder(live) / "_delta_log").glob("*.json"))[-1].write_text(text)
    for dry_run in (True, False):
        with live.unchanged(), pytest.raises(StratalogError):
            live.erase(KEY, dry_run=dry_run)
    live.cluster.snapshot("t").raise_for_failures()
    assert live.erase(KEY).whole
    live.check_gone()
