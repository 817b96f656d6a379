"""The segments of the remote tier as an Iceberg table (``remote.iceberg.table``): the same files that Delta
lists."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stratalog.engine.admin.topics import alter_topic, create_topic
from stratalog.engine.driver.report import Report
from stratalog.partitions.declared import declared
from stratalog.partitions.errors import InvalidCallError, InvalidConfigError
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.iceberg_table import IcebergTable
from stratalog.tiering.remote_log import RemoteLog
from tests.pages import blocks
from tests.ports import ports_of
from tests.unit.at_calls import dies_at, during
from tests.unit.cluster_harness import TIERED, LiveCluster, the_failure
from tests.unit.harness import SCHEMA, batch
from tests.unit.test_iceberg_avro import avro, bomb, number, record

pyiceberg_catalog = pytest.importorskip("pyiceberg.catalog", reason="needs stratalog[iceberg]")
pytest.importorskip("sqlalchemy", reason="pyiceberg's catalog in SQLite needs SQLAlchemy")
iceberg_files = pytest.importorskip("stratalog.tiering.iceberg_files", reason="needs stratalog[iceberg]")

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # pyiceberg leaves connections to SQLite open
]

NAME = "lake.flights.trips"


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    """Topic ``t`` with an Iceberg table, and a catalog with the usual configuration of pyiceberg."""
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())  # it was read when pyiceberg was imported
    made = LiveCluster(tmp_path)
    made.tiered(remote_iceberg_table=NAME)
    return made


def table() -> Table:
    """The table as any program opens it."""
    loaded: Table = pyiceberg_catalog.load_catalog("lake").load_table("flights.trips")
    return loaded


def folder(live: LiveCluster) -> str:
    return str(live.remote / f"t-{live.cluster.image.topic('t').topic_id}")


def assert_same(live: LiveCluster) -> pa.Table:
    """Check that both tables list the same files and have the same rows; returns the rows."""
    delta = DeltaTable(folder(live))
    files = {task.file.file_path.removeprefix("file://") for task in table().scan().plan_files()}
    assert files == {path.removeprefix("file://") for path in delta.file_uris()}
    expected = pa.table(delta.to_pyarrow_table()).sort_by("offset")
    found = table().scan().to_arrow().sort_by("offset")
    assert found.column_names == expected.column_names
    for name in found.column_names:
        there, wanted = found[name].to_pylist(), expected[name].to_pylist()
        if name == "headers":  # pyiceberg 0.12 reads a null list as an empty one
            wanted = [one or [] for one in wanted]
        assert there == wanted, name
    return found


def summary() -> dict[str, str]:
    snapshot = table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return dict(snapshot.summary.additional_properties)


def values(rows: pa.Table) -> str:
    return b"".join(rows["value"].to_pylist()).decode()


def snapshots() -> int:
    return len(table().snapshots())


# ------------------------------------------------------------------------------------------ what


def test_one_file_is_a_log_a_delta_table_and_an_iceberg_table(live: LiveCluster) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    assert values(assert_same(live)) == "abc"
    found = summary()
    assert (found["stratalog.topic"], json.loads(found["stratalog.offsets"])) == ("t", {"0": [0, 3]})
    assert found["stratalog.delta_version"] == str(DeltaTable(folder(live)).version())
    copies = [path for path in live.folder.rglob("*.parquet") if live.remote not in path.parents]
    assert copies == []
    assert table().properties["gc.enabled"] == "false"


def test_rows_of_aborted_transactions_have_the_same_column(live: LiveCluster) -> None:
    with live.cluster.transactions.begin("x") as transaction:
        transaction.append_batches("t", {0: [batch("a")]})
        transaction.commit()
    aborted = live.cluster.transactions.begin("x")
    aborted.append_batches("t", {0: [batch("b")]})
    aborted.abort()
    live.cluster.merge("t").raise_for_failures()
    live.cluster.tier("t").raise_for_failures()
    assert_same(live)
    assert values(table().scan("control IS NULL").to_arrow()) == "a"


def test_segments_that_expire_leave_both(live: LiveCluster) -> None:
    now_ms = live.clock.now_ms()
    live.fill("ab", at_ms=now_ms - 10_000_000)
    live.fill("cd", at_ms=now_ms)
    live.cluster.tier("t").raise_for_failures()
    live.cluster.topics.alter_configs("t", {"retention.ms": "5000000", "local.retention.bytes": "-2"})
    live.cluster.retain("t").raise_for_failures()
    assert values(assert_same(live)) == "cd"
    assert json.loads(summary()["stratalog.offsets"]) == {"0": [2, 4]}


def test_typed_columns_grow_with_the_topic(live: LiveCluster) -> None:
    def struct(*names: str) -> str:
        fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]
        return json.dumps({"type": "struct", "fields": fields})

    def put(value: dict[str, str]) -> None:
        plain = batch([""])
        columns = {name: plain.column(name) for name in ("timestamp", "key", "headers")}
        rows = pa.RecordBatch.from_pydict({**columns, "value": pa.array([value])})
        live.cluster.append_batches("u", {0: [rows]}).raise_for_failures()
        live.cluster.tier("u").raise_for_failures()

    ports = ports_of(live.cluster)
    configs = {**TIERED, "remote.iceberg.table": "lake.flights.u"}
    create_topic(*ports.for_tasks, "u", partitions=1, value_schema=struct("city"), configs=configs)
    put({"city": "Oslo"})
    alter_topic(ports.metadata, ports.execution, "u", value_schema=struct("city", "land"))
    put({"city": "Bergen", "land": "no"})
    found = pyiceberg_catalog.load_catalog("lake").load_table("flights.u").scan(selected_fields=("value",))
    expected = [{"city": "Bergen", "land": "no"}, {"city": "Oslo", "land": None}]
    assert sorted(found.to_arrow()["value"].to_pylist(), key=str) == expected


def test_types_become_wider_with_the_topic_and_dates_do_not(live: LiveCluster) -> None:
    """Iceberg widens the same types as a topic, except a date, and a decimal with its scale."""
    ports = ports_of(live.cluster)
    configs = {**TIERED, "remote.iceberg.table": "lake.flights.u"}
    narrow, wide = "n INT, f FLOAT, d DATE, p DECIMAL(9, 2)", "n BIGINT, f DOUBLE, d DATE, p DECIMAL(9, 2)"
    create_topic(*ports.for_tasks, "u", partitions=1, value_schema=declared(narrow), configs=configs)
    live.cluster.produce("u", [{"n": 1, "f": 1.5, "d": None, "p": None}])
    live.cluster.tier("u").raise_for_failures()
    alter_topic(ports.metadata, ports.execution, "u", value_schema=declared(wide))
    live.cluster.produce("u", [{"n": 2**40, "f": 0.1, "d": None, "p": None}])
    live.cluster.tier("u").raise_for_failures()
    found = pyiceberg_catalog.load_catalog("lake").load_table("flights.u")
    rows = found.scan(selected_fields=("value",)).to_arrow()["value"].to_pylist()
    assert sorted(row["n"] for row in rows) == [1, 2**40]
    assert sorted(row["f"] for row in rows) == [0.1, 1.5]
    for before, after in (("DATE", "TIMESTAMP_NTZ"), ("DECIMAL(9, 2)", "DECIMAL(20, 4)")):
        with pytest.raises(
            InvalidCallError, match=r"Iceberg \(remote.iceberg.table\) does not widen value\.[dp] from"
        ):
            alter_topic(ports.metadata, ports.execution, "u", value_schema=declared(wide.replace(before, after)))


def test_the_code_of_the_documentation_runs(live: LiveCluster) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    names: dict[str, Any] = {}
    for block in blocks("docs/iceberg.md", "python"):
        exec(block, names)
    assert names["rows"].num_rows == 3


def test_polars_reads_it(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl

    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    rows = pl.scan_iceberg(table()).filter(pl.col("offset") > 0).select("value").sort("value").collect()
    assert rows.to_series().to_list() == [b"b", b"c"]


def test_a_rebuilt_segment_replaces_the_lost_one_in_both(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "-2"})
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    lost = sorted(Path(folder(live)).glob("0/*.parquet"))[1]
    lost.write_bytes(b"PAR1")
    live.cluster.heal("t").raise_for_failures()
    assert values(assert_same(live)) == "abc"
    assert str(lost) not in DeltaTable(folder(live)).file_uris()


# --------------------------------------------------------------------------- killed, and at once


def test_a_run_that_has_nothing_to_do_makes_no_snapshot(live: LiveCluster) -> None:
    live.fill("ab")
    live.cluster.tier("t").raise_for_failures()
    for run in (live.cluster.tier, live.cluster.retain, live.cluster.vacuum):
        run("t").raise_for_failures()
    assert snapshots() == 1


@pytest.mark.parametrize("later", ["tier", "vacuum"])
def test_a_run_completes_the_work_of_an_earlier_run_that_died(live: LiveCluster, later: str) -> None:
    live.fill("ab")
    with dies_at(IcebergTable, "follow"):
        live.cluster.tier("t")
    assert len(DeltaTable(folder(live)).file_uris()) == 2
    report = getattr(live.cluster, later)("t").raise_for_failures()
    assert values(assert_same(live)) == "ab"
    assert ("t: its Iceberg table was outdated, and was updated" in report.notes) is (later == "vacuum")


def test_a_job_that_is_late_does_not_take_the_table_back(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has read both tables; another job tiers more, and updates the Iceberg table; then the first job
    commits.
    """
    live.fill("ab")
    during(monkeypatch, IcebergTable, "_commit", lambda: (live.fill("c"), live.driver().tier("t")))
    live.cluster.tier("t").raise_for_failures()
    assert values(assert_same(live)) == "abc"


