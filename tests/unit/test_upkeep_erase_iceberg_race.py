"""Jobs that commit to an Iceberg table while an erasure deletes its history: the table stays readable, and the
report names what is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.erase_harness import KEPT, KEY, pass_the_delay_of_delta
from tests.unit.test_upkeep_erase_iceberg import NAME, Listed, TableFiles, iceberg_history, lake, table

SqlCatalog = pytest.importorskip("pyiceberg.catalog.sql").SqlCatalog

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["lake"]  # the fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # pyiceberg leaves connections to SQLite open
]
HOUR_MS = 3_600_000


class LateJob:
    """A job that has written its files for a branch, and stops in its commit before or after the next
    metadata file is written."""

    def __init__(self, live: Listed, branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._table = table()
        self._branch = branch
        self.outcome: list[str] = []
        self._goes, self._stops = threading.Event(), threading.Event()
        catalog: Any = self._table.catalog
        commit, write = catalog.commit_table, catalog._write_metadata

        def stop(call: Callable[..., Any]) -> Callable[..., Any]:
            def stopping(*args: Any, **options: Any) -> Any:
                self._stops.set()
                assert self._goes.wait(60)
                self._goes.clear()
                return call(*args, **options)

            return stopping

        def written(*args: Any, **options: Any) -> None:
            write(*args, **options)
            stop(lambda: None)()

        monkeypatch.setattr(catalog, "commit_table", stop(commit))
        monkeypatch.setattr(catalog, "_write_metadata", written)
        before = set(live.warehouse.rglob("*.avro"))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._stops.wait(60)
        (self.list,) = set(live.warehouse.rglob("*.avro")) - before

    def _run(self) -> None:
        try:
            with self._table.transaction() as change, change.update_snapshot(branch=self._branch).fast_append():
                pass
            self.outcome.append("committed")
        except Exception as error:
            self.outcome.append(type(error).__name__)

    def step(self) -> None:
        """From the beginning of the commit to the written metadata file."""
        self._stops.clear()
        self._goes.set()
        assert self._stops.wait(60)

    def end(self) -> None:
        """To the end of the commit."""
        while self._thread.is_alive():
            self._goes.set()
            self._thread.join(0.05)


def pass_the_delay(live: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    live.clock.sleep(2 * HOUR_MS / 1000)
    pass_the_delay_of_delta(monkeypatch)


def at_walk(
    monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object], *, after: bool = False
) -> None:
    """Act at the given listing of the files, counted from 1."""
    walk, calls = TableFiles.walk, []

    def walked(files: Any) -> Any:
        calls.append(1)
        if len(calls) == number and not after:
            act()
        found = walk(files)
        if len(calls) == number and after:
            act()
        return found

    monkeypatch.setattr(TableFiles, "walk", walked)


def test_a_branch_whose_files_were_deleted_before_its_commit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Listed(tmp_path)
    job = LateJob(live, "audit", monkeypatch)
    at_walk(monkeypatch, 2, job.end)
    report = live.erase(KEY)
    assert job.outcome == ["committed"]
    assert not report.whole
    assert "the tag or branch 'audit' keeps it" in str(report.failures)
    assert live.listed() == KEPT
    table().manage_snapshots().remove_branch("audit").commit()
    assert live.erase(KEY).whole
    live.check_gone()


def stage_a_copy_of_the_first_snapshot() -> None:
    """As a job that writes, audits and then publishes: a snapshot that no branch names."""
    from pyiceberg.table.update import AddSnapshotUpdate

    loaded = table()
    first = next(each for each in loaded.snapshots() if list(each.manifests(loaded.io)))
    path = Path(first.manifest_list.removeprefix("file://"))
    copy = path.with_name(f"staged-{path.name}")
    copy.write_bytes(path.read_bytes())
    staged = first.model_copy(
        update={
            "snapshot_id": 1,
            "parent_snapshot_id": None,
            "manifest_list": f"file://{copy}",
            "sequence_number": loaded.metadata.last_sequence_number + 1,
            "timestamp_ms": loaded.metadata.last_updated_ms + 1,
        }
    )
    loaded.catalog.commit_table(loaded, (), (AddSnapshotUpdate(snapshot=staged),))


def test_a_snapshot_that_is_staged_meanwhile_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the manifests of a snapshot that goes."""
    live = Listed(tmp_path)
    unclean, calls = iceberg_history.unclean_snapshots, []

    def late(loaded: Table, listed: Any, snapshots: Any) -> Any:
        found = unclean(loaded, listed, snapshots)
        if len(loaded.snapshots()) == len(list(snapshots)) > 1 and not calls:  # step 5, not step 4
            calls.append(1)
            stage_a_copy_of_the_first_snapshot()
        return found

    monkeypatch.setattr(iceberg_history, "unclean_snapshots", late)
    assert live.erase(KEY).whole
    assert calls
    live.check_gone()


