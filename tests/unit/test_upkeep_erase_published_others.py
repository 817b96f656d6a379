"""Erasures from published snapshots after other programs have changed the table, its log, or its properties: the
table stays readable and right, no value of the key is certified as erased, and no run goes on for ever.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import CommitProperties, write_deltalake

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing import published as publishing
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.snapshots import publish as publish_module
from stratalog.partitions.errors import InconsistentClusterIdError
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.ports import ports_of
from tests.unit.at_calls import during
from tests.unit.erase_harness import KEY, OTHER, SECRET, stop_at
from tests.unit.erase_snapshots_harness import ALL, LATER, NO_ANSWER, STATE, Erasable, Published, published_topic
from tests.unit.snapshot_table_harness import data_files, folder, state, table

BOUNDS = json.dumps(
    {"numRecords": 1, "minValues": {"key": KEY}, "maxValues": {"key": KEY}, "nullCount": {"key": 0}}
)


live = published_topic


def write_entry(live: Published, *actions: dict[str, Any]) -> None:
    """Another program commits a version."""
    name = f"{table(live).version() + 1:020d}.json"
    (folder(live) / "_delta_log" / name).write_text("\n".join(map(json.dumps, actions)))


def add(path: str, **more: Any) -> dict[str, Any]:
    """The action that adds a file with the key."""
    common = {"partitionValues": {}, "size": 10, "modificationTime": 1, "dataChange": True, "stats": BOUNDS}
    return {"add": {"path": path, **common, **more}}


def partition_by(live: Published, column: str) -> None:
    """Another program writes the table again, with a partition column."""
    rows = table(live).to_pyarrow_table()
    write_deltalake(str(folder(live)), rows, mode="overwrite", schema_mode="overwrite", partition_by=[column])


def remove_what_is_unknown(live: Published, report: ErasureReport) -> None:
    """Do what the report says about objects of other programs."""
    assert not report.whole
    assert "remove it by hand" in str(report.failures)
    for path in folder(live).rglob("part-*.parquet"):
        path.unlink()


# -------------------------------------------------------------------- a table that lists nothing


@pytest.mark.parametrize("column", ["partition", "key"])
def test_a_table_that_was_partitioned_is_created_again(live: Published, column: str) -> None:
    """Readers would find nulls in that column of every file that this product adds."""
    partition_by(live, column)
    live.cluster.snapshot("t").raise_for_failures()
    assert state(live) == ALL
    assert set(table(live).to_pyarrow_table()["partition"].to_pylist()) == {0}
    remove_what_is_unknown(live, live.erase(KEY))
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_table_that_was_partitioned_is_kept_while_it_may_be_the_only_copy(live: Published) -> None:
    partition_by(live, "partition")
    before = sorted(table(live).to_pyarrow_table()["key"].to_pylist())
    live.restore()
    assert not live.erase(KEY).whole
    live.cluster.snapshot("t", by_hand=True, check=False)
    assert sorted(table(live).to_pyarrow_table()["key"].to_pylist()) == before


@pytest.mark.parametrize("feature", ["rowTracking", "domainMetadata", None])
def test_a_table_that_cannot_be_written_is_created_again(live: Published, feature: str | None) -> None:
    if feature is None:
        table(live).alter.set_table_properties({"delta.appendOnly": "true"})
    else:
        versions = {"minReaderVersion": 3, "minWriterVersion": 7}
        write_entry(live, {"protocol": {**versions, "readerFeatures": [], "writerFeatures": [feature]}})
    report = live.erase(KEY).raise_for_failures()
    assert report.whole
    assert "the table of its snapshots was created again" in str(report.notes)
    live.check_gone()


def test_a_slow_job_does_not_delete_the_log_that_another_has_created(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files are from before an erasure, so the table would be empty."""
    table(live).alter.set_table_properties({"delta.appendOnly": "true"})
    other = live.driver()

    def create_and_erase() -> None:
        other.snapshot("t").raise_for_failures()
        assert other.erase("t", [KEY], check=False).whole

    during(monkeypatch, SnapshotTable, "create_again", create_and_erase)
    live.cluster.snapshot("t", check=False)
    assert state(live) == STATE