def test_the_delta_table_is_read_after_the_iceberg_table(live: LiveCluster) -> None:
    """A job's commit is at least as new as the snapshot on which it is based."""
    live.fill("a")
    live.cluster.tier("t").raise_for_failures()
    ports, topic = ports_of(live.cluster), live.cluster.image.topic("t")
    remote, late = ports.storage.remote_table(topic), []

    class Late(DeltaTopicTable):
        def load(self) -> RemoteLog:
            if not late:
                live.fill("b")
                live.driver().tier("t").raise_for_failures()
            late.append(super().load())
            return late[-1]

    remote.__class__ = Late
    assert not ports.storage.iceberg_table(topic, NAME).follow(remote, SCHEMA)
    assert [log.end(0) for log in late] == [2, 2]
    assert values(assert_same(live)) == "ab"


# ------------------------------------------------------------------------------ of others, and away


def test_files_that_others_have_written_leave_the_table_with_the_next_run(live: LiveCluster) -> None:
    live.fill("ab")
    live.cluster.tier("t").raise_for_failures()
    table().append(table().scan().to_arrow())
    live.cluster.tier("t").raise_for_failures()
    assert values(assert_same(live)) == "ab"


def test_a_delta_table_that_others_have_optimized_changes_nothing_here(live: LiveCluster) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    before = sorted(task.file.file_path for task in table().scan().plan_files())
    DeltaTable(folder(live)).optimize.compact()
    live.cluster.vacuum("t").raise_for_failures()
    assert sorted(task.file.file_path for task in table().scan().plan_files()) == before
    assert values(table().scan().to_arrow().sort_by("offset")) == "abc"


