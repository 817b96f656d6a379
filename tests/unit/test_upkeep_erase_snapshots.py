"""An erasure is refused for a topic with a table of its snapshots, and the remedy in the error erases the key."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.errors import PolicyViolationError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, Erasable, traces


def everything_with(live: LiveCluster, *words: str) -> list[str]:
    """The files of all roots and of the remote tier that contain one of the words."""
    found = traces(live, *words)
    for name, data in live.in_remote().items():
        decoded = str(pq.read_table(BytesIO(data)).to_pylist()) if data[:4] == b"PAR1" else ""
        found += [name for word in words if word.encode() in data or word in decoded]
    return found


def test_what_a_refused_erasure_says_of_snapshots_erases_the_key(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    configs = {"cleanup.policy": "snapshot", "file.delete.delay.ms": "0", "segment.bytes": "1"}
    configs["remote.snapshot.table.enable"] = "true"
    live.cluster.topics.create("s", partitions=1, key="STRING", value="v STRING", configs=configs)

    def put(key: str, value: str | None) -> None:
        values = pa.array([None if value is None else {"v": value}], pa.struct({"v": pa.string()}))
        live.cluster.produce("s", pa.table({"key": pa.array([key], pa.string()), "value": values}))

    def snapshot() -> None:
        live.cluster.snapshot("s", by_hand=True).raise_for_failures()

    for number in range(3):
        put(KEY, f"{SECRET}-{number}")
        put(OTHER, f"{number}")
        snapshot()
    with pytest.raises(
        PolicyViolationError, match="Append a tombstone for each key, and run `stratalog snapshot`"
    ):
        live.cluster.erase("s", [KEY])
    put(KEY, None)
    snapshot()
    live.clock.sleep(DAY_MS / 1000 + 1)
    live.cluster.retain().raise_for_failures()
    put(OTHER, "last")
    snapshot()
    live.cluster.retain().raise_for_failures()
    live.cluster.vacuum().raise_for_failures()
    assert everything_with(live, KEY, SECRET) == []
    assert everything_with(live, "last")


def test_the_report_says_that_bad_records_are_elsewhere(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    for dry_run in (True, False):
        assert "bad_record_topic), which may hold records of the same keys" in str(
            live.erase(KEY, dry_run=dry_run).notes
        )
