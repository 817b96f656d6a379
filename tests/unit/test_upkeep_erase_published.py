"""Erasures of keys from topics that publish their snapshots as a table (``stratalog.snapshots.erasure``, "The
published table").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing import snapshot_run
from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.partitions.errors import PolicyViolationError, StratalogError
from stratalog.partitions.paths import parse_published_path
from stratalog.tiering.remote_objects import RemovedFiles
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.unit.at_calls import during
from tests.unit.cluster_harness import rows_of
from tests.unit.duckdb_tables import duckdb_rows
from tests.unit.erase_harness import KEY, OTHER, SECRET, stop_at, traces
from tests.unit.erase_snapshots_harness import ALL, STATE, Erasable, Published, add_the_key, published_topic
from tests.unit.snapshot_harness import DAY_MS, Keyed
from tests.unit.snapshot_table_harness import data_files, folder, state, table

live = published_topic


def unfinished(live: Keyed) -> bool:
    return "unfinished-erasure" in str(live.cluster.health().findings)


def test_nothing_of_a_key_is_left_in_the_table_either(live: Published, tmp_path: Path) -> None:
    assert state(live) == ALL
    assert live.remote_traces(KEY)
    report = live.erase(KEY, certificate=tmp_path / "erased.json").raise_for_failures()
    assert report.whole
    live.check_gone()
    [row] = report.rows
    assert (row["records"], row["files"], row["remote_files"], row["not_erased"]) == (3, 1, 1, 0)
    assert live.generation() == live.replicas().view.last_erasure
    [part] = read_certificate(tmp_path / "erased.json").topics[0].partitions
    assert part.published is not None
    assert {part.published.file} == data_files(live)
    assert part.published.version == table(live).version()
    assert part.remote is None
    verified = live.cluster.verify_erased(tmp_path / "erased.json")
    assert rows_of(verified, "broker", "state") == [(1, "erased"), (2, "erased"), (3, "erased"), (None, "erased")]
    assert not unfinished(live)


def test_a_run_that_finds_nothing_commits_nothing(live: Published) -> None:
    live.erase(KEY).raise_for_failures()
    version = table(live).version()
    assert live.erase(KEY).whole
    assert live.erase().whole
    assert table(live).version() == version


def test_later_snapshots_are_published_after_the_erasure(live: Published, tmp_path: Path) -> None:
    live.erase(KEY, certificate=tmp_path / "erased.json").raise_for_failures()
    live.put([(KEY, "again"), ("new", "1")])
    assert rows_of(live.take(), "published") == [(True,)]
    assert state(live) == {**STATE, KEY: "again", "new": "1"}
    assert live.cluster.verify_erased(tmp_path / "erased.json").ok, "records appended later are other records"
    assert live.erase(KEY).raise_for_failures().whole
    assert state(live) == {**STATE, "new": "1"}
    assert live.remote_traces(KEY) == []


def test_the_history_of_the_table_is_gone(live: Published) -> None:
    version = table(live).version()
    assert DeltaTable(str(folder(live)), version=version).to_pyarrow_table().num_rows == 3
    live.erase(KEY).raise_for_failures()
    with pytest.raises(Exception, match="No files in log segment"):
        DeltaTable(str(folder(live)), version=version)
    assert live.versions() == [table(live).version()]
    assert len(data_files(live)) == 1


def test_duckdb_reads_the_result(live: Published) -> None:
    live.erase(KEY).raise_for_failures()
    rows = duckdb_rows("delta", f"select key, value from delta_scan('{folder(live)}')")
    assert {key.decode(): value.decode() for key, value in rows} == STATE


def test_rows_and_entries_of_other_programs_are_gone_too(live: Published) -> None:
    """Their statistics have bounds of keys, and their commits may name keys."""
    rows = table(live).to_pyarrow_table()
    write_deltalake(str(folder(live)), rows, mode="append")
    table(live).delete(f"value = '{SECRET}-b'" if rows["value"].type == pa.string() else "partition = 7")
    table(live).alter.set_table_description(f"with {KEY}")
    table(live).alter.set_table_description("without")
    assert any("_delta_log" in name for name in live.remote_traces(KEY))
    assert live.erase(KEY).raise_for_failures().whole
    live.check_gone()


def test_rows_that_another_program_adds_after_the_erasure_leave_with_the_next(live: Published) -> None:
    live.erase(KEY).raise_for_failures()
    add_the_key(live)
    assert live.remote_traces(KEY)
    assert live.erase(KEY).raise_for_failures().whole
    live.check_gone()


def test_an_entry_of_another_program_at_the_end_of_the_log_is_not_left(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the newest version when the history goes, and its commit info names the key."""

    def commit() -> None:
        info = CommitProperties(custom_metadata={"of": KEY})
        wanted = {"of.others": "1"}
        table(live).alter.set_table_properties(wanted, raise_if_not_exists=False, commit_properties=info)

    during(monkeypatch, SnapshotTable, "delete_history", commit)
    assert live.erase(KEY).raise_for_failures().whole
    live.check_gone()