def test_a_table_of_another_topic_is_left_alone(live: LiveCluster) -> None:
    live.fill("ab")
    live.cluster.tier("t").raise_for_failures()
    live.tiered("u", remote_iceberg_table=NAME)
    live.fill("c", "u")
    report = live.cluster.tier("u", check=False)
    assert "the Iceberg table lake.flights.trips is the table of topic id" in the_failure(report)
    assert rows_of_uploads(report) == 1
    assert values(assert_same(live)) == "ab"
    live.cluster.topics.delete("u").raise_for_failures()
    assert values(assert_same(live)) == "ab"


def rows_of_uploads(report: Report) -> object:
    return report.totals["uploaded_files"]


def test_a_segment_that_is_not_what_the_log_says_is_not_listed(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment's footer is read within bounds, and compared, before pyiceberg sees it."""
    live.fill("a")
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "follow", lambda *_: False)
        live.cluster.tier("t").raise_for_failures()
    (path,) = Path(folder(live)).glob("0/*.parquet")
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    assert the_failure(live.driver().tier("t", check=False)).startswith(
        f"t as the Iceberg table {NAME}: CORRUPT_SEGMENT"
    )


def test_a_catalog_that_is_away_fails_the_table_and_nothing_else(live: LiveCluster, tmp_path: Path) -> None:
    live.fill("a")
    live.cluster.tier("t").raise_for_failures()
    catalog = tmp_path / "catalog.db"
    catalog.rename(tmp_path / "away.db")
    catalog.mkdir()
    live.fill("b")
    report = live.cluster.tier("t", check=False)
    assert the_failure(report).startswith(
        "t as the Iceberg table lake.flights.trips: KAFKA_STORAGE_ERROR: cannot bring up"
    )
    assert rows_of_uploads(report) == 1
    catalog.rmdir()
    (tmp_path / "away.db").rename(catalog)
    live.cluster.tier("t").raise_for_failures()
    assert values(assert_same(live)) == "ab"


@pytest.mark.parametrize("name", ["trips", "lake.trips", "lake..trips", "a.b.c d", "lake.flights.trips."])
def test_a_name_has_a_catalog_a_namespace_and_a_table(live: LiveCluster, name: str) -> None:
    with live.unchanged(), pytest.raises(InvalidConfigError, match="it takes the name of a pyiceberg catalog"):
        live.cluster.topics.alter_configs("t", {"remote.iceberg.table": name})


def test_without_pyiceberg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(InvalidCallError, match=r"install stratalog\[iceberg\]"):
        IcebergTable(NAME, topic="t", topic_id="f" * 32)


# -------------------------------------------------------------------------------------- it goes


