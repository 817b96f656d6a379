"""The latest record of each key as a Delta table in the remote tier: published with each snapshot
(``remote.snapshot.table.enable``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stratalog.engine.admin.topics import alter_topic, create_topic
from stratalog.engine.upkeep.retention import vacuum as vacuuming
from stratalog.engine.upkeep.snapshots import snapshot as job
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.paths import CheckpointName, published_path
from stratalog.tiering.published import Publication
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.ports import ports_of
from tests.unit.at_calls import dies_at, during
from tests.unit.cluster_harness import rows_of, the_failure
from tests.unit.restore_harness import Heir
from tests.unit.snapshot_harness import DAY_MS, Keyed, checkpoint, keyed
from tests.unit.snapshot_table_harness import data_files, folder, ours, state, table

ENABLED = {"remote_snapshot_table_enable": "true", "file_delete_delay_ms": "0"}


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path).begin(**ENABLED)


# ------------------------------------------------------------------------------------------ what


def test_the_table_has_the_latest_record_of_each_key_and_no_tombstones(live: Keyed) -> None:
    live.put([("a", "1"), ("b", "2"), ("a", "3")])
    live.put([("c", "4"), ("b", None)])
    assert rows_of(live.take(), "outcome", "snapshot", "published") == [("made", "5-1", True)]
    assert live.held(live.leader()) == {"a": "3", "c": "4", "b": None}
    assert state(live) == {"a": "3", "c": "4"}
    rows = table(live).to_pyarrow_table()
    assert rows.column_names == ["partition", "end_offset", "epoch", "timestamp", "key", "value", "headers"]
    assert {(row["partition"], row["end_offset"], row["epoch"]) for row in rows.to_pylist()} == {(0, 5, 1)}
    assert table(live).history(1)[0]["stratalog.0"] == "5-1"


def test_polars_reads_it(live: Keyed) -> None:
    live.put([("a", "1"), ("b", "2")])
    live.take()
    rows = pl.scan_delta(str(folder(live))).filter(pl.col("end_offset") == 2).select("key", "value").collect()
    assert sorted(rows.rows()) == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.slow
def test_each_snapshot_replaces_the_one_before_in_one_version(live: Keyed) -> None:
    live.put([("a", "1"), ("b", "2")])
    live.take()
    before = table(live).version()
    live.put([("b", None), ("c", "3")])
    live.take()
    assert (table(live).version(), state(live)) == (before + 1, {"a": "1", "c": "3"})
    assert len(table(live).file_uris()) == 1
    assert {one["numRecords"] for one in _stats(live)} == {2}


def _stats(live: Keyed) -> list[dict[str, int]]:
    latest = sorted((folder(live) / "_delta_log").glob("*.json"))[-1].read_text().splitlines()
    return [json.loads(one["add"]["stats"]) for one in map(json.loads, latest) if "add" in one]


@pytest.mark.slow
def test_partitions_are_published_each_by_itself(tmp_path: Path) -> None:
    live = Keyed(tmp_path).begin(partitions=3, **ENABLED)
    for partition in (0, 1):
        live.cluster.append_batches("t", {partition: [keyed([(f"k{partition}", "1")], 1)]}).raise_for_failures()
    live.take()
    live.cluster.append_batches("t", {1: [keyed([("k1", "2")], 1)]}).raise_for_failures()
    report = live.take()
    assert rows_of(report, "partition", "published") == [(0, False), (1, True), (2, False)]
    assert state(live) == {"k0": "1", "k1": "2"}
    ends = {row["partition"]: row["end_offset"] for row in table(live).to_pyarrow_table().to_pylist()}
    assert ends == {0: 1, 1: 2}


@pytest.mark.slow
def test_a_partition_of_tombstones_alone_has_no_rows(live: Keyed) -> None:
    live.put([("a", "1")])
    live.take()
    live.put([("a", None)])
    live.take()
    assert state(live) == {}
    assert rows_of(live.take(), "published") == [(False,)]


def test_columns_are_typed_and_grow_with_the_topic(tmp_path: Path) -> None:
    live = Keyed(tmp_path)
    city = {"type": "struct", "fields": [{"name": "name", "type": "string", "nullable": True, "metadata": {}}]}
    people = {"name": "people", "type": "long", "nullable": True, "metadata": {}}
    grown = {"type": "struct", "fields": [*city["fields"], people]}
    configs = {"cleanup.policy": "snapshot", "remote.snapshot.table.enable": "true"}
    ports = ports_of(live.cluster)
    create_topic(
        *ports.for_tasks, "t", partitions=1, key_schema='"string"', value_schema=json.dumps(city), configs=configs
    )

    def put(key: str, value: dict[str, object]) -> None:
        plain = keyed([(key, "")], 1)
        columns = {
            "timestamp": plain.column("timestamp"),
            "key": pa.array([key]),
            "value": pa.array([value]),
            "headers": plain.column("headers"),
        }
        live.cluster.append_batches("t", {0: [pa.RecordBatch.from_pydict(columns)]}).raise_for_failures()

    put("no", {"name": "Oslo"})
    live.take()
    alter_topic(ports.metadata, ports.execution, "t", value_schema=json.dumps(grown))
    put("se", {"name": "Stockholm", "people": 1})
    live.take()
    rows = {row["key"]: row["value"] for row in table(live).to_pyarrow_table().to_pylist()}
    assert rows == {"no": {"name": "Oslo", "people": None}, "se": {"name": "Stockholm", "people": 1}}


def test_other_topics_have_none(tmp_path: Path) -> None:
    live = Keyed(tmp_path).begin()
    live.put([("a", "1")])
    assert rows_of(live.take(), "published") == [(False,)]
    assert not (live.remote / "_snapshots").exists()


@pytest.mark.slow
def test_a_default_of_the_cluster_is_not_the_engines_own_topics(live: Keyed) -> None:
    live.cluster.topics.alter_configs(None, {"remote.snapshot.table.enable": "true"})
    live.put([("a", "1")])
    live.cluster.groups.commit("g", {("t", 0): 0})
    report = live.cluster.snapshot(by_hand=True).raise_for_failures()
    assert {str(row["topic"]) for row in report.rows if row["outcome"] == "made"} >= {"t", "__consumer_offsets"}
    assert [path.name for path in (live.remote / "_snapshots").iterdir()] == [folder(live).name]


def test_a_cluster_without_a_remote_tier_refuses_the_config(live: Keyed) -> None:
    live.file.write_text(live.file.read_text().replace('remote = "remote"\n', ""))
    says = "remote.snapshot.table.enable is to be set, but the cluster file has no"
    with live.unchanged(), pytest.raises(InvalidCallError, match=says):
        live.driver().topics.alter_configs("t", {"remote.snapshot.table.enable": "true"})


# --------------------------------------------------------------------------- killed, and at once


def test_a_snapshot_whose_publication_was_lost_is_published_by_the_next_run(live: Keyed) -> None:
    live.put([("a", "1")])
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})
    live.take()
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "true"})
    assert rows_of(live.cluster.snapshot("t"), "outcome", "published") == [("not now", True)]
    assert state(live) == {"a": "1"}
    with live.unchanged():
        assert rows_of(live.cluster.snapshot("t"), "outcome", "published") == [("not now", False)]


def test_a_file_that_was_written_and_never_listed_is_litter(live: Keyed) -> None:
    """The job dies between the file and the commit; a later one writes it again, and vacuum deletes the first."""
    live.put([("a", "1")])
    with dies_at(SnapshotTable, "commit"):
        live.take()
    live.take()
    assert (len(data_files(live)), state(live)) == (2, {"a": "1"})
    live.cluster.vacuum("t").raise_for_failures()
    assert len(data_files(live)) == 2
    live.cluster.vacuum("t", older_than_ms=-DAY_MS).raise_for_failures()
    assert (len(data_files(live)), state(live)) == (1, {"a": "1"})


@pytest.mark.slow
def test_the_later_snapshot_of_two_concurrent_jobs_stays(live: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job has written its file, another makes and publishes a later snapshot, then the first one commits."""
    live.put([("a", "1")])
    during(monkeypatch, SnapshotTable, "commit", lambda: (live.put([("a", "2")]), live.take(live.driver())))
    assert rows_of(live.take(), "published") == [(False,)]
    assert (state(live), len(data_files(live))) == ({"a": "2"}, 2)


