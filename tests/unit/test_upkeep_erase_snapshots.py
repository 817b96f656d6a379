"""One command erases a key from a topic and from the table in which it publishes its snapshots."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.cluster_harness import LiveCluster
from tests.unit.erase_harness import KEY, OTHER, SECRET, Erasable, traces


def everything_with(live: LiveCluster, *words: str) -> list[str]:
    """The files of all roots and of the remote tier that contain one of the words."""
    found = traces(live, *words)
    for name, data in live.in_remote().items():
        decoded = str(pq.read_table(BytesIO(data)).to_pylist()) if data[:4] == b"PAR1" else ""
        found += [name for word in words if word.encode() in data or word in decoded]
    return found


def test_one_command_replaces_the_steps_by_hand(tmp_path: Path) -> None:
    """Without it: a tombstone, two snapshots, retain and vacuum, over more than a day."""
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
    assert everything_with(live, KEY, SECRET)
    assert live.cluster.erase("s", [KEY]).raise_for_failures().whole
    assert everything_with(live, KEY, SECRET) == []
    assert everything_with(live, OTHER)


def test_the_report_says_that_bad_records_are_elsewhere(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    for dry_run in (True, False):
        assert "bad_record_topic), which may hold records of the same keys" in str(
            live.erase(KEY, dry_run=dry_run).notes
        )