def test_metadata_of_a_job_that_is_about_to_commit_are_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list goes, and its metadata file builds on the present one: the job has to lose first."""
    live = Listed(tmp_path)
    job = LateJob(live, "audit", monkeypatch)
    at_walk(monkeypatch, 2, job.step)
    outdated, calls = iceberg_history.MetadataFiles.outdated, []

    def late(*args: Any) -> Any:
        found = outdated(*args)
        calls.append(1)
        if len(calls) == 2:
            job.end()
        return found

    monkeypatch.setattr(iceberg_history.MetadataFiles, "outdated", late)
    assert live.erase(KEY).whole
    assert job.outcome == ["CommitFailedException"]
    live.check_gone()


def lose_the_list_of_a_tag() -> None:
    """The list of a snapshot that a tag keeps is missing."""
    first = table().snapshots()[0]
    table().manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    with table().transaction() as change, change.update_snapshot().fast_append():
        pass
    Path(first.manifest_list.removeprefix("file://")).unlink()


@pytest.mark.sample(2)
@pytest.mark.parametrize(("number", "after"), [(2, False), (2, True), (3, False), (3, True)])
def test_a_commit_while_a_list_is_missing_leaves_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    live = Listed(tmp_path)
    lose_the_list_of_a_tag()

    def change() -> Table:
        with table().transaction() as properties:
            properties.set_properties({"comment": "changed"})
        return table()

    at_walk(monkeypatch, number, change, after=after)
    report = live.erase(KEY)
    assert "the tag or branch 'kept' keeps it" in str(report.failures)
    assert table().properties["comment"] == "changed"
    assert live.listed() == KEPT


def test_metadata_that_others_write_while_a_list_is_missing_are_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job commits after the erasure has read the table for the last time."""
    live = Listed(tmp_path, file_delete_delay_ms="60000")
    lose_the_list_of_a_tag()
    live.erase(KEY)
    pass_the_delay(live, monkeypatch)
    job = LateJob(live, "audit", monkeypatch)
    os.utime(job.list, (live.clock.now_ms() / 1000,) * 2)
    outdated = iceberg_history.MetadataFiles.outdated

    def late(*args: Any) -> Any:
        found = outdated(*args)
        job.end()
        return found

    at_walk(monkeypatch, 2, job.step)
    monkeypatch.setattr(iceberg_history.MetadataFiles, "outdated", late)
    assert not live.erase(KEY).whole
    assert table().refs()
    assert live.listed() == KEPT


def test_files_that_a_job_may_commit_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Listed(tmp_path, file_delete_delay_ms="60000")
    assert not live.erase(KEY).whole
    pass_the_delay(live, monkeypatch)
    job = LateJob(live, "audit", monkeypatch)
    os.utime(job.list, (live.clock.now_ms() / 1000,) * 2)
    assert not live.erase().whole
    assert job.list.exists()
    live.clock.sleep(30 * 60)
    files = sorted(live.warehouse.rglob("*"))
    report = live.erase(certificate=tmp_path / "c")
    assert report.certificate is not None
    left = report.certificate.topics[0].partitions[0].not_erased
    assert [(each.where.rpartition("/")[2], each.waits) for each in left] == [(job.list.name, True)]
    assert f"Iceberg table {NAME}" in left[0].where
    assert sorted(live.warehouse.rglob("*")) == files, "while it waits, nothing is committed"
    assert live.iceberg_traces(KEY) == []
    job.end()
    assert job.outcome == ["committed"]
    assert live.erase().whole
    assert table().scan(snapshot_id=table().refs()["audit"].snapshot_id).to_arrow().num_rows == 0


@pytest.mark.parametrize("now", [False, True])
def test_files_of_a_job_that_died_wait_no_longer_than_the_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool
) -> None:
    live = Listed(tmp_path, file_delete_delay_ms="60000")
    assert not live.erase(KEY).whole
    pass_the_delay(live, monkeypatch)
    litter = next(live.warehouse.rglob("*-m0.avro"))
    copy = litter.with_name("litter-m0.avro")
    copy.write_bytes(litter.read_bytes())
    os.utime(copy, (live.clock.now_ms() / 1000,) * 2)
    if not now:
        live.clock.sleep(59 * 60)
        assert not live.erase().whole
        live.clock.sleep(2 * 60)
    assert live.erase(now=now).whole
    live.check_gone()


@pytest.mark.parametrize("kind", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
@pytest.mark.parametrize("spelled", ["file://{}", "{}"])
def test_the_time_of_a_file_is_known_with_any_file_system(tmp_path: Path, kind: str, spelled: str) -> None:
    module, _, name = kind.partition(".")
    inner = getattr(pytest.importorskip(f"pyiceberg.io.{module}"), name)({})
    path = tmp_path / "a file.avro"
    path.write_bytes(b"x")
    os.utime(path, (1_600_000_000, 1_600_000_000))
    files = TableFiles(inner, inner, spelled.format(tmp_path), "t")
    assert files.modified_ms(spelled.format(path)) == 1_600_000_000_000
    with pytest.raises(FileNotFoundError):
        files.modified_ms(spelled.format(tmp_path / "missing.avro"))
