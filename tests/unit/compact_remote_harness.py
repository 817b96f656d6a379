"""A compacted and tiered topic, and its records for readers, for tests of compactions in both tiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from deltalake import DeltaTable

from stratalog import Cluster
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.remote_log import RemoteLog
from tests.ports import ports_of
from tests.unit.cluster_harness import TIERED
from tests.unit.test_upkeep_compact import Compacted, Row, fill

BOTH = {key.replace(".", "_"): value for key, value in TIERED.items()}
"""Every append is a segment that leaves the brokers at once, except for the last one."""


class InBothTiers(Compacted):
    """A cluster with the tiered topic ``t``, and its records for readers."""

    def table(self) -> DeltaTopicTable:
        ports = ports_of(self.driver())
        return ports.storage.remote_table(self.cluster.image.topic("t"))

    def remote_log(self) -> RemoteLog:
        return self.table().load()

    def names(self) -> list[str]:
        """The remote segments: offsets and generation."""
        return [f"{s.base_offset}-{s.next_offset}.{s.generation}" for s in self.remote_log().of_partition(0)]

    def fetched(self, driver: Cluster | None = None) -> dict[int, Row]:
        """The records of a reader of both tiers; a new reader by default."""
        return fetched(driver or self.driver())


class Tiered(InBothTiers):
    """A cluster with the compacted and tiered topic ``t``."""

    def __init__(self, folder: Path, *, on_disk: bool = False, **configs: str) -> None:
        super().__init__(folder, on_disk=on_disk, **{**BOTH, "min_cleanable_dirty_ratio": "0", **configs})

    def objects(self) -> list[Path]:
        return sorted(self.remote.glob("t-*/0/**/*.parquet"))

    def lake(self, version: int | None = None) -> dict[int, Row]:
        """The records of another engine in the remote table."""
        return lake(self.remote / self.table().folder, version)

    def tier_all(self) -> None:
        self.cluster.tier().raise_for_failures()
        self.cluster.retain().raise_for_failures()


ROWS: tuple[Row, ...] = (("a", "1"), ("b", "1"), ("a", "2"), ("c", None), ("b", "2"), ("a", "3"))


def lake(folder: Path, version: int | None = None) -> dict[int, Row]:
    """The records of another engine in a table; each offset must occur once."""
    rows = (
        DeltaTable(str(folder), version=version)
        .to_pyarrow_table(columns=["offset", "key", "value", "control"])
        .sort_by("offset")
        .to_pylist()
    )
    assert [row["offset"] for row in rows] == [*range(rows[0]["offset"], rows[-1]["offset"] + 1)]
    found: dict[int, Row] = {}
    for row in rows:
        if row["control"] is None:
            key, value = (None if one is None else one.decode() for one in (row["key"], row["value"]))
            found[row["offset"]] = key, value
    return found


def fetched(cluster: Cluster) -> dict[int, Row]:
    """The records of a reader of both tiers."""
    found: dict[int, Row] = {}
    offset = cluster.image.topic("t").partitions[0].log_start_offset
    while True:
        part = cluster.fetch("t", 0, offset)
        for row in part.records.to_pylist():
            key, value = (None if one is None else one.decode() for one in (row["key"], row["value"]))
            found[row["offset"]] = key, value
        if part.next_offset == offset:
            return found
        offset = part.next_offset


def check_latest(truth: Iterable[Row], seen: Mapping[int, Row], until: int | None = None) -> None:
    """Check that a reader gets the right last record of each key, and no wrong record."""
    rows = [*truth][:until]
    assert all(rows[offset] == row for offset, row in seen.items())
    last = dict(rows)
    there = {row[0]: row[1] for _, row in sorted(seen.items())}
    for key, value in last.items():
        assert there.get(key) == value, (key, value, seen)


def filled(folder: Path, rows: Iterable[Row] = ROWS, **configs: str) -> Tiered:
    live = Tiered(folder, **configs)
    fill(live, rows)
    live.tier_all()
    return live