def test_an_object_that_no_one_knows_is_named(live: Published) -> None:
    (folder(live) / "0" / "notes.txt").write_text(KEY)
    report = live.erase(KEY)
    assert not report.whole
    assert "notes.txt: it is not an object of the table" in str(report.failures)
    (folder(live) / "0" / "notes.txt").unlink()
    assert live.erase(KEY).whole
    live.check_gone()


def test_each_partition_is_erased_by_itself(tmp_path: Path) -> None:
    live = Published(tmp_path)
    before = live.start_in_two_partitions()
    assert live.erase(KEY).raise_for_failures().whole
    assert state(live) == {key: value for key, value in before.items() if key != KEY}
    assert live.remote_traces(KEY) == []


@pytest.mark.parametrize(
    "given",
    [{"keys": [{"id": 3, "area": "area-3"}]}, {"where": "key.area = 'area-3' AND key.id < 5"}],
    ids=["keys", "where"],
)
def test_typed_keys(tmp_path: Path, given: dict[str, Any]) -> None:
    live = Published(tmp_path)
    configs = {"cleanup.policy": "snapshot", "file.delete.delay.ms": "0", "remote.snapshot.table.enable": "true"}
    live.cluster.topics.create("s", partitions=2, key="id BIGINT, area STRING", configs=configs)
    kind = pa.struct({"id": pa.int64(), "area": pa.string()})
    keys = pa.array([{"id": number, "area": f"area-{number}"} for number in range(10)], kind)
    for _ in range(2):
        live.cluster.produce("s", pa.table({"key": keys, "value": [b"v"] * 10}))
        live.cluster.snapshot("s", by_hand=True).raise_for_failures()
    assert traces(live, "area-3")
    assert live.remote_traces("area-3")
    assert live.cluster.erase("s", **given).raise_for_failures().whole
    assert traces(live, "area-3") == live.remote_traces("area-3") == []
    assert traces(live, "area-4")
    assert live.remote_traces("area-4")


# ------------------------------------------------------------------------- refused, and counted


def test_a_table_that_was_switched_off_is_deleted_first(live: Published) -> None:
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})
    with live.unchanged(), pytest.raises(PolicyViolationError, match="run `stratalog vacuum`, which deletes them"):
        live.erase(KEY)
    live.cluster.vacuum("t").raise_for_failures()
    assert live.erase(KEY).whole
    assert live.remote_traces(KEY) == []


@pytest.mark.parametrize("before", ["true", "false"])
def test_a_table_that_is_switched_meanwhile_stops_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """The run has planned with or without the table."""
    live = Erasable(tmp_path).start(remote_snapshot_table_enable=before)
    other = {"true": "false", "false": "true"}[before]
    during(
        monkeypatch,
        snapshot_run,
        "find_keys",
        lambda: live.driver().topics.alter_configs("t", {"remote.snapshot.table.enable": other}),
    )
    report = live.erase(KEY)
    assert "its configs have changed since the erasure was planned" in str(report.failures)
    assert not live.replicas().view.erasures


@pytest.mark.sample(4)
@pytest.mark.parametrize("delay_ms", ["0", "60000"])
@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("before", ["nothing", "stopped", "erased"])
@pytest.mark.slow  # compares all files of the cluster, and runs up to three times
def test_a_dry_run_changes_nothing_and_counts_what_a_run_then_does(
    tmp_path: Path, delay_ms: str, now: bool, before: str
) -> None:
    live = Published(tmp_path).start(file_delete_delay_ms=delay_ms)
    if before == "erased":
        live.erase(KEY)
    if before == "stopped":
        stop_at(live, "publish")
    columns = ["records", "files", "remote_files", "deleted_files"]
    with live.unchanged():
        report = live.erase(KEY, now=now, dry_run=True)
    assert report.ok
    assert rows_of(report, *columns) == rows_of(live.erase(KEY, now=now), *columns)