def test_the_catalog_forgets_the_table_of_a_deleted_topic(live: LiveCluster) -> None:
    live.fill("a")
    live.cluster.tier("t").raise_for_failures()
    live.cluster.topics.delete("t").raise_for_failures()
    assert pyiceberg_catalog.load_catalog("lake").list_tables("flights") == []


def test_old_snapshots_are_forgotten_with_their_files_and_no_segment(live: LiveCluster, tmp_path: Path) -> None:
    def manifests() -> int:
        return len(list((tmp_path / "warehouse").rglob("*.avro")))

    for value in "abc":
        live.fill(value)
        live.cluster.tier("t").raise_for_failures()
    assert (snapshots(), manifests()) == (3, 6)
    live.cluster.vacuum("t").raise_for_failures()
    assert snapshots() == 3
    live.cluster.vacuum("t", older_than_ms=-1_000_000).raise_for_failures()
    assert (snapshots(), manifests()) == (1, 4)
    assert values(assert_same(live)) == "abc"


# ------------------------------------------------------------------------ names that a stranger has written


def rewrite(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the table's current metadata like a writer of its folder."""
    file = Path(table().metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))


def names_list(path: str) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata["snapshots"][-1].update({"manifest-list": path})


def names_older_metadata(path: str) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata["metadata-log"].append({"metadata-file": path, "timestamp-ms": 1})


def is_elsewhere(path: str) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata.update({"location": path})


def writes_elsewhere(path: str) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata["properties"].update({"write.metadata.path": path})


@pytest.mark.sample(6)
@pytest.mark.parametrize("spelled", ["file://{}", "{}", "file://{}/../outside.avro", "s3://bucket{}"])
@pytest.mark.parametrize("hostile", [names_list, names_older_metadata, is_elsewhere, writes_elsewhere])
def test_a_name_outside_of_its_folder_is_neither_read_nor_deleted(
    live: LiveCluster, tmp_path: Path, hostile: Callable[[str], Callable[[dict[str, Any]], None]], spelled: str
) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    outside = tmp_path / "outside.avro"
    outside.write_bytes(b"somebody else's")
    rewrite(hostile(spelled.format(outside)))
    live.fill("d")
    error = the_failure(live.cluster.tier("t", check=False))
    assert "which is not in file://" in error
    assert {str(each) for each in live.cluster.vacuum("t", check=False).failures} == {error}
    assert outside.read_bytes() == b"somebody else's"
    assert values(pa.table(DeltaTable(folder(live)).to_pyarrow_table()).sort_by("offset")) == "abcd"


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_an_object_that_is_no_regular_file_is_not_opened(live: LiveCluster, tmp_path: Path, kind: str) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    snapshot = table().current_snapshot()
    assert snapshot is not None
    manifests = Path(snapshot.manifest_list.removeprefix("file://"))
    moved = manifests.rename(tmp_path / "moved.avro")
    os.mkfifo(manifests) if kind == "fifo" else manifests.symlink_to(moved)
    live.fill("d")
    assert "which is not a regular file" in the_failure(live.cluster.tier("t", check=False))


def manifests_of(what: str) -> list[Path]:
    """The list of the current snapshot, or its manifests."""
    loaded = table()
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    named = (
        [snapshot.manifest_list]
        if what == "list"
        else [one.manifest_path for one in snapshot.manifests(loaded.io)]
    )
    return [Path(each.removeprefix("file://")) for each in named]


@pytest.mark.sample(3)
@pytest.mark.parametrize("what", ["list", "manifest"])
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (partial(bomb, "deflate", 300 << 20), "it unpacks to more than 268435456"),
        (avro(record("string"), (1, number(1 << 31) + b"abc")), "one of its lengths is wrong"),
        (b"PAR1", "it is not an Avro file"),
    ],
    ids=["bomb", "length", "other"],
)
def test_a_list_or_manifest_that_states_too_much_is_refused_before_pyiceberg_reads_it(
    live: LiveCluster, what: str, bad: bytes | Callable[[], bytes], why: str
) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    content = bad if isinstance(bad, bytes) else bad()
    for path in manifests_of(what):
        path.write_bytes(content)
    live.fill("d")
    error = the_failure(live.cluster.tier("t", check=False))
    assert why in error
    assert "Nothing was read or deleted" not in error
    live.cluster.vacuum("t", older_than_ms=-1_000_000, check=False)
    assert values(pa.table(DeltaTable(folder(live)).to_pyarrow_table()).sort_by("offset")) == "abcd"


def test_all_that_a_table_names_is_bounded_too(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    live.fill("abc")
    live.cluster.tier("t").raise_for_failures()
    monkeypatch.setattr(iceberg_files, "MOST_UNPACKED_IN_ALL_BYTES", 300)
    live.fill("d")
    assert "it unpacks to more than" in the_failure(live.cluster.tier("t", check=False))
