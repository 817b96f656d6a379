"""Erasing the records of keys from a tiered topic: the remote tier has no trace of them, either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.engine.upkeep.erasing.remote import RemoteErasing
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.tiering.uploads import Uploads
from stratalog.partitions.errors import StorageError
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.at_calls import dies_at, during
from tests.unit.cluster_harness import TIERED, report_of, rows_of
from tests.unit.compact_remote_harness import InBothTiers, fetched, lake
from tests.unit.duckdb_tables import duckdb_rows
from tests.unit.erase_harness import (
    KEPT,
    KEY,
    OTHER,
    ROWS,
    SECRET,
    Erasable,
    erase_two_at_once,
    has,
    stop_at,
    traces,
    verified_states,
)
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.restore_harness import Heir

BOTH = {key.replace(".", "_"): value for key, value in TIERED.items()}
"""Every append is a segment that leaves the brokers at once, except for the last one."""
LOCAL = {"local_retention_bytes": "-1"}
"""The brokers keep all records that are tiered."""
UNTIERED = {
    "remote.storage.enable": "false",
    "remote.log.delete.on.disable": "true",
    "local.retention.bytes": "-2",
}
"""The topic is tiered no more, and its remote records are deleted."""


class Tiered(InBothTiers, Erasable):
    """A cluster with the tiered topic ``t``: by default only offset 5 is still on the brokers."""

    def __init__(self, folder: Path, *, tier: bool = True, **options: Any) -> None:
        super().__init__(folder, **{**BOTH, **options})
        if tier:
            self.tier_all()

    def tier_all(self) -> None:
        self.cluster.tier("t").raise_for_failures()
        for _ in range(2):
            self.cluster.retain("t").raise_for_failures()
            self.clock.sleep(1)

    def check_gone(self) -> None:
        """Check that no trace of the key is left anywhere, and that all else is unchanged."""
        assert self.fetched() == KEPT
        assert lake(self.remote / self.table().folder) == {at: KEPT[at] for at in KEPT if at < 5 or not self.hot}
        assert self.remote_traces(KEY, SECRET) == []
        assert traces(self, KEY, SECRET) == []
        assert self.cluster.verify(deep=True).ok

    @property
    def hot(self) -> bool:
        """Whether the last record is only on the brokers."""
        return self.remote_log().end(0) == 5


def test_an_object_that_is_missing_stops_an_erasure_before_its_commit(tmp_path: Path) -> None:
    """The search finds the records on the brokers. After the commit, heal would not use the brokers' files."""
    live = Tiered(tmp_path, **LOCAL)
    (live.remote / live.table().path(live.remote_log().covering(0, 3, 4)[0])).unlink()
    for dry_run in (True, False):
        (failure,) = live.erase(KEY, dry_run=dry_run).failures
        assert failure.code == "REMOTE_OBJECT_MISSING"
        assert failure.message.endswith("run heal, then erase again")
    assert live.fetched() == dict(enumerate(ROWS))
    live.cluster.heal().raise_for_failures()
    assert live.erase(KEY).whole
    live.check_gone()


def test_an_object_that_is_lost_after_the_commit_is_named_with_what_helps(tmp_path: Path) -> None:
    live = Tiered(tmp_path, **LOCAL)
    with dies_at(RemoteErasing, "_attempt"):
        live.erase(KEY)
    path = live.remote / live.table().path(live.remote_log().covering(0, 3, 4)[0])
    data = path.read_bytes()
    path.unlink()
    (failure,) = live.erase().failures
    assert path.name in failure.message
    assert failure.message.endswith("restore it from a backup of the remote tier, then erase again")
    report = live.cluster.heal(check=False)
    assert "no replica has offsets [3, 4) without the records that an unfinished erasure names" in str(
        report.notes
    )
    path.write_bytes(data)
    assert live.erase().whole
    live.check_gone()


