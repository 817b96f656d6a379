"""DuckDB with its extensions for Delta and Iceberg, from the folder where ``make servers`` puts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

DUCKDB = Path(__file__).resolve().parents[2] / ".cache" / "servers" / "duckdb"


def duckdb_rows(extensions: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, with these extensions loaded. Skips the test without DuckDB."""
    if not DUCKDB.exists():
        pytest.skip("no DuckDB: make servers installs it")
    if str(DUCKDB) not in sys.path:
        sys.path.append(str(DUCKDB))
    import duckdb

    with duckdb.connect() as connection:
        for extension in extensions.split():
            (file,) = DUCKDB.glob(f"duckdb_extension_{extension}/extensions/*/{extension}.duckdb_extension")
            connection.load_extension(str(file))
        return connection.sql(query).fetchall()
