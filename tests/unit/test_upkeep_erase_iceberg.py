"""Erasing the records of keys from a topic with an Iceberg table: nothing of them is left in its metadata."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.engine.upkeep.erasing.iceberg import IcebergTwin
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.partitions.errors import InvalidConfigError, PolicyViolationError
from stratalog.tiering import iceberg_table
from stratalog.tiering.iceberg_table import IcebergTable
from tests.unit.at_calls import dies_at, during
from tests.unit.cluster_harness import report_of, rows_of
from tests.unit.duckdb_tables import duckdb_rows
from tests.unit.erase_harness import KEPT, KEY, OTHER, SECRET, erase_two_at_once, has, verified_states
from tests.unit.test_upkeep_compact import Row
from tests.unit.test_upkeep_erase_both_rules import ALSO, Both
from tests.unit.test_upkeep_erase_remote import LOCAL, UNTIERED, Tiered

pyiceberg_catalog = pytest.importorskip("pyiceberg.catalog", reason="needs stratalog[iceberg]")
pytest.importorskip("sqlalchemy", reason="pyiceberg's catalog in SQLite needs SQLAlchemy")

ExpireSnapshots = pytest.importorskip("pyiceberg.table.update.snapshot").ExpireSnapshots
ManifestFile = pytest.importorskip("pyiceberg.manifest").ManifestFile
iceberg_history = pytest.importorskip("stratalog.tiering.iceberg_history")
TableFiles = iceberg_history.TableFiles

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # pyiceberg leaves connections to SQLite open
]

NAME = "lake.flights.trips"


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog as pyiceberg's users configure one."""
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())


