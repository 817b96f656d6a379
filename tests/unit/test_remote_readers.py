"""Other programs read the remote table of each kind of topic, as Delta and as Iceberg: every record, once, with
the appended values. ``tests/spark/test_remote_readers.py`` has delta-spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.unit.duckdb_tables import duckdb_rows
from tests.unit.remote_kinds import CATALOG, KINDS, TABLE, Remote, Row, plain, remote_of

catalogs = pytest.importorskip("pyiceberg.catalog", reason="needs stratalog[iceberg]")
pytest.importorskip("sqlalchemy", reason="pyiceberg's catalog in SQLite needs SQLAlchemy")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # pyiceberg does not close its connections to SQLite
]

COMMITTED = 'SELECT "offset", value FROM {} WHERE control IS NULL'

Reader = Callable[[Path], Sequence[Row]]
"""Takes the folder of the Delta table, and returns offset and value of each committed record."""


@pytest.fixture(scope="module", params=KINDS)
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """The tiered topic of a kind, and a catalog of Iceberg that has its table."""
    from pyiceberg.utils.config import Config

    folder = tmp_path_factory.mktemp("remote")
    with pytest.MonkeyPatch.context() as patch:
        settings = {
            "TYPE": "sql",
            "URI": f"sqlite:///{folder}/catalog.db",
            "WAREHOUSE": f"file://{folder}/warehouse",
        }
        for name, value in settings.items():
            patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name}", value)
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        patch.setattr(catalogs, "_ENV_CONFIG", Config())  # pyiceberg read its configuration when it was imported
        iceberg = {"remote.iceberg.table": f"{CATALOG}.{TABLE}"}
        yield remote_of(KINDS[request.param], folder, **iceberg)


def iceberg() -> Any:
    return catalogs.load_catalog(CATALOG).load_table(TABLE)


def rows_of(table: Any) -> list[Row]:
    return [(row["offset"], row["value"]) for row in table.to_pylist()]


def by_deltalake(table: Path) -> list[Row]:
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "value", "control"])
    return rows_of(rows.filter(pc.field("control").is_null()))


def by_polars(table: Path) -> list[Row]:
    lazy = polars.scan_delta(str(table)).filter(polars.col("control").is_null())
    return lazy.select("offset", "value").collect().rows()


def by_pyiceberg(table: Path) -> list[Row]:
    return rows_of(iceberg().scan("control IS NULL", selected_fields=("offset", "value")).to_arrow())


def by_polars_iceberg(table: Path) -> list[Row]:
    lazy = polars.scan_iceberg(iceberg()).filter(polars.col("control").is_null())
    return lazy.select("offset", "value").collect().rows()


def by_duckdb(table: Path) -> list[Row]:
    return duckdb_rows("delta", COMMITTED.format(f"delta_scan('{table}')"))


def by_duckdb_iceberg(table: Path) -> list[Row]:
    return duckdb_rows("avro iceberg", COMMITTED.format(f"iceberg_scan('{iceberg().metadata_location}')"))


READERS: dict[str, Reader] = {
    "deltalake": by_deltalake,
    "polars": by_polars,
    "DuckDB": by_duckdb,
    "pyiceberg": by_pyiceberg,
    "polars of Iceberg": by_polars_iceberg,
    "DuckDB of Iceberg": by_duckdb_iceberg,
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_finds_every_record_with_its_value(reader: str, remote: Remote) -> None:
    rows = READERS[reader](remote.table)
    found = {offset: plain(value) for offset, value in rows}
    wanted = {offset: plain(value) for offset, value in remote.rows}
    if reader == "pyiceberg":  # 0.12 reads a null list as an empty one
        for value in wanted.values():
            if isinstance(value, dict) and "lines" in value:
                value["lines"] = value["lines"] or []
    assert len(rows) == len(found)
    assert found == wanted
