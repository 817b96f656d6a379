"""The table that publishes the snapshots of topic ``t``, as writers and readers of Delta see it."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from stratalog.partitions.paths import parse_published_path
from stratalog.tiering.snapshot_table import SnapshotTable
from tests.ports import ports_of
from tests.unit.snapshot_harness import Keyed


def folder(live: Keyed) -> Path:
    """The folder of the table."""
    return live.remote / "_snapshots" / f"t-{live.cluster.image.topic('t').topic_id}"


def table(live: Keyed) -> DeltaTable:
    return DeltaTable(str(folder(live)))


def state(live: Keyed) -> dict[str, str]:
    """Key to value, as any reader of Delta sees them; every key once."""
    rows = table(live).to_pyarrow_table()
    pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    found = [(key.decode(), value.decode()) for key, value in pairs]
    assert len(dict(found)) == len(found)
    return dict(found)


def data_files(live: Keyed) -> set[str]:
    """The data files in the table's folder."""
    names = (str(path.relative_to(folder(live))) for path in folder(live).rglob("*.parquet"))
    return {name for name in names if parse_published_path(name) is not None}


def ours(live: Keyed) -> SnapshotTable:
    """The table, for writers."""
    return ports_of(live.cluster).storage.snapshot_table(live.cluster.image.topic("t"))