@pytest.mark.slow
def test_a_commit_that_loses_its_version_is_decided_again(live: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta's optimistic concurrency: another version is committed between reading the table and the put."""
    live.put([("a", "1")])
    live.take()
    live.put([("a", "2")])
    others = {"of.others": "1"}
    commit = partial(table(live).alter.set_table_properties, others, raise_if_not_exists=False)
    during(monkeypatch, SnapshotTable, "_put", commit)
    assert rows_of(live.take(), "published") == [(True,)]
    assert (state(live), len(table(live).file_uris())) == ({"a": "2"}, 1)


@pytest.mark.slow
def test_a_snapshot_of_a_lost_history_is_replaced_by_a_later_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election has lost published records, because the job died before the log start could grow: the
    table follows the current log."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true", **ENABLED)
    leader, behind = live.put_beside_a_fenced_follower()
    with monkeypatch.context() as patched:
        patched.setattr(job._SnapshotRun, "_spread", lambda *_: None)
        live.take()
    assert state(live) == {"a": "2", "b": "2"}
    live.cluster.brokers.fence(leader, force=True).raise_for_failures()
    live.cluster.brokers.unfence(behind).raise_for_failures()
    live.cluster.elect("t", unclean=True)
    live.take()
    assert (live.leader(), state(live)) == (behind, {"a": "1"})