class Listed(Tiered):
    """The tiered topic ``t`` with an Iceberg table."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"remote_iceberg_table": NAME, **options})
        self.warehouse = folder / "warehouse"

    def iceberg_traces(self, *words: str) -> list[str]:
        """The files of the Iceberg table that have one of the words: in their bytes, or decoded."""
        return [path.name for path in sorted(self.warehouse.rglob("*")) if in_avro(path, *words)]

    def listed(self) -> dict[int, Row]:
        """What pyiceberg reads: keys and values by offset."""
        found = table().scan("control IS NULL").to_arrow().to_pylist()
        return {
            row["offset"]: tuple(each and each.decode() for each in (row["key"], row["value"])) for row in found
        }

    def check_gone(self) -> None:
        super().check_gone()
        assert self.iceberg_traces(KEY, SECRET) == []
        assert self.listed() == {at: KEPT[at] for at in KEPT if at < 5 or not self.hot}


def table() -> Table:
    """As anybody opens it."""
    loaded: Table = pyiceberg_catalog.load_catalog("lake").load_table("flights.trips")
    return loaded


def in_avro(path: Path, *words: str) -> bool:
    if not path.is_file():
        return False
    if path.suffix != ".avro":
        return has(path, *words)
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.io.pyarrow import PyArrowFileIO

    with AvroFile(PyArrowFileIO().new_input(f"file://{path}")) as reader:
        text = str([list(map(str, record._data)) for record in reader]).encode()
    return any(word.encode() in text for word in words)


def test_nothing_of_a_key_is_left_in_the_iceberg_table(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    assert live.iceberg_traces(KEY), "the test sees bounds"
    report = live.erase(KEY, certificate=tmp_path / "erased.json")
    assert report.whole
    assert "files of Iceberg table lake.flights.trips were deleted" in str(report.notes)
    live.check_gone()
    remote = read_certificate(tmp_path / "erased.json").topics[0].partitions[0].remote
    assert remote is not None
    assert remote.iceberg is not None
    assert remote.iceberg.table == NAME
    snapshot = table().current_snapshot()
    assert snapshot is not None
    assert remote.iceberg.sequence_number == snapshot.sequence_number
    assert snapshot.summary is not None
    assert snapshot.summary["stratalog.offsets"] == '{"0":[0,6]}'
    files = sorted(live.warehouse.rglob("*"))
    assert live.erase(KEY).whole
    assert sorted(live.warehouse.rglob("*")) == files, "a run that finds nothing changes nothing"
    verified = live.cluster.verify_erased(tmp_path / "erased.json")
    assert rows_of(verified, "broker", "state")[-1] == (None, "erased")
    live.put((OTHER, "again"))
    live.tier_all()
    assert live.listed() == {**KEPT, 6: (OTHER, "again")}
    assert live.cluster.vacuum().ok


class ListedBoth(Both, Listed):
    """The tiered and compacted topic ``t`` with an Iceberg table."""

    def check_gone(self, *keys: str) -> None:
        Both.check_gone(self, *keys)
        assert self.iceberg_traces(*keys) == []
        tiered = self.remote_log().end(0)
        assert self.listed() == {at: row for at, row in self.fetched().items() if at < tiered}


@pytest.mark.sample(2)
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("first", ["compact", "erase"])
def test_the_table_of_a_compacted_topic_follows_both_kinds_of_rule(
    tmp_path: Path, local: bool, first: str
) -> None:
    live = ListedBoth(tmp_path, **(LOCAL if local else {}))
    if first == "compact":
        live.cluster.compact("t").raise_for_failures()
    assert live.erase(KEY, certificate=tmp_path / "c").whole
    live.check_gone(KEY)
    live.add(((ALSO, "3"), (KEY, "3"), ("c", "1"), (ALSO, "4"), (KEY, "4"), ("y", "1")))
    live.cluster.compact("t").raise_for_failures()
    assert live.erase(KEY, ALSO).whole
    live.check_gone(KEY, ALSO)
    live.add(((ALSO, "5"), ("x", "1")))
    live.cluster.compact("t").raise_for_failures()
    live.check_gone(KEY)
    assert live.cluster.verify_erased(tmp_path / "c").ok
    assert live.cluster.vacuum().ok


def test_snapshots_wait_for_their_readers_like_the_objects(tmp_path: Path) -> None:
    live = Listed(tmp_path, file_delete_delay_ms="60000")
    old = table()
    held = old.scan().to_arrow().num_rows
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert report.ok
    assert not report.whole
    assert report.certificate is not None
    assert f"Iceberg table {NAME}" in str(report.certificate.topics[0].partitions[0].not_erased)
    assert live.listed() == KEPT, "its newest snapshot has no erased record"
    assert old.scan().to_arrow().num_rows == held
    present = table()
    assert "unfinished-erasure" in str(live.cluster.health().findings)
    assert verified_states(live, tmp_path / "c")[-1] == "not erased"
    live.cluster.vacuum()
    assert live.iceberg_traces(KEY)
    assert live.erase(now=True).whole
    live.check_gone()
    assert present.scan("control IS NULL").to_arrow().num_rows == len(KEPT), "a reader of the newest goes on"
    assert "unfinished-erasure" not in str(live.cluster.health().findings)


def test_a_dry_run_changes_nothing_and_names_the_table(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    report = live.erase(KEY, dry_run=True)
    assert f"the older snapshots of Iceberg table {NAME} are removed" in str(report.notes)
    assert sorted(tmp_path.rglob("*")) == files


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("of", "step"),
    [
        (IcebergTable, "follow"),
        (IcebergTable, "_commit"),
        (IcebergTwin, "follow"),
        (IcebergTwin, "delete_history"),
        (IcebergTable, "follow_clean"),
        (iceberg_table, "_commit_unchanged"),
        (ExpireSnapshots, "_commit"),
        (iceberg_history, "unnamed"),
        (TableFiles, "delete"),
        (iceberg_history.MetadataFiles, "outdated"),
        (iceberg_history, "unknown_files"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_the_next_run_goes_on_wherever_the_last_one_ended(tmp_path: Path, of: Any, step: str, after: bool) -> None:
    live = Listed(tmp_path)
    with dies_at(of, step, after=after):
        live.erase(KEY)
    assert live.listed().items() >= KEPT.items(), "readers go on"
    assert live.driver().tier("t").ok
    assert live.erase(KEY, certificate=tmp_path / "c").whole
    live.check_gone()
    assert live.cluster.verify_erased(tmp_path / "c").ok


def test_two_at_once_harm_nothing(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    erase_two_at_once(live)
    assert live.iceberg_traces(KEY, OTHER, SECRET) == []
    assert live.listed() == {}


def test_a_late_job_loses_the_race_against_the_erasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has written its lists and manifests, with values of the key, and commits when the erasure is whole."""
    from pyiceberg.catalog.sql import SqlCatalog

    live = Listed(tmp_path)
    live.put((KEY, "late"), (OTHER, "other"))
    seen: list[tuple[bool, list[str]]] = []

    def erase() -> None:
        whole = live.driver().erase("t", [KEY], now=True).whole
        seen.append((whole, live.iceberg_traces(KEY)))

    during(monkeypatch, SqlCatalog, "commit_table", erase)
    live.driver().tier("t", check=False)
    assert seen == [(True, [])], "its files were found and deleted"
    live.driver().tier("t").raise_for_failures()
    assert live.iceberg_traces(KEY) == []
    assert live.listed() == {**KEPT, 7: (OTHER, "other")}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("of", "number"), [("erase", 1), ("erase", 2), ("erase", 3), ("tier", 1), ("erase litter", 1)]
)
def test_an_erasure_in_the_middle_of_a_commit_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, number: int
) -> None:
    """All files of the commit are written, and the other erasure lists them before the catalog gets it."""
    from pyiceberg.catalog.sql import SqlCatalog

    live = Listed(tmp_path)
    commit, calls, whole = SqlCatalog.commit_table, [], []
    if of != "erase":
        assert live.erase(KEY).whole
    if of == "tier":
        live.put((OTHER, "late"))
    if of == "erase litter":
        litter = next(live.warehouse.rglob("*-m0.avro"))
        litter.with_name("litter-m0.avro").write_bytes(litter.read_bytes())

    def late(catalog: SqlCatalog, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            whole.append(live.driver().erase("t", [KEY], now=True).whole)
        return commit(catalog, *args)

    monkeypatch.setattr(SqlCatalog, "commit_table", late)
    run = live.driver()
    report = run.tier("t") if of == "tier" else run.erase("t", [KEY], now=True)
    report.raise_for_failures()
    assert whole == [True]
    assert live.driver().erase("t", [KEY], now=True).whole
    assert live.iceberg_traces(KEY) == []
    assert live.listed() == ({**KEPT, 6: (OTHER, "late")} if of == "tier" else KEPT)


@pytest.mark.parametrize("read", ["_files", "_grow"])
def test_a_job_that_reads_a_snapshot_while_it_goes_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    live = Listed(tmp_path)
    live.put((OTHER, "late"), (OTHER, "other"))
    erasures: list[ErasureReport] = []
    during(monkeypatch, iceberg_table, read, lambda: erasures.append(live.driver().erase("t", [KEY], now=True)))
    live.driver().tier("t").raise_for_failures()
    assert erasures[0].whole
    assert live.iceberg_traces(KEY) == []
    assert live.listed() == {**KEPT, 6: (OTHER, "late"), 7: (OTHER, "other")}


def test_a_file_of_a_job_that_died_is_deleted(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    (old, *_) = [path for path in live.warehouse.rglob("*-m0.avro") if in_avro(path, KEY)]
    data = old.read_bytes()
    assert live.erase(KEY, certificate=tmp_path / "c").whole
    old.write_bytes(data)
    report = report_of(lambda: live.cluster.verify_erased(tmp_path / "c"))
    assert [row["state"] for row in report.rows][-1] == "unknown"
    assert "no snapshot names it" in str(report.failures)
    assert live.erase(KEY).whole
    live.check_gone()
    assert live.cluster.verify_erased(tmp_path / "c").ok


def test_a_snapshot_that_a_tag_keeps_is_named(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    snapshot = table().current_snapshot()
    assert snapshot is not None
    table().manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert not report.whole
    assert "the tag or branch 'audit' keeps it" in str(report.failures)
    assert verified_states(live, tmp_path / "c")[-1] == "not erased"
    table().manage_snapshots().remove_tag("audit").commit()
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_manifest_of_many_snapshots_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Listed(tmp_path)
    for number in range(5):
        live.put((OTHER, f"{number}"))
        live.cluster.tier("t").raise_for_failures()
    loaded, read = table(), []
    fetch = ManifestFile.fetch_manifest_entry
    monkeypatch.setattr(
        ManifestFile,
        "fetch_manifest_entry",
        lambda manifest, *args, **options: (
            read.append(manifest.manifest_path) or fetch(manifest, *args, **options)
        ),
    )
    assert len(loaded.snapshots()) > 5
    everything = {each.snapshot_id for each in loaded.snapshots()}
    assert iceberg_history.unclean_snapshots(loaded, (), loaded.snapshots()) == everything
    listed = {task.file.file_path for task in loaded.scan().plan_files()}
    read.clear()
    iceberg_history.unclean_snapshots(loaded, listed, loaded.snapshots())
    assert len(read) == len(set(read)) > 5


def test_files_that_others_have_written_into_the_table_are_named(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    table().append(table().scan().to_arrow())
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert not report.whole
    assert "its content is unknown: remove it by hand" in str(report.failures)
    assert verified_states(live, tmp_path / "c")[-1] == "unknown"
    for path in live.warehouse.rglob("*.parquet"):
        path.unlink()
    assert live.erase(KEY).whole
    live.check_gone()


def test_a_catalog_that_is_away_leaves_the_erasure_unfinished(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    catalog = tmp_path / "catalog.db"
    catalog.rename(tmp_path / "away.db")
    catalog.mkdir()
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert not report.whole
    assert "its history cannot be deleted" in str(report.failures)
    assert live.fetched() == KEPT
    assert live.remote_traces(KEY) == [], "the objects do not wait for it"
    assert "unfinished-erasure" in str(live.cluster.health().findings)
    assert verified_states(live, tmp_path / "c")[-1] == "unknown"
    catalog.rmdir()
    (tmp_path / "away.db").rename(catalog)
    assert live.erase().whole
    live.check_gone()


def test_the_table_stays_configured_until_the_erasure_is_whole(tmp_path: Path) -> None:
    live = Listed(tmp_path, file_delete_delay_ms="60000")
    live.erase(KEY)
    for name in ("", "lake.flights.other"):
        with pytest.raises(InvalidConfigError, match="an erasure of the topic's records is not finished"):
            live.cluster.topics.alter_configs("t", {"remote.iceberg.table": name})
    with pytest.raises(
        InvalidConfigError, match="switched off, because an erasure of the topic's records is not finished"
    ):
        live.cluster.topics.alter_configs("t", UNTIERED)
    assert live.erase(now=True).whole
    live.cluster.topics.alter_configs("t", UNTIERED)
    live.cluster.topics.alter_configs("t", {"remote.iceberg.table": ""})


def test_defaults_of_the_cluster_keep_the_table_configured_too(tmp_path: Path) -> None:
    live = Listed(tmp_path, file_delete_delay_ms="60000")
    live.cluster.topics.alter_configs(None, {"remote.iceberg.table": NAME})
    live.cluster.topics.alter_configs("t", {"remote.iceberg.table": None})
    live.erase(KEY)
    with pytest.raises(InvalidConfigError, match="an erasure of the topic's records is not finished"):
        live.cluster.topics.alter_configs(None, {"remote.iceberg.table": None})
    assert live.erase(now=True).whole
    live.cluster.topics.alter_configs(None, {"remote.iceberg.table": None})


def test_a_topic_that_is_not_tiered_may_change_its_table_before_an_erasure(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    live.erase(KEY)
    live.cluster.topics.alter_configs("t", UNTIERED)
    live.cluster.retain("t").raise_for_failures()
    with pytest.raises(PolicyViolationError, match="to an empty string"):
        live.erase(OTHER)
    live.cluster.topics.alter_configs("t", {"remote.iceberg.table": ""})


def test_files_of_another_table_in_the_folder_are_not_deleted(tmp_path: Path) -> None:
    """A catalog may have given it the same folder: what is in use there, nobody knows here."""
    live = Listed(tmp_path)
    folder = table().location()
    catalog = pyiceberg_catalog.load_catalog("lake")
    other = catalog.create_table("flights.other", table().schema(), location=folder)
    rows = table().scan().to_arrow()
    other.append(rows.slice(0, 1).cast(other.schema().as_arrow()))
    theirs = {path for path in live.warehouse.rglob("*") if path.is_file() and path.suffix == ".parquet"}
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert not report.whole
    assert "it belongs to another table in this folder: if that table was dropped, remove the file" in str(
        report.failures
    )
    assert all(path.exists() for path in theirs)
    assert catalog.load_table("flights.other").scan().to_arrow().num_rows == 1
    assert live.listed() == KEPT
    assert verified_states(live, tmp_path / "c")[-1] == "unknown"


def test_files_below_the_folder_of_the_metadata_are_not_deleted(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    old = next(live.warehouse.rglob("*-m0.avro"))
    (old.parent / "backup").mkdir()
    path = old.parent / "backup" / old.name
    path.write_bytes(old.read_bytes())
    report = live.erase(KEY)
    assert "its content is unknown: remove it by hand" in str(report.failures)
    path.unlink()
    assert live.erase(KEY).whole


def test_duckdb_reads_the_result(tmp_path: Path) -> None:
    live = Listed(tmp_path)
    live.erase(KEY).raise_for_failures()
    query = (
        f"select value from iceberg_scan('{table().metadata_location}') where control is null order by \"offset\""
    )
    rows = duckdb_rows("avro iceberg", query)
    assert [value.decode() for (value,) in rows] == [value for _, value in KEPT.values()]