def test_nothing_of_a_key_is_left_in_either_tier(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    assert live.log(1).local_start == 5, "the rest is only in the remote tier"
    before = live.remote_log()
    assert len(live.remote_traces(KEY)) >= 2
    report = live.erase(KEY, certificate=tmp_path / "erased.json")
    assert report.whole
    assert rows_of(report, "records", "remote_files", "files", "not_erased") == [(3, 3, 1, 0)]
    live.check_gone()
    after = live.remote_log()
    assert after.end(0) == before.end(0)
    assert after.erased_to(0) == 1
    verified = live.cluster.verify_erased(tmp_path / "erased.json")
    assert rows_of(verified, "broker", "state") == [(1, "erased"), (2, "erased"), (3, "erased"), (None, "erased")]
    remote = read_certificate(tmp_path / "erased.json").topics[0].partitions[0].remote
    assert remote is not None
    assert remote.version == after.version
    assert {file.name for file in remote.replaced} < {segment.path for segment in before.all_segments()}
    assert {file.name for file in remote.made} < {segment.path for segment in after.all_segments()}
    assert len(remote.replaced) == len(remote.made)
    assert live.cluster.heal().rows == []
    assert live.erase(KEY).whole
    assert live.remote_log().version == after.version, "a run that finds nothing commits nothing"
    live.put((KEY, "again"))
    live.tier_all()
    assert live.fetched() == {**KEPT, 6: (KEY, "again")}, "what is appended later is another record"
    live.cluster.topics.alter_configs("t", {"retention.ms": "99999999999"})


def test_the_history_of_the_table_is_gone(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    folder, version = live.remote / live.table().folder, live.remote_log().version
    assert lake(folder, version)
    live.erase(KEY).raise_for_failures()
    with pytest.raises(Exception, match="No files in log segment"):
        DeltaTable(str(folder), version=version)
    with pytest.raises(StorageError, match="an erasure deletes all earlier versions"):
        live.table()._open_at(version)
    after = DeltaTable(str(folder))
    assert after.version() > version
    assert {int(path.name[:20]) for path in (folder / "_delta_log").glob("0*")} == {after.version()}
    (checkpoint,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    removed = [row["remove"] for row in pq.read_table(checkpoint).to_pylist() if row["remove"] is not None]
    assert removed
    assert not any(row.get("stats") for row in removed)
    assert live.driver().tier().ok


def test_statistics_have_no_erased_value(tmp_path: Path) -> None:
    """Bounds of text are data: the log of the table has them in commits and checkpoints, and files in footers."""
    live = Tiered(tmp_path, tier=False, fill=False)
    configs = {**TIERED, "file.delete.delay.ms": "0"}
    live.cluster.topics.create("u", partitions=1, replication_factor=1, key="STRING", configs=configs)
    for part in (["anna", "zoe"], ["bert", "carl"], ["zoe"], ["dora"], ["emil"]):
        live.cluster.produce("u", pa.table({"key": part, "value": [b"v"] * len(part)}))
        live.cluster.tier("u").raise_for_failures()
    assert any("_delta_log" in name for name in live.remote_traces("zoe"))
    report = live.cluster.erase("u", ["zoe"])
    assert report.whole
    assert live.remote_traces("zoe") == []
    table = DeltaTable(str(next(live.remote.glob("u-*"))))
    left = [key for key in table.to_pyarrow_table()["key"].to_pylist() if key]
    assert sorted(left) == ["anna", "bert", "carl", "dora", "emil"]


def test_no_value_is_left_in_removals_of_other_programs(tmp_path: Path) -> None:
    """Spark's removals have the statistics of the file, and delta-rs copies them to the checkpoint."""
    live = Tiered(tmp_path)
    log = live.remote / live.table().folder / "_delta_log"
    bounds = json.dumps({"numRecords": 0, "minValues": {"key": KEY}, "maxValues": {"key": KEY}, "nullCount": {}})
    common = {"path": "part-1.parquet", "partitionValues": {}, "size": 10, "dataChange": False, "stats": bounds}
    removal = {**common, "extendedFileMetadata": True, "deletionTimestamp": 1_900_000_000_000}
    for action in ({"add": {**common, "modificationTime": 1}}, {"remove": removal}):
        (log / f"{live.remote_log().version + 1:020d}.json").write_text(json.dumps(action))
    assert live.erase(KEY).whole
    live.check_gone()


def test_other_engines_read_the_result(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    live.erase(KEY).raise_for_failures()
    folder = str(live.remote / live.table().folder)
    wanted = [value.encode() for at, (_, value) in KEPT.items() if at < 5 and value is not None]
    assert [row[1] for at, row in sorted(lake(Path(folder)).items())] == [value.decode() for value in wanted]
    frame = pl.read_delta(folder).filter(pl.col("control").is_null()).sort("offset")
    assert frame["value"].to_list() == wanted


def test_duckdb_reads_the_result(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    live.erase(KEY).raise_for_failures()
    table = f"delta_scan('{live.remote / live.table().folder}')"
    rows = duckdb_rows("delta", f'select value from {table} where control is null order by "offset"')
    assert [value.decode() for (value,) in rows] == ["1", "2", "3"]


@pytest.mark.parametrize("local", [False, True])
def test_replaced_objects_wait_for_their_readers(tmp_path: Path, local: bool) -> None:
    live = Tiered(tmp_path, file_delete_delay_ms="60000", **(LOCAL if local else {}))
    first = live.erase(KEY)
    assert first.ok
    assert not first.whole
    assert first.certificate is not None
    assert "remote tier" in str(first.certificate.topics[0].partitions[0].not_erased)
    assert live.fetched() == KEPT
    assert live.remote_traces(KEY), "readers of the version before may need them"
    assert "unfinished-erasure" in str(live.cluster.health().findings)
    assert live.erase(now=True).whole
    live.check_gone()
    assert "unfinished-erasure" not in str(live.cluster.health().findings)


@pytest.mark.parametrize("now", [False, True])
def test_a_dry_run_counts_what_a_run_then_does(tmp_path: Path, now: bool) -> None:
    live = Tiered(tmp_path, file_delete_delay_ms="60000" if now else "0")
    columns = ["records", "files", "remote_files", "deleted_files", "read_bytes"]
    objects = sorted(live.remote.rglob("*"))
    with live.unchanged():
        planned = rows_of(live.erase(KEY, now=now, dry_run=True), *columns)
    assert sorted(live.remote.rglob("*")) == objects
    assert planned == rows_of(live.erase(KEY, now=now), *columns)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("of", "step"),
    [
        (RemoteErasing, "_attempt"),
        (DeltaTopicTable, "remove_records"),
        (DeltaTopicTable, "record_erasures"),
        (erasing, "erase_partition"),
        (erasing._Erasing, "clean"),
        (erasing._Erasing, "clean_remotely"),
        (DeltaTopicTable, "load_with_removed"),
        (DeltaTopicTable, "delete_history"),
        (erasing._Erasing, "forget"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_the_next_run_goes_on_wherever_the_last_one_ended(tmp_path: Path, of: Any, step: str, after: bool) -> None:
    live = Tiered(tmp_path)
    with dies_at(of, step, after=after):
        live.erase(KEY)
    held = live.fetched()
    assert KEPT.items() <= held.items() <= dict(enumerate(ROWS)).items()
    assert live.driver().tier().ok
    assert live.driver().verify(deep=True).ok
    assert live.erase().whole
    live.check_gone()
    assert live.erase(KEY).whole


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(1, 34, 4))
def test_a_driver_that_dies_at_any_write_leaves_whole_logs(tmp_path: Path, number: int) -> None:
    faults = Faults()
    live = Tiered(tmp_path, through=faults.wrap)
    with faults.dies_at(number, *CHANGES, at="remote"):
        live.erase(KEY)
    held = live.fetched()
    assert KEPT.items() <= held.items() <= dict(enumerate(ROWS)).items()
    assert live.driver().erase("t", [KEY], now=True).whole
    live.check_gone()


def test_two_at_once_harm_nothing(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    erase_two_at_once(live)
    assert live.fetched() == {}
    assert live.remote_traces(KEY, OTHER, SECRET) == []


def test_an_upload_that_was_planned_before_is_not_committed_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata have even forgotten the offsets when the uploads are to be committed."""
    live = Tiered(tmp_path, tier=False, **LOCAL)
    erasures: list[ErasureReport] = []
    during(monkeypatch, Uploads, "_commit", lambda: erasures.append(live.driver().erase("t", [KEY], now=True)))
    report = report_of(lambda: live.driver().tier("t"))
    assert erasures[0].whole
    assert "an erasure has removed records" in str(report.failures)
    assert live.names() == []
    live.driver().tier("t").raise_for_failures()
    assert live.names() == ["0-2.1", "2-3.0", "3-4.1", "4-5.0", "5-6.1"]
    live.check_gone()


def test_an_upload_without_a_commit_is_deleted(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    old = {path: path.read_bytes() for path in live.remote.glob("t-*/0/**/*.parquet") if has(path, KEY)}
    live.erase(KEY, certificate=tmp_path / "c").raise_for_failures()
    path, data = next(iter(old.items()))
    path.write_bytes(data)
    assert verified_states(live, tmp_path / "c") == [*["erased"] * 3, "not erased"]
    again = live.erase(KEY)
    assert again.whole
    assert not path.exists()
    live.check_gone()


def test_an_unknown_object_leaves_the_erasure_unknown(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    (live.remote / live.table().folder / "export.parquet").write_bytes(b"x")
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert not report.whole
    assert "export.parquet" in str(report.failures)
    assert verified_states(live, tmp_path / "c") == [*["erased"] * 3, "unknown"]
    (live.remote / live.table().folder / "export.parquet").unlink()
    assert live.erase(KEY).whole


def test_a_rebuilt_object_has_no_erased_record(tmp_path: Path) -> None:
    """The brokers still have all records, as the run ended before it rewrote their files."""
    live = Tiered(tmp_path, **LOCAL)
    stop_at(live, "erase_partition")
    assert "0-2.1" in live.names()
    (segment,) = [one for one in live.remote_log().of_partition(0) if one.base_offset == 0]
    path = live.remote / live.table().folder / segment.path
    path.unlink()
    report_of(lambda: live.driver().heal())
    assert not has(path, KEY)
    assert all(not has(path, KEY) for path in live.remote.glob("t-*/0/**/*-2*.1*.parquet"))
    report_of(lambda: live.erase())
    live.driver().heal().raise_for_failures()
    assert live.erase(KEY, now=True).whole
    live.check_gone()


def test_a_follower_that_begins_again_in_the_middle_gets_no_erased_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Tiered(tmp_path)

    def wipe() -> None:
        store = live.store(3)
        store.delete([stored.name for stored in store.walk(live.replica(3).folder)])
        live.driver().replicate("t")

    during(monkeypatch, erasing._Erasing, "clean", wipe)
    report_of(lambda: live.erase(KEY))
    live.driver().replicate("t")
    assert live.erase(KEY, now=True).whole
    live.check_gone()


def test_a_restored_cluster_has_no_erased_record(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    live.erase(KEY).raise_for_failures()
    heir = Heir(live)
    heir.restore().raise_for_failures()
    assert lake(live.remote / live.table().folder) == {at: KEPT[at] for at in KEPT if at < 5}


def test_an_erasure_refused_midway_leaves_the_replicas_as_they_were(tmp_path: Path) -> None:
    """The remote tier refuses writes: the offsets are committed, and no replica has followed yet."""
    faults = Faults()
    live = Tiered(tmp_path, through=faults.wrap, **LOCAL)

    faults.refuse(StorageError("it refuses writes for now"), *CHANGES, at="remote")
    report = live.erase(KEY)
    assert not report.ok
    assert "refuses writes" in str(report.failures)
    assert live.everywhere() == dict(enumerate(ROWS)), "a broker must not follow before the remote log"
    assert not any(live.names()[at].endswith(".1") for at in range(2))
    report_of(lambda: live.driver().tier("t"))
    faults.none()
    assert live.erase().whole
    live.check_gone()


def test_nothing_is_changed_when_the_remote_tier_cannot_be_read(tmp_path: Path) -> None:
    faults = Faults()
    live = Tiered(tmp_path, through=faults.wrap)

    faults.refuse(StorageError("it does not answer"), at="remote")
    with pytest.raises(StorageError):
        live.erase(KEY)
    faults.none()
    assert live.cluster.image.erasures == {}


def test_an_erasure_that_was_begun_ends_in_a_topic_that_is_compacted_since(tmp_path: Path) -> None:
    live = Tiered(tmp_path, file_delete_delay_ms="60000")
    assert not live.erase(KEY).whole
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "compact"})
    live.cluster.compact("t").raise_for_failures()
    assert live.erase(OTHER).ok
    assert live.erase(now=True).whole
    assert live.fetched() == {}
    assert live.remote_traces(KEY, OTHER, SECRET) == traces(live, KEY, OTHER, SECRET) == []
    assert live.cluster.compact().ok
    assert live.cluster.verify(deep=True).ok


def test_a_cached_table_is_not_read_after_an_erasure(tmp_path: Path) -> None:
    live = Tiered(tmp_path, file_delete_delay_ms="60000")
    reader = live.driver()
    assert live.fetched(reader) == dict(enumerate(ROWS))
    live.erase(KEY)
    assert live.fetched(reader) == KEPT


def test_a_topic_that_becomes_tiered_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Erasable(tmp_path)
    enabled = {"remote.storage.enable": "true"}
    during(monkeypatch, erasing._Erasing, "remove", lambda: live.driver().topics.alter_configs("t", enabled))
    report = live.erase(KEY)
    assert "became tiered after the search for its records" in str(report.failures)
    assert live.erase(KEY).whole
    assert fetched(live.driver()) == KEPT


@pytest.mark.parametrize("touched", [1, 4, 12])
def test_the_cost_is_linear_in_the_touched_segments(tmp_path: Path, touched: int) -> None:
    faults = Faults()
    live = Tiered(tmp_path, tier=False, fill=False, through=faults.wrap)
    for number in range(24):
        live.put((KEY if number < touched else OTHER, f"{number}"), ("x", "y"))
    live.tier_all()
    counts = dict.fromkeys(("create", "commit", "stage_writer"), 0)

    def count(uri: str, what: str, name: str) -> None:
        if uri.endswith("remote") and name.endswith(".parquet") and what in counts:
            counts[what] += 1

    faults.before = count
    report = live.erase(KEY)
    assert report.whole
    assert rows_of(report, "records", "remote_files") == [(touched, touched)]
    assert sum(counts.values()) <= 3 * touched
