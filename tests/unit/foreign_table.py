"""The Delta table of a partition as other readers see it, and as the log does."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tests.unit.tiering_harness import TieredPartition


def delta(part: TieredPartition) -> DeltaTable:
    return DeltaTable(part.table.uri)


def compacted(part: TieredPartition) -> None:
    delta(part).optimize.compact()


def deleted(part: TieredPartition) -> None:
    delta(part).delete("offset = 4")


def listed(part: TieredPartition, version: int | None = None) -> set[str]:
    """The files that any reader of Delta sees, at the newest version or a given one."""
    return set(pa.table(DeltaTable(part.table.uri, version).get_add_actions())["path"].to_pylist())


def offsets(part: TieredPartition, version: int | None = None) -> list[int]:
    """The offsets that any reader of Delta sees."""
    table = DeltaTable(part.table.uri, version).to_pyarrow_table(columns=["offset"])
    return sorted(table["offset"].to_pylist())


def spans(part: TieredPartition) -> list[tuple[int, int]]:
    return [(s.base_offset, s.next_offset) for s in part.table.load().of_partition(0)]


def ours(part: TieredPartition) -> set[str]:
    return {segment.path for segment in part.table.load().all_segments()}


def make_catalog_managed(uri: str, feature: str = "catalogManaged") -> None:
    """Upgrade a table like a catalog that manages its commits from then on."""
    version = DeltaTable(uri).version() + 1
    made = {"timestamp": 1_700_000_000_000, "inCommitTimestamp": 1_700_000_000_000}
    features = {"readerFeatures": [feature], "writerFeatures": [feature, "inCommitTimestamp"]}
    actions = {"commitInfo": made}, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    entry = "".join(f"{json.dumps(action)}\n" for action in actions)
    (Path(uri) / "_delta_log" / f"{version:020d}.json").write_text(entry)