def test_a_remote_tier_that_is_gone_stops_the_run_before_anything_changes(live: Published) -> None:
    live.remote.rename(live.remote.with_name("away"))
    before = live.on_brokers()
    with pytest.raises(StratalogError, match="is its volume mounted"):
        live.erase(KEY)
    assert {name for name in before if "/t-" in name} == {name for name in live.on_brokers() if "/t-" in name}
    assert not live.replicas().view.erasures
    live.remote.with_name("away").rename(live.remote)
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_remote_tier_that_goes_away_meanwhile_is_named_and_cleaned_later(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = live.remote.with_name("away")
    with monkeypatch.context() as patch:
        during(patch, erasing._Erasing, "publish", lambda: live.remote.rename(away))
        report = live.erase(KEY)
    away.rename(live.remote)
    assert not report.whole
    assert "erase again when the remote tier answers" in str(report.failures)
    assert live.remote_traces(KEY)
    assert unfinished(live)
    assert live.erase().whole, "it needs no keys"
    live.check_gone()


# ------------------------------------------------------------------------------------ the delay


def pass_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the delay of removed files pass for delta-rs, which uses the clock of the machine."""
    load = SnapshotTable.load_with_removed

    def loaded(self: SnapshotTable, delay_ms: int) -> Any:
        listed, removed = load(self, delay_ms)
        return listed, RemovedFiles(removed.ever, removed.ever)

    monkeypatch.setattr(SnapshotTable, "load_with_removed", loaded)


def test_the_objects_wait_for_their_delay_unless_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    report = live.erase(KEY)
    assert not report.whole
    assert not report.failures
    assert state(live) == STATE, "no reader of the newest version finds the key"
    assert live.remote_traces(KEY)
    assert len(live.versions()) > 1, "readers may still use the objects by their versions"
    assert unfinished(live)
    live.clock.sleep(61)
    assert not live.erase().whole
    pass_the_delay(monkeypatch)
    assert live.erase().whole
    live.check_gone()
    assert not unfinished(live)


def test_with_now_nothing_waits(tmp_path: Path) -> None:
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    assert live.erase(KEY, now=True).whole
    live.check_gone()


def test_a_key_that_only_an_older_version_has_is_erased_from_it(tmp_path: Path) -> None:
    """A tombstone has removed it from the brokers, so no erasure is committed there."""
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    live.put([(KEY, None)], at_ms=1)
    live.take()
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "3")])
    live.take()
    live.cluster.retain().raise_for_failures()
    live.put([(OTHER, "3")])
    live.take()
    assert live.remote_traces(SECRET)
    assert live.erase(KEY, now=True).whole
    assert state(live) == STATE
    assert live.remote_traces(KEY, SECRET) == []


def test_objects_without_the_key_stay_until_their_delay(tmp_path: Path) -> None:
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    before = data_files(live)
    assert live.erase("nobody").whole
    assert data_files(live) == before


# --------------------------------------------------------------------------------- other owners


def test_a_restored_cluster_publishes_whatever_the_former_has_erased(live: Published) -> None:
    """Its metadata have no erasure, so a file of another generation is replaced."""
    live.erase(KEY).raise_for_failures()
    assert live.generation() > 0
    live.restore()
    live.put([("a", "2"), (KEY, SECRET)])
    live.take()
    assert state(live) == {"a": "2", KEY: SECRET}
    assert live.erase(KEY).whole
    assert state(live) == {"a": "2"}
    assert live.remote_traces(KEY, SECRET) == []


def test_the_key_is_found_in_a_table_that_a_restored_cluster_has_taken_over(live: Published) -> None:
    """Its brokers have no record yet."""
    live.restore()
    report = live.erase(KEY)
    assert not report.whole
    assert "no record from which one could be made" in str(report.failures)
    live.put([("a", "2")])
    live.take()
    assert live.erase(KEY).whole
    assert live.remote_traces(KEY, SECRET) == []


def test_the_commit_info_names_the_generation(live: Published) -> None:
    live.erase(KEY).raise_for_failures()
    generation = live.replicas().view.last_erasure
    [entry] = (folder(live) / "_delta_log").glob("*.json")
    infos = [json.loads(line).get("commitInfo", {}) for line in entry.read_text().splitlines()]
    assert f"6-1.{generation}" in {info.get("stratalog.0") for info in infos}
    [name] = data_files(live)
    parsed = parse_published_path(name)
    assert parsed is not None
    assert parsed[1].generation == generation


def test_the_next_snapshot_job_does_not_publish_again(live: Published) -> None:
    live.erase(KEY).raise_for_failures()
    version = table(live).version()
    assert rows_of(live.cluster.snapshot("t"), "outcome", "published") == [("not now", False)]
    assert table(live).version() == version