def test_a_table_that_was_replaced_says_what_to_do(live: Published) -> None:
    """CREATE OR REPLACE TABLE drops the properties that name the cluster."""
    schema = table(live).schema().to_json()
    common = {"id": "x", "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    write_entry(live, {"metaData": {**common, "schemaString": schema, "configuration": {}}})
    with pytest.raises(
        InconsistentClusterIdError, match=r"another program has created or replaced.*vacuum"
    ) as raised:
        live.erase(KEY)
    assert "correct the remote tier" not in str(raised.value)
    live.disable()
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "true"})
    assert live.erase(KEY).whole
    live.check_gone()


# --------------------------------------------------------------------------- commits without end


@pytest.mark.parametrize("path", ["0/a%20b.parquet", "0/a%2520b.parquet", "0/%C3%A4.parquet"])
def test_a_file_whose_path_is_encoded_leaves_the_table(live: Published, path: str) -> None:
    [name] = data_files(live)
    (folder(live) / unquote(path)).write_bytes((folder(live) / name).read_bytes())
    write_entry(live, add(path))
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_file_that_cannot_be_removed_ends_the_commit(live: Published) -> None:
    """Its path should be encoded, and is not."""
    write_entry(live, add("0/a b.parquet"))
    before = table(live).version()
    report = live.erase(KEY)
    assert not report.whole
    assert "still lists 0/a b.parquet of another program" in str(report.failures)
    assert table(live).version() == before + 1