def test_a_deposed_leaders_snapshot_replaces_nothing(live: Keyed) -> None:
    """A zombie commits late: the table contains the leader epoch of its content."""
    live.put([("a", "1")])
    live.take()
    (present,) = ours(live).load().files.values()
    later = Publication(0, 7, present.snapshot, "0/later", 1, 1, 1, present.path)
    assert ours(live).commit([replace(later, path=_path("a"))], lambda: {0: 0}) == {0}
    zombie = replace(later, leader_epoch=6, snapshot=CheckpointName(99, 6), path=_path("b"))
    before = table(live).version()
    assert ours(live).commit([zombie], lambda: {0: 0}) == set()
    assert table(live).version() == before
    again = replace(later, leader_epoch=7, path=_path("c"))
    assert (
        ours(live).commit([again], lambda: {0: 0}) == set()
    )  # the same snapshot, by another job: one of them is enough


def test_a_table_that_may_have_forgotten_who_published_last_is_created_again(live: Keyed) -> None:
    """With ``delta.setTransactionRetentionDuration``, a file of any leader would seem to be a later one."""
    live.put([("a", "1")])
    live.take()
    (present,) = ours(live).load().files.values()
    retention = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    table(live).alter.set_table_properties(retention, raise_if_not_exists=False)
    zombie = Publication(0, 0, CheckpointName(99, 0), _path("b"), 1, 1, 1, None)
    with pytest.raises(CorruptionError, match="UNSET TBLPROPERTIES"):
        ours(live).commit([zombie], lambda: {0: 0})
    assert table(live).file_uris() == [str(folder(live) / present.path)]
    live.take()
    assert state(live) == {"a": "1"}
    assert not {*retention} & {*table(live).metadata().configuration}


def _path(file_id: str) -> str:
    return published_path(0, CheckpointName(1, 1), 32 * file_id)


# ----------------------------------------------------------------------------- damaged, and of others


def _lose_log(live: Keyed) -> None:
    for path in (folder(live) / "_delta_log").iterdir():
        path.unlink()


def _tear_log(live: Keyed) -> None:
    for path in (folder(live) / "_delta_log").glob("*.json"):
        path.write_bytes(b'{"add":')


def _bomb_log(live: Keyed) -> None:
    latest = sorted((folder(live) / "_delta_log").glob("*.json"))[-1]
    latest.write_text("[" * 5000 + "]" * 5000)


def _lose_file(live: Keyed) -> None:
    for name in data_files(live):
        (folder(live) / name).unlink()


def _cut_file(live: Keyed) -> None:
    for name in data_files(live):
        (folder(live) / name).write_bytes(b"PAR1")


def _other_columns(live: Keyed) -> None:
    write_deltalake(str(folder(live)), pa.table({"a": [1]}), mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize("damage", [_lose_log, _tear_log, _bomb_log, _lose_file, _cut_file, _other_columns])
@pytest.mark.slow
def test_a_damaged_table_is_recreated(live: Keyed, damage: Callable[[Keyed], None]) -> None:
    live.put([("a", "1"), ("b", "2")])
    live.take()
    damage(live)
    assert rows_of(live.cluster.snapshot("t"), "outcome", "published") == [("not now", True)]
    assert state(live) == {"a": "1", "b": "2"}


@pytest.mark.slow
def test_rows_that_others_have_appended_leave_with_the_next_publication(live: Keyed) -> None:
    live.put([("a", "1")])
    live.take()
    rows = table(live).to_pyarrow_table()
    write_deltalake(str(folder(live)), rows, mode="append")
    assert table(live).to_pyarrow_table().num_rows == 2
    live.put([("b", "1")])
    live.take()
    assert state(live) == {"a": "1", "b": "1"}


def test_a_damaged_snapshot_is_not_published(live: Keyed) -> None:
    """Every byte of it is verified first; an intact copy of another replica replaces it."""
    live.put([("a", "1")])
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})
    live.take()
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "true"})
    spot = checkpoint(live, live.leader())
    spot.flip(100)
    live.cluster.snapshot("t")
    live.cluster.snapshot("t").raise_for_failures()
    assert state(live) == {"a": "1"}