def test_a_program_that_never_stops_ends_the_commit(live: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    put, names = SnapshotTable._put, iter(range(1000))

    def beside(self: SnapshotTable, *planned: Any) -> None:
        put(self, *planned)
        write_entry(live, add(f"part-{next(names)}.parquet"))

    monkeypatch.setattr(SnapshotTable, "_put", beside)
    report = live.erase(KEY)
    assert not report.whole
    assert "stop it, then try again" in str(report.failures)


# ------------------------------------------------------------------- values of keys in the log


@pytest.mark.parametrize(
    "values", [{"stats": BOUNDS}, {"tags": {"of": KEY}}, {"partitionValues": {"key": KEY}}], ids=[*"stv"]
)
def test_no_value_is_left_in_the_removals_of_a_checkpoint(live: Published, values: dict[str, Any]) -> None:
    """Spark's removals have the statistics of the file, and delta-rs copies them to the checkpoint."""
    write_entry(live, add("part-1.parquet"))
    removal = {"path": "part-1.parquet", "dataChange": True, "deletionTimestamp": 1_900_000_000_000, "size": 10}
    write_entry(live, {"remove": {"extendedFileMetadata": True, "partitionValues": {}, **removal, **values}})
    assert live.erase(KEY).whole
    live.check_gone()


def test_an_entry_that_is_alone_in_the_log_is_not_left(live: Published) -> None:
    """Another program has deleted all others, as a cleanup of the log does."""
    live.erase(KEY).raise_for_failures()
    info = CommitProperties(custom_metadata={"of": KEY})
    table(live).alter.set_table_properties({"a": "1"}, raise_if_not_exists=False, commit_properties=info)
    table(live).create_checkpoint()
    for path in (folder(live) / "_delta_log").glob("0*"):
        if int(path.name[:20]) < table(live).version():
            path.unlink()
    assert live.remote_traces(KEY)
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_commit_to_the_log_that_gets_no_answer_is_reported(live: Published) -> None:
    """The newest entry is gone, and only its checkpoint is left, so delta-rs cannot commit."""
    table(live).alter.set_table_properties({"a": "1"}, raise_if_not_exists=False)
    table(live).create_checkpoint()
    (folder(live) / "_delta_log" / f"{table(live).version():020d}.json").unlink()
    report = live.erase("nobody")
    assert not report.whole
    assert "cannot commit to the table" in str(report.failures)


def test_the_checksum_that_spark_writes_on_folders_is_no_unknown_file(live: Published) -> None:
    (folder(live) / "_delta_log" / "._last_checkpoint.crc").write_bytes(b"crc")
    assert live.erase(KEY).whole


# ---------------------------------------------------- a table that lists a file that is not there


@pytest.mark.parametrize("step", [(publishing._Cleaning, "look"), (SnapshotTable, "_delete_older")])
def test_a_restore_of_the_table_meanwhile_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    """It lists the file with the key again, which the run then deletes."""
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    version = table(live).version()

    def restore() -> None:
        table(live).restore(version, ignore_missing_files=True)

    with monkeypatch.context() as patch:
        during(patch, step[0], step[1], restore, after=step[1] == "look")
        report = live.erase(KEY, now=True)
    if step[1] == "look":
        assert not report.whole
        assert "another program has restored" in str(report.failures)
    assert live.erase(KEY, now=True).whole
    live.check_gone()


def test_a_vacuum_of_another_program_meanwhile_is_reported(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes the file that the run is about to list."""

    def vacuum() -> None:
        table(live).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)

    with monkeypatch.context() as patch:
        during(patch, SnapshotTable, "commit", vacuum)
        report = live.erase(KEY)
    assert not report.whole
    assert "it is missing, or has another size" in str(report.failures)
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_file_that_a_job_is_about_to_list_is_kept_if_the_run_could_not_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first file of the table, so no version of the run comes before it."""
    live = Erasable(tmp_path).start(remote_snapshot_table_enable="false")
    live.cluster.topics.alter_configs("t", {"remote.snapshot.table.enable": "true"})
    eraser = live.driver()

    def erase() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(publish_module, "write_latest", NO_ANSWER)
            report = eraser.erase("t", [KEY], check=False)
        assert not report.whole
        assert "the table lists no snapshot of partition 0" in str(report.failures)

    during(monkeypatch, SnapshotTable, "_put", erase)
    live.cluster.snapshot("t")
    assert KEY in state(live), "the table can be read"
    assert live.erase().whole
    assert state(live) == STATE


# ------------------------------------------------------------------------------ former tables


def test_an_unfinished_upload_is_named_after_publishing_was_switched_off(live: Published) -> None:
    remote = ports_of(live.cluster).storage.remote
    assert remote is not None
    staged = remote.stage_writer(f"{folder(live).parent.name}/{folder(live).name}/0/x.parquet")
    staged.file.write(SECRET.encode())
    live.disable()
    report = live.erase(KEY)
    assert not report.whole
    assert "unfinished uploads have no name yet" in str(report.failures)
    staged.abort()
    assert live.erase(KEY).whole


def test_a_late_object_is_named_after_the_topic_has_no_snapshots_any_more(
    live: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = data_files(live)
    late, held = folder(live) / name, (folder(live) / name).read_bytes()
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "delete"})
    live.cluster.vacuum("t").raise_for_failures()
    for broker in (1, 2, 3):
        store = live.store(broker)
        store.delete([stored.name for stored in store.walk("") if stored.name.endswith(".checkpoint")])

    def write() -> None:
        late.parent.mkdir(parents=True, exist_ok=True)
        late.write_bytes(held)

    during(monkeypatch, erasing, "find_records", write)
    report = live.erase(KEY)
    assert late.name in str(report.failures)
    assert not report.whole


@pytest.mark.parametrize("elections", [1, 2, 3])
def test_no_erasure_gets_the_generation_of_an_object_of_the_former_cluster(tmp_path: Path, elections: int) -> None:
    """Otherwise a run without keys would take an object with the key for one that follows the erasure."""
    live = Published(tmp_path).start(file_delete_delay_ms="60000")
    for _ in range(elections):
        live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.erase(LATER, now=True).raise_for_failures()
    former = live.generation()
    heir = live.restore()
    live.put([(OTHER, "4"), (KEY, SECRET)])
    stop_at(live, "publish")
    assert live.replicas().view.last_erasure != former
    assert heir.open().erase("t", None, now=True, check=False).whole
    assert state(live) == {OTHER: "4"}
    assert live.remote_traces(KEY, SECRET) == []