def test_a_remote_tier_that_is_gone_fails_the_topic_and_nothing_else(live: Keyed) -> None:
    live.put([("a", "1")])
    live.remote.rename(live.remote.with_name("away"))
    report = live.cluster.snapshot("t", by_hand=True, check=False)
    assert "cannot read the table" in the_failure(report) or "remote" in the_failure(report)
    assert live.held(live.leader()) == {"a": "1"}
    assert report.settled == {}
    live.remote.with_name("away").rename(live.remote)
    live.cluster.snapshot("t").raise_for_failures()
    assert state(live) == {"a": "1"}


# -------------------------------------------------------------------------------------- it goes


@pytest.mark.slow
def test_files_that_were_replaced_go_after_the_delay(live: Keyed) -> None:
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": str(DAY_MS)})
    for value in "123":
        live.put([("a", value)])
        live.take()
    assert len(data_files(live)) == 3
    live.cluster.vacuum("t").raise_for_failures()
    assert len(data_files(live)) == 3
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "0"})
    with live.unchanged():
        live.cluster.vacuum("t", dry_run=True).raise_for_failures()
    live.cluster.vacuum("t").raise_for_failures()
    assert (len(data_files(live)), state(live)) == (1, {"a": "3"})


def test_vacuum_deletes_a_table_that_was_switched_off(live: Keyed) -> None:
    live.put([("a", "1")])
    live.take()
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})
    report = live.cluster.vacuum().raise_for_failures()
    assert [row["why"] for row in report.rows if "_snapshots" in str(row["where"])] == ["switched off"]
    assert not DeltaTable.is_deltatable(str(folder(live)))


@pytest.mark.parametrize("keep_remote", [False, True])
@pytest.mark.slow
def test_the_table_goes_with_its_topic_unless_it_is_kept(live: Keyed, keep_remote: bool) -> None:
    live.put([("a", "1")])
    live.take()
    there = folder(live)
    live.cluster.topics.delete("t", keep_remote=keep_remote).raise_for_failures()
    live.cluster.vacuum().raise_for_failures()
    assert DeltaTable.is_deltatable(str(there)) is keep_remote


def test_vacuum_keeps_a_table_that_is_switched_on_again_meanwhile(
    live: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.put([("a", "1")])
    live.take()
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "false"})
    switch_on = partial(live.driver().topics.alter_configs, "t", {"remote.snapshot.table.enable": "true"})
    during(monkeypatch, vacuuming._Vacuum, "_snapshot_table", switch_on)
    assert live.cluster.vacuum().raise_for_failures().rows == []
    assert state(live) == {"a": "1"}


def test_vacuum_finds_the_table_of_a_deletion_that_died(live: Keyed) -> None:
    live.put([("a", "1")])
    live.take()
    there = folder(live)
    with dies_at(SnapshotTable, "delete"):
        live.cluster.topics.delete("t")
    assert DeltaTable.is_deltatable(str(there))
    live.cluster.vacuum().raise_for_failures()
    assert not DeltaTable.is_deltatable(str(there))


@pytest.mark.slow
def test_a_restored_cluster_takes_the_table_over(tmp_path: Path) -> None:
    """It shows the former keys until the first snapshot replaces it; the former cluster is fenced."""
    live = Keyed(tmp_path).begin(**ENABLED)
    live.tiered("u")
    live.fill("a", "u")
    live.put([("a", "1"), ("b", "1")])
    live.take()
    live.cluster.tier().raise_for_failures()
    former = live.cluster
    heir = Heir(live)
    heir.restore().raise_for_failures()
    heir.live_again()
    assert state(live) == {"a": "1", "b": "1"}
    live.put([("a", "2")])
    live.take()
    assert state(live) == {"a": "2"}
    live.put([("a", "3")], driver=former)
    assert "belongs to cluster 'heir'" in the_failure(former.snapshot("t", by_hand=True, check=False))
